// Recurrent layers whose W_hh stays in registers and shared memory for all time steps of a pass. A
// block, or a cluster of BLOCKS blocks, processes 16 examples of a device. A layer L defines the
// places of `recurrent.cuh` and
//   UNITS, BLOCKS         units of a block, and blocks of a cluster
//   FORWARD_KEPT,
//   BACKWARD_KEPT         chunks of 16 rows of W_hh in registers; the others are in shared memory
//   FORWARD_SHARED,
//   BACKWARD_SHARED       bytes of shared memory
// Forward, a warp computes all gates of eight units, so that the gates of a unit and example are in
// one thread. The states of the last time step are in the shared memory of every block,
// [block][example][unit], and a block sends its part to the others. Backward, a block multiplies the
// slopes of its gates with W_hh, and sends the result to the blocks of the units, which add the
// results of all blocks in their order.
//
// Products are those of `split.cuh`. Scales are powers of two: a constant for states, which are below
// one, that of a warp for W_hh, and that of a block and time step for slopes.

template <class L, int GATES>
struct Resident {
  static constexpr int UNITS = L::UNITS, BLOCKS = L::BLOCKS, WIDE = (UNITS + 15) / 16 * 16, THREADS = 4 * UNITS;
  static constexpr int ROWS = smaller(EXAMPLES, BATCH); // examples of which slopes are sent
  static __host__ __device__ constexpr int pitch(int n) { return n % 32 == 16 ? n : n + 16; }
  // Forward: states.
  static constexpr int FORWARD_CHUNKS = BLOCKS * WIDE / 16, FORWARD_PITCH = pitch(WIDE), FORWARD_PART = EXAMPLES * FORWARD_PITCH;
  // Backward: slopes of the own gates, and of the states of each block.
  static constexpr int BACKWARD_CHUNKS = GATES * WIDE / 16, SLOPE_PITCH = pitch(GATES * WIDE), SLOPES = EXAMPLES * SLOPE_PITCH;
  static constexpr int BACKWARD_PITCH = (UNITS + 7) / 16 * 16 + 8, BACKWARD_PART = ROWS * BACKWARD_PITCH;
  // Chunks of W_hh: GATES tiles forward, and a tile per block backward.
  static constexpr int FORWARD_BYTES = 8 * BLOCKS * FORWARD_PART + 16 * THREADS * GATES * (FORWARD_CHUNKS - L::FORWARD_KEPT);
  static constexpr int BACKWARD_BYTES = 4 * SLOPES + 16 * BLOCKS * BACKWARD_PART + 16 * THREADS * BLOCKS * (BACKWARD_CHUNKS - L::BACKWARD_KEPT);
  static_assert(FORWARD_BYTES <= L::FORWARD_SHARED && BACKWARD_BYTES <= L::BACKWARD_SHARED, "the plan reserves the shared memory");
};

/// The scale of states.
constexpr float STATE_SCALE = 16384.f;

/// The left operand of a product: entries of 16 examples in the order of the fragments. Rows 0 … 7
/// contain the high parts of two examples each, and rows 8 … 15 the low parts.
template <int PITCH>
struct Fragments {
  float* memory;
  /// Stores columns `i` and `i` + 1 of two examples: those of g, then those of g + 8.
  __device__ __forceinline__ void store(int i, const float (&v)[4], float scale) const {
    const int g = (threadIdx.x & 31) >> 2;
    uint2 high, low;
    split(v[0] * scale, v[1] * scale, high.x, low.x), split(v[2] * scale, v[3] * scale, high.y, low.y);
    *(uint2*)(memory + g * PITCH + i) = high, *(uint2*)(memory + (g + 8) * PITCH + i) = low;
  }
  /// Loads 16 columns from `i` on: the high parts, or the low parts.
  __device__ __forceinline__ uint4 load(int i, bool low) const {
    const int lane = threadIdx.x & 31;
    return *(const uint4*)(memory + (lane / 4 + (low ? 8 : 0)) * PITCH + i + lane % 4 * 4);
  }
};

/// Eight columns of each of TILES tiles of W_hh, in the order of the fragments.
template <int TILES, int CHUNKS, int KEPT, int THREADS>
struct Columns {
  uint4 kept[TILES][KEPT ? KEPT : 1];
  uint4* rest;
  float inverse; // of the scale

