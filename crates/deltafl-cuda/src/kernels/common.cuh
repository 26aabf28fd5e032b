// Shared definitions of all kernels: tasks and items in the host's layout, and softmax by a warp.
//
// Every kernel is compiled for the sizes of one model. Sizes are macros, so that loops unroll and
// arrays stay in registers. No result depends on the order in which blocks run, so the bits do not
// depend on other work on the GPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

/// One local update: passes over `draws` entries of the order, in batches. The last batch may be
/// short.
struct Task {
  u64 order;   // first entry in the order
  u32 params;  // index of the starting vector
  u32 draws;   // entries of a pass
  u32 passes;
  u32 batch;
  float rate;  // γ
  float keep;  // 1 − γ(λ + μ)
  float pull;  // the factor of the anchor in every step: γμ of the start, or 1 of γ(μw − drift)
  u32 slot;    // the slot of w_k
  u32 anchor;  // index of the vector that `pull` multiplies
  u32 unused;
};
static_assert(sizeof(Task) == 48, "the layout of the host");

/// Consecutive examples of one device, for a forward pass.
struct Item {
  u64 first;
  u32 count;
  u32 unused;
};
static_assert(sizeof(Item) == 16, "the layout of the host");

/// The batches of a task in sequence.
struct Batches {
  u32 draws, batch, per_pass, count;
  __device__ Batches(const Task& task)
      : draws(task.draws), batch(task.batch), per_pass((task.draws + task.batch - 1) / task.batch), count(per_pass * task.passes) {}
  /// The first entry of step `s` in the order of the task.
  __device__ u32 first(u32 s) const { return s / per_pass * draws + s % per_pass * batch; }
  /// The number of examples of step `s`.
  __device__ u32 size(u32 s) const { return min(batch, draws - s % per_pass * batch); }
};

constexpr u32 ALL = 0xffffffffu;

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int k = 16; k; k >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL, x, k));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int k = 16; k; k >>= 1) x += __shfl_xor_sync(ALL, x, k);
  return x;
}

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy_async_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_async_4(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

__device__ __forceinline__ float tanh_of(float x) { return 1.f - __fdividef(2.f, 1.f + __expf(2.f * x)); }

/// A row of logits held by a warp: class lane + 32·k in z[k].
template <int N>
struct Row {
  static constexpr int PARTS = (N + 31) / 32;
  float z[PARTS];

  __device__ float largest(int lane) const {
    float m = __int_as_float(0xff800000);
#pragma unroll
    for (int k = 0; k < PARTS; k++)
      if (lane + 32 * k < N) m = fmaxf(m, z[k]);
    return warp_max(m);
  }

  /// Replaces the logits by scale·(softmax(z) − 1[c = y]), and by zero after the last class.
  __device__ void to_residuals(int lane, int label, float scale) {
    const float m = largest(lane);
    float total = 0.f;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
      z[k] = lane + 32 * k < N ? __expf(z[k] - m) : 0.f;
      total += z[k];
    }
    const float factor = scale / warp_sum(total);
#pragma unroll
    for (int k = 0; k < PARTS; k++) z[k] = z[k] * factor - (lane + 32 * k == label ? scale : 0.f);
  }

  /// Computes log Σ exp z − z_y, and whether the first largest logit belongs to another class.
  /// Every lane receives the result.
  __device__ double loss(int lane, int label, bool& wrong) const {
    const float m = largest(lane);
    float total = 0.f, of_label = 0.f;
    int first = N;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
      const int c = lane + 32 * k;
      if (c < N) {
        total += expf(z[k] - m);
        if (c == label) of_label = z[k] - m;
        if (z[k] >= m && c < first) first = c;
      }
    }
    total = warp_sum(total);
    of_label = warp_sum(of_label);
    for (int k = 16; k; k >>= 1) first = min(first, __shfl_xor_sync(ALL, first, k));
    wrong = first != label;
    return log((double)total) - (double)of_label;
  }
};
