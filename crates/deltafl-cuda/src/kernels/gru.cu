// Local updates of the GRU over symbols: a cluster of CLUSTER blocks per device, each with HIDDEN/CLUSTER units.
//
//   r = σ(W_ir x + b_r + W_hr h)     z = σ(W_iz x + b_z + W_hz h)     a = W_hn h + b_hn
//   n = tanh(W_in x + b_in + r a)    h ← n + z (h − n)
//
// Eight warps compute: products on tensor cores (split.cuh), gates, and the backward pass. Four
// other warps store the states for the gradient, add the rows of symbols, and fetch the next batch.
// The blocks of a cluster exchange their parts of h (forward) and of ∂h (backward) by asynchronous
// stores that count on the receiver's barriers.
//   W_hh    fp32 in global memory in fragment order, one copy per cluster (it stays in L2);
//           both fp16 parts in shared memory, and with CLUSTER = 4 in registers for a whole pass
//   W_ih    a table with a row per symbol in shared memory: a look-up forward, a row addition
//           backward
// A cluster processes one task after another from a queue, largest first.
//
// Macros: LEN, ALPHABET, CLASSES (≤ 64), EMBEDDING (0: one-hot), CLUSTER (2 or 4), TEXT (windows of
// a text, otherwise tokens).

#include "common.cuh"
#include "split.cuh"
#include "cluster.cuh"

constexpr int HIDDEN = 128, EXAMPLES = 16, THREADS = 384, COMPUTING = 256;
constexpr int UNITS = HIDDEN / CLUSTER, GATES = 3 * UNITS;
constexpr int UNIT_TILES = UNITS / 16, K_PARTS = 8 / UNIT_TILES, N_TILES = 16 / K_PARTS; // a warp: 16 units × UNITS inputs
constexpr int PAIRS = UNITS / 32;                                                       // pairs of units of a thread
constexpr bool IN_REGISTERS = CLUSTER == 4;
constexpr int TABLE_PITCH = CLUSTER == 2 ? GATES + 2 : GATES + 4, FULL_PITCH = UNITS + 1;
constexpr int ROW = 2 * HIDDEN + 16;                         // bytes of a row of W_hh in shared memory
constexpr int SLOPES = 4 * UNITS + 8, SLOPE_ROW = 2 * SLOPES; // slopes of an example: r, z, a, n
constexpr int PART = 64 * UNITS, STATES = CLUSTER * PART, LOW = 128; // a block's part of h: tiles of 4 examples × 16 units, both fp16 parts
constexpr float STATE_SCALE = 16.f, WEIGHT_SCALE = 64.f, SLOPE_SCALE = 4096.f;

// Flat order of the parameters.
constexpr int INPUTS = EMBEDDING ? EMBEDDING : ALPHABET;
constexpr int AT_INPUT = ALPHABET * EMBEDDING, AT_RECURRENT = AT_INPUT + 3 * HIDDEN * INPUTS, AT_INPUT_BIAS = AT_RECURRENT + 3 * HIDDEN * HIDDEN;
constexpr int AT_BIAS = AT_INPUT_BIAS + 3 * HIDDEN, AT_FULL = AT_BIAS + 3 * HIDDEN, AT_FULL_BIAS = AT_FULL + CLASSES * HIDDEN, PARAMS = AT_FULL_BIAS + CLASSES;

constexpr int SYMBOLS = (LEN + 1) * EXAMPLES, LOGITS = CLASSES * EXAMPLES;
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
/// Sums of products in the forward pass, then logits of all blocks. Slopes of two time steps in the
/// backward pass.
constexpr int EXCHANGE = larger(K_PARTS * GATES * 64 + CLUSTER * LOGITS * 4, 2 * EXAMPLES * SLOPES * 4);