  /// `entries(tile, chunk)` returns the four rows of this thread.
  template <class Entries>
  __device__ __forceinline__ Columns(float4* memory, Entries entries) : rest((uint4*)memory + threadIdx.x) {
    float most = 0.f;
    each([&](int tile, int c, uint4& slot) {
      const float4 v = entries(tile, c);
      most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
      slot = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
    });
    const float scale = half_scale(warp_max(most));
    inverse = 1.f / scale;
    each([&](int, int, uint4& slot) {
      const uint4 v = slot;
      split(__uint_as_float(v.x) * scale, __uint_as_float(v.y) * scale, slot.x, slot.z);
      split(__uint_as_float(v.z) * scale, __uint_as_float(v.w) * scale, slot.y, slot.w);
    });
  }
  template <class Use>
  __device__ __forceinline__ void each(Use use) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) use(tile, c, c < KEPT ? kept[tile][c < KEPT ? c : 0] : rest[(tile * (CHUNKS - KEPT) + c - KEPT) * THREADS]);
  }
  __device__ __forceinline__ uint4 at(int tile, int c) const { return c < KEPT ? kept[tile][c < KEPT ? c : 0] : rest[(tile * (CHUNKS - KEPT) + c - KEPT) * THREADS]; }

  /// Adds the products of 16 examples with the columns of each tile. `a(chunk, low)` returns the high
  /// or low parts of a chunk.
  template <class A>
  __device__ __forceinline__ void multiply(float (&sums)[TILES][4], A a) const {
    float large[TILES][4], small[TILES][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      if (c % 8 == 0)
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++) large[i / 4][i % 4] = small[i / 4][i % 4] = 0.f;
      const uint4 p = a(c, false), q = a(c, true);
      const u32 high[4] = {p.x, p.y, p.z, p.w}, low[4] = {q.x, q.y, q.z, q.w};
      u32 right[TILES][4]; // high parts, then low parts
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const uint4 r = at(tile, c);
        right[tile][0] = r.x, right[tile][1] = r.y, right[tile][2] = r.z, right[tile][3] = r.w;
      }
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) multiply_add(small[tile], low, right[tile]);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) multiply_add(large[tile], high, right[tile]);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) multiply_add(small[tile], high, right[tile] + 2);
      if (c % 8 == 7 || c == CHUNKS - 1)
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++) sums[i / 4][i % 4] += large[i / 4][i % 4] + small[i / 4][i % 4];
    }
  }
};

/// Data that the blocks of a cluster send to each other, in even and odd time steps.
template <int BLOCKS>
struct Exchange {
  u64* barriers;
  int rank, received;

  __device__ Exchange(u64* barriers) : barriers(barriers), rank(0), received(0) {
#if CLUSTERS
    if constexpr (BLOCKS > 1) {
      rank = rank_in_cluster();
      if (threadIdx.x == 0) {
        init_barrier(shared_address(barriers), 1), init_barrier(shared_address(barriers + 1), 1);
        publish_barriers();
      }
    }
#endif
  }
  /// Waits until all blocks have written the initial contents of their memory.
  __device__ void begin() const {
#if CLUSTERS
    if constexpr (BLOCKS > 1) {
      publish();
      sync_cluster();
      return;
    }
#endif
    __syncthreads();
  }
  /// Sends `floats` floats at `from(block)`, which all threads have written, to `to` of each other
  /// block in time step `t`, and waits for theirs. The memory of a time step is overwritten two time
  /// steps later, when all blocks have used it.
  template <class From>
  __device__ void share(int t, int floats, From from, const float* to) {
#if CLUSTERS
    if constexpr (BLOCKS > 1) {
      publish();
      __syncthreads();
      const u32 barrier = shared_address(barriers + (t & 1));
      if (threadIdx.x == 0) expect(barrier, (BLOCKS - 1) * floats * 4);
      if (threadIdx.x > 0 && threadIdx.x < BLOCKS) {
        const int block = (rank + threadIdx.x) % BLOCKS;
        send_bulk(in_block(shared_address(to), block), shared_address(from(block)), floats * 4, in_block(barrier, block));
      }
      wait_for(barrier, received >> 1 & 1);
      received++;
      return;
    }
#endif
    __syncthreads();
  }
  /// Waits until no block uses the memory of another.
  __device__ void end() const {
#if CLUSTERS
    if constexpr (BLOCKS > 1) sync_cluster();
#endif
  }
};

