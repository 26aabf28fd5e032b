// The backward pass of the computing warps: slopes of the gates, of the states and of W_hh.

inline __device__ void Computing::recall(int t, int i) {
  const float* from = kept_at(t, i);
  const auto take = [](float* to, const float* from) {
    const float2 v = __ldcg((const float2*)from);
    to[0] = v.x, to[1] = v.y;
  };
  take(r[i], from);
  take(z[i], from + PAIRS * 512);
  take(n[i], from + PAIRS * 1024);
  take(a[i], from + PAIRS * 1536);
  if (t > 0) take(before[i], from - PAIRS * 512);
  else before[i][0] = before[i][1] = 0.f;
}

inline __device__ void Computing::backward(u32 step) {
  const u32 arrived = c.at(&m.barriers[2]);
  const u32 down = (tile_row + (tile >> 1) * 8) * ROW + (warp * 16 + (tile & 1) * 8) * 2, across = ((tile >> 1) * 8 + tile_row) * SLOPE_ROW + (tile & 1) * 16;
  const u32 slope_column = (tile_row + (tile >> 1) * 8) * SLOPE_ROW + (unit_tile * 16 + (tile & 1) * 8) * 2;
  const u32 who = (tile & 1) * 8 + tile_row, state_column = k_part * PART + (who >> 2) * 256 + (who & 3) * 32 + (((tile >> 1) ^ ((who >> 2) & 1)) * 16);
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    dh[i][0] = dh[i][1] = 0.f;
    recall(LEN - 1, i);
  }
#pragma unroll 8
  for (int o = 0; o < CLASSES; o++) {
    const float v = c.residuals()[o * EXAMPLES + example];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      dh[i][0] = fmaf(m.full[o * FULL_PITCH + unit + 32 * i], v, dh[i][0]);
      dh[i][1] = fmaf(m.full[o * FULL_PITCH + unit + 32 * i + 1], v, dh[i][1]);
    }
  }
  const u32 high = c.at(m.high) + down, low = c.at(m.low) + down;
  u32 wh[IN_REGISTERS ? GATES / 16 : 1][4], wl[IN_REGISTERS ? GATES / 16 : 1][4];
  if (IN_REGISTERS)
#pragma unroll
    for (int k = 0; k < GATES / 16; k++) {
      load_transposed(wh[IN_REGISTERS ? k : 0], high + k * 16 * ROW);
      load_transposed(wl[IN_REGISTERS ? k : 0], low + k * 16 * ROW);
    }
#pragma unroll
  for (int q = 0; q < 3; q++)
#pragma unroll
    for (int i = 0; i < N_TILES * 4; i++) gradient[q][i >> 2][i & 3] = 0.f;
  for (int t = LEN - 1; t >= 0; t--) {
    u8* slopes = m.exchange + (t & 1) * (EXAMPLES * SLOPES * 4);
    constexpr int LOWER = EXAMPLES * SLOPE_ROW;
    if (t < LEN - 1) {
      wait_for(arrived + 8 * ((t + 1) & 1), part_parity(step, t + 1));
#pragma unroll
      for (int i = 0; i < PAIRS; i++)
#pragma unroll
        for (int from = 0; from < CLUSTER; from++) {
          const float* part = m.parts[(t + 1) & 1] + (from * UNITS + unit + 32 * i) * EXAMPLES + (example ^ swizzle(unit));
          dh[i][0] += part[0];
          dh[i][1] += part[EXAMPLES];
        }
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      float s[4][2]; // r, z, a, n
#pragma unroll
      for (int e = 0; e < 2; e++) {
        s[3][e] = dh[i][e] * (1.f - z[i][e]) * (1.f - n[i][e] * n[i][e]);
        s[1][e] = dh[i][e] * (before[i][e] - n[i][e]) * z[i][e] * (1.f - z[i][e]);
        s[0][e] = s[3][e] * a[i][e] * r[i][e] * (1.f - r[i][e]);
        s[2][e] = s[3][e] * r[i][e];
        dh[i][e] *= z[i][e];
      }
#pragma unroll
      for (int q = 0; q < 4; q++) {
        u32 hi, lo;
        split(s[q][0] * SLOPE_SCALE, s[q][1] * SLOPE_SCALE, hi, lo);
        u8* to = slopes + example * SLOPE_ROW + (q * UNITS + unit + 32 * i) * 2;
        *(u32*)to = hi;
        *(u32*)(to + LOWER) = lo;
      }
      if (t > 0) recall(t - 1, i);
    }
    __syncthreads();
    if (t > 0) {
      send_slopes(c.at(slopes) + across, LOWER, high, low, wh, wl, t, arrived + 8 * (t & 1));
      add_gradient(c.at(slopes) + slope_column, LOWER, c.at(m.states[(t - 1) & 1]) + state_column);
    }
  }
}

