// Convolutions whose maps are in shared memory. Fragments are gathered from there: an entry of the
// im2col matrix is at the sum of an offset of its row and one of its column, and borders are stored
// as zeros. Layers are those of `conv.cuh`. A plan P defines
//   WR, WC, MT, NT    warps along the rows and columns, and 16×8 tiles of a warp
//   IMAGES, PIECES    examples of a block, or blocks of an example
//   SHARED            bytes of shared memory

extern __shared__ float4 conv_memory[];

/// Offsets of the sum's entries, in the order of the fragments: those of k + t and k + t + 4 are
/// adjacent.
__host__ __device__ constexpr int pair_index(int k) { return (k & ~7) + (k & 3) * 2 + (k >> 2 & 1); }

/// The product of a block: rows from a slab, columns from global memory in stages.
template <class P, int N, int K>
struct SlabProduct {
  static constexpr int DEPTH = 32, STAGES = 3, PITCH = DEPTH + 4, BN = P::WC * P::NT * 8, THREADS = 32 * P::WR * P::WC;
  static constexpr int STAGE = BN * PITCH, PADDED = (K + DEPTH - 1) / DEPTH * DEPTH, EACH = BN * DEPTH / THREADS;
  static constexpr int TILES_N = (N + BN - 1) / BN;
  static constexpr int FLOATS = STAGES * STAGE + PADDED; // of the stages and offsets

  /// `base(row)` returns the offset of a row, `b(k, n)` the address of an entry of the right operand.
  /// The result is passed to `use(row, column, sums)`.
  template <class Base, class B, class Use>
  static __device__ __forceinline__ void run(const float* slab, float* memory, int n0, Base base, B b, Use use) {
    const int* offsets = (const int*)(memory + STAGES * STAGE);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    const int wm = warp / P::WC * P::MT * 16, wn = warp % P::WC * P::NT * 8;
    const float* any = b(0, 0);
    const auto fetch = [&](int k0, int stage) {
      const u32 to = shared_address(memory + stage * STAGE);
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        const int e = i * THREADS + tid, n = n0 + e / DEPTH, k = k0 + e % DEPTH;
        copy_async_or_zero(to + 4 * (e / DEPTH * PITCH + e % DEPTH), n < N && k < K ? b(k, n) : nullptr, any);
      }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
      if (s * DEPTH < K) fetch(s * DEPTH, s);
      commit_copies();
    }
    int rows[P::MT][2];
#pragma unroll
    for (int i = 0; i < P::MT; i++)
#pragma unroll
      for (int e = 0; e < 2; e++) rows[i][e] = base(wm + i * 16 + g + 8 * e);
    float sums[P::MT][P::NT][4];
#pragma unroll
    for (int i = 0; i < P::MT; i++)
#pragma unroll
      for (int j = 0; j < P::NT; j++) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0.f;
    int stage = 0;
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
      wait_for_groups<STAGES - 2>();
      __syncthreads();
      const int next = k0 + (STAGES - 1) * DEPTH;
      if (next < K) fetch(next, stage == 0 ? STAGES - 1 : stage - 1);
      commit_copies();
      const float* right = memory + stage * STAGE + (wn + g) * PITCH + t;
#pragma unroll
      for (int k = 0; k < DEPTH; k += 8) {
        if (K % DEPTH && k0 + k >= K) break;
        const int2 at = *(const int2*)(offsets + k0 + k + 2 * t);
        u32 bh[P::NT][2], bl[P::NT][2];
#pragma unroll
        for (int j = 0; j < P::NT; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) tf32_parts(right[j * 8 * PITCH + k + 4 * e], bh[j][e], bl[j][e]);
#pragma unroll
        for (int i = 0; i < P::MT; i++) {
          u32 ah[4], al[4];
#pragma unroll
          for (int e = 0; e < 4; e++) tf32_parts(slab[rows[i][e & 1] + (e >> 1 ? at.y : at.x)], ah[e], al[e]);
          add_tf32_products(sums[i], ah, al, bh, bl);
        }
      }
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
#pragma unroll
    for (int i = 0; i < P::MT; i++)
#pragma unroll
      for (int j = 0; j < P::NT; j++) use(wm + i * 16, n0 + wn + j * 8, sums[i][j]);
  }
};