/// Two adjacent entries of a row of floats, if there are so many.
template <int H>
__device__ __forceinline__ float2 load_two(const float* from, int u) {
  if (H % 2 == 0) return *(const float2*)from;
  return make_float2(from[0], u + 1 < H ? from[1] : 0.f);
}
template <int H>
__device__ __forceinline__ void store_two(float* to, int u, float x, float y) {
  if (H % 2 == 0) *(float2*)to = make_float2(x, y);
  else {
    to[0] = x;
    if (u + 1 < H) to[1] = y;
  }
}

/// Place of a thread: entries (rows[i], unit) and (rows[i], unit + 1) for i = 0, 1.
template <class L>
struct Entries {
  int rank, part, unit, rows[2]; // part: the unit in its block
  bool valid[2];
  __device__ Entries(int rank) : rank(rank) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    part = (threadIdx.x >> 5) * 8 + 2 * t, unit = rank * L::UNITS + part;
    for (int i = 0; i < 2; i++) {
      rows[i] = blockIdx.x / L::BLOCKS * EXAMPLES + g + 8 * i;
      valid[i] = rows[i] < BATCH && unit < L::H;
    }
  }
};

extern __shared__ float4 recurrent_memory[];

template <class Cell, class L>
__device__ void resident_forward(const Wave& wave) {
  constexpr int GATES = Cell::GATES, H = L::H;
  typedef Resident<L, GATES> Shape;
  __shared__ u64 barriers[2];
  const Device device(wave);
  if (device.now.size == 0) return;
  float* states = (float*)recurrent_memory; // [2][BLOCKS][FORWARD_PART]
  Exchange<L::BLOCKS> exchange(barriers);
  for (int i = threadIdx.x; i < 2 * L::BLOCKS * Shape::FORWARD_PART; i += Shape::THREADS) states[i] = 0.f;
  exchange.begin();
  const Entries<L> here(exchange.rank);
  const int lane = threadIdx.x & 31, t4 = lane & 3;
  const float* w = device.w + L::RECURRENT;
  const Columns<GATES, Shape::FORWARD_CHUNKS, L::FORWARD_KEPT, Shape::THREADS> columns(recurrent_memory + L::BLOCKS * Shape::FORWARD_PART / 2, [&](int gate, int c) {
    const int of = c / (Shape::WIDE / 16), k = c % (Shape::WIDE / 16) * 16 + 4 * t4, n = exchange.rank * L::UNITS + (threadIdx.x >> 5) * 8 + (lane >> 2);
    const float* row = w + (size_t)(gate * H + n) * H + of * L::UNITS;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = n < H && k + i < L::UNITS && of * L::UNITS + k + i < H ? row[k + i] : 0.f;
    return make_float4(v[0], v[1], v[2], v[3]);
  });
  const float inverse = columns.inverse * (1.f / STATE_SCALE);
  float2 bias[GATES];
#pragma unroll
  for (int gate = 0; gate < GATES; gate++) bias[gate] = here.unit < H ? load_two<H>(device.w + L::BIAS + gate * H + here.unit, here.unit) : make_float2(0.f, 0.f);
  float before[4] = {0.f, 0.f, 0.f, 0.f}, inner[4] = {0.f, 0.f, 0.f, 0.f};
  float* states_at = device.arena + L::STATES + here.unit;
  float* inner_at = device.arena + L::INNER + here.unit;
  if (TRAINS)
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (here.valid[i]) {
        store_two<H>(states_at + here.rows[i] * H, here.unit, 0.f, 0.f);
        if (Cell::HAS_CELLS) store_two<H>(inner_at + here.rows[i] * H, here.unit, 0.f, 0.f);
      }
  // The contributions of the inputs arrive while states are exchanged.
  float2 inputs[2][GATES];
  const auto fetch = [&](int t) {
    const float* from = device.arena + L::GATES + (size_t)t * BATCH * GATES * H + here.unit;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) inputs[i][gate] = here.valid[i] ? load_two<H>(from + (here.rows[i] * GATES + gate) * H, here.unit) : make_float2(0.f, 0.f);
  };
  fetch(0);
  for (int t = 0; t < L::LEN; t++) {
    float* gates_at = device.arena + L::GATES + (size_t)t * BATCH * GATES * H + here.unit;
    float sums[GATES][4] = {};
    if (t > 0) {
      const float* all = states + (t & 1) * L::BLOCKS * Shape::FORWARD_PART;
      columns.multiply(sums, [&](int c, bool low) {
        const Fragments<Shape::FORWARD_PITCH> part{(float*)all + c / (Shape::WIDE / 16) * Shape::FORWARD_PART};
        return part.load(c % (Shape::WIDE / 16) * 16, low);
      });
    }
    float* own = states + ((t + 1 & 1) * L::BLOCKS + exchange.rank) * Shape::FORWARD_PART;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float gates[2][GATES];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float products[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) gates[j][gate] = j ? inputs[i][gate].y : inputs[i][gate].x, products[gate] = fmaf(sums[gate][2 * i + j], inverse, j ? bias[gate].y : bias[gate].x);
        before[2 * i + j] = Cell::forward(gates[j], products, inner[2 * i + j], before[2 * i + j]);
      }
      if (here.valid[i]) {
        const int at = t * BATCH + here.rows[i];
        if (TRAINS) {
#pragma unroll
          for (int gate = 0; gate < GATES; gate++) store_two<H>(gates_at + (here.rows[i] * GATES + gate) * H, here.unit, gates[0][gate], gates[1][gate]);
          store_two<H>(inner_at + (size_t)(Cell::HAS_CELLS ? at + BATCH : at) * H, here.unit, inner[2 * i], inner[2 * i + 1]);
        }
        if (TRAINS || L::SEQUENCE || t == L::LEN - 1) store_two<H>(states_at + (size_t)(at + BATCH) * H, here.unit, before[2 * i], before[2 * i + 1]);
      }
    }
    if (t + 1 == L::LEN) break;
    fetch(t + 1);
    Fragments<Shape::FORWARD_PITCH>{own}.store(here.part, before, STATE_SCALE);
    exchange.share(t + 1, Shape::FORWARD_PART, [&](int) { return own; }, own);
  }
  exchange.end();
}

