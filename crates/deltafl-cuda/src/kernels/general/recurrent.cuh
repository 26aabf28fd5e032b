// Recurrent layers: a kernel per direction, or per time step and direction, over UNITS units of 16
// examples of a device per block. A layer L defines
//   LEN, H          time steps and units
//   RECURRENT       place of W_hh (gates × H) in the parameters; BIAS, b_hh
//   GATES           place of the gates, [time][example][gate][H]: first the contributions of the
//                   inputs, then the gates, then their slopes
//   STATES          h before each time step and after the last, [time][example][H]
//   INNER           GRU: W_hn h + b_hn;  LSTM: the cells before each time step and after the last
//   INNER_SLOPES    GRU: the slopes of r, z and W_hn h + b_hn, which are those of W_hh
//   DH              slopes of the last state, or of the states after all time steps if SEQUENCE
//   CARRY           the part of a state's (LSTM: cell's) slope that passes the gates
// b_ih is part of the contributions of the inputs.

constexpr int EXAMPLES = 16, CELL_UNITS = 16;

template <int GATES, class L>
struct CellShape {
  static constexpr int H = L::H, UNITS = CELL_UNITS, TILES = (H + UNITS - 1) / UNITS;
  // Forward: a warp per 8 gates and part of the states. Backward: per 8 units and part of the slopes.
  static constexpr int STRIPS = GATES * UNITS / 8, FORWARD_PARTS = smaller((H + 63) / 64, 24 / STRIPS);
  static constexpr int FORWARD_EACH = (H + 16 * FORWARD_PARTS - 1) / (16 * FORWARD_PARTS) * 16;
  static constexpr int SLOPES = GATES * H, BACK_STRIPS = UNITS / 8, BACKWARD_PARTS = smaller((SLOPES + 63) / 64, 24 / BACK_STRIPS);
  static constexpr int BACKWARD_EACH = (SLOPES + 16 * BACKWARD_PARTS - 1) / (16 * BACKWARD_PARTS) * 16;
};