/// The rows of a block: positions of whole examples, or a piece of one.
template <class P, int POSITIONS>
struct SlabRows {
  static constexpr int PIECE = ((POSITIONS + P::PIECES - 1) / P::PIECES + 15) / 16 * 16;
  int first_example, first_position;
  __device__ SlabRows(int block) : first_example(block / P::PIECES * P::IMAGES), first_position(block % P::PIECES * PIECE) {}
  /// The example in the slab, the position, and whether there is such a row.
  __device__ bool decode(int row, int& example, int& position) const {
    if (P::PIECES > 1) {
      example = 0, position = first_position + row;
      return row < PIECE && position < POSITIONS;
    }
    example = row / POSITIONS, position = row % POSITIONS;
    return example < P::IMAGES && first_example + example < BATCH;
  }
};

/// Input maps with borders: [example][channel][H + 2 PAD][W + 2 PAD].
template <class L>
struct InputSlab {
  static constexpr int TALL = L::H + 2 * L::PAD, WIDE = L::W + 2 * L::PAD, MAP = TALL * WIDE;
  template <int IMAGES, int THREADS>
  static __device__ void fill(float* slab, const float* x, int first) {
    constexpr int LEN = L::C * MAP;
    if (!L::PAD && LEN % 4 == 0) {
      for (int i = threadIdx.x; i < IMAGES * LEN / 4; i += THREADS) {
        const bool inside = first + 4 * i / LEN < BATCH;
        copy_async_or_zero<4>(shared_address(slab + 4 * i), inside ? x + (size_t)first * LEN + 4 * i : nullptr, x);
      }
      return;
    }
    for (int i = threadIdx.x; i < IMAGES * L::C * MAP; i += THREADS) {
      const int map = i / MAP, y = i % MAP / WIDE - L::PAD, x_ = i % WIDE - L::PAD;
      const bool inside = first + map / L::C < BATCH && (!L::PAD || (y >= 0 && y < L::H && x_ >= 0 && x_ < L::W));
      copy_async_or_zero(shared_address(slab + i), inside ? x + (size_t)(first * L::C + map) * (L::H * L::W) + y * L::W + x_ : nullptr, x);
    }
  }
};

template <class L, class P>
__device__ void slab_forward(const Wave& wave) {
  constexpr int TAPS = L::SIDE * L::SIDE, K = L::C * TAPS, CELLS = L::QH * L::QW, POSITIONS = CELLS * L::POOL * L::POOL;
  typedef SlabProduct<P, L::O, K> Product_;
  typedef InputSlab<L> Slab;
  const Device device(wave);
  if (device.now.size == 0) return;
  constexpr int LEN = (P::IMAGES * L::C * Slab::MAP + 3) / 4 * 4;
  static_assert(4 * (LEN + Product_::FLOATS) <= P::SHARED, "the plan reserves the shared memory");
  float *slab = (float*)conv_memory, *memory = slab + LEN;
  const SlabRows<P, POSITIONS> rows(blockIdx.x / Product_::TILES_N);
  Slab::template fill<P::IMAGES, Product_::THREADS>(slab, device.arena + L::X, rows.first_example);
  int* offsets = (int*)(memory + Product_::STAGES * Product_::STAGE);
  for (int k = threadIdx.x; k < Product_::PADDED; k += Product_::THREADS) {
    const int c = k / TAPS, tap = k % TAPS;
    offsets[pair_index(k)] = k < K ? (c * Slab::TALL + tap / L::SIDE) * Slab::WIDE + tap % L::SIDE : 0;
  }
  const float* filters = device.w + L::FILTERS;
  float* z = device.arena + L::Z;
  u8* winners = (u8*)(device.arena + L::WINNERS);
  // If POOL = 2, the four pixels of a cell are adjacent rows.
  const auto base = [&](int row) {
    int example, m;
    if (!rows.decode(row, example, m)) return 0;
    const int cell = L::POOL == 2 ? m >> 2 : m;
    int y = cell / L::QW, x_ = cell % L::QW;
    if (L::POOL == 2) y = 2 * y + (m >> 1 & 1), x_ = 2 * x_ + (m & 1);
    return (example * L::C * Slab::TALL + y * L::STRIDE) * Slab::WIDE + x_ * L::STRIDE;
  };
  Product_::run(slab, memory, blockIdx.x % Product_::TILES_N * Product_::BN, base, [&](int k, int n) { return filters + n * K + k; }, [&](int row, int column, const float (&sums)[4]) {
    each_output<L::POOL>(row, column, sums, [&](int m, int n, float v, int winner) {
      int example, position;
      if (!rows.decode(m, example, position) || n >= L::O) return;
      if (L::BIAS >= 0) v += __ldg(device.w + L::BIAS + n);
      store_cell<L>(z, winners, ((rows.first_example + example) * L::O + n) * CELLS + position / (L::POOL * L::POOL), v, winner);
    });
  });
}