template <class Cell, class L>
__device__ void resident_backward(const Wave& wave) {
  constexpr int GATES = Cell::GATES, H = L::H;
  typedef Resident<L, GATES> Shape;
  __shared__ u64 barriers[2];
  const Device device(wave);
  if (device.now.size == 0) return;
  // The slopes of the own gates, and those of states: received and sent, [2][BLOCKS][BACKWARD_PART].
  float *slopes = (float*)recurrent_memory, *received = slopes + Shape::SLOPES, *sent = received + 2 * L::BLOCKS * Shape::BACKWARD_PART;
  const Fragments<Shape::SLOPE_PITCH> own{slopes};
  Exchange<L::BLOCKS> exchange(barriers);
  for (int i = threadIdx.x; i < Shape::SLOPES; i += Shape::THREADS) slopes[i] = 0.f;
  exchange.begin();
  const Entries<L> here(exchange.rank);
  const int lane = threadIdx.x & 31, t4 = lane & 3;
  const float* w = device.w + L::RECURRENT;
  const Columns<L::BLOCKS, Shape::BACKWARD_CHUNKS, L::BACKWARD_KEPT, Shape::THREADS> columns((float4*)(sent + 2 * L::BLOCKS * Shape::BACKWARD_PART), [&](int block, int c) {
    const int gate = c / (Shape::WIDE / 16), k = c % (Shape::WIDE / 16) * 16 + 4 * t4, part = (threadIdx.x >> 5) * 8 + (lane >> 2), n = block * L::UNITS + part;
    const float* column = w + (size_t)(gate * H + exchange.rank * L::UNITS) * H + n;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = n < H && k + i < L::UNITS && exchange.rank * L::UNITS + k + i < H ? column[(k + i) * H] : 0.f;
    return make_float4(v[0], v[1], v[2], v[3]);
  });
  float carry[4] = {0.f, 0.f, 0.f, 0.f}, after[4];
  const float *states_at = device.arena + L::STATES + here.unit, *inner_at = device.arena + L::INNER + here.unit, *dh_at = device.arena + L::DH + here.unit;
  if (Cell::HAS_CELLS)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float2 last = here.valid[i] ? load_two<H>(inner_at + (size_t)(L::LEN * BATCH + here.rows[i]) * H, here.unit) : make_float2(0.f, 0.f);
      after[2 * i] = last.x, after[2 * i + 1] = last.y;
    }
  float2 saved[2][GATES], inner[2], before[2], from_output[2];
  const auto fetch = [&](int t) {
    const float* from = device.arena + L::GATES + (size_t)t * BATCH * GATES * H + here.unit;
    const float2 none = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const size_t at = t * BATCH + here.rows[i];
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) saved[i][gate] = here.valid[i] ? load_two<H>(from + (here.rows[i] * GATES + gate) * H, here.unit) : none;
      inner[i] = here.valid[i] && !Cell::HAS_CELLS ? load_two<H>(inner_at + at * H, here.unit) : none;
      before[i] = here.valid[i] ? load_two<H>((!Cell::HAS_CELLS ? states_at : inner_at) + at * H, here.unit) : none;
      const bool has_output = here.valid[i] && (L::SEQUENCE || t == L::LEN - 1);
      from_output[i] = has_output ? load_two<H>(dh_at + (L::SEQUENCE ? at : here.rows[i]) * H, here.unit) : none;
    }
  };
  fetch(L::LEN - 1);
  for (int t = L::LEN - 1; t >= 0; t--) {
    float* gates_at = device.arena + L::GATES + (size_t)t * BATCH * GATES * H + here.unit;
    float* of_inner_at = device.arena + L::INNER_SLOPES + (size_t)t * BATCH * GATES * H + here.unit;
    const int at = (t & 1) * L::BLOCKS * Shape::BACKWARD_PART + here.part;
    float of_inner[4][GATES], most = 0.f; // by entry: two units of two examples
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float gates[2][GATES], dh[2] = {from_output[i].x, from_output[i].y};
      const int row = here.rows[i] % EXAMPLES;
      if (t < L::LEN - 1 && row < Shape::ROWS)
#pragma unroll
        for (int block = 0; block < L::BLOCKS; block++) {
          const float2 part = *(const float2*)(received + at + block * Shape::BACKWARD_PART + row * Shape::BACKWARD_PITCH);
          dh[0] += part.x, dh[1] += part.y;
        }
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int e = 2 * i + j;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) gates[j][gate] = j ? saved[i][gate].y : saved[i][gate].x;
        const float old = j ? before[i].y : before[i].x;
        Cell::backward(gates[j], of_inner[e], dh[j], j ? inner[i].y : inner[i].x, old, after[e], carry[e]);
        if (Cell::HAS_CELLS) after[e] = old;
      }
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) {
        most = fmaxf(most, fmaxf(fabsf(of_inner[2 * i][gate]), fabsf(of_inner[2 * i + 1][gate])));
        if (here.valid[i]) {
          store_two<H>(gates_at + (here.rows[i] * GATES + gate) * H, here.unit, gates[0][gate], gates[1][gate]);
          if (!Cell::HAS_CELLS) store_two<H>(of_inner_at + (here.rows[i] * GATES + gate) * H, here.unit, of_inner[2 * i][gate], of_inner[2 * i + 1][gate]);
        }
      }
    }
    if (t == 0) break;
    fetch(t - 1);
    const float scale = half_scale(largest_of_block<Shape::THREADS>(most));
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) own.store(gate * Shape::WIDE + here.part, {of_inner[0][gate], of_inner[1][gate], of_inner[2][gate], of_inner[3][gate]}, scale);
    __syncthreads();
    float sums[L::BLOCKS][4] = {};
    columns.multiply(sums, [&](int c, bool low) { return own.load(c * 16, low); });
    const float inverse = columns.inverse / scale;
    const int next = (t - 1 & 1) * L::BLOCKS * Shape::BACKWARD_PART;
#pragma unroll
    for (int block = 0; block < L::BLOCKS; block++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = here.rows[i] % EXAMPLES;
        float* to = block == exchange.rank ? received : sent;
        if (row < Shape::ROWS) *(float2*)(to + next + block * Shape::BACKWARD_PART + row * Shape::BACKWARD_PITCH + here.part) = make_float2(sums[block][2 * i] * inverse, sums[block][2 * i + 1] * inverse);
      }
    exchange.share(t - 1, Shape::BACKWARD_PART, [&](int block) { return sent + next + block * Shape::BACKWARD_PART; }, received + next + exchange.rank * Shape::BACKWARD_PART);
  }
  exchange.end();
}