/// The right factor of a strip: eight columns of `EACH` rows from `first` on. A cluster keeps it for
/// all time steps.
template <int EACH>
struct Factor {
  static constexpr int CHUNKS = EACH / 16;
  float4 entries[CHUNKS];
  /// `b(k, n)` returns four entries from k on.
  template <class B>
  __device__ __forceinline__ void load(int first, B b) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) entries[c] = b(first + 16 * c + 4 * t, g);
  }
  /// Adds 16 rows × 8 columns of the product. `a(m, k)` returns four entries from k on.
  template <class A>
  __device__ __forceinline__ void multiply(float (&c)[4], int first, A a) const {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float small[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const int k = first + 16 * chunk + 4 * t;
      const float4 p = a(g, k), q = a(g + 8, k), r = entries[chunk];
      const float left[2][4] = {{p.x, q.x, p.y, q.y}, {p.z, q.z, p.w, q.w}}, right[2][2] = {{r.x, r.y}, {r.z, r.w}};
#pragma unroll
      for (int e = 0; e < 2; e++) {
        u32 ah[4], al[4], bh[2], bl[2];
#pragma unroll
        for (int i = 0; i < 4; i++) tf32_parts(left[e][i], ah[i], al[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) tf32_parts(right[e][i], bh[i], bl[i]);
        multiply_tf32(small, al, bh), multiply_tf32(c, ah, bh), multiply_tf32(small, ah, bl);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] += small[i];
  }
};

/// Returns four entries of a row of N, zeros after its end.
template <int N>
__device__ __forceinline__ float4 four(const float* row, int k) {
  if (N % 4 == 0) return k < N ? *(const float4*)(row + k) : make_float4(0.f, 0.f, 0.f, 0.f);
  return make_float4(k < N ? row[k] : 0.f, k + 1 < N ? row[k + 1] : 0.f, k + 2 < N ? row[k + 2] : 0.f, k + 3 < N ? row[k + 3] : 0.f);
}

/// The recurrent products of a block, forward: sums[gate · UNITS + unit] of each example.
template <class L, int GATES>
struct ForwardProducts {
  typedef CellShape<GATES, L> Shape;
  static constexpr int UNITS = CELL_UNITS;
  Factor<Shape::FORWARD_EACH> factor;
  int strip, part, row;

  __device__ ForwardProducts(const Device& device, int unit, int row) : row(row) {
    const int warp = threadIdx.x >> 5;
    strip = warp % Shape::STRIPS, part = warp / Shape::STRIPS;
    const int gate = strip / (UNITS / 8), first = unit + strip % (UNITS / 8) * 8;
    const float* w = device.w + L::RECURRENT + (size_t)gate * L::H * L::H;
    factor.load(part * Shape::FORWARD_EACH, [&](int k, int n) { return first + n < L::H ? four<L::H>(w + (first + n) * L::H, k) : make_float4(0.f, 0.f, 0.f, 0.f); });
  }

  __device__ void run(const Device& device, int t, float (&sums)[GATES * UNITS][EXAMPLES + 1]) const {
    __shared__ float parts[Shape::FORWARD_PARTS][GATES * UNITS][EXAMPLES + 1];
    const int lane = threadIdx.x & 31, g = lane >> 2, t4 = lane & 3;
    const float* h = device.arena + L::STATES + (size_t)(t * BATCH + row) * L::H;
    float c[4] = {0.f, 0.f, 0.f, 0.f};
    factor.multiply(c, part * Shape::FORWARD_EACH, [&](int m, int k) { return row + m < BATCH ? four<L::H>(h + m * L::H, k) : make_float4(0.f, 0.f, 0.f, 0.f); });
#pragma unroll
    for (int e = 0; e < 4; e++) parts[part][strip * 8 + 2 * t4 + (e & 1)][g + (e >> 1) * 8] = c[e];
    __syncthreads();
    for (int i = threadIdx.x; i < GATES * UNITS * EXAMPLES; i += blockDim.x) {
      const int column = i / EXAMPLES, b = i % EXAMPLES;
      float sum = 0.f;
#pragma unroll
      for (int k = 0; k < Shape::FORWARD_PARTS; k++) sum += parts[k][column][b];
      sums[column][b] = sum;
    }
    __syncthreads();
  }
};

/// The slopes of h from those of W_hh h: sums[example][unit].
template <class L, int GATES>
struct BackwardProducts {
  typedef CellShape<GATES, L> Shape;
  static constexpr int UNITS = CELL_UNITS, K = Shape::SLOPES;
  Factor<Shape::BACKWARD_EACH> factor;
  int strip, part, row;

  __device__ BackwardProducts(const Device& device, int unit, int row) : row(row) {
    const int warp = threadIdx.x >> 5;
    strip = warp % Shape::BACK_STRIPS, part = warp / Shape::BACK_STRIPS;
    const int first = unit + strip * 8;
    const float* w = device.w + L::RECURRENT;
    factor.load(part * Shape::BACKWARD_EACH, [&](int k, int n) {
      const float* from = w + (size_t)k * L::H + first + n;
      const bool is_unit = first + n < L::H;
      return make_float4(is_unit && k < K ? from[0] : 0.f, is_unit && k + 1 < K ? from[L::H] : 0.f, is_unit && k + 2 < K ? from[2 * L::H] : 0.f, is_unit && k + 3 < K ? from[3 * L::H] : 0.f);
    });
  }

  __device__ void run(const float* slopes, float (&sums)[EXAMPLES][UNITS + 1]) const {
    __shared__ float parts[Shape::BACKWARD_PARTS][EXAMPLES][UNITS + 1];
    const int lane = threadIdx.x & 31, g = lane >> 2, t4 = lane & 3;
    float c[4] = {0.f, 0.f, 0.f, 0.f};
    factor.multiply(c, part * Shape::BACKWARD_EACH, [&](int m, int k) { return row + m < BATCH ? four<K>(slopes + (size_t)(row + m) * K, k) : make_float4(0.f, 0.f, 0.f, 0.f); });
#pragma unroll
    for (int e = 0; e < 4; e++) parts[part][g + (e >> 1) * 8][strip * 8 + 2 * t4 + (e & 1)] = c[e];
    __syncthreads();
    for (int i = threadIdx.x; i < EXAMPLES * UNITS; i += blockDim.x) {
      const int b = i / UNITS, u = i % UNITS;
      float sum = 0.f;
#pragma unroll
      for (int k = 0; k < Shape::BACKWARD_PARTS; k++) sum += parts[k][b][u];
      sums[b][u] = sum;
    }
    __syncthreads();
  }
};

/// Calls `use(example, unit, example of the block, unit of the block)` for each entry of a block.
template <class L, class Use>
__device__ __forceinline__ void each_entry(int unit, int row, Use use) {
  for (int i = threadIdx.x; i < EXAMPLES * CELL_UNITS; i += blockDim.x) {
    const int b = i / CELL_UNITS, u = i % CELL_UNITS;
    if (row + b < BATCH && unit + u < L::H) use(row + b, unit + u, b, u);
  }
}

/// Returns the slope of h before time step `t`, or of the last one, as an output of the layer.
template <class L>
__device__ __forceinline__ float slope_of_state(const Device& device, int t, int b, int u) {
  if (L::SEQUENCE) return device.arena[L::DH + ((size_t)(t - 1) * BATCH + b) * L::H + u];
  return t == L::LEN ? device.arena[L::DH + b * L::H + u] : 0.f;
}

/// The state after time step `t`.
template <class Cell, class L>
__device__ void step_forward(const Wave& wave, int t) {
  constexpr int H = L::H, GATES = Cell::GATES;
  __shared__ float sums[GATES * CELL_UNITS][EXAMPLES + 1];
  const Device device(wave);
  if (device.now.size == 0) return;
  constexpr int TILES = CellShape<GATES, L>::TILES;
  const int unit = blockIdx.x % TILES * CELL_UNITS, row = blockIdx.x / TILES * EXAMPLES;
  const ForwardProducts<L, GATES> products(device, unit, row);
  if (t > 0) products.run(device, t, sums);
  each_entry<L>(unit, row, [&](int b, int u, int i, int j) {
    const size_t at = t * BATCH + b;
    float *gates_at = device.arena + L::GATES + at * GATES * H + u, *states = device.arena + L::STATES + at * H + u, *inner_at = device.arena + L::INNER + at * H + u;
    float gates[GATES], products[GATES], inner = Cell::HAS_CELLS && t > 0 ? inner_at[0] : 0.f;
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) gates[gate] = gates_at[gate * H], products[gate] = (t > 0 ? sums[gate * CELL_UNITS + j][i] : 0.f) + device.w[L::BIAS + gate * H + u];
    const float state = Cell::forward(gates, products, inner, t > 0 ? states[0] : 0.f);
    if (TRAINS)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) gates_at[gate * H] = gates[gate];
    if (TRAINS && t == 0) states[0] = 0.f;
    if (TRAINS && t == 0 && Cell::HAS_CELLS) inner_at[0] = 0.f;
    inner_at[Cell::HAS_CELLS ? BATCH * H : 0] = inner, states[BATCH * H] = state;
  });
}

