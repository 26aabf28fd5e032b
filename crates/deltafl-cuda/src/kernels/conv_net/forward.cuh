// The forward pass of both convolutions.

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
