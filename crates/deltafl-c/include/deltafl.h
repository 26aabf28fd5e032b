/* Δ-FL: take part in a federation from C.
 *
 * Made by cbindgen from crates/deltafl-c/src/lib.rs; a test compares it with the source. docs/src/how-to/embed.md shows a program. */

#ifndef DELTAFL_H
#define DELTAFL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 A device that takes part.
 */
typedef struct deltafl_device deltafl_device;

/*
 Random numbers of one local update: draw from them and from nothing else.
 */
typedef struct deltafl_random deltafl_random;

/*
 Where a device takes part, and as whom. All text is UTF-8.
 */
typedef struct deltafl_options {
  /*
   Host and port of the server.
   */
  const char *server;
  /*
   The folder that `deltafl enrol` wrote; NULL talks to this machine without certificates, for demonstrations.
   */
  const char *identity;
  /*
   The name of the device, where `identity` is NULL.
   */
  const char *name;
  /*
   The folder in which the device remembers what it was shown and what it answered; NULL forgets at the end.
   */
  const char *state;
  /*
   The fewest devices to hide among; 0 takes the usual 30.
   */
  uint32_t min_cohort;
  /*
   Rounds that must lie between two rounds that the device answers.
   */
  uint64_t rounds_between;
  /*
   Whether random numbers follow from the seed of the server, for the bits of a simulation. The server then knows them all.
   */
  bool reproducible;
} deltafl_options;

/*
 How a device trains in a round.
 */
typedef struct deltafl_plan {
  /*
   Passes over the examples; 0 where `steps` counts.
   */
  uint32_t epochs;
  /*
   Steps, each on a batch drawn with replacement; 0 where `epochs` counts.
   */
  uint32_t steps;
  /*
   Examples per step.
   */
  uint64_t batch;
  /*
   The learning rate of the round.
   */
  float learning_rate;
  /*
   λ of the term (λ/2)‖w‖².
   */
  float l2;
  /*
   μ of the term (μ/2)‖w − w_t‖².
   */
  float proximal;
} deltafl_plan;

/*
 What the caller trains. Calls never overlap; they may come from different threads. A callback that returns something else
 than 0 takes the device out of the round.
 */
typedef struct deltafl_trainer {
  /*
   Handed to every callback.
   */
  void *context;
  /*
   Number of parameters.
   */
  size_t params;
  /*
   Number of examples of this device.
   */
  size_t examples;
  /*
   Writes the sum of the losses of examples `first` to `first + count` at `params` to `loss`.
   */
  int32_t (*loss)(void *context, const float *params, size_t first, size_t count, double *loss);
  /*
   Trains `params` in place, as `plan` says.
   */
  int32_t (*update)(void *context,
                    float *params,
                    const struct deltafl_plan *plan,
                    struct deltafl_random *random);
} deltafl_trainer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Takes part in a federation, on threads of its own, until `deltafl_stop`. Returns NULL if that cannot begin, and writes the
 reason to `error`, cut to `error_len` bytes with the zero behind it; `error` may be NULL.

 # Safety
 `options` and `trainer` point to filled structures whose texts end with a zero. `trainer->context` and the callbacks are
 valid until `deltafl_stop` returns. `error` points to `error_len` bytes or is NULL.
 */
struct deltafl_device *deltafl_join(const struct deltafl_options *options,
                                    const struct deltafl_trainer *trainer,
                                    char *error,
                                    size_t error_len);

/*
 Waits up to so many milliseconds. Returns 0 if the device still takes part, and 1 if it has ended; then `error` says why.

 # Safety
 `device` comes from `deltafl_join` and was not stopped. `error` points to `error_len` bytes or is NULL.
 */
int32_t deltafl_wait(const struct deltafl_device *device,
                     uint64_t milliseconds,
                     char *error,
                     size_t error_len);

/*
 Leaves the federation and frees the device. A callback that runs is waited for; none is called after.

 # Safety
 `device` comes from `deltafl_join` and was not stopped, or is NULL.
 */
void deltafl_stop(struct deltafl_device *device);

/*
 A random number below `bound`; 0 where `bound` is 0.

 # Safety
 `random` is the one that the present call of `update` was given.
 */
uint64_t deltafl_random_below(struct deltafl_random *random, uint64_t bound);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DELTAFL_H */
