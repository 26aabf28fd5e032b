// Binary logistic regression: a warp per device, w in registers.
//
// Macros: INPUTS, BATCH (concurrent examples), BYTES.

#include "common.cuh"

constexpr int ROWS = (INPUTS + 31) / 32;
#if BYTES
typedef u8 Feature;
#else
typedef float Feature;
#endif

struct Memory {
  float residuals[BATCH];
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);

struct Normal {
  const float *scale, *shift;
  __device__ float operator()(const Feature* row, int j) const { return j < INPUTS ? fmaf((float)row[j], scale[j], shift[j]) : 0.f; }
};

__device__ __forceinline__ float logit(const float (&w)[ROWS], const Feature* row, Normal normal, int lane) {
  float z = 0.f;
#pragma unroll
  for (int i = 0; i < ROWS; i++) z = fmaf(w[i], normal(row, lane + 32 * i), z);
  return warp_sum(z);
}

extern "C" __global__ void __launch_bounds__(32)
update(const Task* tasks, const float* params, const u32* order, const Feature* inputs, const u16* labels, const float* scale, const float* shift, float* local) {
  __shared__ Memory m;
  const Task task = tasks[blockIdx.x];
  const Batches batches(task);
  const float *start = params + (size_t)task.params * INPUTS, *anchor = params + (size_t)task.anchor * INPUTS;
  const Normal normal{scale, shift};
  const int lane = threadIdx.x;
  order += task.order;
  float w[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) w[i] = lane + 32 * i < INPUTS ? start[lane + 32 * i] : 0.f;
  for (u32 s = 0; s < batches.count; s++) {
    const u32 first = batches.first(s), size = batches.size(s);
    const float rate = -task.rate / size;
#pragma unroll 2
    for (u32 b = 0; b < size; b++) {
      const u32 at = order[first + b];
      const float z = logit(w, inputs + (size_t)at * INPUTS, normal, lane);
      if (lane == 0) m.residuals[b] = rate * (sigmoid(z) - (float)labels[at]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      w[i] *= task.keep;
      if (task.pull != 0.f && lane + 32 * i < INPUTS) w[i] = fmaf(task.pull, anchor[lane + 32 * i], w[i]);
    }
#pragma unroll 2
    for (u32 b = 0; b < size; b++) {
      const Feature* row = inputs + (size_t)order[first + b] * INPUTS;
#pragma unroll
      for (int i = 0; i < ROWS; i++) w[i] = fmaf(m.residuals[b], normal(row, lane + 32 * i), w[i]);
    }
    __syncwarp();
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++)
    if (lane + 32 * i < INPUTS) local[(size_t)task.slot * INPUTS + lane + 32 * i] = w[i];
}

extern "C" __global__ void __launch_bounds__(32)
score(const Item* items, const float* params, const Feature* inputs, const u16* labels, const float* scale, const float* shift, double* losses, u32* errors) {
  const Item item = items[blockIdx.x];
  const Normal normal{scale, shift};
  const int lane = threadIdx.x;
  float w[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) w[i] = lane + 32 * i < INPUTS ? params[(size_t)blockIdx.y * INPUTS + lane + 32 * i] : 0.f;
  double total = 0;
  u32 wrong = 0;
#pragma unroll 2
  for (u32 b = 0; b < item.count; b++) {
    const u64 at = item.first + b;
    const double z = logit(w, inputs + at * INPUTS, normal, lane), y = labels[at];
    total += fmax(z, 0.) + log1p(exp(-fabs(z))) - y * z;
    wrong += (z > 0.) != (y == 1.);
  }
  if (lane == 0) {
    losses[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = total;
    errors[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
  }
}
