// The LSTM over frozen word vectors, 50 units on vectors of 50 entries: a block per device, a whole
// update in one kernel.
//
//   i, f, o = σ(W x + U h + b)    g = tanh(W x + U h + b)    c ← f c + i g    h = o tanh(c)
//
// Thirteen warps compute 16 of the 200 gates each, with products on tensor cores (split.cuh). W and
// U are in shared memory in both fp16 parts, and their fp32 master in global memory in fragment
// order. b_ih + b_hh is an additional column of W, because x has a 1 there. Three warps fetch word
// vectors and store the states for the backward pass.
//
// Macros: LEN, BATCH (≤ 16).

#include "common.cuh"
#include "split.cuh"

constexpr int THREADS = 512, UNITS = 50, DIM = 50, GATES = 4 * UNITS, EXAMPLES = 16;
constexpr int MATRIX = 208 * 144, ROWS = 16 * 144, PAIR = 2 * ROWS; // bytes: a part of W or U; of 16 rows of x or h; both parts
constexpr int SLOPE_ROW = 432, SLOPE_PART = 16 * SLOPE_ROW, PITCH = 20, LAST = EXAMPLES + 2;
constexpr int AT_RECURRENT = GATES * DIM, AT_INPUT_BIAS = AT_RECURRENT + GATES * UNITS, AT_BIAS = AT_INPUT_BIAS + GATES, AT_FULL = AT_BIAS + GATES, PARAMS = AT_FULL + UNITS + 1;
constexpr float STATE_SCALE = 16.f, WEIGHT_SCALE = 64.f, SLOPE_SCALE = 4096.f;
constexpr int FETCHING = 416, FETCHERS = THREADS - FETCHING; // the first thread of the warps that fetch
constexpr int TILES = 14;                                    // seven of W, seven of U, for each warp

struct Memory {
  alignas(128) u8 input[2][MATRIX], recurrent[2][MATRIX];
  u8 x[3][PAIR], h[2][PAIR];
  alignas(16) float sums[256 * PITCH];
  u8 slopes[2][SLOPE_PART];
  float last[UNITS * LAST];
  float full[64], residuals[EXAMPLES];
  alignas(16) float4 recalled[3][BATCH * UNITS / 2]; // gates of a time step, cells of the one before
  double losses[EXAMPLES];
  u32 words[2][LEN * BATCH], errors[EXAMPLES];
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);
constexpr u32 KEPT = LEN * 3 * THREADS * 16, KEPT_STATES = LEN * PAIR, MASTER = TILES * FETCHING * 16;
extern "C" __device__ u32 scratch_bytes = KEPT + KEPT_STATES + MASTER;

/// Word vectors in two parts: [word][part][64], entry 50 is one.
extern "C" __global__ void prepare(const float* vectors, u16* prepared, u32 words) {
  const u64 i = blockIdx.x * 256ull + threadIdx.x;
  if (i >= words * 32ull) return;
  const u64 w = i / 32;
  const int c = i % 32 * 2;
  const float x = c < DIM ? vectors[w * DIM + c] : c == DIM ? 1.f : 0.f, y = c + 1 < DIM ? vectors[w * DIM + c + 1] : 0.f;
  u32 h, l;
  split(x * STATE_SCALE, y * STATE_SCALE, h, l);
  *(u32*)(prepared + w * 128 + c) = h, *(u32*)(prepared + w * 128 + 64 + c) = l;
}

struct Block {
  Memory& m;
  const float* start;
  const u16* vectors;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  const bool computing = warp < 13, fetching = tid >= FETCHING, item = tid < BATCH * UNITS / 2;
  const int row = warp * 16, example = tid % BATCH, unit = tid / BATCH * 2; // an item: two units of an example
  float c[2];

  __device__ Block(Memory& memory, const float* start, const u16* vectors) : m(memory), start(start), vectors(vectors) {
    for (int i = tid; i < sizeof(Memory) / 4; i += THREADS) ((u32*)&m)[i] = 0u;
    __syncthreads();
  }

