/* A device in C: fits a line y = a*x + b to its points. Arguments: server, name, shift. */
#include <stdio.h>
#include <stdlib.h>

#include "deltafl.h"

struct points {
    size_t count;
    float x[20], y[20];
};

static int32_t loss(void *context, const float *params, size_t first, size_t count, double *sum) {
    const struct points *points = context;
    *sum = 0.0;
    for (size_t i = first; i < first + count; i++) {
        float r = params[0] * points->x[i] + params[1] - points->y[i];
        *sum += (double)(0.5f * (r * r));
    }
    return 0;
}

static int32_t update(void *context, float *params, const struct deltafl_plan *plan,
                      struct deltafl_random *random) {
    const struct points *points = context;
    uint64_t visits = plan->epochs ? plan->epochs * points->count : plan->steps * plan->batch;
    for (uint64_t visit = 0; visit < visits; visit++) {
        size_t i = (size_t)deltafl_random_below(random, points->count);
        float r = params[0] * points->x[i] + params[1] - points->y[i];
        params[0] -= plan->learning_rate * r * points->x[i];
        params[1] -= plan->learning_rate * r;
    }
    return 0;
}

int main(int argc, char **argv) {
    char error[256];
    struct points points = {20, {0}, {0}};
    if (argc != 4) return 2;
    for (size_t i = 0; i < points.count; i++) {
        points.x[i] = (float)i / 20.0f;
        points.y[i] = 2.0f * points.x[i] + strtof(argv[3], NULL);
    }
    struct deltafl_trainer trainer = {&points, 2, points.count, loss, update};
    struct deltafl_options options = {
        .server = argv[1], .name = argv[2], .min_cohort = 3, .reproducible = true};
    struct deltafl_device *device = deltafl_join(&options, &trainer, error, sizeof error);
    if (!device) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    puts("joined");
    fflush(stdout);
    getchar(); /* until standard input is closed */
    deltafl_stop(device);
    puts("stopped");
    return 0;
}
