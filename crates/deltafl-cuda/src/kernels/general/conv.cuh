// A convolution with ReLU, and max-pooling of 2 × 2 if POOL = 2, as implicit matrix products. Maps
// are [example][channel][row][column]. A layer L defines
//   C, H, W, O        channels and size of the input, channels of the output
//   SIDE, PAD, STRIDE the filters, [O][C][SIDE][SIDE]
//   POOL              side of the windows of the pooling, 1 for none
//   PH, PW, QH, QW    size of the convolution, and after pooling
//   FILTERS, BIAS     places in the parameters (BIAS = −1: none)
//   X, Z, DZ, DX      places of the maps and their slopes in the arena
//   WINNERS           bytes: which of the four pixels is the largest; 255 if the ReLU is flat
//   WIDE              slopes before pooling, if POOL = 2
//   SPLITS, PARTS     parts of the gradient's sum, and their place
//   RELU, CUT         z has passed a ReLU; x has, so that its slopes are zero where x is

/// A position of the convolution. If POOL = 2, the four pixels of a cell are adjacent.
template <class L>
struct Position {
  int example, y, x;
  __device__ Position(int m) {
    constexpr int CELLS = L::QH * L::QW;
    const int cell = L::POOL == 2 ? m >> 2 : m, at = cell % CELLS;
    example = cell / CELLS, y = at / L::QW, x = at % L::QW;
    if (L::POOL == 2) y = 2 * y + (m >> 1 & 1), x = 2 * x + (m & 1);
  }
};

/// A position of the left operand of an implicit product: its address at the first tap, and the taps
/// at which it is in the map. A tap is 64 · offset + number.
struct Window {
  const float* base;
  u64 inside;
};
template <class L>
struct Taps {
  static constexpr int COUNT = L::SIDE * L::SIDE;
  static_assert(COUNT <= 64, "a bit per tap");
  /// Returns the taps `is_inside(row, column)`.
  template <class Inside>
  static __device__ u64 mask(Inside is_inside) {
    u64 inside = 0;
    for (int tap = 0; tap < COUNT; tap++)
      if (is_inside(tap / L::SIDE, tap % L::SIDE)) inside |= 1ull << tap;
    return inside;
  }
};

template <class L>
struct ConvForward {
  static constexpr bool A_ROWS = false, B_ROWS = true;
  static constexpr int M = BATCH * L::QH * L::QW * L::POOL * L::POOL, N = L::O, BM = 128, BN = L::O <= 32 ? 32 : 64, WM = 32, WN = BN / 2, DEPTH = 16, STAGES = 3, A_COPY = 1, B_COPY = 1;
  const float *x, *filters;
  __device__ Window row(int m) const {
    const Position<L> at(m);
    const int y = at.y * L::STRIDE - L::PAD, x_ = at.x * L::STRIDE - L::PAD;
    const auto is_inside = [&](int dy, int dx) { return y + dy >= 0 && y + dy < L::H && x_ + dx >= 0 && x_ + dx < L::W; };
    return {x + (at.example * L::C * L::H + y) * L::W + x_, L::PAD ? Taps<L>::mask(is_inside) : ~0ull};
  }
  __device__ int tap(int k) const {
    const int c = k / Taps<L>::COUNT, tap = k % Taps<L>::COUNT;
    return 64 * ((c * L::H + tap / L::SIDE) * L::W + tap % L::SIDE) + tap;
  }
  __device__ const float* a(const Window& window, int tap) const { return !L::PAD || window.inside >> (tap & 63) & 1 ? window.base + (tap >> 6) : nullptr; }
  __device__ const float* b(int k, int n) const { return filters + n * (L::C * L::SIDE * L::SIDE) + k; }
};

/// Passes the outputs of a 16×8 tile to `use(m, n, value, winner)`. If POOL = 2, the four pixels of a
/// cell are adjacent rows, of which the first largest wins. The four values of a thread have the same
/// place in four cells. Four threads exchange them, so that each has the pixels of one cell.
template <int POOL, class Use>
__device__ __forceinline__ void each_output(int row, int column, const float (&sums)[4], Use use) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  if (POOL == 1) {
#pragma unroll
    for (int e = 0; e < 4; e++) use(row + g + (e >> 1) * 8, column + 2 * t + (e & 1), sums[e], 0);
    return;
  }
  const bool odd = g & 1, high = g & 2;
  const float a = __shfl_xor_sync(ALL, odd ? sums[0] : sums[1], 4), b = __shfl_xor_sync(ALL, odd ? sums[2] : sums[3], 4);
  const float upper[2] = {odd ? a : sums[0], odd ? sums[1] : a}, lower[2] = {odd ? b : sums[2], odd ? sums[3] : b};
  const float c = __shfl_xor_sync(ALL, high ? upper[0] : lower[0], 8), d = __shfl_xor_sync(ALL, high ? upper[1] : lower[1], 8);
  const float pixels[4] = {high ? c : upper[0], high ? d : upper[1], high ? lower[0] : c, high ? lower[1] : d};
  float most = pixels[0];
  int winner = 0;
