// The convolutional network on images of 28 × 28: five kernels per SGD step, each over all devices
// of a wave.
//
//   first_forward    conv 5×5 1→32, max-pool, ReLU          a block per image, FMA
//   second_forward   conv 5×5 32→64, max-pool, ReLU         four images per block, implicit GEMM on tensor cores
//   full_layer       logits, residuals, descent of the full layer, slopes of the second map
//   second_backward  half of the blocks: slopes of the first map, then of the first filters;
//                    the others: gradient of the second filters and their descent
//   first_descend    descent of the first filters
// Devices are sorted largest first. Only devices with a remaining batch take part in a step.
// Products on tensor cores are near fp32 (split.cuh): with plain fp16 or TF32 an epoch ends 12 %
// off.
//
// Working form of the parameters, as floats: first filters [25 taps and bias][32], second filters
// [25][32][64], their biases [64], full layer [64 classes][16 cells × 64 channels], its biases
// [64]. The second filters also have a copy in fp16.
//
// Macros: CLASSES (≤ 64), BYTES (grey levels, else floats).

#include "common.cuh"
#include "split.cuh"
#include "groups.cuh"

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

__device__ __forceinline__ u32 transposed(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_group() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

/// Returns the position of entry `i` of the working form in the flat order, or PARAMS for padding.
__device__ __forceinline__ int flat_index(int i) {
  if (i < TAPS * FIRST) return i % FIRST * TAPS + i / FIRST;
  if (i < AT_SECOND) return i;
  if (i < AT_SECOND_BIAS) {
    const int k = i - AT_SECOND, tap = k / (FIRST * SECOND), from = k / SECOND % FIRST, to = k % SECOND;
    return AT_SECOND + (to * FIRST + from) * TAPS + tap;
  }
  if (i < AT_FULL) return i;
  if (i < AT_FULL_BIAS) {
    const int c = (i - AT_FULL) / FEATURES, k = (i - AT_FULL) % FEATURES;
    return c < CLASSES ? AT_FULL + c * FEATURES + k % SECOND * CELLS_2 + k / SECOND : PARAMS;
  }
  const int c = i - AT_FULL_BIAS;
  return c < CLASSES ? AT_FULL + CLASSES * FEATURES + c : PARAMS;
}

/// Computes the working form of each vector of parameters.
extern "C" __global__ void to_working(const float* params, float* starts) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= WORKING) return;
  const int at = flat_index(i);
  starts[(size_t)blockIdx.y * WORKING + i] = at < PARAMS ? params[(size_t)blockIdx.y * PARAMS + at] : 0.f;
}

/// Starts each device from the vector of its task. Without tasks, from the vector of its number.
extern "C" __global__ void spread(const Task* tasks, const float* starts, float* working, Scratch* scratch) {
  const int i = blockIdx.x * 256 + threadIdx.x, device = blockIdx.y;
  if (i >= WORKING) return;
  const float v = starts[(size_t)(tasks ? tasks[device].params : device) * WORKING + i];
  if (working) working[(size_t)device * WORKING + i] = v;
  if (i >= AT_SECOND && i < AT_SECOND_BIAS) {
    u32 h, l;
    split(v * WEIGHT_SCALE, 0.f, h, l);
    scratch[device].second_high[0][i - AT_SECOND] = (u16)h;
    scratch[device].second_low[0][i - AT_SECOND] = (u16)l;
  }
}

/// Returns the position of entry `i` of the flat order in the working form: the inverse of
/// flat_index.
__device__ __forceinline__ int working_index(int i) {
  if (i < TAPS * FIRST) return i % TAPS * FIRST + i / TAPS;
  if (i < AT_SECOND) return i;
  if (i < AT_SECOND_BIAS) {
    const int k = i - AT_SECOND, tap = k % TAPS, from = k / TAPS % FIRST, to = k / TAPS / FIRST;
    return AT_SECOND + (tap * FIRST + from) * SECOND + to;
  }
  if (i < AT_FULL) return i;
  if (i < AT_FULL + CLASSES * FEATURES) {
    const int c = (i - AT_FULL) / FEATURES, k = (i - AT_FULL) % FEATURES;
    return AT_FULL + c * FEATURES + k % CELLS_2 * SECOND + k / CELLS_2;
  }
  return AT_FULL_BIAS + i - AT_FULL - CLASSES * FEATURES;
}