struct Memory {
  alignas(128) u8 high[GATES * ROW];
  u8 low[GATES * ROW];
  alignas(16) float table[ALPHABET * TABLE_PITCH];
  alignas(16) float bias[GATES], inner_bias[UNITS];
  alignas(128) u8 states[2][STATES]; // of two time steps; the last one holds h in fp32 and the residuals instead
  alignas(128) float parts[2][HIDDEN * EXAMPLES];
  alignas(128) u8 exchange[EXCHANGE];
  alignas(16) float full[CLASSES * FULL_PITCH];
  alignas(16) float full_bias[64];
  alignas(16) u8 symbols[2][SYMBOLS];
#if EMBEDDING
  float embedding[ALPHABET * EMBEDDING], input[GATES * EMBEDDING], slopes[ALPHABET * TABLE_PITCH];
  float embedding_slopes[CLUSTER][ALPHABET * EMBEDDING];
#endif
  alignas(8) u64 barriers[5]; // states even and odd, parts even and odd, logits
  // The task, stored here to save registers.
  Task task;
  const float *start, *anchor; // w_t; the vector that `pull` multiplies
  float* local;
  const u32* order;
  u32 next;
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);
/// Bytes of scratch per block in global memory: gates and states of all time steps, W_hh.
constexpr u32 KEPT = LEN * 5 * PAIRS * 512 * 4, KEPT_STATES = LEN * STATES, MASTER = 3 * N_TILES * COMPUTING * 16;
extern "C" __device__ u32 scratch_bytes = KEPT + KEPT_STATES + MASTER;

/// Returns the position of column k in a row, spread over banks.
__device__ __forceinline__ int swizzle(int k) { return ((k & 2) << 2) | (k & 4); }

struct Cluster {
  Memory& m;
  int tid, rank;

  __device__ float* last() const { return (float*)m.states[(LEN - 1) & 1]; }     // h of the last time step [UNITS][16]
  __device__ float* residuals() const { return last() + UNITS * EXAMPLES; }      // [CLASSES][16]
  __device__ u32 at(const void* p) const { return shared_address(p); }

  /// The row of gate `c` of this block in the flat matrices.
  __device__ int row(int c) const { return c / UNITS * HIDDEN + rank * UNITS + c % UNITS; }

  /// Copies the parameters of the task to shared memory.
  __device__ void load() {
    for (int i = tid; i < GATES * 64; i += THREADS) {
      const int r = i >> 6, c = (i & 63) * 2;
      const float* w = m.start + AT_RECURRENT + row(r) * HIDDEN + c;
      u32 h, l;
      split(w[0] * WEIGHT_SCALE, w[1] * WEIGHT_SCALE, h, l);
      *(u32*)(m.high + r * ROW + c * 2) = h;
      *(u32*)(m.low + r * ROW + c * 2) = l;
    }
#if EMBEDDING
    for (int i = tid; i < ALPHABET * EMBEDDING; i += THREADS) m.embedding[i] = m.start[i];
    for (int i = tid; i < GATES * EMBEDDING; i += THREADS) m.input[i] = m.start[AT_INPUT + row(i / EMBEDDING) * EMBEDDING + i % EMBEDDING];
    __syncthreads();
    fill_table();
#else
    for (int i = tid; i < ALPHABET * GATES; i += THREADS) m.table[i % ALPHABET * TABLE_PITCH + i / ALPHABET] = m.start[AT_INPUT + row(i / ALPHABET) * ALPHABET + i % ALPHABET];
#endif
    for (int c = tid; c < GATES; c += THREADS) m.bias[c] = bias_of(m.start, c);
    for (int u = tid; u < UNITS; u += THREADS) m.inner_bias[u] = m.start[AT_BIAS + 2 * HIDDEN + rank * UNITS + u];
    for (int i = tid; i < CLASSES * UNITS; i += THREADS) m.full[i / UNITS * FULL_PITCH + i % UNITS] = m.start[AT_FULL + i / UNITS * HIDDEN + rank * UNITS + i % UNITS];
    for (int i = tid; i < CLASSES; i += THREADS) m.full_bias[i] = m.start[AT_FULL_BIAS + i];
  }

#if EMBEDDING
  /// Computes the contribution of each symbol to the gates: its embedding times W_ih.
  __device__ void fill_table() {
    for (int i = tid; i < ALPHABET * GATES; i += THREADS) {
      const int s = i / GATES, c = i % GATES;
      float sum = 0.f;
#pragma unroll
      for (int d = 0; d < EMBEDDING; d++) sum = fmaf(m.embedding[s * EMBEDDING + d], m.input[c * EMBEDDING + d], sum);
      m.table[s * TABLE_PITCH + c] = sum;
    }
  }
#endif

