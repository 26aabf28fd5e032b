// Descent of W_hh, of the embedding and of W_ih, and w_k in flat order.

inline __device__ void Computing::descend() {
  const float scale = m.task.rate / (SLOPE_SCALE * STATE_SCALE), keep = m.task.keep, pull = m.task.pull;
#pragma unroll
  for (int first = 0; first < 3 * N_TILES; first += 6) {
    float4 v[6];
#pragma unroll
    for (int j = 0; j < 6; j++) v[j] = __ldcg(master + (first + j) * COMPUTING);
#pragma unroll
    for (int j = 0; j < 6; j++) {
      const int q = (first + j) / N_TILES, tile = (first + j) % N_TILES;
      const float* slope = gradient[q][tile];
      v[j].x = fmaf(v[j].x, keep, -scale * slope[0]), v[j].y = fmaf(v[j].y, keep, -scale * slope[1]);
      v[j].z = fmaf(v[j].z, keep, -scale * slope[2]), v[j].w = fmaf(v[j].w, keep, -scale * slope[3]);
      if (pull != 0.f) {
        const float* w = m.anchor + (start_of(first + j) - m.start);
        v[j].x = fmaf(pull, w[0], v[j].x), v[j].y = fmaf(pull, w[1], v[j].y);
        v[j].z = fmaf(pull, w[8 * HIDDEN], v[j].z), v[j].w = fmaf(pull, w[8 * HIDDEN + 1], v[j].w);
      }
      __stcg(master + (first + j) * COMPUTING, v[j]);
      const int at = (q * UNITS + unit_tile * 16 + g) * ROW + (k_part * UNITS + tile * 8 + 2 * t4) * 2;
      u32 hi, lo;
      split(v[j].x * WEIGHT_SCALE, v[j].y * WEIGHT_SCALE, hi, lo);
      *(u32*)(m.high + at) = hi, *(u32*)(m.low + at) = lo;
      split(v[j].z * WEIGHT_SCALE, v[j].w * WEIGHT_SCALE, hi, lo);
      *(u32*)(m.high + at + 8 * ROW) = hi, *(u32*)(m.low + at + 8 * ROW) = lo;
    }
  }
}

inline __device__ void Computing::store() {
  float* const out = m.local;
  float shrunk = 1.f, pulled = 0.f; // what the biases contain of the start and of another anchor
  for (u32 s = Batches(m.task).count; s; s--)
    if (m.anchor == m.start) shrunk = shrunk * m.task.keep + m.task.pull;
    else shrunk *= m.task.keep, pulled = pulled * m.task.keep + m.task.pull;
  for (int j = 0; j < 3 * N_TILES; j++) {
    float* to = out + (start_of(j) - m.start);
    const float4 v = __ldcg(master + j * COMPUTING);
    to[0] = v.x, to[1] = v.y, to[8 * HIDDEN] = v.z, to[8 * HIDDEN + 1] = v.w;
  }
#if EMBEDDING
  if (c.rank == 0)
    for (int i = tid; i < ALPHABET * EMBEDDING; i += COMPUTING) out[i] = m.embedding[i];
  for (int i = tid; i < GATES * EMBEDDING; i += COMPUTING) out[AT_INPUT + c.row(i / EMBEDDING) * EMBEDDING + i % EMBEDDING] = m.input[i];
#else
  for (int i = tid; i < ALPHABET * GATES; i += COMPUTING) out[AT_INPUT + c.row(i / ALPHABET) * ALPHABET + i % ALPHABET] = m.table[i % ALPHABET * TABLE_PITCH + i / ALPHABET];
#endif
  for (int k = tid; k < GATES; k += COMPUTING) {
    const int row = c.row(k);
    if (k < 2 * UNITS) { // b_ih and b_hh have moved by the same amount
      float rest = m.bias[k] - shrunk * c.bias_of(m.start, k);
      if (pulled != 0.f) rest = fmaf(-pulled, c.bias_of(m.anchor, k), rest);
      const float moved = rest * .5f;
      float input = fmaf(shrunk, m.start[AT_INPUT_BIAS + row], moved), inner = fmaf(shrunk, m.start[AT_BIAS + row], moved);
      if (pulled != 0.f) input = fmaf(pulled, m.anchor[AT_INPUT_BIAS + row], input), inner = fmaf(pulled, m.anchor[AT_BIAS + row], inner);
      out[AT_INPUT_BIAS + row] = input, out[AT_BIAS + row] = inner;
    } else {
      out[AT_INPUT_BIAS + row] = m.bias[k];
      out[AT_BIAS + row] = m.inner_bias[k - 2 * UNITS];
    }
  }
  for (int i = tid; i < CLASSES * UNITS; i += COMPUTING) out[AT_FULL + i / UNITS * HIDDEN + c.rank * UNITS + i % UNITS] = m.full[i / UNITS * FULL_PITCH + i % UNITS];
  if (c.rank == 0)
    for (int i = tid; i < CLASSES; i += COMPUTING) out[AT_FULL_BIAS + i] = m.full_bias[i];
}

#if EMBEDDING
/// Updates embedding and W_ih from the slopes of the table, with every thread of the cluster.
__device__ void descend_embedding(Cluster& c) {
  Memory& m = c.m;
  for (int i = c.tid; i < ALPHABET * EMBEDDING; i += THREADS) {
    const int s = i / EMBEDDING, d = i % EMBEDDING;
    float sum = 0.f;
    for (int k = 0; k < GATES; k++) sum = fmaf(m.slopes[s * TABLE_PITCH + k], m.input[k * EMBEDDING + d], sum);
    for (int to = 0; to < CLUSTER; to++) store_remote(in_block(c.at(&m.embedding_slopes[c.rank][i]), to), sum);
  }
  constexpr int EACH = (GATES * EMBEDDING + THREADS - 1) / THREADS;
  float slopes[EACH];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int i = c.tid + e * THREADS, k = i / EMBEDDING, d = i % EMBEDDING;
    slopes[e] = 0.f;
    if (i < GATES * EMBEDDING)
      for (int s = 0; s < ALPHABET; s++) slopes[e] = fmaf(m.slopes[s * TABLE_PITCH + k], m.embedding[s * EMBEDDING + d], slopes[e]);
  }
  __syncthreads();
  sync_cluster();
  const float keep = m.task.keep, pull = m.task.pull;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int i = c.tid + e * THREADS;
    if (i < GATES * EMBEDDING) {
      m.input[i] = fmaf(m.input[i], keep, slopes[e]);
      if (pull != 0.f) m.input[i] = fmaf(pull, m.anchor[AT_INPUT + c.row(i / EMBEDDING) * EMBEDDING + i % EMBEDDING], m.input[i]);
    }
  }
  for (int i = c.tid; i < ALPHABET * EMBEDDING; i += THREADS) {
    float sum = 0.f;
    for (int from = 0; from < CLUSTER; from++) sum += m.embedding_slopes[from][i];
    m.embedding[i] = fmaf(m.embedding[i], keep, sum);
    if (pull != 0.f) m.embedding[i] = fmaf(pull, m.anchor[i], m.embedding[i]);
  }
  __syncthreads();
  c.fill_table();
}
#endif