#pragma unroll
  for (int k = 1; k < 4; k++)
    if (pixels[k] > most) most = pixels[k], winner = k;
  use(row + (g & 4) + (high ? 8 : 0), column + 2 * t + (odd ? 1 : 0), most, winner);
}

/// Stores a cell of z and its winner.
template <class L>
__device__ __forceinline__ void store_cell(float* z, u8* winners, int at, float v, int winner) {
  const bool flat = L::RELU && !(v > 0.f);
  z[at] = flat && v == v ? 0.f : v;
  if (L::POOL == 2 && TRAINS) winners[at] = flat ? 255 : winner;
}

template <class L>
__device__ void conv_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  typedef ConvForward<L> Op;
  const Op op{device.arena + L::X, device.w + L::FILTERS};
  float* z = device.arena + L::Z;
  u8* winners = (u8*)(device.arena + L::WINNERS);
  const auto bias = [&](int n) { return L::BIAS >= 0 ? __ldg(device.w + L::BIAS + n) : 0.f; };
  constexpr int TAPS = L::C * L::SIDE * L::SIDE, CELLS = L::QH * L::QW;
  Product<Op>::tiles(op, blockIdx.x, 0, TAPS, [&](int row, int column, const float (&sums)[4]) {
    each_output<L::POOL>(row, column, sums, [&](int m, int n, float v, int winner) {
      const int cell = m / (L::POOL * L::POOL);
      if (m < Op::M && n < L::O) store_cell<L>(z, winners, (cell / CELLS * L::O + n) * CELLS + cell % CELLS, v + bias(n), winner);
    });
  });
}

/// Writes the slopes before pooling.
template <class L>
__device__ void conv_widen(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  const float* dz = device.arena + L::DZ;
  const u8* winners = (const u8*)(device.arena + L::WINNERS);
  float* wide = device.arena + L::WIDE;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < BATCH * L::O * L::PH * L::PW; i += gridDim.x * blockDim.x) {
    const int x = i % L::PW, y = i / L::PW % L::PH, at = (i / (L::PH * L::PW) * L::QH + (y >> 1)) * L::QW + (x >> 1);
    wide[i] = y < 2 * L::QH && x < 2 * L::QW && winners[at] == (y & 1) * 2 + (x & 1) ? dz[at] : 0.f;
  }
}

/// The slopes of the input map.
template <class L>
struct ConvBackward {
  static constexpr bool A_ROWS = false, B_ROWS = true;
  static constexpr int M = BATCH * L::H * L::W, N = L::C, BM = 128, BN = L::C <= 32 ? 32 : 64, WM = 32, WN = BN / 2, DEPTH = 16, STAGES = 3, A_COPY = 1, B_COPY = 1;
  const float *x, *filters; // x: the slopes before pooling
  /// With a stride, a tap that is inside has a row and a column that the stride divides.
  __device__ Window row(int m) const {
    const int at = m % (L::H * L::W), y = at / L::W + L::PAD, x_ = at % L::W + L::PAD;
    const auto is_inside = [&](int dy, int dx) {
      return y >= dy && x_ >= dx && (y - dy) % L::STRIDE == 0 && (x_ - dx) % L::STRIDE == 0 && (y - dy) / L::STRIDE < L::PH && (x_ - dx) / L::STRIDE < L::PW;
    };
    return {x + (m / (L::H * L::W) * L::O * L::PH + y / L::STRIDE) * L::PW + x_ / L::STRIDE, Taps<L>::mask(is_inside)};
  }
  __device__ int tap(int k) const {
    const int o = k / Taps<L>::COUNT, tap = k % Taps<L>::COUNT;
    return 64 * ((o * L::PH - tap / L::SIDE / L::STRIDE) * L::PW - tap % L::SIDE / L::STRIDE) + tap;
  }
  __device__ const float* a(const Window& window, int tap) const { return window.inside >> (tap & 63) & 1 ? window.base + (tap >> 6) : nullptr; }
  __device__ const float* b(int k, int n) const {
    const int o = k / (L::SIDE * L::SIDE), tap = k % (L::SIDE * L::SIDE);
    return filters + (o * L::C + n) * (L::SIDE * L::SIDE) + tap;
  }
};