/// Slopes before pooling, with zeros between and around them: a slope of the convolution's entry
/// (y, x) is at row y STRIDE, column x STRIDE of a map. The border to the right of a row is that to
/// the left of the next, and likewise for maps.
template <class L>
struct SlopeSlab {
  static constexpr int LEFT = L::SIDE - 1 - L::PAD, HEIGHT = (L::POOL * L::QH - 1) * L::STRIDE + 1, WIDTH = (L::POOL * L::QW - 1) * L::STRIDE + 1;
  static __host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
  static constexpr int WIDE = WIDTH + larger(LEFT, L::W + L::SIDE - 1 - LEFT - WIDTH), TALL = HEIGHT + larger(LEFT, L::H + L::SIDE - 1 - LEFT - HEIGHT);
  static constexpr int MAP = TALL * WIDE, FIRST = LEFT * WIDE + LEFT, LEN = L::O * MAP + FIRST;
};

/// The slopes of the input map.
template <class L, class P>
__device__ void slab_backward(const Wave& wave) {
  constexpr int TAPS = L::SIDE * L::SIDE, K = L::O * TAPS, CELLS = L::QH * L::QW, POSITIONS = L::H * L::W;
  typedef SlabProduct<P, L::C, K> Product_;
  typedef SlopeSlab<L> Slab;
  const Device device(wave);
  if (device.now.size == 0) return;
  constexpr int LEN = (Slab::LEN + 3) / 4 * 4;
  static_assert(4 * (P::IMAGES * LEN + Product_::FLOATS) <= P::SHARED, "the plan reserves the shared memory");
  float *slab = (float*)conv_memory, *memory = slab + P::IMAGES * LEN;
  const SlabRows<P, POSITIONS> rows(blockIdx.x / Product_::TILES_N);
  for (int i = threadIdx.x; i < P::IMAGES * LEN / 4; i += Product_::THREADS) conv_memory[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  int* offsets = (int*)(memory + Product_::STAGES * Product_::STAGE);
  for (int k = threadIdx.x; k < Product_::PADDED; k += Product_::THREADS) {
    const int o = k / TAPS, tap = k % TAPS;
    offsets[pair_index(k)] = k < K ? o * Slab::MAP + (L::SIDE - 1 - tap / L::SIDE) * Slab::WIDE + L::SIDE - 1 - tap % L::SIDE : 0;
  }
  __syncthreads();
  const float *dz = device.arena + L::DZ + (size_t)rows.first_example * L::O * CELLS, *filters = device.w + L::FILTERS, *x = device.arena + L::X;
  const u8* winners = (const u8*)(device.arena + L::WINNERS) + rows.first_example * L::O * CELLS;
  for (int i = threadIdx.x; i < P::IMAGES * L::O * CELLS; i += Product_::THREADS) {
    const int map = i / CELLS;
    if (rows.first_example + map / L::O >= BATCH) break;
    int y = i % CELLS / L::QW * L::POOL, x_ = i % L::QW * L::POOL;
    const int winner = L::POOL == 2 ? winners[i] : 0;
    if (L::POOL == 2) y += winner >> 1, x_ += winner & 1;
    if (winner < 4) slab[map / L::O * LEN + Slab::FIRST + map % L::O * Slab::MAP + y * L::STRIDE * Slab::WIDE + x_ * L::STRIDE] = dz[i];
  }
  float* dx = device.arena + L::DX;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const auto base = [&](int row) {
    int example, m;
    return rows.decode(row, example, m) ? example * LEN + m / L::W * Slab::WIDE + m % L::W : 0;
  };
  Product_::run(slab, memory, blockIdx.x % Product_::TILES_N * Product_::BN, base, [&](int k, int n) { return filters + (k / TAPS * L::C + n) * TAPS + k % TAPS; }, [&](int row, int column, const float (&sums)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int example, m;
      const int n = column + 2 * t + (e & 1);
      if (rows.decode(row + g + (e >> 1) * 8, example, m) && n < L::C) {
        const size_t at = (size_t)((rows.first_example + example) * L::C + n) * POSITIONS + m;
        dx[at] = !L::CUT || __ldg(x + at) > 0.f ? sums[e] : 0.f;
      }
    }
  });
}

