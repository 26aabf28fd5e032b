// Recurrent layers whose W_hh stays in registers and shared memory for all time steps of a pass. A
// block, or a cluster of BLOCKS blocks, processes 16 examples of a device. A warp computes all gates
// of eight units, so that the gates of a unit and example are in one thread. A layer L defines the
// places of `recurrent.cuh` and
//   UNITS, BLOCKS         units of a block, and blocks of a cluster
//   FORWARD_KEPT,
//   BACKWARD_KEPT         chunks of 16 rows of W_hh in registers; the others are in shared memory
// States (forward) and slopes of gates (backward) of the last time step are in the shared memory of
// every block, [block][example][gate][unit]. A block sends its part to the others.

template <class L, int GATES>
struct Resident {
  static constexpr int UNITS = L::UNITS, BLOCKS = L::BLOCKS, WIDE = (UNITS + 15) / 16 * 16, THREADS = 4 * UNITS;
  static constexpr int CHUNKS = BLOCKS * WIDE / 16;
  static __host__ __device__ constexpr int pitch(int n) { return n % 32 == 16 ? n : n + 16; }
  static constexpr int FORWARD_PITCH = pitch(WIDE), BACKWARD_PITCH = pitch(GATES * WIDE);
  static constexpr int FORWARD_PART = EXAMPLES * FORWARD_PITCH, BACKWARD_PART = EXAMPLES * BACKWARD_PITCH;
};

/// Eight columns of each gate's W_hh, in the order of the fragments.
template <int GATES, int CHUNKS, int KEPT, int THREADS>
struct Columns {
  float4 kept[GATES][KEPT ? KEPT : 1];
  float4* rest;
  /// `entries(gate, chunk)` returns the four rows of this thread.
  template <class Entries>
  __device__ __forceinline__ Columns(float4* memory, Entries entries) : rest(memory + threadIdx.x) {
#pragma unroll
    for (int gate = 0; gate < GATES; gate++)
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const float4 four = entries(gate, c);
        if (c < KEPT) kept[gate][c] = four;
        else rest[(gate * (CHUNKS - KEPT) + c - KEPT) * THREADS] = four;
      }
  }
  __device__ __forceinline__ float4 at(int gate, int c) const { return c < KEPT ? kept[gate][c] : rest[(gate * (CHUNKS - KEPT) + c - KEPT) * THREADS]; }

  /// Adds the products of 16 examples with the columns of each gate. `a(gate, chunk, example)`
  /// returns four entries. SHARED: they are the same for all gates.
  template <bool SHARED, class A>
  __device__ __forceinline__ void multiply(float (&sums)[GATES][4], A a) const {
    const int g = (threadIdx.x & 31) >> 2;
    float large[GATES][4], small[GATES][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      if (c % 8 == 0)
#pragma unroll
        for (int gate = 0; gate < GATES; gate++)
#pragma unroll
          for (int e = 0; e < 4; e++) large[gate][e] = small[gate][e] = 0.f;
      u32 ah[SHARED ? 1 : GATES][2][4], al[SHARED ? 1 : GATES][2][4];
#pragma unroll
      for (int gate = 0; gate < (SHARED ? 1 : GATES); gate++) {
        const float4 p = a(gate, c, g), q = a(gate, c, g + 8);
        const float left[2][4] = {{p.x, q.x, p.y, q.y}, {p.z, q.z, p.w, q.w}};
#pragma unroll
        for (int i = 0; i < 8; i++) tf32_parts(left[i >> 2][i & 3], ah[gate][i >> 2][i & 3], al[gate][i >> 2][i & 3]);
      }
      u32 bh[GATES][2][2], bl[GATES][2][2];
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) {
        float4 r = at(gate, c);
        asm volatile("" : "+f"(r.x), "+f"(r.y), "+f"(r.z), "+f"(r.w)); // no parts of W_hh in registers for all time steps
        tf32_parts(r.x, bh[gate][0][0], bl[gate][0][0]), tf32_parts(r.y, bh[gate][0][1], bl[gate][0][1]);
        tf32_parts(r.z, bh[gate][1][0], bl[gate][1][0]), tf32_parts(r.w, bh[gate][1][1], bl[gate][1][1]);
      }
#pragma unroll
      for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) multiply_tf32(small[gate], al[SHARED ? 0 : gate][k], bh[gate][k]);
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) multiply_tf32(large[gate], ah[SHARED ? 0 : gate][k], bh[gate][k]);
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) multiply_tf32(small[gate], ah[SHARED ? 0 : gate][k], bl[gate][k]);
      }
      if (c % 8 == 7 || c == CHUNKS - 1)