  /// Returns an entry of the matrices of a vector: 56 columns of W with the bias, then those of U.
  __device__ static float entry(const float* from, int r, int c) {
    if (r >= GATES) return 0.f;
    if (c < 56) return c < DIM ? from[r * DIM + c] : c == DIM ? from[AT_INPUT_BIAS + r] + from[AT_BIAS + r] : 0.f;
    return c - 56 < UNITS ? from[AT_RECURRENT + r * UNITS + c - 56] : 0.f;
  }
  __device__ float4 tile_of(const float* from, int j) const {
    const int r = row + g, c = j * 8 + 2 * t4;
    return make_float4(entry(from, r, c), entry(from, r, c + 1), entry(from, r + 8, c), entry(from, r + 8, c + 1));
  }
  /// Writes both parts of a tile.
  __device__ void put(int j, float4 v) {
    u8* high = (j < 7 ? m.input[0] : m.recurrent[0]) + (row + g) * 144 + ((j < 7 ? j : j - 7) * 8 + 2 * t4) * 2;
    u32 h, l;
    split(v.x * WEIGHT_SCALE, v.y * WEIGHT_SCALE, h, l);
    *(u32*)high = h, *(u32*)(high + MATRIX) = l;
    split(v.z * WEIGHT_SCALE, v.w * WEIGHT_SCALE, h, l);
    *(u32*)(high + 8 * 144) = h, *(u32*)(high + MATRIX + 8 * 144) = l;
  }
  __device__ void load() {
    if (computing)
      for (int j = 0; j < TILES; j++) put(j, tile_of(start, j));
    if (tid <= UNITS) m.full[tid] = start[AT_FULL + tid];
  }

  /// Fetches the words of a batch. `at(b)` is an example of the columns.
  template <class At>
  __device__ void fetch_words(const u32* inputs, int stage, At at) {
    if (fetching)
      for (int i = tid - FETCHING; i < LEN * BATCH; i += FETCHERS) m.words[stage][i] = inputs[(size_t)at(i % BATCH) * LEN + i / BATCH];
  }
  /// Fetches the vectors of time step `t`.
  __device__ void fetch_vectors(int stage, int t) {
    if (fetching && t >= 0 && t < LEN)
      for (int i = tid - FETCHING; i < BATCH * 16; i += FETCHERS) {
        const int b = i >> 4, piece = i & 15;
        copy_async_16(shared_address(m.x[t % 3]) + (piece >> 3) * ROWS + b * 144 + (piece & 7) * 16, vectors + (size_t)m.words[stage][t * BATCH + b] * 128 + piece * 8);
      }
  }