/// Writes w_k in flat order.
extern "C" __global__ void collect(const Task* tasks, const float* working, float* local) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < PARAMS) local[(size_t)tasks[blockIdx.y].slot * PARAMS + i] = working[(size_t)blockIdx.y * WORKING + working_index(i)];
}

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

/// `own` is 0 if all devices share one set of parameters, as in a forward pass.
extern "C" __global__ void __launch_bounds__(256)
first_forward(const Task* tasks, u32 s, const float* working, u32 own, const u32* order, const Feature* inputs, const float* scale, const float* shift, Scratch* scratch) {
  __shared__ __align__(16) float image[PIXELS];
  const int b = blockIdx.x, device = blockIdx.y, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const Step step(tasks, device, s);
  if (b >= step.size) return;
  Scratch& sc = scratch[device];
  if (tid < PIXELS / 4) *(float4*)&image[4 * tid] = pixels(inputs + step.at(order, b) * PIXELS, tid, scale, shift);
  float w[TAPS];
  const float* filters = working + (size_t)(device * own) * WORKING + lane;
#pragma unroll
  for (int i = 0; i < TAPS; i++) w[i] = filters[i * FIRST];
  const float bias = filters[TAPS * FIRST];
  __syncthreads();
  for (int pair = warp; pair < CELLS_1 / 2; pair += 8) { // two neighbouring cells of the pooled map
    const int y = pair / 6, x = pair % 6 * 2;
    float a[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) a[i >> 2][i & 3] = 0.f;
#pragma unroll
    for (int r = 0; r < 6; r++) {
      float v[8];
      *(float4*)v = *(const float4*)&image[(2 * y + r) * SIDE + 2 * x];
      *(float4*)(v + 4) = *(const float4*)&image[(2 * y + r) * SIDE + 2 * x + 4];
#pragma unroll
      for (int dy = 0; dy < 2; dy++) {
        const int ky = r - dy;
        if (ky >= 0 && ky < 5)
#pragma unroll
          for (int dx = 0; dx < 4; dx++)
#pragma unroll
            for (int kx = 0; kx < 5; kx++) a[dy][dx] = fmaf(v[dx + kx], w[ky * 5 + kx], a[dy][dx]);
      }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float most = a[0][2 * e];
      int winner = 0;
      if (a[0][2 * e + 1] > most) most = a[0][2 * e + 1], winner = 1;
      if (a[1][2 * e] > most) most = a[1][2 * e], winner = 2;
      if (a[1][2 * e + 1] > most) most = a[1][2 * e + 1], winner = 3;
      most += bias;
      if (most <= 0.f) most = 0.f, winner = 255;
      u32 h, l;
      split(most * MAP_SCALE, 0.f, h, l);
      const int at = (y * 12 + x + e) * FIRST + lane;
      sc.map_1_high[b][at] = (u16)h, sc.map_1_low[b][at] = (u16)l, sc.winner_1[b][at] = winner;
    }
  }
}

/// Rows of shared memory: 32 channels of the first map in 80 bytes, 64 filters in 144, to avoid
/// bank conflicts.
constexpr int MAP_ROW = 80, FILTER_ROW = 144, TAP = 2 * 32 * FILTER_ROW;
extern "C" __device__ u32 second_forward_bytes = 2 * 4 * CELLS_1 * MAP_ROW + 2 * TAP;