#pragma unroll
        for (int gate = 0; gate < GATES; gate++)
#pragma unroll
          for (int e = 0; e < 4; e++) sums[gate][e] += large[gate][e] + small[gate][e];
    }
  }
};

/// The parts of all blocks of a cluster, twice: those of the last time step, and of the next.
template <int BLOCKS, int PART>
struct Exchange {
  float* parts; // [2][BLOCKS][PART]
  u64* barriers;
  int rank, received;

  __device__ Exchange(float* memory, u64* barriers) : parts(memory), barriers(barriers), rank(0), received(0) {
    for (int i = threadIdx.x; i < 2 * BLOCKS * PART; i += blockDim.x) parts[i] = 0.f;
#if CLUSTERS
    if constexpr (BLOCKS > 1) {
      rank = rank_in_cluster();
      if (threadIdx.x == 0) {
        init_barrier(shared_address(barriers), 1), init_barrier(shared_address(barriers + 1), 1);
        publish_barriers();
      }
      publish();
      sync_cluster();
      return;
    }
#endif
    __syncthreads();
  }
  __device__ float* own(int t) const { return parts + ((t & 1) * BLOCKS + rank) * PART; }
  __device__ const float* all(int t) const { return parts + (t & 1) * BLOCKS * PART; }

  /// Sends the own part of time step `t`, which all threads have written, and waits for the others.
  /// A part is overwritten two time steps later, when all blocks have used it.
  __device__ void share(int t) {
#if CLUSTERS
    if constexpr (BLOCKS > 1) {
      publish();
      __syncthreads();
      const u32 barrier = shared_address(barriers + (t & 1)), from = shared_address(own(t));
      if (threadIdx.x == 0) expect(barrier, (BLOCKS - 1) * PART * 4);
      if (threadIdx.x > 0 && threadIdx.x < BLOCKS) {
        const int to = (rank + threadIdx.x) % BLOCKS;
        send_bulk(in_block(from, to), from, PART * 4, in_block(barrier, to));
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
  Exchange<L::BLOCKS, Shape::FORWARD_PART> states((float*)recurrent_memory, barriers);
  const Entries<L> here(states.rank);
  const int lane = threadIdx.x & 31, t4 = lane & 3;
  const float* w = device.w + L::RECURRENT;
  const Columns<GATES, Shape::CHUNKS, L::FORWARD_KEPT, Shape::THREADS> columns(recurrent_memory + L::BLOCKS * Shape::FORWARD_PART / 2, [&](int gate, int c) {
    const int of = c / (Shape::WIDE / 16), k = c % (Shape::WIDE / 16) * 16 + 4 * t4, n = states.rank * L::UNITS + (threadIdx.x >> 5) * 8 + (lane >> 2);
    const float* row = w + (size_t)(gate * H + n) * H + of * L::UNITS;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = n < H && k + i < L::UNITS && of * L::UNITS + k + i < H ? row[k + i] : 0.f;
    return make_float4(v[0], v[1], v[2], v[3]);
  });
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
    float sums[GATES][4];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) sums[gate][0] = sums[gate][2] = bias[gate].x, sums[gate][1] = sums[gate][3] = bias[gate].y;
    if (t > 0) {
      const float* h = states.all(t);
      columns.template multiply<true>(sums, [&](int, int c, int m) { return *(const float4*)(h + c / (Shape::WIDE / 16) * Shape::FORWARD_PART + m * Shape::FORWARD_PITCH + c % (Shape::WIDE / 16) * 16 + 4 * t4); });
    }
    float* own = states.own(t + 1) + here.part;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float gates[2][GATES];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float products[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) gates[j][gate] = j ? inputs[i][gate].y : inputs[i][gate].x, products[gate] = sums[gate][2 * i + j];
        before[2 * i + j] = Cell::forward(gates[j], products, inner[2 * i + j], before[2 * i + j]);
      }
      *(float2*)(own + (here.rows[i] % EXAMPLES) * Shape::FORWARD_PITCH) = make_float2(before[2 * i], before[2 * i + 1]);
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
    if (t + 1 < L::LEN) fetch(t + 1), states.share(t + 1);
  }
  states.end();
}

