// A perceptron with one hidden layer: h = max(0, V x + a), z = U h + b, cross-entropy. A block per device.
//
// The parameters stay in global memory, which is also the destination of w_k. A device's copy stays
// in L2. A warp processes one row of a matrix at a time, so that every access is coalesced for any
// sizes.
//
// Macros: INPUTS, HIDDEN, CLASSES, BATCH (concurrent examples), BYTES.

#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int AT_BIAS_1 = HIDDEN * INPUTS, AT_SECOND = AT_BIAS_1 + HIDDEN, AT_BIAS_2 = AT_SECOND + CLASSES * HIDDEN, PARAMS = AT_BIAS_2 + CLASSES;
#if BYTES
typedef u8 Feature;
#else
typedef float Feature;
#endif

struct Memory {
  float x[BATCH][INPUTS], h[BATCH][HIDDEN], slopes[BATCH][HIDDEN], z[BATCH][CLASSES];
  double losses[BATCH];
  u32 errors[BATCH];
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);

struct Block {
  Memory& m;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;

  template <class At>
  __device__ void gather(const Feature* inputs, const float* scale, const float* shift, int size, At at) {
    for (int i = tid; i < BATCH * INPUTS; i += THREADS) {
      const int b = i / INPUTS, j = i % INPUTS;
      m.x[b][j] = b < size ? fmaf((float)inputs[(size_t)at(b) * INPUTS + j], scale[j], shift[j]) : 0.f;
    }
    __syncthreads();
  }

  /// Computes out[b][row] = bias + matrix · in[b]. Clamps negative values to zero if `cut`.
  template <int N>
  __device__ void layer(const float* matrix, const float* bias, int rows, const float (*in)[N], float* out, bool cut) {
    for (int row = warp; row < rows; row += WARPS) {
      float sum[BATCH];
#pragma unroll
      for (int b = 0; b < BATCH; b++) sum[b] = 0.f;
      for (int i = lane; i < N; i += 32) {
        const float w = matrix[row * N + i];
#pragma unroll
        for (int b = 0; b < BATCH; b++) sum[b] = fmaf(w, in[b][i], sum[b]);
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const float z = warp_sum(sum[b]) + bias[row];
        if (lane == 0) out[b * rows + row] = cut && z < 0.f ? 0.f : z;
      }
    }
    __syncthreads();
  }

  __device__ void forward(const float* w) {
    layer<INPUTS>(w, w + AT_BIAS_1, HIDDEN, m.x, &m.h[0][0], true);
    layer<HIDDEN>(w + AT_SECOND, w + AT_BIAS_2, CLASSES, m.h, &m.z[0][0], false);
  }

  __device__ Row<CLASSES> row(int b) const {
    Row<CLASSES> row;
#pragma unroll
    for (int k = 0; k < Row<CLASSES>::PARTS; k++) row.z[k] = lane + 32 * k < CLASSES ? m.z[b][lane + 32 * k] : 0.f;
    return row;
  }

  /// Computes matrix ← keep·matrix + pull·anchor − γ Σ_b out[b] ⊗ in[b], and the same for the bias.
  template <int N>
  __device__ void descend(const Task& task, float* matrix, float* bias, const float* anchor, const float* anchor_bias, int rows, const float* out, const float (*in)[N]) {
    for (int row = warp; row < rows; row += WARPS) {
      float slope[BATCH], total = 0.f;
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        slope[b] = -task.rate * out[b * rows + row];
        total += slope[b];
      }
      for (int i = lane; i < N; i += 32) {
        float w = task.keep * matrix[row * N + i];
        if (task.pull != 0.f) w = fmaf(task.pull, anchor[row * N + i], w);
#pragma unroll
        for (int b = 0; b < BATCH; b++) w = fmaf(slope[b], in[b][i], w);
        matrix[row * N + i] = w;
      }
      if (lane == 0) bias[row] = fmaf(task.keep, bias[row], fmaf(task.pull, anchor_bias[row], total));
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
update(const Task* tasks, const float* params, const u32* order, const Feature* inputs, const u16* labels, const float* scale, const float* shift, float* local) {
  extern __shared__ __align__(16) u8 shared[];
  Block block{*(Memory*)shared};
  Memory& m = block.m;
  const Task task = tasks[blockIdx.x];
  const Batches batches(task);
  const float *start = params + (size_t)task.params * PARAMS, *anchor = params + (size_t)task.anchor * PARAMS;
  float* w = local + (size_t)task.slot * PARAMS;
  order += task.order;
  for (int i = block.tid; i < PARAMS; i += THREADS) w[i] = start[i];
  for (u32 s = 0; s < batches.count; s++) {
    const u32 first = batches.first(s);
    const int size = batches.size(s);
    block.gather(inputs, scale, shift, size, [&](int b) { return order[first + b]; });
    block.forward(w);
    for (int b = block.warp; b < BATCH; b += WARPS) {
      Row<CLASSES> row = block.row(b);
      if (b < size) row.to_residuals(block.lane, labels[order[first + b]], 1.f / size);
#pragma unroll
      for (int k = 0; k < Row<CLASSES>::PARTS; k++)
        if (block.lane + 32 * k < CLASSES) m.z[b][block.lane + 32 * k] = b < size ? row.z[k] : 0.f;
    }
    __syncthreads();
    for (int j = block.tid; j < HIDDEN; j += THREADS) {
      float sum[BATCH];
#pragma unroll
      for (int b = 0; b < BATCH; b++) sum[b] = 0.f;
      for (int c = 0; c < CLASSES; c++) {
        const float u = w[AT_SECOND + c * HIDDEN + j];
#pragma unroll
        for (int b = 0; b < BATCH; b++) sum[b] = fmaf(u, m.z[b][c], sum[b]);
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++) m.slopes[b][j] = m.h[b][j] > 0.f ? sum[b] : 0.f;
    }
    __syncthreads();
    block.descend<HIDDEN>(task, w + AT_SECOND, w + AT_BIAS_2, anchor + AT_SECOND, anchor + AT_BIAS_2, CLASSES, &m.z[0][0], m.h);
    block.descend<INPUTS>(task, w, w + AT_BIAS_1, anchor, anchor + AT_BIAS_1, HIDDEN, &m.slopes[0][0], m.x);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
score(const Item* items, const float* params, const Feature* inputs, const u16* labels, const float* scale, const float* shift, double* losses, u32* errors) {
  extern __shared__ __align__(16) u8 shared[];
  Block block{*(Memory*)shared};
  Memory& m = block.m;
  const Item item = items[blockIdx.x];
  double total = 0;
  u32 wrong = 0;
  for (u32 start = 0; start < item.count; start += BATCH) {
    const int size = min(item.count - start, (u32)BATCH);
    block.gather(inputs, scale, shift, size, [&](int b) { return item.first + start + b; });
    block.forward(params + (size_t)blockIdx.y * PARAMS);
    for (int b = block.warp; b < size; b += WARPS) {
      bool missed;
      const double loss = block.row(b).loss(block.lane, labels[item.first + start + b], missed);
      if (block.lane == 0) m.losses[b] = loss, m.errors[b] = missed;
    }
    __syncthreads();
    if (block.tid == 0)
      for (int b = 0; b < size; b++) total += m.losses[b], wrong += m.errors[b];
  }
  if (block.tid == 0) {
    losses[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = total;
    errors[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
  }
}