extern "C" __global__ void __launch_bounds__(256, 2)
second_forward(const Task* tasks, u32 s, const float* working, u32 own, const Scratch* filters, Scratch* scratch) {
  extern __shared__ __align__(16) u8 shared[];
  const int device = blockIdx.y, first = blockIdx.x * 4, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  if (first >= Step(tasks, device, s).size) return;
  Scratch& sc = scratch[device];
  const Scratch& f = filters[device * own];
  const u32 high = shared_address(shared), low = high + 4 * CELLS_1 * MAP_ROW, taps = high + 2 * 4 * CELLS_1 * MAP_ROW;
  for (int i = tid; i < 4 * CELLS_1 * 4; i += 256) {
    const int cell = i >> 2, q = i & 3;
    copy_async_16(high + cell * MAP_ROW + q * 16, sc.map_1_high[first] + cell * FIRST + q * 8);
    copy_async_16(low + cell * MAP_ROW + q * 16, sc.map_1_low[first] + cell * FIRST + q * 8);
  }
  const auto fetch_tap = [&](int tap) {
    const int r = tid >> 3, q = tid & 7;
    const u32 to = taps + (tap & 1) * TAP + r * FILTER_ROW + q * 16;
    copy_async_16(to, f.second_high[s & 1] + (tap * FIRST + r) * SECOND + q * 8);
    copy_async_16(to + TAP / 2, f.second_low[s & 1] + (tap * FIRST + r) * SECOND + q * 8);
    commit();
  };
  fetch_tap(0);
  float sum[2][8][4];
#pragma unroll
  for (int i = 0; i < 64; i++) sum[i >> 5][(i >> 2) & 7][i & 3] = 0.f;
  const int image = warp >> 1, y = (warp & 1) * 4;
  const u32 a_row = (image * CELLS_1 + (y + (tile & 1)) * 12 + tile_row) * MAP_ROW + (tile >> 1) * 16, b_row = ((tile & 1) * 8 + tile_row) * FILTER_ROW + (tile >> 1) * 16;
  for (int tap = 0; tap < TAPS; tap++) {
    wait_for_group();
    __syncthreads();
    if (tap + 1 < TAPS) fetch_tap(tap + 1);
    const u32 moved = (tap / 5 * 12 + tap % 5) * MAP_ROW, w = taps + (tap & 1) * TAP + b_row;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      u32 ah[2][4], al[2][4];
#pragma unroll
      for (int m = 0; m < 2; m++) {
        load_tiles(ah[m], high + a_row + moved + m * 24 * MAP_ROW + k * 32);
        load_tiles(al[m], low + a_row + moved + m * 24 * MAP_ROW + k * 32);
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
        u32 bh[4], bl[4];
        load_transposed(bh, w + k * 16 * FILTER_ROW + n * 32);
        load_transposed(bl, w + TAP / 2 + k * 16 * FILTER_ROW + n * 32);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            multiply_add(sum[m][n * 2 + e], al[m], bh + 2 * e);
            multiply_add(sum[m][n * 2 + e], ah[m], bl + 2 * e);
            multiply_add(sum[m][n * 2 + e], ah[m], bh + 2 * e);
          }
      }
    }
  }
  const bool odd = g & 1;
  const float* bias = working + (size_t)(device * own) * WORKING + AT_SECOND_BIAS;
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < 8; n++) { // the four of a cell meet in one thread
      float* c = sum[m][n];
      const float s0 = __shfl_xor_sync(ALL, odd ? c[0] : c[1], 4), s1 = __shfl_xor_sync(ALL, odd ? c[2] : c[3], 4);
      const float v[4] = {odd ? s0 : c[0], odd ? c[1] : s0, odd ? s1 : c[2], odd ? c[3] : s1};
      float most = v[0];
      int winner = 0;
#pragma unroll
      for (int k = 1; k < 4; k++)
        if (v[k] > most) most = v[k], winner = k;
      const int channel = n * 8 + 2 * t4 + odd, at = ((y / 2 + m) * 4 + (g >> 1)) * SECOND + channel;
      most = fmaf(most, 1.f / (MAP_SCALE * WEIGHT_SCALE), bias[channel]);
      if (most <= 0.f) most = 0.f, winner = 255;
      sc.map_2[first + image][at] = most, sc.winner_2[first + image][at] = winner;
    }
}

/// Shared memory of the full layer.
struct Full {
  static constexpr int ROW = 2 * FEATURES + 16;
  alignas(16) u8 high[EXAMPLES * ROW], low[EXAMPLES * ROW]; // the second map
  float sums[8 * 64 * 17];
  float residuals[64 * 17];
  alignas(16) u16 residuals_high[EXAMPLES * 72], residuals_low[EXAMPLES * 72];
  float slopes[EXAMPLES * 1028];
  double losses[EXAMPLES];
  u32 errors[EXAMPLES];
};
extern "C" __device__ u32 full_layer_bytes = sizeof(Full);

/// Computes the logits of all examples. Each warp takes an eighth of the features.
__device__ void logits(Full& m, const float (*map)[MAP_2], int size, const float* full) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
#pragma unroll 8
  for (int i = tid; i < EXAMPLES * FEATURES / 2; i += 256) {
    const int b = i >> 9, k = i & 511;
    const float2 v = b < size ? *(const float2*)&map[b][2 * k] : make_float2(0, 0);
    u32 h, l;
    split(v.x * MAP_SCALE, v.y * MAP_SCALE, h, l);
    *(u32*)(m.high + b * Full::ROW + k * 4) = h, *(u32*)(m.low + b * Full::ROW + k * 4) = l;
  }
  __syncthreads();
  float a[4][2][4];
