// A full layer: z = x Wᵀ + b, with ReLU if RELU, which keeps NaN. A layer L defines
//   ROWS, I, O           rows of x (examples, or examples of all time steps), inputs, outputs
//   TRANSPOSED           W is stored as I × O
//   W, BIAS              places of W and b (−1: none) in the parameters
//   X, Z, DZ, DX         places of x, z and their slopes in the arena
//   TILE                 rows of a tile of W's gradient
//   BIAS_DZ, BIAS_ROWS   the slopes whose sum is that of b
//   CUT                  x has passed a ReLU: its slopes are zero where x is

template <class L>
struct DenseForward {
  static constexpr bool SMALL = L::ROWS <= 16, A_ROWS = true, B_ROWS = !L::TRANSPOSED;
  static constexpr int M = L::ROWS, N = L::O, BM = SMALL ? 16 : 64, BN = 64, WM = SMALL ? 16 : 32, WN = SMALL ? 8 : 16, DEPTH = SMALL ? 32 : 16, STAGES = 4;
  static constexpr int A_COPY = smaller(copied_at_once(L::I), BM * DEPTH / 256), B_COPY = copied_at_once(L::TRANSPOSED ? L::O : L::I);
  const float *x, *w;
  __device__ const float* row(int m) const { return x + m * L::I; }
  __device__ int tap(int k) const { return k; }
  __device__ const float* a(const float* row, int k) const { return row + k; }
  __device__ const float* b(int k, int n) const { return w + (L::TRANSPOSED ? k * L::O + n : n * L::I + k); }
};

template <class L>
__device__ void dense_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  const DenseForward<L> op{device.arena + L::X, device.w + L::W};
  float* z = device.arena + L::Z;
  Product<DenseForward<L>>::each(op, blockIdx.x, 0, L::I, [&](int m, int n, float v) {
    if (L::BIAS >= 0) v += __ldg(device.w + L::BIAS + n);
    z[m * L::O + n] = L::RELU && v < 0.f ? 0.f : v;
  });
}

/// The slopes of x.
template <class L>
struct DenseBackward {
  static constexpr bool SMALL = L::ROWS <= 16, A_ROWS = true, B_ROWS = L::TRANSPOSED;
  static constexpr int M = L::ROWS, N = L::I, BM = SMALL ? 16 : 64, BN = 64, WM = SMALL ? 16 : 32, WN = SMALL ? 8 : 16, DEPTH = SMALL ? 32 : 16, STAGES = 4;
  static constexpr int A_COPY = smaller(copied_at_once(L::O), BM * DEPTH / 256), B_COPY = copied_at_once(L::TRANSPOSED ? L::O : L::I);
  const float *x, *w; // x: the slopes of z
  __device__ const float* row(int m) const { return x + m * L::O; }
  __device__ int tap(int k) const { return k; }
  __device__ const float* a(const float* row, int k) const { return row + k; }
  __device__ const float* b(int k, int n) const { return w + (L::TRANSPOSED ? n * L::O + k : k * L::I + n); }
};

template <class L>
__device__ void dense_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  const DenseBackward<L> op{device.arena + L::DZ, device.w + L::W};
  const float* x = device.arena + L::X;
  float* dx = device.arena + L::DX;
  Product<DenseBackward<L>>::each(op, blockIdx.x, 0, L::O, [&](int m, int n, float v) {
    const int at = m * L::I + n;
    dx[at] = !L::CUT || __ldg(x + at) > 0.f ? v : 0.f;
  });
}

/// The gradient of W, as it is stored.
template <class L>
struct DenseGradient {
  static constexpr bool A_ROWS = false, B_ROWS = false;
  static constexpr int M = L::TRANSPOSED ? L::I : L::O, N = L::TRANSPOSED ? L::O : L::I, BM = L::TILE, BN = 64, WM = 32, WN = BM / 4, DEPTH = 16, STAGES = L::ROWS <= 16 ? 2 : BM == 64 ? 4 : 3;
  static constexpr int A_COPY = copied_at_once(M), B_COPY = copied_at_once(N);
  const float *x, *right;
  __device__ const float* row(int m) const { return x + m; }
  __device__ int tap(int k) const { return k * M; }
  __device__ const float* a(const float* row, int tap) const { return row + tap; }
  __device__ const float* b(int k, int n) const { return right + k * N + n; }
};

/// Adds the slopes of 32 biases: a warp every eighth row, then the warps in their order.
template <class L>
__device__ void descend_biases(const Device& device, int part) {
  __shared__ float sums[8][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, o = part * 32 + lane;
  const float* dz = device.arena + L::BIAS_DZ;
  float sum = 0.f;
  if (o < L::O)
#pragma unroll 8
    for (int r = warp; r < L::BIAS_ROWS; r += 8) sum += dz[r * L::O + o];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && o < L::O) {
    float total = 0.f;
#pragma unroll
    for (int k = 0; k < 8; k++) total += sums[k][lane];
    device.descend(L::BIAS + o, total);
  }
}

template <class L>
__device__ void biases_descend(const Wave& wave) {
  const Device device(wave);
  if (device.now.size) descend_biases<L>(device, blockIdx.x);
}

/// The descent of W and b. Blocks after the tiles add the biases.
template <class L>
__device__ void dense_descend(const Wave& wave) {
  typedef Product<DenseGradient<L>> Gradient;
  const Device device(wave);
  if (device.now.size == 0) return;
  if (blockIdx.x >= Gradient::TILES) return descend_biases<L>(device, blockIdx.x - Gradient::TILES);
  const float *x = device.arena + L::X, *dz = device.arena + L::DZ;
  const DenseGradient<L> op{L::TRANSPOSED ? x : dz, L::TRANSPOSED ? dz : x};
  Gradient::descend(op, blockIdx.x, 0, L::ROWS, device, L::W);
}