template <int K>
inline __device__ void Computing::send_slopes(u32 slopes, int lower, u32 high, u32 low, const u32 (&wh)[K][4], const u32 (&wl)[K][4], int t, u32 barrier) {
  float s[3][2][4];
#pragma unroll
  for (int q = 0; q < 3; q++)
#pragma unroll
    for (int i = 0; i < 8; i++) s[q][i >> 2][i & 3] = 0.f;
  u32 xh[2][4], xl[2][4];
  load_tiles(xh[0], slopes);
  load_tiles(xl[0], slopes + lower);
#pragma unroll
  for (int k = 0; k < GATES / 16; k++) {
    const int now = k & 1;
    u32 th[4], tl[4];
    const u32 *ah = th, *al = tl;
    if (k + 1 < GATES / 16) {
      load_tiles(xh[now ^ 1], slopes + (k + 1) * 32);
      load_tiles(xl[now ^ 1], slopes + lower + (k + 1) * 32);
    }
    if (IN_REGISTERS) {
      ah = wh[IN_REGISTERS ? k : 0];
      al = wl[IN_REGISTERS ? k : 0];
    } else {
      load_transposed(th, high + k * 16 * ROW);
      load_transposed(tl, low + k * 16 * ROW);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      multiply_add(s[0][e], ah, xh[now] + 2 * e);
      multiply_add(s[1][e], al, xh[now] + 2 * e);
      multiply_add(s[2][e], ah, xl[now] + 2 * e);
    }
  }
  const int owner = warp * 16 / UNITS;
  float* to = m.parts[t & 1] + (c.rank * UNITS + warp * 16 % UNITS) * EXAMPLES;
  const u32 there = in_block(c.at(to), owner), counted = in_block(barrier, owner);
  const bool odd = t4 & 1;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = (s[0][e][j] + (s[1][e][j] + s[2][e][j])) * (1.f / (WEIGHT_SCALE * SLOPE_SCALE));
    // Adjacent lanes swap halves, so that each has four examples of one unit.
    const float x = __shfl_xor_sync(ALL, odd ? v[0] : v[2], 1), y = __shfl_xor_sync(ALL, odd ? v[1] : v[3], 1);
    const float4 four = odd ? make_float4(x, y, v[2], v[3]) : make_float4(v[0], v[1], x, y);
    const int at = (g + odd * 8) * EXAMPLES + ((e * 8 + 4 * (t4 >> 1)) ^ swizzle(g));
    if (owner == c.rank) *(float4*)(to + at) = four;
    else send_16(there + 4 * at, make_uint4(__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z), __float_as_uint(four.w)), counted);
  }
  if (owner == c.rank) {
    __syncwarp();
    if (lane == 0) expect(barrier, 1024 * (CLUSTER - 1));
  }
}

inline __device__ void Computing::add_gradient(u32 slopes, int lower, u32 states) {
  u32 ah[3][4], al[3][4], xh[2][4], xl[2][4];
#pragma unroll
  for (int q = 0; q < 3; q++) {
    load_transposed(ah[q], slopes + q * UNITS * 2);
    load_transposed(al[q], slopes + lower + q * UNITS * 2);
  }
  load_transposed(xh[0], states);
  load_transposed(xl[0], states + LOW);
#pragma unroll
  for (int k = 0; k < N_TILES; k += 2) {
    const int now = (k >> 1) & 1;
    if (k + 2 < N_TILES) {
      load_transposed(xh[now ^ 1], states + (k + 2) * 512);
      load_transposed(xl[now ^ 1], states + LOW + (k + 2) * 512);
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int q = 0; q < 3; q++) multiply_add(gradient[q][k + e], al[q], xh[now] + 2 * e);
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int q = 0; q < 3; q++) multiply_add(gradient[q][k + e], ah[q], xl[now] + 2 * e);
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int q = 0; q < 3; q++) multiply_add(gradient[q][k + e], ah[q], xh[now] + 2 * e);
  }
}
