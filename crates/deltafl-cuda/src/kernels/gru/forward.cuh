// The forward pass of the computing warps, and the output layer.

inline __device__ void Computing::forward(u32 step, const u8* symbols) {
  const u32 base = c.at(&m.states[0][0]), arrived = c.at(&m.barriers[0]);
  const u32 row = (unit_tile * 16 + tile_row + (tile & 1) * 8) * ROW + (tile >> 1) * 16 + k_part * UNITS * 2;
  const u32 who = (tile >> 1) * 8 + tile_row, column = k_part * PART + (who >> 2) * 256 + (who & 3) * 32 + (((tile & 1) ^ ((who >> 2) & 1)) * 16);
  const u32 high = c.at(m.high) + row, low = c.at(m.low) + row;
  const int quad = (warp >> 1) & 3, half = warp & 1;
  const u32 in_tile = (lane >> 3) * 32 + (((lane & 7) * 4) ^ ((quad & 1) * 16));
  float* sums = (float*)m.exchange;
#pragma unroll
  for (int i = 0; i < PAIRS; i++) h[i][0] = h[i][1] = 0.f;
  u32 wh[3][IN_REGISTERS ? UNITS / 16 : 1][4], wl[3][IN_REGISTERS ? UNITS / 16 : 1][4];
  if (IN_REGISTERS)
#pragma unroll
    for (int q = 0; q < 3; q++)
#pragma unroll
      for (int k = 0; k < UNITS / 16; k++) {
        load_tiles(wh[q][IN_REGISTERS ? k : 0], high + q * UNITS * ROW + k * 32);
        load_tiles(wl[q][IN_REGISTERS ? k : 0], low + q * UNITS * ROW + k * 32);
      }
  for (int t = 0; t < LEN; t++) {
    float x[PAIRS][6];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const float *from = m.table + symbols[t * EXAMPLES + example] * TABLE_PITCH + unit + 32 * i, *bias = m.bias + unit + 32 * i;
#pragma unroll
      for (int q = 0; q < 3; q++) {
        x[i][2 * q] = from[q * UNITS] + bias[q * UNITS];
        x[i][2 * q + 1] = from[q * UNITS + 1] + bias[q * UNITS + 1];
      }
    }
    if (t > 0) {
      wait_for(arrived + 8 * ((t - 1) & 1), state_parity(step, t - 1));
      const u32 states = base + ((t - 1) & 1) * STATES + column;
      float s[3][2][4];
#pragma unroll
      for (int q = 0; q < 3; q++)
#pragma unroll
        for (int i = 0; i < 8; i++) s[q][i >> 2][i & 3] = 0.f;
      u32 xh[2][4], xl[2][4];
      load_tiles(xh[0], states);
      load_tiles(xl[0], states + LOW);
#pragma unroll
      for (int k = 0; k < UNITS / 16; k++) {
        const int now = k & 1;
        if (k + 1 < UNITS / 16) {
          load_tiles(xh[now ^ 1], states + (k + 1) * 1024);
          load_tiles(xl[now ^ 1], states + LOW + (k + 1) * 1024);
        }
#pragma unroll
        for (int q = 0; q < 3; q++) {
          u32 th[4], tl[4], *ah = th, *al = tl;
          if (IN_REGISTERS) {
            ah = wh[q][IN_REGISTERS ? k : 0];
            al = wl[q][IN_REGISTERS ? k : 0];
          } else {
            load_tiles(ah, high + q * UNITS * ROW + k * 32);
            load_tiles(al, low + q * UNITS * ROW + k * 32);
          }
#pragma unroll
          for (int e = 0; e < 2; e++) multiply_add(s[q][e], al, xh[now] + 2 * e);
#pragma unroll
          for (int e = 0; e < 2; e++) multiply_add(s[q][e], ah, xl[now] + 2 * e);
#pragma unroll
          for (int e = 0; e < 2; e++) multiply_add(s[q][e], ah, xh[now] + 2 * e);
        }
      }
#pragma unroll
      for (int q = 0; q < 3; q++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float* to = &sums[((k_part * 3 + q) * UNITS + unit_tile * 16 + g) * EXAMPLES + ((e * 8 + 2 * t4) ^ swizzle(g))];
          *(float2*)to = make_float2(s[q][e][0], s[q][e][1]);
          *(float2*)(to + 8 * EXAMPLES) = make_float2(s[q][e][2], s[q][e][3]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const int u = unit + 32 * i;
      float s[6] = {0, 0, 0, 0, 0, 0};
      if (t > 0)
#pragma unroll
        for (int k = 0; k < K_PARTS; k++) {
          const float* from = sums + (k * 3 * UNITS + u) * EXAMPLES + (example ^ swizzle(u));
#pragma unroll
          for (int q = 0; q < 3; q++) {
            s[2 * q] += from[q * UNITS * EXAMPLES];
            s[2 * q + 1] += from[q * UNITS * EXAMPLES + EXAMPLES];
          }
        }
      constexpr float UNSCALE = 1.f / (STATE_SCALE * WEIGHT_SCALE);
      float rr[2], zz[2], nn[2], aa[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        rr[e] = sigmoid(fmaf(s[e], UNSCALE, x[i][e]));
        zz[e] = sigmoid(fmaf(s[2 + e], UNSCALE, x[i][2 + e]));
        aa[e] = fmaf(s[4 + e], UNSCALE, m.inner_bias[u + e]);
        nn[e] = tanh_of(fmaf(rr[e], aa[e], x[i][4 + e]));
        h[i][e] = nn[e] + zz[e] * (h[i][e] - nn[e]);
      }
      if (t < LEN - 1) { // to every block of the cluster
        u32 hi, lo;
        split(h[i][0] * STATE_SCALE, h[i][1] * STATE_SCALE, hi, lo);
        u8* to = m.states[t & 1] + c.rank * PART + ((half + 2 * i) * 4 + quad) * 256;
        *(u32*)(to + in_tile) = hi;
        *(u32*)(to + LOW + in_tile) = lo;
        __syncwarp();
        if (lane < 16) {
          const uint4 v = *(const uint4*)(to + lane * 16);
#pragma unroll
          for (int k = 1; k < CLUSTER; k++) {
            const int there = (c.rank + k) & (CLUSTER - 1);
            send_16(in_block(c.at(to) + lane * 16, there), v, in_block(arrived + 8 * (t & 1), there));
          }
        } else if (lane == 16 && i == PAIRS - 1) {
          expect(arrived + 8 * (t & 1), PAIRS * 256 * (CLUSTER - 1));
        }
      } else {
        c.last()[u * EXAMPLES + example] = h[i][0];
        c.last()[(u + 1) * EXAMPLES + example] = h[i][1];
      }
      float* to = kept_at(t, i);
      __stcg((float2*)to, make_float2(rr[0], rr[1]));
      __stcg((float2*)(to + PAIRS * 512), make_float2(zz[0], zz[1]));
      __stcg((float2*)(to + PAIRS * 1024), make_float2(nn[0], nn[1]));
      __stcg((float2*)(to + PAIRS * 1536), make_float2(aa[0], aa[1]));
      __stcg((float2*)(to + PAIRS * 2048), make_float2(h[i][0], h[i][1]));
    }
  }
  __syncthreads();
}

inline __device__ void Computing::output(u32 step, const u8* symbols, int size) {
  float* logits = (float*)(m.exchange + K_PARTS * GATES * 64);
  const u32 arrived = c.at(&m.barriers[4]);
  const int o = tid >> 2, first = (tid & 3) * 4;
  if (o < CLASSES) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int k = 0; k < UNITS; k++) {
      const float w = m.full[o * FULL_PITCH + k];
      const float4 v = *(const float4*)&c.last()[k * EXAMPLES + first];
      sum.x = fmaf(w, v.x, sum.x), sum.y = fmaf(w, v.y, sum.y), sum.z = fmaf(w, v.z, sum.z), sum.w = fmaf(w, v.w, sum.w);
    }
    *(float4*)&logits[c.rank * LOGITS + o * EXAMPLES + first] = sum;
  }
  publish();
  asm volatile("bar.sync 1,256;" ::: "memory");
  if (tid < CLUSTER) {
    const u32 mine = c.at(logits + c.rank * LOGITS);
    if (tid != c.rank) send_bulk(in_block(mine, tid), mine, LOGITS * 4, in_block(arrived, tid));
    else expect(arrived, LOGITS * 4 * (CLUSTER - 1));
  }
  wait_for(arrived, step & 1);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int b = 2 * warp + e;
    Row<CLASSES> row;
#pragma unroll
    for (int k = 0; k < Row<CLASSES>::PARTS; k++) {
      const int o = lane + 32 * k;
      row.z[k] = o < CLASSES ? m.full_bias[o] : 0.f;
#pragma unroll
      for (int from = 0; from < CLUSTER; from++)
        if (o < CLASSES) row.z[k] += logits[from * LOGITS + o * EXAMPLES + b];
    }
    row.to_residuals(lane, symbols[LEN * EXAMPLES + b], 1.f / size);
#pragma unroll
    for (int k = 0; k < Row<CLASSES>::PARTS; k++)
      if (lane + 32 * k < CLASSES) c.residuals()[(lane + 32 * k) * EXAMPLES + b] = b < size ? row.z[k] : 0.f;
  }
  __syncthreads();
}