template <class Cell, class L>
__device__ void resident_backward(const Wave& wave) {
  constexpr int GATES = Cell::GATES, H = L::H;
  typedef Resident<L, GATES> Shape;
  __shared__ u64 barriers[2];
  const Device device(wave);
  if (device.now.size == 0) return;
  Exchange<L::BLOCKS, Shape::BACKWARD_PART> slopes((float*)recurrent_memory, barriers);
  const Entries<L> here(slopes.rank);
  const int lane = threadIdx.x & 31, t4 = lane & 3;
  const float* w = device.w + L::RECURRENT;
  const Columns<GATES, Shape::CHUNKS, L::BACKWARD_KEPT, Shape::THREADS> columns(recurrent_memory + L::BLOCKS * Shape::BACKWARD_PART / 2, [&](int gate, int c) {
    const int of = c / (Shape::WIDE / 16), k = c % (Shape::WIDE / 16) * 16 + 4 * t4, n = slopes.rank * L::UNITS + (threadIdx.x >> 5) * 8 + (lane >> 2);
    const float* column = w + (size_t)(gate * H + of * L::UNITS) * H + n;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = n < H && k + i < L::UNITS && of * L::UNITS + k + i < H ? column[(k + i) * H] : 0.f;
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
    float sums[GATES][4] = {};
    if (t < L::LEN - 1) {
      const float* dz = slopes.all(t);
      columns.template multiply<false>(sums, [&](int gate, int c, int m) { return *(const float4*)(dz + c / (Shape::WIDE / 16) * Shape::BACKWARD_PART + m * Shape::BACKWARD_PITCH + gate * Shape::WIDE + c % (Shape::WIDE / 16) * 16 + 4 * t4); });
    }
    float* own = slopes.own(t - 1) + here.part;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float gates[2][GATES], of_inner[2][GATES];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int e = 2 * i + j;
        float dh = j ? from_output[i].y : from_output[i].x;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) gates[j][gate] = j ? saved[i][gate].y : saved[i][gate].x, dh += sums[gate][e];
        const float old = j ? before[i].y : before[i].x;
        Cell::backward(gates[j], of_inner[j], dh, j ? inner[i].y : inner[i].x, old, after[e], carry[e]);
        if (Cell::HAS_CELLS) after[e] = old;
      }
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) {
        *(float2*)(own + (here.rows[i] % EXAMPLES) * Shape::BACKWARD_PITCH + gate * Shape::WIDE) = make_float2(of_inner[0][gate], of_inner[1][gate]);
        if (here.valid[i]) {
          store_two<H>(gates_at + (here.rows[i] * GATES + gate) * H, here.unit, gates[0][gate], gates[1][gate]);
          if (!Cell::HAS_CELLS) store_two<H>(of_inner_at + (here.rows[i] * GATES + gate) * H, here.unit, of_inner[0][gate], of_inner[1][gate]);
        }
      }
    }
    if (t > 0) fetch(t - 1), slopes.share(t - 1);
  }
  slopes.end();
}
