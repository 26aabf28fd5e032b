// The auxiliary warps: states for the gradient, and descent of the output layer, of the rows of
// symbols and of the biases.

/// The four auxiliary warps.
struct Beside {
  Cluster& c;
  Memory& m;
  u8* kept_states;
  const int who = threadIdx.x - COMPUTING;
  static constexpr int COUNT = THREADS - COMPUTING, FULL_EACH = (CLASSES * UNITS + COUNT - 1) / COUNT;

  /// Stores the states of the forward pass for the gradient.
  __device__ void forward(u32 step, u32 s, const void* inputs, const u16* labels) {
    for (int t = 0; t < LEN; t++) {
      if (t > 0 && t < LEN - 1) {
        wait_for(c.at(&m.barriers[(t - 1) & 1]), state_parity(step, t - 1));
#pragma unroll
        for (int i = who * 16; i < STATES; i += COUNT * 16) __stcg((uint4*)(kept_states + (t - 1) * STATES + i), *(const uint4*)(m.states[(t - 1) & 1] + i));
      } else if (t == 0 && s + 1 < Batches(m.task).count) {
        c.fetch(inputs, labels, s + 1, who, COUNT);
      }
      __syncthreads();
    }
    __syncthreads();
    __syncthreads();
  }

  /// Updates the full layer, the table of symbols and the biases, and restores the states.
  __device__ void backward(const u8* symbols) {
    const float rate = m.task.rate, keep = m.task.keep, pull = m.task.pull;
    float full[FULL_EACH], full_bias = 0.f;
#pragma unroll
    for (int i = 0; i < FULL_EACH; i++) {
      const int e = who + COUNT * i;
      full[i] = 0.f;
      if (e < CLASSES * UNITS)
#pragma unroll
        for (int b = 0; b < EXAMPLES; b += 4) {
          const float4 v = *(const float4*)&c.last()[e % UNITS * EXAMPLES + b], d = *(const float4*)&c.residuals()[e / UNITS * EXAMPLES + b];
          full[i] = fmaf(v.w, d.w, fmaf(v.z, d.z, fmaf(v.y, d.y, fmaf(v.x, d.x, full[i]))));
        }
    }
    if (who < CLASSES)
#pragma unroll
      for (int b = 0; b < EXAMPLES; b += 4) {
        const float4 d = *(const float4*)&c.residuals()[who * EXAMPLES + b];
        full_bias += (d.x + d.y) + (d.z + d.w);
      }
#if EMBEDDING
    float* table = m.slopes;
    for (int i = who; i < ALPHABET * TABLE_PITCH; i += COUNT) table[i] = 0.f;
#else
    float* table = m.table;
    if (keep != 1.f || pull != 0.f)
      for (int i = who; i < ALPHABET * GATES; i += COUNT) {
        const int at = i % ALPHABET * TABLE_PITCH + i / ALPHABET;
        table[at] = keep * table[at] + (pull != 0.f ? pull * m.anchor[AT_INPUT + c.row(i / ALPHABET) * ALPHABET + i % ALPHABET] : 0.f);
      }
#endif
    // Two columns of the table or of b_hn per thread. The table uses the slopes of n, b_hn those of
    // a.
    const bool of_table = who < GATES / 2, of_inner = who >= 96 && who < 96 + UNITS / 2;
    const int column = of_table ? 2 * who : 0, slope_column = column >= 2 * UNITS ? column + UNITS : column;
    float2 total = make_float2(0, 0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < FULL_EACH; i++) {
      const int e = who + COUNT * i, o = e / UNITS, k = e % UNITS;
      if (e < CLASSES * UNITS) {
        float& w = m.full[o * FULL_PITCH + k];
        w = fmaf(w, keep, -rate * full[i]);
        if (pull != 0.f) w = fmaf(pull, m.anchor[AT_FULL + o * HIDDEN + c.rank * UNITS + k], w);
      }
    }
    if (who < CLASSES) {
      float& w = m.full_bias[who];
      w = fmaf(w, keep, -rate * full_bias);
      if (pull != 0.f) w = fmaf(pull, m.anchor[AT_FULL_BIAS + who], w);
    }
    for (int t = LEN - 1; t >= 0; t--) {
      if (t < LEN - 1) {
        wait_for_copies();
        __syncthreads();
      }
      if (t >= 2)
#pragma unroll
        for (int i = who * 16; i < STATES; i += COUNT * 16) copy_async_16(c.at(m.states[t & 1] + i), kept_states + (t - 2) * STATES + i);
      const u8* slopes = m.exchange + (t & 1) * (EXAMPLES * SLOPES * 4);
      const auto slope = [&](int column, int b) {
        const u8* from = slopes + b * SLOPE_ROW + column * 2;
        return join(*(const u32*)from, *(const u32*)(from + EXAMPLES * SLOPE_ROW));
      };
      if (of_table) {
#pragma unroll 1
        for (int first = 0; first < EXAMPLES; first += 8) {
          float2 v[8];
#pragma unroll
          for (int k = 0; k < 8; k++) {
            v[k] = slope(slope_column, first + k);
            total.x += v[k].x, total.y += v[k].y;
          }
#pragma unroll
          for (int k = 0; k < 8; k++) {
            float2* row = (float2*)&table[symbols[t * EXAMPLES + first + k] * TABLE_PITCH + column];
            float2 w = *row;
            w.x -= rate / SLOPE_SCALE * v[k].x, w.y -= rate / SLOPE_SCALE * v[k].y;
            *row = w;
          }
        }
      } else if (of_inner) {
#pragma unroll
        for (int k = 0; k < EXAMPLES; k++) {
          const float2 v = slope(2 * UNITS + 2 * (who - 96), k);
          total.x += v.x, total.y += v.y;
        }
      }
    }
    const auto descend = [&](float& w, float slope, float anchor) { w = fmaf(w, keep, -slope) + (pull != 0.f ? pull * anchor : 0.f); };
    if (of_table) { // b_ih and b_hh of r and z move together, so their sum moves twice as far
      const float f = (column < 2 * UNITS ? 2.f : 1.f) * rate / SLOPE_SCALE;
      descend(m.bias[column], f * total.x, c.bias_of(m.anchor, column));
      descend(m.bias[column + 1], f * total.y, c.bias_of(m.anchor, column + 1));
    } else if (of_inner) {
      const int u = 2 * (who - 96);
      const float* anchor = m.anchor + AT_BIAS + 2 * HIDDEN + c.rank * UNITS + u;
      descend(m.inner_bias[u], rate / SLOPE_SCALE * total.x, anchor[0]);
      descend(m.inner_bias[u + 1], rate / SLOPE_SCALE * total.y, anchor[1]);
    }
  }
};