  /// The forward pass. The fetching warps run `between(t)`. Stores gates and cells if `kept` is
  /// given.
  template <class Between>
  __device__ void forward(int stage, float4* kept, Between between) {
    const u32 rows = (row + tile_row + (tile & 1) * 8) * 144 + (tile >> 1) * 16, columns = ((tile >> 1) * 8 + tile_row) * 144 + (tile & 1) * 16;
    fetch_vectors(stage, 0);
    fetch_vectors(stage, 1);
    u32 wh[4][4], uh[4][4]; // the small parts are read again in every time step: there is no room for them
    if (computing)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        load_tiles(wh[k], shared_address(m.input[0]) + rows + k * 32);
        load_tiles(uh[k], shared_address(m.recurrent[0]) + rows + k * 32);
      }
    c[0] = c[1] = 0.f;
    wait_for_copies();
    __syncthreads();
    for (int t = 0; t < LEN; t++) {
      if (computing) {
        float a[2][2][4] = {}; // the large products, the small ones
        const u32 x = shared_address(m.x[t % 3]) + columns, h = shared_address(m.h[(t + 1) & 1]) + columns;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          u32 p[4], q[4], wl[4];
          load_tiles(p, x + k * 32), load_tiles(q, x + ROWS + k * 32), load_tiles(wl, shared_address(m.input[1]) + rows + k * 32);
#pragma unroll
          for (int e = 0; e < 2; e++) multiply_add(a[0][e], wh[k], p + 2 * e), multiply_add(a[1][e], wl, p + 2 * e), multiply_add(a[1][e], wh[k], q + 2 * e);
        }
        if (t > 0)
#pragma unroll
          for (int k = 0; k < 4; k++) {
            u32 p[4], q[4], ul[4];
            load_tiles(p, h + k * 32), load_tiles(q, h + ROWS + k * 32), load_tiles(ul, shared_address(m.recurrent[1]) + rows + k * 32);
#pragma unroll
            for (int e = 0; e < 2; e++) multiply_add(a[0][e], uh[k], p + 2 * e), multiply_add(a[1][e], ul, p + 2 * e), multiply_add(a[1][e], uh[k], q + 2 * e);
          }
        add_parts(a, m.sums + (row + g) * PITCH, 1.f / (STATE_SCALE * WEIGHT_SCALE));
      } else {
        fetch_vectors(stage, t + 2);
        between(t);
        wait_for_copies();
      }
      __syncthreads();
      if (item) {
        float q[4][2], h[2];
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
          for (int e = 0; e < 2; e++) q[k][e] = m.sums[(k * UNITS + unit + e) * PITCH + example];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          q[0][e] = sigmoid(q[0][e]), q[1][e] = sigmoid(q[1][e]), q[2][e] = tanh_of(q[2][e]), q[3][e] = sigmoid(q[3][e]);
          c[e] = q[1][e] * c[e] + q[0][e] * q[2][e];
          h[e] = q[3][e] * tanh_of(c[e]);
        }
        u32 hi, lo;
        split(h[0] * STATE_SCALE, h[1] * STATE_SCALE, hi, lo);
        u8* to = m.h[t & 1] + example * 144 + unit * 2;
        *(u32*)to = hi, *(u32*)(to + ROWS) = lo;
        if (kept) {
#pragma unroll
          for (int k = 0; k < 2; k++) __stcg(kept + (t * 3 + k) * THREADS, make_float4(q[2 * k][0], q[2 * k][1], q[2 * k + 1][0], q[2 * k + 1][1]));
          __stcg((float2*)(kept + (t * 3 + 2) * THREADS), make_float2(c[0], c[1]));
        }
        if (t == LEN - 1) m.last[unit * LAST + example] = h[0], m.last[(unit + 1) * LAST + example] = h[1];
      }
      __syncthreads();
    }
  }

  /// Writes sums of 16 rows × 16 examples.
  __device__ static void add_parts(const float (&a)[2][2][4], float* to, float scale) {
    const int t4 = threadIdx.x & 3;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = (a[0][e][i] + a[1][e][i]) * scale;
      *(float2*)(to + e * 8 + 2 * t4) = make_float2(v[0], v[1]);
      *(float2*)(to + 8 * PITCH + e * 8 + 2 * t4) = make_float2(v[2], v[3]);
    }
  }

  /// Returns the logit of example `b` for a whole warp.
  __device__ float logit(int b) const {
    float z = m.full[lane] * m.last[lane * LAST + b];
    if (lane + 32 < UNITS) z = fmaf(m.full[lane + 32], m.last[(lane + 32) * LAST + b], z);
    return warp_sum(z) + m.full[UNITS];
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
update(const Task* tasks, const float* params, const u32* order, const u32* inputs, const u16* labels, const u16* vectors, float* local, u8* scratch) {
  extern __shared__ __align__(128) u8 shared[];
  Memory& m = *(Memory*)shared;
  const Task task = tasks[blockIdx.x];
  const Batches batches(task);
  order += task.order;
  scratch += (size_t)blockIdx.x * scratch_bytes;
  Block block(m, params + (size_t)task.params * PARAMS, vectors);
  const int tid = block.tid, lane = block.lane, warp = block.warp, g = block.g, t4 = block.t4, tile = block.tile, tile_row = block.tile_row, unit = block.unit, example = block.example;
  float4* kept = (float4*)scratch + tid;
  u8* states = scratch + KEPT;
  float4* master = (float4*)(scratch + KEPT + KEPT_STATES) + tid;
  block.load();
  if (block.computing)
    for (int j = 0; j < TILES; j++) __stcg(master + j * FETCHING, block.tile_of(block.start, j));
  const auto fetch_words = [&](u32 s) {
    const u32 first = batches.first(s), size = batches.size(s);
    block.fetch_words(inputs, s & 1, [&](int b) { return order[first + (b < size ? b : 0)]; });
  };
  fetch_words(0);
  __syncthreads();
  for (u32 s = 0; s < batches.count; s++) {
    const int size = batches.size(s), stage = s & 1;
    block.forward(stage, kept, [&](int t) {
      if (t == 0 && s + 1 < batches.count) fetch_words(s + 1);
      if (t > 0)
        for (int i = tid - FETCHING; i < PAIR / 16; i += FETCHERS) __stcg((uint4*)(states + (t - 1) * PAIR + i * 16), *(const uint4*)(m.h[(t + 1) & 1] + i * 16));
    });
    for (int b = warp; b < BATCH; b += THREADS / 32) {
      const float z = block.logit(b);
      if (lane == 0) m.residuals[b] = b < size ? (sigmoid(z) - (float)labels[order[batches.first(s) + b]]) / size : 0.f;
    }
    // The vectors of the last two time steps are still present. The previous one is fetched again.
    block.fetch_vectors(stage, LEN - 3);
    wait_for_copies();
    __syncthreads();

    // Backward through time.
    float dh[2] = {0, 0}, dc[2] = {0, 0};
    if (block.item) dh[0] = m.full[unit] * m.residuals[example], dh[1] = m.full[unit + 1] * m.residuals[example];
    // Gates of a time step and the previous cell pass through shared memory, because registers
    // would stall.
    const auto recall = [&](int t) {
      if (!block.item || t < 0) return;
#pragma unroll
      for (int k = 0; k < 2; k++) copy_async_16(shared_address(&m.recalled[k][tid]), kept + (t * 3 + k) * THREADS);
      if (t > 0) copy_async_16(shared_address(&m.recalled[2][tid]), kept + (t * 3 - 1) * THREADS);
    };
    float2 before = make_float2(block.c[0], block.c[1]);
    recall(LEN - 1);
    float gradient[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) gradient[i >> 2][i & 3] = 0.f;
    const int down = (warp & 3) * 16, part = warp >> 2; // ∂h: four tiles of units × four parts of the gates
    const u32 down_rows = (tile_row + (tile >> 1) * 8) * 144 + (down + (tile & 1) * 8) * 2, down_columns = ((tile >> 1) * 8 + tile_row) * SLOPE_ROW + (tile & 1) * 16;
    const u32 slope_columns = (tile_row + (tile >> 1) * 8) * SLOPE_ROW + (block.row + (tile & 1) * 8) * 2, state_rows = ((tile & 1) * 8 + tile_row) * 144 + (tile >> 1) * 16;
    for (int t = LEN - 1; t >= 0; t--) {
      if (block.item) {
        if (t < LEN - 1) {
          dh[0] = dh[1] = 0.f;
#pragma unroll
          for (int k = 0; k < 4; k++) dh[0] += m.sums[(k * 64 + unit) * PITCH + example], dh[1] += m.sums[(k * 64 + unit + 1) * PITCH + example];
        }
        wait_for_copies();
        const float4 first = m.recalled[0][tid], second = m.recalled[1][tid];
        const float2 cell = before;
        before = t > 0 ? *(const float2*)&m.recalled[2][tid] : make_float2(0, 0);
        const float i_[2] = {first.x, first.y}, f_[2] = {first.z, first.w}, g_[2] = {second.x, second.y}, o_[2] = {second.z, second.w}, c_[2] = {cell.x, cell.y}, p_[2] = {before.x, before.y};
        float d[4][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float squashed = tanh_of(c_[e]);
          dc[e] += dh[e] * o_[e] * (1.f - squashed * squashed);
          d[3][e] = dh[e] * squashed * o_[e] * (1.f - o_[e]);
          d[0][e] = dc[e] * g_[e] * i_[e] * (1.f - i_[e]);
          d[1][e] = dc[e] * p_[e] * f_[e] * (1.f - f_[e]);
          d[2][e] = dc[e] * i_[e] * (1.f - g_[e] * g_[e]);
          dc[e] *= f_[e];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
          u32 hi, lo;
          split(d[k][0] * SLOPE_SCALE, d[k][1] * SLOPE_SCALE, hi, lo);
          u8* to = m.slopes[0] + example * SLOPE_ROW + (k * UNITS + unit) * 2;
          *(u32*)to = hi, *(u32*)(to + SLOPE_PART) = lo;
        }
        recall(t - 1);
      }
      if (block.fetching) wait_for_copies();
      __syncthreads();
      if (block.fetching) {
        if (t < LEN - 1) block.fetch_vectors(stage, t - 2);
        if (t >= 2)
          for (int i = tid - FETCHING; i < PAIR / 16; i += FETCHERS) copy_async_16(shared_address(m.h[t & 1]) + i * 16, states + (t - 2) * PAIR + i * 16);
      }
      if (t > 0) {
        float a[2][2][4] = {}; // the large products, the small ones
        const int first = part ? 1 + 3 * part : 0; // 13 tiles of gates: four, three, three, three
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (j == 3 && part) break;
          const int k = first + j;
          u32 ah[4], al[4], p[4], q[4];
          load_tiles(p, shared_address(m.slopes[0]) + down_columns + k * 32), load_tiles(q, shared_address(m.slopes[1]) + down_columns + k * 32);
          load_transposed(ah, shared_address(m.recurrent[0]) + down_rows + k * 16 * 144), load_transposed(al, shared_address(m.recurrent[1]) + down_rows + k * 16 * 144);
#pragma unroll
          for (int e = 0; e < 2; e++) multiply_add(a[0][e], ah, p + 2 * e), multiply_add(a[1][e], al, p + 2 * e), multiply_add(a[1][e], ah, q + 2 * e);
        }
        Block::add_parts(a, m.sums + (part * 64 + down + g) * PITCH, 1.f / (WEIGHT_SCALE * SLOPE_SCALE));
      }
      if (block.computing) {
        u32 ah[4], al[4];
        load_transposed(ah, shared_address(m.slopes[0]) + slope_columns), load_transposed(al, shared_address(m.slopes[1]) + slope_columns);
        const u32 x = shared_address(m.x[t % 3]) + state_rows, h = shared_address(m.h[(t + 1) & 1]) + state_rows;
#pragma unroll
        for (int half = 0; half < 2; half++)
          if (half == 0 || t > 0)
#pragma unroll
            for (int j = 0; j < 4; j++) {
              u32 p[4], q[4];
              load_transposed(p, (half ? h : x) + j * 32), load_transposed(q, (half ? h : x) + ROWS + j * 32);
#pragma unroll
              for (int e = 0; e < 2; e++)
                if (2 * j + e < 7) {
                  float* sum = gradient[7 * half + 2 * j + e];
                  multiply_add(sum, al, p + 2 * e), multiply_add(sum, ah, q + 2 * e), multiply_add(sum, ah, p + 2 * e);
                }
            }
      }
      __syncthreads();
    }

    // w ← keep·w + pull·anchor − γ·gradient
    const float* anchor = params + (size_t)tasks[blockIdx.x].anchor * PARAMS;
    if (tid <= UNITS) {
      float sum = 0;
      for (int b = 0; b < BATCH; b++) sum += m.residuals[b] * (tid < UNITS ? m.last[tid * LAST + b] : 1.f);
      m.full[tid] = fmaf(m.full[tid], task.keep, fmaf(task.pull, anchor[AT_FULL + tid], -task.rate * sum));
    }
    if (block.computing) {
      const float scale = task.rate / (SLOPE_SCALE * STATE_SCALE);
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        float4 v = __ldcg(master + j * FETCHING);
        const float of_bias = j == 6 && t4 == 1 ? 2.f * scale : scale; // b_ih and b_hh move together, so their sum moves twice as far
        v.x = fmaf(v.x, task.keep, -of_bias * gradient[j][0]), v.y = fmaf(v.y, task.keep, -scale * gradient[j][1]);
        v.z = fmaf(v.z, task.keep, -of_bias * gradient[j][2]), v.w = fmaf(v.w, task.keep, -scale * gradient[j][3]);
        if (task.pull != 0.f) {
          const float4 w = block.tile_of(anchor, j);
          v.x = fmaf(task.pull, w.x, v.x), v.y = fmaf(task.pull, w.y, v.y), v.z = fmaf(task.pull, w.z, v.z), v.w = fmaf(task.pull, w.w, v.w);
        }
        __stcg(master + j * FETCHING, v);
        block.put(j, v);
      }
    }
    __syncthreads();
  }

  float* out = local + (size_t)task.slot * PARAMS;
  const float *start = block.start, *anchor = params + (size_t)tasks[blockIdx.x].anchor * PARAMS;
  float shrunk = 1.f, pulled = 0.f; // what the biases contain of the start and of another anchor
  for (u32 s = 0; s < batches.count; s++)
    if (anchor == start) shrunk = shrunk * task.keep + task.pull;
    else shrunk *= task.keep, pulled = pulled * task.keep + task.pull;
  if (block.computing)
    for (int j = 0; j < TILES; j++) {
      const float4 v = __ldcg(master + j * FETCHING);
      const float entries[4] = {v.x, v.y, v.z, v.w};
      for (int e = 0; e < 4; e++) {
        const int r = block.row + g + (e >> 1) * 8, c = (j < 7 ? j : j - 7) * 8 + 2 * t4 + (e & 1);
        if (r >= GATES) continue;
        if (c < UNITS) {
          out[(j < 7 ? 0 : AT_RECURRENT) + r * UNITS + c] = entries[e];
        } else if (j == 6 && c == DIM) {
          // The rest of b_ih and b_hh is the same: they have moved together.
          float rest = entries[e] - shrunk * Block::entry(start, r, DIM);
          if (pulled != 0.f) rest = fmaf(-pulled, Block::entry(anchor, r, DIM), rest);
          const float moved = rest * .5f;
          float input = fmaf(shrunk, start[AT_INPUT_BIAS + r], moved), inner = fmaf(shrunk, start[AT_BIAS + r], moved);
          if (pulled != 0.f) input = fmaf(pulled, anchor[AT_INPUT_BIAS + r], input), inner = fmaf(pulled, anchor[AT_BIAS + r], inner);
          out[AT_INPUT_BIAS + r] = input, out[AT_BIAS + r] = inner;
        }
      }
    }
  if (tid <= UNITS) out[AT_FULL + tid] = m.full[tid];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
score(const Item* items, const float* params, const u32* inputs, const u16* labels, const u16* vectors, double* losses, u32* errors) {
  extern __shared__ __align__(128) u8 shared[];
  Memory& m = *(Memory*)shared;
  const Item item = items[blockIdx.x];
  Block block(m, params + (size_t)blockIdx.y * PARAMS, vectors);
  block.load();
  double total = 0;
  u32 wrong = 0;
  for (u32 first = 0; first < item.count; first += BATCH) {
    const int size = min(item.count - first, (u32)BATCH);
    block.fetch_words(inputs, 0, [&](int b) { return item.first + first + (b < size ? b : 0); });
    __syncthreads();
    block.forward(0, nullptr, [](int) {});
    for (int b = block.warp; b < size; b += THREADS / 32) {
      const double z = block.logit(b), y = labels[item.first + first + b];
      if (block.lane == 0) m.losses[b] = fmax(z, 0.) + log1p(exp(-fabs(z))) - y * z, m.errors[b] = (z > 0.) != (y == 1.);
    }
    __syncthreads();
    if (block.tid == 0)
      for (int b = 0; b < size; b++) total += m.losses[b], wrong += m.errors[b];
  }
  if (block.tid == 0) {
    losses[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = total;
    errors[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
  }
}
