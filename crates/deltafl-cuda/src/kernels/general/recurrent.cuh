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

//   UNITS           units of a block
//   CLUSTER         the blocks of a device are a cluster, which runs all time steps in one kernel

constexpr int EXAMPLES = 16;
__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

template <int GATES, class L>
struct CellShape {
  static constexpr int H = L::H, UNITS = L::UNITS, TILES = (H + UNITS - 1) / UNITS, ROW_TILES = (BATCH + EXAMPLES - 1) / EXAMPLES;
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
  static constexpr int UNITS = L::UNITS;
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
  static constexpr int UNITS = L::UNITS, K = Shape::SLOPES;
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

/// The time steps of a kernel: one, or all of them in a cluster.
template <class L>
struct TimeSteps {
  int first, last;
  __device__ TimeSteps(int t, int before, int after) : first(L::CLUSTER ? before : t), last(L::CLUSTER ? after : t) {}
  /// Waits until all blocks of the device have written their states or slopes.
  static __device__ void next() {
#if CLUSTERS
    if (L::CLUSTER) sync_cluster();
#endif
  }
};

/// Calls `use(example, unit, example of the block, unit of the block)` for each entry of a block.
template <class L, class Use>
__device__ __forceinline__ void each_entry(int unit, int row, Use use) {
  for (int i = threadIdx.x; i < EXAMPLES * L::UNITS; i += blockDim.x) {
    const int b = i / L::UNITS, u = i % L::UNITS;
    if (row + b < BATCH && unit + u < L::H) use(row + b, unit + u, b, u);
  }
}

/// Returns the slope of h before time step `t`, or of the last one, as an output of the layer.
template <class L>
__device__ __forceinline__ float slope_of_state(const Device& device, int t, int b, int u) {
  if (L::SEQUENCE) return device.arena[L::DH + ((size_t)(t - 1) * BATCH + b) * L::H + u];
  return t == L::LEN ? device.arena[L::DH + b * L::H + u] : 0.f;
}

/// r = σ(x_r + W_hr h + b_hr)   z = σ(x_z + W_hz h + b_hz)   a = W_hn h + b_hn
/// n = tanh(x_n + r a)          h ← n + z (h − n)
template <class L>
__device__ void gru_forward(const Wave& wave, int time) {
  constexpr int H = L::H, UNITS = L::UNITS;
  __shared__ float sums[3 * UNITS][EXAMPLES + 1];
  const Device device(wave);
  if (device.now.size == 0) return;
  const int unit = blockIdx.x % CellShape<3, L>::TILES * UNITS, row = blockIdx.x / CellShape<3, L>::TILES * EXAMPLES;
  const ForwardProducts<L, 3> products(device, unit, row);
  const float* bias = device.w + L::BIAS;
  const TimeSteps<L> steps(time, 0, L::LEN - 1);
  for (int t = steps.first; t <= steps.last; t++) {
    if (t > 0) products.run(device, t, sums);
    each_entry<L>(unit, row, [&](int b, int u, int i, int j) {
      float* gates = device.arena + L::GATES + (size_t)(t * BATCH + b) * 3 * H + u;
      float* states = device.arena + L::STATES + (size_t)(t * BATCH + b) * H + u;
      const float before = t > 0 ? states[0] : 0.f;
      const auto product = [&](int gate) { return (t > 0 ? sums[gate * UNITS + j][i] : 0.f) + bias[gate * H + u]; };
      const float r = sigmoid(gates[0] + product(0)), z = sigmoid(gates[H] + product(1)), a = product(2), n = tanh_of(gates[2 * H] + r * a);
      if (TRAINS) {
        gates[0] = r, gates[H] = z, gates[2 * H] = n;
        device.arena[L::INNER + (t * BATCH + b) * H + u] = a;
        if (t == 0) states[0] = 0.f;
      }
      states[BATCH * H] = n + z * (before - n);
    });
    steps.next();
  }
}

/// From the slopes of h before time step `t` to those of the gates of the time step before.
template <class L>
__device__ void gru_backward(const Wave& wave, int time) {
  constexpr int H = L::H, UNITS = L::UNITS;
  __shared__ float sums[EXAMPLES][UNITS + 1];
  const Device device(wave);
  if (device.now.size == 0) return;
  const int unit = blockIdx.x % CellShape<3, L>::TILES * UNITS, row = blockIdx.x / CellShape<3, L>::TILES * EXAMPLES;
  float* inner = device.arena + L::INNER_SLOPES;
  const BackwardProducts<L, 3> products(device, unit, row);
  const TimeSteps<L> steps(time, L::LEN, 1);
  for (int t = steps.first; t >= steps.last; t--) {
    if (t < L::LEN) products.run(inner + (size_t)t * BATCH * 3 * H, sums);
    each_entry<L>(unit, row, [&](int b, int u, int i, int j) {
      const int at = (t - 1) * BATCH + b;
      float *gates = device.arena + L::GATES + (size_t)at * 3 * H + u, *of_inner = inner + (size_t)at * 3 * H + u;
      float& carry = device.arena[L::CARRY + b * H + u];
      const float dh = (t < L::LEN ? sums[i][j] + carry : 0.f) + slope_of_state<L>(device, t, b, u);
      const float r = gates[0], z = gates[H], n = gates[2 * H], a = device.arena[L::INNER + at * H + u], before = device.arena[L::STATES + at * H + u];
      const float dn = dh * (1.f - z) * (1.f - n * n), dr = dn * a * r * (1.f - r), dz = dh * (before - n) * z * (1.f - z);
      gates[0] = dr, gates[H] = dz, gates[2 * H] = dn;
      of_inner[0] = dr, of_inner[H] = dz, of_inner[2 * H] = dn * r;
      carry = dh * z;
    });
    steps.next();
  }
}

/// i, f, o = σ(x + W_hh h + b_hh)   g = tanh(x_g + W_hg h + b_hg)   c ← f c + i g   h = o tanh(c)
template <class L>
__device__ void lstm_forward(const Wave& wave, int time) {
  constexpr int H = L::H, UNITS = L::UNITS;
  __shared__ float sums[4 * UNITS][EXAMPLES + 1];
  const Device device(wave);
  if (device.now.size == 0) return;
  const int unit = blockIdx.x % CellShape<4, L>::TILES * UNITS, row = blockIdx.x / CellShape<4, L>::TILES * EXAMPLES;
  const ForwardProducts<L, 4> products(device, unit, row);
  const float* bias = device.w + L::BIAS;
  const TimeSteps<L> steps(time, 0, L::LEN - 1);
  for (int t = steps.first; t <= steps.last; t++) {
    if (t > 0) products.run(device, t, sums);
    each_entry<L>(unit, row, [&](int b, int u, int i, int j) {
      float* gates = device.arena + L::GATES + (size_t)(t * BATCH + b) * 4 * H + u;
      float *states = device.arena + L::STATES + (size_t)(t * BATCH + b) * H + u, *cells = device.arena + L::INNER + (size_t)(t * BATCH + b) * H + u;
      const auto product = [&](int gate) { return gates[gate * H] + ((t > 0 ? sums[gate * UNITS + j][i] : 0.f) + bias[gate * H + u]); };
      const float i_ = sigmoid(product(0)), f = sigmoid(product(1)), g = tanh_of(product(2)), o = sigmoid(product(3));
      const float c = f * (t > 0 ? cells[0] : 0.f) + i_ * g;
      if (TRAINS) gates[0] = i_, gates[H] = f, gates[2 * H] = g, gates[3 * H] = o;
      if (TRAINS && t == 0) states[0] = 0.f, cells[0] = 0.f;
      cells[BATCH * H] = c, states[BATCH * H] = o * tanh_of(c);
    });
    steps.next();
  }
}

template <class L>
__device__ void lstm_backward(const Wave& wave, int time) {
  constexpr int H = L::H, UNITS = L::UNITS;
  __shared__ float sums[EXAMPLES][UNITS + 1];
  const Device device(wave);
  if (device.now.size == 0) return;
  const int unit = blockIdx.x % CellShape<4, L>::TILES * UNITS, row = blockIdx.x / CellShape<4, L>::TILES * EXAMPLES;
  const BackwardProducts<L, 4> products(device, unit, row);
  const TimeSteps<L> steps(time, L::LEN, 1);
  for (int t = steps.first; t >= steps.last; t--) {
    if (t < L::LEN) products.run(device.arena + L::GATES + (size_t)t * BATCH * 4 * H, sums);
    each_entry<L>(unit, row, [&](int b, int u, int i, int j) {
      const int at = (t - 1) * BATCH + b;
      float* gates = device.arena + L::GATES + (size_t)at * 4 * H + u;
      const float* cells = device.arena + L::INNER + (size_t)at * H + u;
      float& carry = device.arena[L::CARRY + b * H + u];
      const float dh = (t < L::LEN ? sums[i][j] : 0.f) + slope_of_state<L>(device, t, b, u);
      const float i_ = gates[0], f = gates[H], g = gates[2 * H], o = gates[3 * H], squashed = tanh_of(cells[BATCH * H]);
      const float dc = (t < L::LEN ? carry : 0.f) + dh * o * (1.f - squashed * squashed);
      gates[0] = dc * g * i_ * (1.f - i_), gates[H] = dc * cells[0] * f * (1.f - f);
      gates[2 * H] = dc * i_ * (1.f - g * g), gates[3 * H] = dh * squashed * o * (1.f - o);
      carry = dc * f;
    });
    steps.next();
  }
}