#pragma unroll
  for (int i = 0; i < 32; i++) a[i >> 3][(i >> 2) & 1][i & 3] = 0.f;
  const u32 row = ((tile >> 1) * 8 + tile_row) * Full::ROW + (tile & 1) * 16;
#pragma unroll 2
  for (int k = warp * 128; k < warp * 128 + 128; k += 16) {
    u32 bh[4], bl[4];
    float2 v[4][4];
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
      for (int e = 0; e < 4; e++) v[c][e] = __ldcg((const float2*)(full + (c * 16 + g + (e & 1) * 8) * FEATURES + k + (e >> 1) * 8 + 2 * t4));
    load_tiles(bh, shared_address(m.high) + row + k * 2);
    load_tiles(bl, shared_address(m.low) + row + k * 2);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      u32 ah[4], al[4];
#pragma unroll
      for (int e = 0; e < 4; e++) split(v[c][e].x * WEIGHT_SCALE, v[c][e].y * WEIGHT_SCALE, ah[e], al[e]);
#pragma unroll
      for (int q = 0; q < 2; q++) {
        multiply_add(a[c][q], al, bh + 2 * q);
        multiply_add(a[c][q], ah, bl + 2 * q);
        multiply_add(a[c][q], ah, bh + 2 * q);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 4; c++)
#pragma unroll
    for (int q = 0; q < 2; q++)
#pragma unroll
      for (int e = 0; e < 4; e++) m.sums[(warp * 64 + c * 16 + g + (e >> 1) * 8) * 17 + q * 8 + 2 * t4 + (e & 1)] = a[c][q][e];
  __syncthreads();
}

/// Returns the logits of example `b` for a whole warp.
__device__ Row<CLASSES> logits_of(const Full& m, int b, const float* bias) {
  Row<CLASSES> row;
#pragma unroll
  for (int k = 0; k < Row<CLASSES>::PARTS; k++) {
    const int c = (threadIdx.x & 31) + 32 * k;
    float z = 0.f;
#pragma unroll
    for (int from = 0; from < 8; from++) z += m.sums[(from * 64 + c) * 17 + b];
    row.z[k] = fmaf(z, 1.f / (MAP_SCALE * WEIGHT_SCALE), bias[c]);
  }
  return row;
}