/// The gradient of the filters. A block adds a part of the sum over pieces of LINES rows of an
/// example, for all or some of the taps. A plan P also defines
///   LINES     rows of the convolution in a piece
///   SPLITS    parts of the sum
template <class L, class P>
__device__ void slab_gradient(const Wave& wave) {
  constexpr int TAPS = L::SIDE * L::SIDE, N = L::C * TAPS, CELLS = L::QH * L::QW, HEIGHT = L::POOL * L::QH, WIDTH = L::POOL * L::QW, THREADS = 32 * P::WR * P::WC;
  constexpr int BM = P::WR * P::MT * 16, BN = P::WC * P::NT * 8, TILES_N = (N + BN - 1) / BN, TILES = (L::O + BM - 1) / BM * TILES_N;
  constexpr int LENGTH = P::LINES * WIDTH, PADDED = (LENGTH + 7) / 8 * 8, PITCH = PADDED + 4; // a piece
  constexpr int PIECES = (HEIGHT + P::LINES - 1) / P::LINES, UNITS = BATCH * PIECES, EACH = (UNITS + P::SPLITS - 1) / P::SPLITS;
  constexpr int WIDE = L::W + 2 * L::PAD, TALL = (P::LINES - 1) * L::STRIDE + L::SIDE, SPAN = (BN - 2) / TAPS + 2, CHANNELS = SPAN < L::C ? SPAN : L::C;
  constexpr int MAP = TALL * WIDE, MAPS = CHANNELS * MAP + WIDE * L::STRIDE + 8;
  static_assert(4 * (BM * PITCH + (MAPS + 3) / 4 * 4 + PADDED) <= P::SHARED, "the plan reserves the shared memory");
  const Device device(wave);
  if (device.now.size == 0) return;
  const u8* winners = (const u8*)(device.arena + L::WINNERS);
  const float *dz = device.arena + L::DZ, *x = device.arena + L::X;
  if (blockIdx.x >= TILES * P::SPLITS) return conv_biases<L>(device, blockIdx.x - TILES * P::SPLITS);
  float *left = (float*)conv_memory, *right = left + BM * PITCH;
  int* offsets = (int*)(right + (MAPS + 3) / 4 * 4);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x % TILES, split = blockIdx.x / TILES, m0 = tile / TILES_N * BM, n0 = tile % TILES_N * BN;
  const int wm = warp / P::WC * P::MT * 16, wn = warp % P::WC * P::NT * 8, first_channel = min(n0 / TAPS, L::C - CHANNELS);
  for (int k = tid; k < PADDED; k += THREADS) offsets[pair_index(k)] = k < LENGTH ? k / WIDTH * L::STRIDE * WIDE + k % WIDTH * L::STRIDE : 0;
  for (int i = tid; i < BM * PITCH; i += THREADS) left[i] = 0.f;
  int columns[P::NT];
#pragma unroll
  for (int j = 0; j < P::NT; j++) {
    const int n = min(n0 + wn + j * 8 + g, N - 1), tap = n % TAPS;
    columns[j] = (n / TAPS - first_channel) * MAP + tap / L::SIDE * WIDE + tap % L::SIDE;
  }
  const float* row = left + (wm + g) * PITCH + t;
  float sums[P::MT][P::NT][4], parts[P::MT][P::NT][4];
#pragma unroll
  for (int i = 0; i < P::MT * P::NT * 4; i++) sums[i / 4 / P::NT][i / 4 % P::NT][i % 4] = 0.f;
  for (int unit = split * EACH; unit < min((split + 1) * EACH, UNITS); unit++) {
    const int example = unit / PIECES, line = unit % PIECES * P::LINES;
    __syncthreads();
    for (int i = tid; i < CHANNELS * MAP; i += THREADS) {
      const int c = first_channel + i / MAP, y = line * L::STRIDE + i % MAP / WIDE - L::PAD, x_ = i % WIDE - L::PAD;
      const bool inside = y < L::H && (!L::PAD || (y >= 0 && x_ >= 0 && x_ < L::W));
      copy_async_or_zero(shared_address(right + i), inside ? x + ((size_t)(example * L::C + c) * L::H + y) * L::W + x_ : nullptr, x);
    }
    commit_copies();
    constexpr int LINE_CELLS = P::LINES / L::POOL * L::QW;
#pragma unroll 4
    for (int i = tid; i < BM * LINE_CELLS; i += THREADS) {
      const int o = m0 + i / LINE_CELLS, y = i % LINE_CELLS / L::QW, x_ = i % L::QW, row = line / L::POOL + y;
      float slope = 0.f;
      int winner = 0;
      if (o < L::O && row < L::QH) {
        const int at = (example * L::O + o) * CELLS + row * L::QW + x_;
        slope = __ldg(dz + at);
        if (L::POOL == 2) winner = __ldg(winners + at);
      }
      float* to = left + (o - m0) * PITCH;
      if (L::POOL == 1) to[y * WIDTH + x_] = slope;
      else
#pragma unroll
        for (int k = 0; k < 4; k++) to[(2 * y + (k >> 1)) * WIDTH + 2 * x_ + (k & 1)] = winner == k ? slope : 0.f;
    }
    wait_for_groups<0>();
    __syncthreads();
#pragma unroll 1
    for (int k0 = 0; k0 < PADDED; k0 += 64) {
#pragma unroll
      for (int i = 0; i < P::MT * P::NT * 4; i++) parts[i / 4 / P::NT][i / 4 % P::NT][i % 4] = 0.f;
#pragma unroll 2
      for (int k = k0; k < min(k0 + 64, PADDED); k += 8) {
        const int2 at = *(const int2*)(offsets + k + 2 * t);
        u32 bh[P::NT][2], bl[P::NT][2];
#pragma unroll
        for (int j = 0; j < P::NT; j++) tf32_parts(right[columns[j] + at.x], bh[j][0], bl[j][0]), tf32_parts(right[columns[j] + at.y], bh[j][1], bl[j][1]);
#pragma unroll
        for (int i = 0; i < P::MT; i++) {
          u32 ah[4], al[4];
#pragma unroll
          for (int e = 0; e < 4; e++) tf32_parts(row[(i * 16 + (e & 1) * 8) * PITCH + k + (e >> 1) * 4], ah[e], al[e]);
#pragma unroll
          for (int j = 0; j < P::NT; j++) multiply_tf32(parts[i][j], al, bh[j]);
#pragma unroll
          for (int j = 0; j < P::NT; j++) multiply_tf32(parts[i][j], ah, bl[j]);
#pragma unroll
          for (int j = 0; j < P::NT; j++) multiply_tf32(parts[i][j], ah, bh[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < P::MT * P::NT * 4; i++) sums[i / 4 / P::NT][i / 4 % P::NT][i % 4] += parts[i / 4 / P::NT][i / 4 % P::NT][i % 4];
    }
  }
#pragma unroll
  for (int i = 0; i < P::MT; i++)
#pragma unroll
    for (int j = 0; j < P::NT; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int m = m0 + wm + i * 16 + g + (e >> 1) * 8, n = n0 + wn + j * 8 + 2 * t + (e & 1);
        if (m >= L::O || n >= N) continue;
        if (P::SPLITS == 1) device.descend(L::FILTERS + m * N + n, sums[i][j][e]);
        else device.arena[L::PARTS + (split * L::O + m) * N + n] = sums[i][j][e];
      }
}