  /// The biases of a vector: b_ih + b_hh of r and z, b_ih of n.
  __device__ float bias_of(const float* from, int c) const { return from[AT_INPUT_BIAS + row(c)] + (c < 2 * UNITS ? from[AT_BIAS + row(c)] : 0.f); }

  /// Fetches the symbols and labels of step `s` with `count` threads, of which this is `who`.
  __device__ void fetch(const void* inputs, const u16* labels, u32 s, int who, int count) {
    const Batches batches(m.task);
    const u32 first = batches.first(s), size = batches.size(s);
    for (int i = who; i < SYMBOLS; i += count) {
      const int b = i % EXAMPLES, t = i / EXAMPLES;
      const size_t at = m.order[first + (b < size ? b : 0)];
#if TEXT
      m.symbols[s & 1][i] = ((const u8*)inputs)[at + t];
#else
      m.symbols[s & 1][i] = t < LEN ? ((const u32*)inputs)[at * LEN + t] : labels[at];
#endif
    }
  }
};

/// Returns how often a barrier of this parity completes in a step, and which completion time step t
/// is.
__device__ __forceinline__ u32 state_parity(u32 step, int t) { return (step * (t & 1 ? (LEN - 1) / 2 : LEN / 2) + (t >> 1)) & 1; }
__device__ __forceinline__ u32 part_parity(u32 step, int t) {
  const int first = ((LEN - 1) & 1) == (t & 1) ? LEN - 1 : LEN - 2; // the first of its parity on the way back, down to 1
  const int count = t & 1 ? (first + 1) / 2 : first / 2;
  return (step * count + ((first - t) >> 1)) & 1;
}

/// The eight computing warps.
struct Computing {
  Cluster& c;
  Memory& m;
  float* kept;
  float4* master;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  const int example = (warp >> 1) * 4 + (lane >> 3), unit = ((warp & 1) * 8 + (lane & 7)) * 2; // gates of units unit, unit+1 (+32 i)
  const int unit_tile = warp % UNIT_TILES, k_part = warp / UNIT_TILES;                        // products of 16 units × UNITS inputs
  float h[PAIRS][2], dh[PAIRS][2], r[PAIRS][2], z[PAIRS][2], n[PAIRS][2], a[PAIRS][2], before[PAIRS][2];
  float gradient[3][N_TILES][4];

  __device__ Computing(Cluster& cluster, float* kept, float4* master) : c(cluster), m(cluster.m), kept(kept), master(master + tid) {}

  __device__ const float* start_of(int j) const {
    return m.start + AT_RECURRENT + (j / N_TILES * HIDDEN + c.rank * UNITS + unit_tile * 16 + g) * HIDDEN + k_part * UNITS + j % N_TILES * 8 + 2 * t4;
  }
  __device__ void load_master() {
    for (int j = 0; j < 3 * N_TILES; j++) {
      const float* w = start_of(j);
      __stcg(master + j * COMPUTING, make_float4(w[0], w[1], w[8 * HIDDEN], w[8 * HIDDEN + 1]));
    }
  }

  /// Returns the address of the gates of time step `t`.
  __device__ float* kept_at(int t, int i) const { return kept + (t * 5 * PAIRS + i) * 512 + tid * 2; }

