// Sizes, the order of the parameters, shared memory and scratch memory of a block, and the loads
// and barriers that all warps share.

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