/// From the slopes of h before time step `t` to those of the gates of the time step before.
template <class Cell, class L>
__device__ void step_backward(const Wave& wave, int t) {
  constexpr int H = L::H, GATES = Cell::GATES;
  __shared__ float sums[EXAMPLES][CELL_UNITS + 1];
  const Device device(wave);
  if (device.now.size == 0) return;
  constexpr int TILES = CellShape<GATES, L>::TILES;
  const int unit = blockIdx.x % TILES * CELL_UNITS, row = blockIdx.x / TILES * EXAMPLES;
  float* slopes = device.arena + L::INNER_SLOPES;
  const BackwardProducts<L, GATES> products(device, unit, row);
  if (t < L::LEN) products.run(slopes + (size_t)t * BATCH * GATES * H, sums);
  each_entry<L>(unit, row, [&](int b, int u, int i, int j) {
    const size_t at = (t - 1) * BATCH + b;
    float *gates_at = device.arena + L::GATES + at * GATES * H + u, *slopes_at = slopes + at * GATES * H + u;
    const float *inner = device.arena + L::INNER + at * H + u, *states = device.arena + L::STATES + at * H + u;
    float& carry_at = device.arena[L::CARRY + b * H + u];
    float gates[GATES], of_inner[GATES], carry = t < L::LEN ? carry_at : 0.f;
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) gates[gate] = gates_at[gate * H];
    const float dh = (t < L::LEN ? sums[i][j] : 0.f) + slope_of_state<L>(device, t, b, u);
    if (Cell::HAS_CELLS) Cell::backward(gates, of_inner, dh, 0.f, inner[0], inner[BATCH * H], carry);
    else Cell::backward(gates, of_inner, dh, inner[0], states[0], 0.f, carry);
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) gates_at[gate * H] = gates[gate], slopes_at[gate * H] = of_inner[gate];
    carry_at = carry;
  });
}