template <class L>
__device__ void conv_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  const ConvBackward<L> op{device.arena + (L::POOL == 1 ? L::DZ : L::WIDE), device.w + L::FILTERS};
  const float* x = device.arena + L::X;
  float* dx = device.arena + L::DX;
  Product<ConvBackward<L>>::each(op, blockIdx.x, 0, L::O * L::SIDE * L::SIDE, [&](int m, int n, float v) {
    const int at = (m / (L::H * L::W) * L::C + n) * (L::H * L::W) + m % (L::H * L::W);
    dx[at] = !L::CUT || __ldg(x + at) > 0.f ? v : 0.f;
  });
}

/// The gradient of the filters: a sum over examples and positions.
template <class L>
struct ConvGradient {
  static constexpr bool A_ROWS = true, B_ROWS = true;
  static constexpr int M = L::O, N = L::C * L::SIDE * L::SIDE, BM = L::O <= 32 ? 32 : 64, BN = 64, WM = BM / 2, WN = 16, DEPTH = 16, STAGES = 4, A_COPY = 1, B_COPY = 1;
  static constexpr int HEIGHT = L::POOL * L::QH, WIDTH = L::POOL * L::QW, SUM = BATCH * HEIGHT * WIDTH;
  static constexpr int EACH = (SUM + L::SPLITS * DEPTH - 1) / (L::SPLITS * DEPTH) * DEPTH; // products of a part
  const float *x, *dz; // dz: the slopes before pooling
  __device__ const float* row(int m) const { return dz + m * (L::PH * L::PW); }
  __device__ int tap(int k) const {
    const int example = k / (HEIGHT * WIDTH), y = k / WIDTH % HEIGHT, x_ = k % WIDTH;
    return (example * L::O * L::PH + y) * L::PW + x_;
  }
  __device__ const float* a(const float* row, int tap) const { return row + tap; }
  __device__ const float* b(int k, int n) const {
    const int example = k / (HEIGHT * WIDTH), c = n / (L::SIDE * L::SIDE), tap = n % (L::SIDE * L::SIDE);
    const int y = k / WIDTH % HEIGHT * L::STRIDE + tap / L::SIDE - L::PAD, x_ = k % WIDTH * L::STRIDE + tap % L::SIDE - L::PAD;
    if (L::PAD && (y < 0 || y >= L::H || x_ < 0 || x_ >= L::W)) return nullptr;
    return x + ((example * L::C + c) * L::H + y) * L::W + x_;
  }
};

/// The descent of the biases: a warp per channel, eight channels per block.
template <class L>
__device__ __forceinline__ void conv_biases(const Device& device, int block) {
  const int lane = threadIdx.x & 31, o = block * 8 + (threadIdx.x >> 5);
  if (o >= L::O || L::BIAS < 0) return;
  constexpr int CELLS = L::QH * L::QW;
  const u8* winners = (const u8*)(device.arena + L::WINNERS);
  const float* slopes = device.arena + L::DZ;
  float sum = 0.f;
#pragma unroll 4
  for (int i = lane; i < BATCH * CELLS; i += 32) {
    const int at = (i / CELLS * L::O + o) * CELLS + i % CELLS;
    if (L::POOL == 1 || winners[at] < 4) sum += slopes[at];
  }
  sum = warp_sum(sum);
  if (lane == 0) device.descend(L::BIAS + o, sum);
}

template <class L>
__device__ void conv_gradient(const Wave& wave) {
  typedef ConvGradient<L> Op;
  typedef Product<Op> Gradient;
  const Device device(wave);
  if (device.now.size == 0) return;
  const float* dz = device.arena + (L::POOL == 1 ? L::DZ : L::WIDE);
  if (blockIdx.x >= Gradient::TILES * L::SPLITS) return conv_biases<L>(device, blockIdx.x - Gradient::TILES * L::SPLITS);
  const int split = blockIdx.x / Gradient::TILES, first = split * Op::EACH;
  const Op op{device.arena + L::X, dz};
  Gradient::each(op, blockIdx.x % Gradient::TILES, first, min(first + Op::EACH, Op::SUM), [&](int m, int n, float v) {
    if (L::SPLITS == 1) device.descend(L::FILTERS + m * Op::N + n, v);
    else device.arena[L::PARTS + (split * Op::M + m) * Op::N + n] = v;
  });
}

/// Adds the parts of the gradient in their order.
template <class L>
__device__ void conv_descend(const Wave& wave) {
  const Device device(wave);
  constexpr int LEN = L::O * L::C * L::SIDE * L::SIDE;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (device.now.size == 0 || i >= LEN) return;
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < L::SPLITS; k++) sum += device.arena[L::PARTS + k * LEN + i];
  device.descend(L::FILTERS + i, sum);
}