  __device__ void forward(u32 step, const u8* symbols) {
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

  /// Sends the logits of this block's units to every block, then computes the residuals of the
  /// loss.
  __device__ void output(u32 step, const u8* symbols, int size) {
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

  /// Reads the gates of time step `t` and the previous state.
  __device__ void recall(int t, int i) {
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

  __device__ void backward(u32 step) {
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

  /// Computes ∂h of the previous time step from this block's gates: 16 units per warp, sent to
  /// their owner.
  template <int K>
  __device__ void send_slopes(u32 slopes, int lower, u32 high, u32 low, const u32 (&wh)[K][4], const u32 (&wl)[K][4], int t, u32 barrier) {
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

  /// Computes ∂W_hh += slopes ⊗ states of the previous time step.
  __device__ void add_gradient(u32 slopes, int lower, u32 states) {
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

  /// Computes W_hh ← keep·W_hh + pull·anchor − γ·gradient, and its fp16 parts.
  __device__ void descend() {
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

  __device__ void store() {
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
};

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

/// The end of a step: no thread continues before all blocks have used their states and parameters.
__device__ __forceinline__ void end_step(Cluster& c) {
  __syncthreads();
#if EMBEDDING
  descend_embedding(c);
  __syncthreads();
#endif
  sync_cluster();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
update(const Task* tasks, u32 count, u32* queue, const float* params, const u32* order, const void* inputs, const u16* labels, float* local, u8* scratch) {
  extern __shared__ __align__(128) u8 shared[];
  Memory& m = *(Memory*)shared;
  const int tid = threadIdx.x, rank = rank_in_cluster();
  scratch += (size_t)blockIdx.x * scratch_bytes;
  if (tid == 0) {
    for (int i = 0; i < 5; i++) init_barrier(shared_address(&m.barriers[i]), i < 2 ? 8 : i < 4 ? UNITS / 16 : 1);
    publish_barriers();
  }
  __syncthreads();
  sync_cluster();
  u32 done = 0; // steps of this cluster, which say the parity of its barriers
  // Takes the next task. Returns false if none is left. Every thread of the cluster calls it.
  const auto next = [&] {
    sync_cluster();
    if (rank == 0 && tid == 0) {
      const u32 taken = atomicAdd(queue, 1u);
      for (int to = 0; to < CLUSTER; to++) store_remote(in_block(shared_address(&m.next), to), taken);
    }
    sync_cluster();
    if (m.next >= count) return false;
    if (tid == 0) {
      m.task = tasks[m.next];
      m.start = params + (size_t)m.task.params * PARAMS;
      m.anchor = params + (size_t)m.task.anchor * PARAMS;
      m.local = local + (size_t)m.task.slot * PARAMS;
      m.order = order + m.task.order;
    }
    __syncthreads();
    return true;
  };
  Cluster c{m, tid, rank};
  if (tid < COMPUTING) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
    while (next()) {
      Computing computing(c, (float*)scratch, (float4*)(scratch + KEPT + KEPT_STATES));
      c.load();
      c.fetch(inputs, labels, 0, tid, THREADS);
      computing.load_master();
      __syncthreads();
      const u32 steps = Batches(m.task).count;
      for (u32 s = 0; s < steps; s++, done++) {
        computing.forward(done, m.symbols[s & 1]);
        computing.output(done, m.symbols[s & 1], Batches(m.task).size(s));
        computing.backward(done);
        computing.descend();
        end_step(c);
      }
      computing.store();
    }
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 120;");
    while (next()) {
      Beside beside{c, m, scratch + KEPT};
      c.load();
      c.fetch(inputs, labels, 0, tid, THREADS);
      __syncthreads();
      const u32 steps = Batches(m.task).count;
      for (u32 s = 0; s < steps; s++, done++) {
        beside.forward(done, s, inputs, labels);
        beside.backward(m.symbols[s & 1]);
        end_step(c);
      }
    }
  }
}