extern "C" __global__ void __launch_bounds__(256, 1)
full_layer(const Task* tasks, u32 s, const float* starts, float* working, const u32* order, const u16* labels, Scratch* scratch) {
  extern __shared__ __align__(16) u8 shared[];
  Full& m = *(Full*)shared;
  const int device = blockIdx.x, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  const Step step(tasks, device, s);
  if (step.size == 0) return;
  Scratch& sc = scratch[device];
  float* w = working + (size_t)device * WORKING;
  const float* anchor = starts + (size_t)step.task.anchor * WORKING;
  float* full = w + AT_FULL;
  logits(m, sc.map_2, step.size, full);
  for (int b = warp; b < EXAMPLES; b += 8) {
    Row<CLASSES> row = logits_of(m, b, w + AT_FULL_BIAS);
    float v[2] = {0.f, 0.f};
    if (b < step.size) {
      row.to_residuals(lane, labels[step.at(order, b)], 1.f / step.size);
#pragma unroll
      for (int k = 0; k < Row<CLASSES>::PARTS; k++) v[k] = lane + 32 * k < CLASSES ? row.z[k] : 0.f;
    }
    m.residuals[lane * 17 + b] = v[0], m.residuals[(lane + 32) * 17 + b] = v[1];
    u32 h, l;
    split(v[0] * SLOPE_SCALE, v[1] * SLOPE_SCALE, h, l);
    m.residuals_high[b * 72 + lane] = (u16)h, m.residuals_high[b * 72 + lane + 32] = (u16)(h >> 16);
    m.residuals_low[b * 72 + lane] = (u16)l, m.residuals_low[b * 72 + lane + 32] = (u16)(l >> 16);
  }
  __syncthreads();
  if (tid < CLASSES) {
    float sum = 0;
    for (int b = 0; b < EXAMPLES; b++) sum += m.residuals[tid * 17 + b];
    w[AT_FULL_BIAS + tid] = step.descend(w[AT_FULL_BIAS + tid], anchor[AT_FULL_BIAS + tid], step.task.rate * sum);
  }
  { // slopes of the features, and the descent of the layer
    u32 rh[4][4], rl[4][4], th[4][4], tl[4][4];
    const u32 high = shared_address(m.residuals_high), low = shared_address(m.residuals_low);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const u32 at = (tile_row + (tile & 1) * 8) * 144 + c * 32 + (tile >> 1) * 16, across = (tile_row + (tile >> 1) * 8) * 144 + c * 32 + (tile & 1) * 16;
      load_tiles(rh[c], high + at), load_tiles(rl[c], low + at);
      load_transposed(th[c], high + across), load_transposed(tl[c], low + across);
    }
    const u32 x = (tile >> 1 ? shared_address(m.low) : shared_address(m.high)) + ((tile & 1) * 8 + tile_row) * Full::ROW;
    const float scale = step.task.rate / (SLOPE_SCALE * MAP_SCALE), unscale = 1.f / (SLOPE_SCALE * WEIGHT_SCALE);
#pragma unroll 2
    for (int k = warp * 128; k < warp * 128 + 128; k += 8) {
      float2 v[4][2];
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) v[c][e] = __ldcg((const float2*)(full + (c * 16 + g + e * 8) * FEATURES + k + 2 * t4));
      u32 xs[4];
      load_transposed(xs, x + k * 2);
      float d[4] = {0, 0, 0, 0};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        u32 h[2], l[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          split(v[c][e].x * WEIGHT_SCALE, v[c][e].y * WEIGHT_SCALE, h[e], l[e]);
          h[e] = transposed(h[e]), l[e] = transposed(l[e]);
        }
        multiply_add(d, rl[c], h), multiply_add(d, rh[c], l), multiply_add(d, rh[c], h);
        float a[4] = {0, 0, 0, 0};
        multiply_add(a, tl[c], xs), multiply_add(a, th[c], xs + 2), multiply_add(a, th[c], xs);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int at = (c * 16 + g + e * 8) * FEATURES + k + 2 * t4;
          float2 from = make_float2(0, 0);
          if (step.task.pull != 0.f) from = *(const float2*)(anchor + AT_FULL + at);
          __stcg((float2*)(full + at), make_float2(step.descend(v[c][e].x, from.x, scale * a[2 * e]), step.descend(v[c][e].y, from.y, scale * a[2 * e + 1])));
        }
      }
      *(float2*)&m.slopes[g * 1028 + k + 2 * t4] = make_float2(d[0] * unscale, d[1] * unscale);
      *(float2*)&m.slopes[(g + 8) * 1028 + k + 2 * t4] = make_float2(d[2] * unscale, d[3] * unscale);
    }
  }
  __syncthreads();
  // The slopes are written to the winning pixels.
  for (int cell = warp; cell < CELLS_2; cell += 8) {
    float s0 = 0, s1 = 0;
#pragma unroll 4
    for (int b = 0; b < EXAMPLES; b++) {
      const int k = cell * SECOND + 2 * lane;
      const u16 winners = *(const u16*)(sc.winner_2[b] + k);
      const int w0 = winners & 255, w1 = winners >> 8;
      const float2 v = *(const float2*)&m.slopes[b * 1028 + k];
      const float v0 = w0 < 4 ? v.x : 0.f, v1 = w1 < 4 ? v.y : 0.f;
      s0 += v0, s1 += v1;
      u32 h, l;
      split(v0 * SLOPE_SCALE, v1 * SLOPE_SCALE, h, l);
#pragma unroll
      for (int p = 0; p < 4; p++) {
        const u32 mask = (w0 == p ? 0xffffu : 0u) | (w1 == p ? 0xffff0000u : 0u);
        const int at = (2 * (cell >> 2) + (p >> 1)) * 8 + 2 * (cell & 3) + (p & 1);
        ((u32*)sc.slopes_high[b])[at * 32 + lane] = h & mask, ((u32*)sc.slopes_low[b])[at * 32 + lane] = l & mask;
      }
    }
    m.sums[cell * SECOND + 2 * lane] = s0, m.sums[cell * SECOND + 2 * lane + 1] = s1;
  }
  __syncthreads();
  if (tid < SECOND) {
    float sum = 0;
    for (int i = 0; i < CELLS_2; i++) sum += m.sums[i * SECOND + tid];
    w[AT_SECOND_BIAS + tid] = step.descend(w[AT_SECOND_BIAS + tid], anchor[AT_SECOND_BIAS + tid], step.task.rate * sum);
  }
}

