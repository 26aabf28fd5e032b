// The full layer: logits, loss, residuals, descent, and slopes of the second map.

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
