// The backward pass of both convolutions, and the descent of their filters.

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