/// Computes the loss and errors of the examples of each group.
extern "C" __global__ void __launch_bounds__(256, 1)
full_score(const Task* tasks, const float* working, const u16* labels, const Scratch* scratch, double* losses, u32* errors) {
  extern __shared__ __align__(16) u8 shared[];
  Full& m = *(Full*)shared;
  const int group = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Step step(tasks, group, 0);
  logits(m, scratch[group].map_2, step.size, working + AT_FULL);
  for (int b = warp; b < step.size; b += 8) {
    bool missed;
    const double loss = logits_of(m, b, working + AT_FULL_BIAS).loss(lane, labels[step.at(nullptr, b)], missed);
    if (lane == 0) m.losses[b] = loss, m.errors[b] = missed;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    u32 wrong = 0;
    for (int b = 0; b < step.size; b++) total += m.losses[b], wrong += m.errors[b];
    losses[group] = total, errors[group] = wrong;
  }
}

constexpr int SLOPES_BYTES = 4 * MAP_1 * 4 + 4 * PIXELS * 4;

/// Computes slopes of the first map, then of the first filters: four images per block, two warps
/// per image, tap by tap.
__device__ void first_slopes(u8* shared, int part, const Step& step, u32 s, const u32* order, const Feature* inputs, const float* scale, const float* shift, Scratch& sc) {
  float* maps = (float*)shared;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t4 = lane & 3, half = warp & 1, b = part * 4 + (warp >> 1);
  float* out = sc.first_slopes[part];
  if (part * 4 >= step.size) {
    for (int i = tid; i < 26 * FIRST; i += 256) out[i] = 0.f;
    return;
  }
  float *map = maps + (warp >> 1) * MAP_1, *image = maps + 4 * MAP_1 + (warp >> 1) * PIXELS;
  const u32 taps = shared_address(shared + SLOPES_BYTES);
  const auto fetch_tap = [&](int tap) {
    const int r = tid >> 3, q = tid & 7;
    const u32 to = taps + (tap & 1) * TAP + r * FILTER_ROW + q * 16;
    copy_async_16(to, sc.second_high[s & 1] + (tap * FIRST + r) * SECOND + q * 8);
    copy_async_16(to + TAP / 2, sc.second_low[s & 1] + (tap * FIRST + r) * SECOND + q * 8);
    commit();
  };
  fetch_tap(0);
  const bool live = b < step.size;
  u32 ah[2][4][4], al[2][4][4];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at = ((half * 2 + m) * 16 + g + (e & 1) * 8) * 32 + k * 8 + (e >> 1) * 4 + t4;
        ah[m][k][e] = ((const u32*)sc.slopes_high[b])[at], al[m][k][e] = ((const u32*)sc.slopes_low[b])[at];
      }
  for (int i = lane + half * 32; i < MAP_1; i += 64) map[i] = 0.f;
  if (live)
    for (int i = lane + half * 32; i < PIXELS / 4; i += 64) *(float4*)&image[4 * i] = pixels(inputs + step.at(order, b) * PIXELS, i, scale, shift);
  const u32 row = (lane & 7) * FILTER_ROW + (lane >> 3) * 16;
  for (int tap = 0; tap < TAPS; tap++) { // the barrier of each tap keeps the additions of the two warps apart
    wait_for_group();
    __syncthreads();
    if (tap + 1 < TAPS) fetch_tap(tap + 1);
    const int moved = tap / 5 * 12 + tap % 5 + half * 48;
    const u32 w = taps + (tap & 1) * TAP + row;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      float a[2][4], c[2][4];
      float2* at[2][2];
      u32 bh[8], bl[8];
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int cell = (2 * m + e) * 12 + g + moved;
          at[m][e] = (float2*)&map[cell * FIRST + ((n * 8 + 2 * t4) ^ ((cell & 3) * 8))];
          const float2 v = *at[m][e];
          a[m][2 * e] = v.x, a[m][2 * e + 1] = v.y;
        }
      load_tiles(bh, w + n * 8 * FILTER_ROW), load_tiles(bh + 4, w + n * 8 * FILTER_ROW + 64);
      load_tiles(bl, w + TAP / 2 + n * 8 * FILTER_ROW), load_tiles(bl + 4, w + TAP / 2 + n * 8 * FILTER_ROW + 64);
