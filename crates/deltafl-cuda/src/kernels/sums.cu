// Updates as integers, summed modulo 2^64: α·ω·(w_k − w)·2^24, ties to even, clipped if the round
// has a bound. `params::UpdateCode` is the CPU code of the same sum. Both agree bit for bit on the
// same w_k. Integer sums do not depend on order.

#include "common.cuh"
#include "norm.cuh"

/// A completed local update and the sum that it belongs to.
struct Trained {
  double weight;  // α·ω
  double factor;  // of a clipped update, else 1
  u32 params;     // w
  u32 slot;       // w_k
  u32 query;      // which sum
  u32 unused;
};
static_assert(sizeof(Trained) == 32, "the layout of the host");

constexpr int PER_BLOCK = 16;

/// Computes min(1, C/‖w_k − w‖) of each update: a warp each.
extern "C" __global__ void __launch_bounds__(32) clip_updates(Trained* trained, const float* __restrict__ params, const float* __restrict__ local, u32 len, double clip) {
  Trained& t = trained[blockIdx.x];
  const float *from = params + (size_t)t.params * len, *to = local + (size_t)t.slot * len;
  const double norm = __dsqrt_rn(squared_norm(len, [&](u32 i) { return __dadd_rn((double)to[i], -(double)from[i]); }));
  if (threadIdx.x == 0) t.factor = norm > clip ? __ddiv_rn(clip, norm) : 1.;
}

/// Returns entry `i` of the code of an update: those of w_k − w, then weight, kept and rejected.
__device__ __forceinline__ u64 coded(const Trained& t, const float* params, const float* local, u32 len, u32 i, double limit, bool& bad) {
  if (i < len) {
    const double entry = ((double)local[(size_t)t.slot * len + i] - (double)params[(size_t)t.params * len + i]) * (t.weight * t.factor * 16777216.0);
    bad = !(fabs(entry) <= limit);
    return (u64)__double2ll_rn(entry);
  }
  return i == len ? (u64)__double2ll_rn(t.weight * 65536.0) : i == len + 1;
}

/// Adds the updates of PER_BLOCK tasks to their sums. refused[k] = 1 if an entry is not finite or
/// too large for the sum.
extern "C" __global__ void add_updates(const Trained* __restrict__ trained, u32 count, const float* __restrict__ params, const float* __restrict__ local, u32 len, double limit, u64* __restrict__ sums, u32* __restrict__ refused) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * PER_BLOCK, last = min(first + PER_BLOCK, count);
  if (i >= len + 3) return;
  u64 sum = 0;
#pragma unroll 4 // entries of several updates on their way at once
  for (u32 k = first; k < last; k++) {
    const Trained t = trained[k];
    bool bad = false;
    sum += coded(t, params, local, len, i, limit, bad);
    if (bad) refused[k] = 1;
    // Tasks are sorted by query.
    if (k + 1 == last || trained[k + 1].query != t.query) {
      if (sum) atomicAdd(&sums[(size_t)t.query * (len + 3) + i], sum);
      sum = 0;
    }
  }
}

/// Subtracts rejected updates from their sums, which is exact modulo 2^64, and counts them.
extern "C" __global__ void take_refused_back(const Trained* trained, const u32* refused, const float* params, const float* local, u32 len, u64* sums) {
  if (!refused[blockIdx.y]) return;
  const Trained t = trained[blockIdx.y];
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < len + 3; i += gridDim.x * blockDim.x) {
    bool bad;
    const u64 added = coded(t, params, local, len, i, 0., bad);
    atomicAdd(&sums[(size_t)t.query * (len + 3) + i], i == len + 2 ? 1ull : 0ull - added);
  }
}

/// A mapped file may have changed since it was checked. Values out of range are clamped, as on the
/// CPU.
extern "C" __global__ void clamp_bytes(u8* values, u64 len, u32 highest) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) values[i] = min((u32)values[i], highest);
}
extern "C" __global__ void clamp_shorts(u16* values, u64 len, u32 highest) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) values[i] = min((u32)values[i], highest);
}
extern "C" __global__ void clamp_words(u32* values, u64 len, u32 highest) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) values[i] = min(values[i], highest);
}