/// r = σ(x_r + W_hr h + b_hr)   z = σ(x_z + W_hz h + b_hz)   a = W_hn h + b_hn
/// n = tanh(x_n + r a)          h ← n + z (h − n)
struct GruCell {
  static constexpr int GATES = 3;
  static constexpr bool HAS_CELLS = false;
  static __device__ __forceinline__ float forward(float (&gates)[GATES], const float (&sums)[GATES], float& inner, float before) {
    const float r = sigmoid(gates[0] + sums[0]), z = sigmoid(gates[1] + sums[1]), n = tanh_of(gates[2] + r * sums[2]);
    gates[0] = r, gates[1] = z, gates[2] = n, inner = sums[2];
    return n + z * (before - n);
  }
  /// `inner` is a, and `before` the state before the time step. The carry is the part of the slope
  /// of the state that passes z. `of_inner` are the slopes of W_hh h + b_hh.
  static __device__ __forceinline__ void backward(float (&gates)[GATES], float (&of_inner)[GATES], float dh, float inner, float before, float, float& carry) {
    dh += carry;
    const float r = gates[0], z = gates[1], n = gates[2];
    const float dn = dh * (1.f - z) * (1.f - n * n), dr = dn * inner * r * (1.f - r), dz = dh * (before - n) * z * (1.f - z);
    gates[0] = dr, gates[1] = dz, gates[2] = dn;
    of_inner[0] = dr, of_inner[1] = dz, of_inner[2] = dn * r;
    carry = dh * z;
  }
};

/// i, f, o = σ(x + W_hh h + b_hh)   g = tanh(x_g + W_hg h + b_hg)   c ← f c + i g   h = o tanh(c)
struct LstmCell {
  static constexpr int GATES = 4;
  static constexpr bool HAS_CELLS = true;
  static __device__ __forceinline__ float forward(float (&gates)[GATES], const float (&sums)[GATES], float& cell, float) {
    const float i = sigmoid(gates[0] + sums[0]), f = sigmoid(gates[1] + sums[1]), g = tanh_of(gates[2] + sums[2]), o = sigmoid(gates[3] + sums[3]);
    gates[0] = i, gates[1] = f, gates[2] = g, gates[3] = o;
    cell = f * cell + i * g;
    return o * tanh_of(cell);
  }
  /// `after` and `before` are the cells after and before the time step. The carry is the slope of the
  /// latter.
  static __device__ __forceinline__ void backward(float (&gates)[GATES], float (&of_inner)[GATES], float dh, float, float before, float after, float& carry) {
    const float i = gates[0], f = gates[1], g = gates[2], o = gates[3], squashed = tanh_of(after);
    const float dc = carry + dh * o * (1.f - squashed * squashed);
    gates[0] = dc * g * i * (1.f - i), gates[1] = dc * before * f * (1.f - f);
    gates[2] = dc * i * (1.f - g * g), gates[3] = dh * squashed * o * (1.f - o);
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) of_inner[gate] = gates[gate];
    carry = dc * f;
  }
};