#pragma unroll
      for (int i = 0; i < 8; i++) c[i >> 2][i & 3] = 0.f;
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
          multiply_add(a[m], ah[m][k], bh + 2 * k);
          multiply_add(c[m], al[m][k], bh + 2 * k);
          multiply_add(c[m], ah[m][k], bl + 2 * k);
        }
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int e = 0; e < 2; e++) *at[m][e] = make_float2(a[m][2 * e] + c[m][2 * e], a[m][2 * e + 1] + c[m][2 * e + 1]);
    }
  }
  __syncthreads();
  float a[26];
#pragma unroll
  for (int i = 0; i < 26; i++) a[i] = 0.f;
  if (live) {
    const u8* winners = sc.winner_1[b] + lane;
#pragma unroll 2
    for (int cell = half * 72; cell < half * 72 + 72; cell++) {
      int k = winners[cell * FIRST];
      const float d = k < 4 ? map[cell * FIRST + (lane ^ ((cell & 3) * 8))] * (1.f / (WEIGHT_SCALE * SLOPE_SCALE)) : 0.f;
      k &= 3;
      const float* p = image + (2 * (cell / 12) + (k >> 1)) * SIDE + 2 * (cell % 12) + (k & 1);
#pragma unroll
      for (int i = 0; i < TAPS; i++) a[i] = fmaf(d, p[i / 5 * SIDE + i % 5], a[i]);
      a[25] += d;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 26; i++) maps[warp * 26 * FIRST + i * FIRST + lane] = a[i];
  __syncthreads();
  for (int i = tid; i < 26 * FIRST; i += 256) {
    float sum = 0;
#pragma unroll
    for (int from = 0; from < 8; from++) sum += maps[from * 26 * FIRST + i];
    out[i] = sum;
  }
}

constexpr int MAP_PART = CELLS_1 * MAP_ROW, SLOPE_PART = 64 * 48, STAGE = 2 * MAP_PART + 2 * SLOPE_PART;

/// Computes the gradient of the second filters: a quarter of the channels per block, image by
/// image.
__device__ void second_descend(u8* shared, int quarter, const Step& step, u32 s, const float* starts, float* working, Scratch& sc) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  const u32 base = shared_address(shared);
  const auto fetch = [&](int b) {
    const u32 to = base + (b & 1) * STAGE;
    for (int i = tid; i < CELLS_1 * 4; i += 256) {
      const int cell = i >> 2, q = i & 3;
      copy_async_16(to + cell * MAP_ROW + q * 16, sc.map_1_high[b] + cell * FIRST + q * 8);
      copy_async_16(to + MAP_PART + cell * MAP_ROW + q * 16, sc.map_1_low[b] + cell * FIRST + q * 8);
    }
    if (tid < 128) {
      const int at = tid >> 1, q = tid & 1;
      copy_async_16(to + 2 * MAP_PART + at * 48 + q * 16, sc.slopes_high[b] + at * SECOND + quarter * 16 + q * 8);
      copy_async_16(to + 2 * MAP_PART + SLOPE_PART + at * 48 + q * 16, sc.slopes_low[b] + at * SECOND + quarter * 16 + q * 8);
    }
    commit();
  };
  fetch(0);
  float sum[7][2][4];
#pragma unroll
  for (int i = 0; i < 56; i++) sum[i >> 3][(i >> 2) & 1][i & 3] = 0.f;
  const u32 a_row = ((tile >> 1) * 12 + tile_row) * MAP_ROW + (tile & 1) * 16, b_row = ((tile & 1) * 8 + tile_row) * 48 + (tile >> 1) * 16;
  u32 from[7]; // of 50 tiles (a tap, half of the channels) a warp has every eighth
