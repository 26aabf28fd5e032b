// Updates as integers, summed modulo 2^64: α·ω·(w_k − w)·2^24, ties to even. The CPU code of the same sum is
// `params::UpdateCode`; the two agree bit for bit on the same w_k. A sum of integers has no order.

#include "common.cuh"

/// A local update that has been trained, and the sum it belongs to.
struct Trained {
  double weight;  // α·ω
  u32 params;     // w
  u32 slot;       // w_k
  u32 query;      // which sum
  u32 unused;
};

constexpr int PER_BLOCK = 16;

__device__ __forceinline__ double scaled(float local, float start, double weight) {
  return ((double)local - (double)start) * (weight * 16777216.0);
}

/// refused[k] = 1 where an entry is not finite or too large for the sum.
extern "C" __global__ void find_refused(const Trained* trained, const float* params, const float* local, u32 len, double limit, u32* refused) {
  const Trained t = trained[blockIdx.y];
  const float *start = params + (size_t)t.params * len, *end = local + (size_t)t.slot * len;
  bool bad = false;
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += gridDim.x * blockDim.x) {
    const double size = fabs(scaled(end[i], start[i], t.weight));
    bad |= !(size <= limit);
  }
  if (__syncthreads_or(bad) && threadIdx.x == 0) refused[blockIdx.y] = 1;
}

/// Adds the updates of PER_BLOCK tasks to their sums: entries, then weight, kept and refused.
extern "C" __global__ void add_updates(const Trained* trained, u32 count, const u32* refused, const float* params, const float* local, u32 len, u64* sums) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * PER_BLOCK, last = min(first + PER_BLOCK, count);
  if (i >= len + 3) return;
  u64 sum = 0;
  for (u32 k = first; k < last; k++) {
    const Trained t = trained[k];
    if (refused[k]) {
      sum += i == len + 2;
    } else if (i < len) {
      sum += (u64)__double2ll_rn(scaled(local[(size_t)t.slot * len + i], params[(size_t)t.params * len + i], t.weight));
    } else if (i == len) {
      sum += (u64)__double2ll_rn(t.weight * 65536.0);
    } else if (i == len + 1) {
      sum += 1;
    }
    // Tasks come query by query.
    if (k + 1 == last || trained[k + 1].query != t.query) {
      if (sum) atomicAdd(&sums[(size_t)t.query * (len + 3) + i], sum);
      sum = 0;
    }
  }
}

/// A mapped file may have changed since it was checked: what is out of range reads as the highest, as on the CPU.
extern "C" __global__ void clamp_bytes(u8* values, u64 len, u32 highest) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) values[i] = min((u32)values[i], highest);
}
extern "C" __global__ void clamp_shorts(u16* values, u64 len, u32 highest) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) values[i] = min((u32)values[i], highest);
}
extern "C" __global__ void clamp_words(u32* values, u64 len, u32 highest) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) values[i] = min(values[i], highest);
}
