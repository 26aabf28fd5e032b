// Sizes, scratch memory, the batch of a step, and functions that several kernels share.

#if BYTES
typedef u8 Feature;
#else
typedef float Feature;
#endif
constexpr int PIXELS = 784, SIDE = 28, TAPS = 25, FIRST = 32, SECOND = 64, CELLS_1 = 144, CELLS_2 = 16, EXAMPLES = 16;
constexpr int MAP_1 = CELLS_1 * FIRST, MAP_2 = CELLS_2 * SECOND, FEATURES = MAP_2, SLOPES = 64 * SECOND;
constexpr int AT_SECOND = 26 * FIRST, SECOND_LEN = TAPS * FIRST * SECOND, AT_SECOND_BIAS = AT_SECOND + SECOND_LEN, AT_FULL = AT_SECOND_BIAS + SECOND;
constexpr int AT_FULL_BIAS = AT_FULL + 64 * FEATURES, WORKING = AT_FULL_BIAS + 64;
constexpr int PARAMS = 26 * FIRST + SECOND_LEN + SECOND + CLASSES * FEATURES + CLASSES;
constexpr float MAP_SCALE = 8.f, WEIGHT_SCALE = 64.f, SLOPE_SCALE = 4096.f;

/// The scratch memory of a device.
struct Scratch {
  u16 second_high[2][SECOND_LEN], second_low[2][SECOND_LEN]; // second filters in two parts; those of the next step apart
  u16 map_1_high[EXAMPLES][MAP_1], map_1_low[EXAMPLES][MAP_1];
  u8 winner_1[EXAMPLES][MAP_1]; // which of the four pixels won; 255: none, the ReLU is flat
  float map_2[EXAMPLES][MAP_2];
  u8 winner_2[EXAMPLES][MAP_2];
  u16 slopes_high[EXAMPLES][SLOPES], slopes_low[EXAMPLES][SLOPES]; // of the second convolution, [8 × 8 positions][64]
  float first_slopes[4][26 * FIRST];
};
extern "C" __device__ u32 scratch_bytes = sizeof(Scratch);
extern "C" __device__ u32 working_len = WORKING;

/// The batch of a task in step `s`.
struct Step {
  Task task;
  u32 first, size;
  __device__ Step(const Task* tasks, u32 device, u32 s) : task(tasks[device]) {
    const Batches batches(task);
    first = batches.first(s);
    size = s < batches.count ? batches.size(s) : 0;
  }
  /// The position of example `b` in the columns. Without an order, examples are contiguous.
  __device__ size_t at(const u32* order, u32 b) const { return order ? order[task.order + first + b] : task.order + first + b; }
  /// w ← keep·w + pull·anchor − slope.
  __device__ float descend(float w, float anchor, float slope) const { return fmaf(w, task.keep, fmaf(task.pull, anchor, -slope)); }
};

/// Rows of shared memory: 32 channels of the first map in 80 bytes, 64 filters in 144, to avoid
/// bank conflicts.
constexpr int MAP_ROW = 80, FILTER_ROW = 144, TAP = 2 * 32 * FILTER_ROW;

__device__ __forceinline__ u32 transposed(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_group() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

/// Returns four adjacent normalised pixels of an image.
__device__ __forceinline__ float4 pixels(const Feature* image, int i, const float* scale, const float* shift) {
  const float4 a = *(const float4*)(scale + 4 * i), s = *(const float4*)(shift + 4 * i);
#if BYTES
  const uchar4 v = *(const uchar4*)(image + 4 * i);
#else
  const float4 v = *(const float4*)(image + 4 * i);
#endif
  return make_float4(fmaf(v.x, a.x, s.x), fmaf(v.y, a.y, s.y), fmaf(v.z, a.z, s.z), fmaf(v.w, a.w, s.w));
}