#pragma unroll
  for (int i = 0; i < 7; i++) {
    const int t = min(49, warp + 8 * i), tap = t >> 1;
    from[i] = a_row + (tap / 5 * 12 + tap % 5) * MAP_ROW + (t & 1) * 32;
  }
  for (int b = 0; b < step.size; b++) {
    wait_for_group();
    __syncthreads();
    if (b + 1 < step.size) fetch(b + 1);
    const u32 at = base + (b & 1) * STAGE;
#pragma unroll 2
    for (int k = 0; k < 4; k++) {
      u32 bh[4], bl[4], ah[2][4], al[2][4];
      const u32 z = at + 2 * MAP_PART + b_row + k * 16 * 48;
      load_transposed(bh, z), load_transposed(bl, z + SLOPE_PART);
      load_transposed(ah[0], at + from[0] + k * 24 * MAP_ROW), load_transposed(al[0], at + MAP_PART + from[0] + k * 24 * MAP_ROW);
#pragma unroll
      for (int i = 0; i < 7; i++) {
        const int now = i & 1;
        if (i < 5 || (i == 5 && warp < 2)) load_transposed(ah[now ^ 1], at + from[i + 1] + k * 24 * MAP_ROW), load_transposed(al[now ^ 1], at + MAP_PART + from[i + 1] + k * 24 * MAP_ROW);
        if (i == 6 && warp >= 2) break;
#pragma unroll
        for (int n = 0; n < 2; n++) multiply_add(sum[i][n], al[now], bh + 2 * n);
#pragma unroll
        for (int n = 0; n < 2; n++) multiply_add(sum[i][n], ah[now], bl + 2 * n);
#pragma unroll
        for (int n = 0; n < 2; n++) multiply_add(sum[i][n], ah[now], bh + 2 * n);
      }
    }
  }
  const float scale = step.task.rate / (MAP_SCALE * SLOPE_SCALE);
  float* w = working + AT_SECOND;
  const float* anchor = starts + (size_t)step.task.anchor * WORKING + AT_SECOND;
#pragma unroll
  for (int i = 0; i < 7; i++) {
    const int t = warp + 8 * i;
    if (t < 50)
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int at = ((t >> 1) * FIRST + (t & 1) * 16 + g + 8 * e) * SECOND + quarter * 16 + n * 8 + 2 * t4;
          float2 v = __ldcg((const float2*)(w + at)), from = make_float2(0, 0);
          if (step.task.pull != 0.f) from = *(const float2*)(anchor + at);
          v.x = step.descend(v.x, from.x, scale * sum[i][n][2 * e]), v.y = step.descend(v.y, from.y, scale * sum[i][n][2 * e + 1]);
          __stcg((float2*)(w + at), v);
          u32 h, l;
          split(v.x * WEIGHT_SCALE, v.y * WEIGHT_SCALE, h, l);
          *(u32*)(sc.second_high[(s + 1) & 1] + at) = h, *(u32*)(sc.second_low[(s + 1) & 1] + at) = l;
        }
  }
}

__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
extern "C" __device__ u32 second_backward_bytes = larger(SLOPES_BYTES + 2 * TAP, 2 * STAGE);

/// Runs both concurrently. They are independent, because the filters of the next step are separate.
extern "C" __global__ void __launch_bounds__(256, 2)
second_backward(const Task* tasks, u32 s, const float* starts, float* working, const u32* order, const Feature* inputs, const float* scale, const float* shift, Scratch* scratch) {
  extern __shared__ __align__(16) u8 shared[];
  const int device = blockIdx.y, part = blockIdx.x;
  const Step step(tasks, device, s);
  if (step.size == 0) return;
  if (part < 4) first_slopes(shared, part, step, s, order, inputs, scale, shift, scratch[device]);
  else second_descend(shared, part - 4, step, s, starts, working + (size_t)device * WORKING, scratch[device]);
}

extern "C" __global__ void first_descend(const Task* tasks, u32 s, const float* starts, float* working, const Scratch* scratch) {
  const Step step(tasks, blockIdx.x, s);
  if (step.size == 0) return;
  const float(*slopes)[26 * FIRST] = scratch[blockIdx.x].first_slopes;
  float* w = working + (size_t)blockIdx.x * WORKING;
  const float* anchor = starts + (size_t)step.task.anchor * WORKING;
  for (int i = threadIdx.x; i < 26 * FIRST; i += 256) w[i] = step.descend(w[i], anchor[i], step.task.rate * ((slopes[0][i] + slopes[1][i]) + (slopes[2][i] + slopes[3][i])));
}
