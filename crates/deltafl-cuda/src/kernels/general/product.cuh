// Matrix products in near fp32 on tensor cores, for operands of any magnitude. A number is the sum
// of two tf32 numbers. Of the four products of two such numbers, the smallest is omitted. Tensor
// cores round sums towards zero, so sums of many products are added in fp32: after every DEPTH
// products in `Product`, and after every 8 in `add_tf32_products`.

/// The first part is x without the bits that tensor cores ignore, so that the rest is exact. Tensor
/// cores ignore the same bits of the rest. Conversions to the nearest tf32 number take longer than the
/// products.
__device__ __forceinline__ void tf32_parts(float x, u32& high, u32& low) {
  high = __float_as_uint(x) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

/// Computes c += a b for a 16×8 tile a and an 8×8 tile b.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Computes sums += a b for a tile a and the first `count` of N tiles b, with fp32 additions to `sums`.
template <int N>
__device__ __forceinline__ void add_tf32_products(float (&sums)[N][4], const u32 (&ah)[4], const u32 (&al)[4], const u32 (&bh)[N][2], const u32 (&bl)[N][2], int count = N) {
  float parts[N][4] = {};
#pragma unroll
  for (int j = 0; j < N; j++)
    if (j < count) multiply_tf32(parts[j], al, bh[j]);
#pragma unroll
  for (int j = 0; j < N; j++)
    if (j < count) multiply_tf32(parts[j], ah, bl[j]);
#pragma unroll
  for (int j = 0; j < N; j++)
    if (j < count) multiply_tf32(parts[j], ah, bh[j]);
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[j][e] += parts[j][e];
}

/// Copies N floats, or zeros if `from` is null. `any` is a valid address.
template <int N = 1>
__device__ __forceinline__ void copy_async_or_zero(u32 to, const float* from, const float* any) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],%2,%3;" ::"r"(to), "l"(from ? from : any), "n"(4 * N), "r"(from ? 4 * N : 0) : "memory");
}
/// The floats that one copy may take if rows have `n` of them.
__host__ __device__ constexpr int copied_at_once(int n) { return n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1; }
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

/// The number of a warp, which the compiler knows to be equal in all lanes.
__device__ __forceinline__ int warp_number() { return __shfl_sync(ALL, threadIdx.x >> 5, 0); }

/// Returns the largest x of a block, at least 0. All threads call it, with a barrier between two calls.
template <int THREADS>
__device__ __forceinline__ float largest_of_block(float x) {
  __shared__ float most[THREADS / 32];
  x = warp_max(x);
  if ((threadIdx.x & 31) == 0) most[threadIdx.x >> 5] = x;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < THREADS / 32; k++) x = fmaxf(x, most[k]);
  return x;
}

/// Returns the power of two that scales `most` to 2¹⁴ … 2¹⁵, at most 2¹²⁶: the scale of operands in
/// fp16 parts (`split.cuh`).
__device__ __forceinline__ float half_scale(float most) { return __uint_as_float(min(268u - (__float_as_uint(most) >> 23), 253u) << 23); }

/// The product of a block. An operation `Op` defines
///   M, N              rows and columns of the result
///   BM, BN, DEPTH     the tile of a block, and the products between two barriers
///   WM, WN            the tile of a warp
///   STAGES            tiles of the operands in shared memory, of which all but one are fetched ahead
///   A_ROWS, B_ROWS    whether adjacent entries in memory are adjacent in the sum
///   A_COPY, B_COPY    adjacent entries that are copied at once
///   row(m), tap(k)    what the addresses of a row and of a column of the left operand depend on
///   a(row, tap)       address of an entry of the left operand, null for zero
///   b(k, n)           address of an entry of the right operand, null for zero
///   x                 a valid address
/// The result of a warp is passed to `use(row, column, sums)`: its first row and column, and 16×8
/// tiles.
template <class Op>
struct Product {
  static constexpr int THREADS = 32 * (Op::BM / Op::WM) * (Op::BN / Op::WN), STAGES = Op::STAGES;
  static constexpr int TILES_M = (Op::M + Op::BM - 1) / Op::BM, TILES_N = (Op::N + Op::BN - 1) / Op::BN, TILES = TILES_M * TILES_N;
  static constexpr int A_PITCH = Op::A_ROWS ? Op::DEPTH + 4 : Op::BM + 8, B_PITCH = Op::B_ROWS ? Op::DEPTH + 4 : Op::BN + 8;
  static constexpr int A_LEN = (Op::A_ROWS ? Op::BM : Op::DEPTH) * A_PITCH, B_LEN = (Op::B_ROWS ? Op::BN : Op::DEPTH) * B_PITCH;
  static constexpr int A_EACH = Op::BM * Op::DEPTH / THREADS / Op::A_COPY, B_EACH = Op::BN * Op::DEPTH / THREADS / Op::B_COPY;
  static constexpr int ROWS = Op::WM / 16, COLUMNS = Op::WN / 8;
  static_assert(A_EACH * THREADS * Op::A_COPY == Op::BM * Op::DEPTH && B_EACH * THREADS * Op::B_COPY == Op::BN * Op::DEPTH, "threads share a tile evenly");

  template <int N>
  static __device__ __forceinline__ void zero(float (&tiles)[N][COLUMNS][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) tiles[i][j][0] = tiles[i][j][1] = tiles[i][j][2] = tiles[i][j][3] = 0.f;
  }

  /// Sums the products `first` … `last` − 1.
  template <class Use>
  static __device__ __forceinline__ void run(const Op& op, int tile, int first, int last, Use use) {
    __shared__ __align__(16) float a_tiles[STAGES][A_LEN], b_tiles[STAGES][B_LEN];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    const int m0 = tile / TILES_N * Op::BM, n0 = tile % TILES_N * Op::BN;
    const int wm = warp / (Op::BN / Op::WN) * Op::WM, wn = warp % (Op::BN / Op::WN) * Op::WN;
    float sums[ROWS][COLUMNS][4];
    zero(sums);
    // If a thread fetches one row, that is decoded once, and columns are decoded by DEPTH threads.
    __shared__ int taps[2][Op::DEPTH];
    constexpr bool ONE_ROW = !Op::A_ROWS && Op::A_COPY == 1 && THREADS % Op::BM == 0;
    const auto own_row = op.row(min(m0 + tid % Op::BM, Op::M - 1));
    const auto fetch = [&](int k0, int stage, const int* decoded) {
      const u32 a_tile = shared_address(a_tiles[stage]), b_tile = shared_address(b_tiles[stage]);
#pragma unroll
      for (int i = 0; i < A_EACH; i++) {
        const int e = (i * THREADS + tid) * Op::A_COPY, row = Op::A_ROWS ? e / Op::DEPTH : e % Op::BM, column = Op::A_ROWS ? e % Op::DEPTH : e / Op::BM;
        const int m = m0 + row, k = k0 + column;
        copy_async_or_zero<Op::A_COPY>(a_tile + 4 * (Op::A_ROWS ? row * A_PITCH + column : column * A_PITCH + row), m < Op::M && k < last ? (ONE_ROW ? op.a(own_row, decoded ? decoded[column] : op.tap(k)) : op.a(op.row(m), op.tap(k))) : nullptr, op.x);
      }
#pragma unroll
      for (int i = 0; i < B_EACH; i++) {
        const int e = (i * THREADS + tid) * Op::B_COPY, column = Op::B_ROWS ? e / Op::DEPTH : e % Op::BN, row = Op::B_ROWS ? e % Op::DEPTH : e / Op::BN;
        const int n = n0 + column, k = k0 + row;
        copy_async_or_zero<Op::B_COPY>(b_tile + 4 * (Op::B_ROWS ? column * B_PITCH + row : row * B_PITCH + column), n < Op::N && k < last ? op.b(k, n) : nullptr, op.x);
      }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
      if (first + s * Op::DEPTH < last) fetch(first + s * Op::DEPTH, s, nullptr);
      commit_copies();
    }
    const auto decode = [&](int k0, int slot) {
      if (ONE_ROW && tid < Op::DEPTH) taps[slot][tid] = op.tap(min(k0 + tid, last - 1));
    };
    decode(first + (STAGES - 1) * Op::DEPTH, 0);
    int slot = 0;
    int stage = 0;
    for (int k0 = first; k0 < last; k0 += Op::DEPTH) {
      wait_for_groups<STAGES - 2>();
      __syncthreads();
      const int next = k0 + (STAGES - 1) * Op::DEPTH;
      if (next < last) fetch(next, stage == 0 ? STAGES - 1 : stage - 1, taps[slot]);
      commit_copies();
      slot ^= 1;
      decode(next + Op::DEPTH, slot);
      const float *a_tile = a_tiles[stage], *b_tile = b_tiles[stage];
      const auto at_a = [&](int m, int k) { return a_tile[Op::A_ROWS ? m * A_PITCH + k : k * A_PITCH + m]; };
      const auto at_b = [&](int k, int n) { return b_tile[Op::B_ROWS ? n * B_PITCH + k : k * B_PITCH + n]; };
      float parts[ROWS][COLUMNS][4];
      zero(parts);
#pragma unroll
      for (int k = 0; k < Op::DEPTH; k += 8) {
        u32 bh[COLUMNS][2], bl[COLUMNS][2];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) tf32_parts(at_b(k + t + 4 * e, wn + j * 8 + g), bh[j][e], bl[j][e]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          u32 ah[4], al[4];
#pragma unroll
          for (int e = 0; e < 4; e++) tf32_parts(at_a(wm + i * 16 + g + (e & 1) * 8, k + t + (e >> 1) * 4), ah[e], al[e]);
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) multiply_tf32(parts[i][j], al, bh[j]);
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) multiply_tf32(parts[i][j], ah, bl[j]);
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) multiply_tf32(parts[i][j], ah, bh[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) sums[i][j][e] += parts[i][j][e];
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    use(m0 + wm, n0 + wn, sums);
  }

  /// Passes every 16×8 tile of the result to `use(row, column, sums)`.
  template <class Use>
  static __device__ __forceinline__ void tiles(const Op& op, int tile, int first, int last, Use use) {
    run(op, tile, first, last, [&](int row, int column, const float (&sums)[ROWS][COLUMNS][4]) {
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) use(row + i * 16, column + j * 8, sums[i][j]);
    });
  }

  /// Passes every entry of the result to `use(m, n, value)`.
  template <class Use>
  static __device__ __forceinline__ void each(const Op& op, int tile, int first, int last, Use use) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    tiles(op, tile, first, last, [&](int row, int column, const float (&sums)[4]) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int m = row + g + (e >> 1) * 8, n = column + 2 * t + (e & 1);
        if (m < Op::M && n < Op::N) use(m, n, sums[e]);
      }
    });
  }

  /// The descent of a matrix at `place`, of which the result is the gradient. All entries are read
  /// before the first is written: the compiler does not move a load before a store.
  static __device__ __forceinline__ void descend(const Op& op, int tile, int first, int last, const Device& device, int place) {
    run(op, tile, first, last, [&](int row, int column, const float (&sums)[ROWS][COLUMNS][4]) {
      float moved[ROWS][COLUMNS][4];
      const int lane = threadIdx.x & 31, m0 = row + (lane >> 2), n0 = column + 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < ROWS * COLUMNS * 4; i++) {
        const int m = m0 + i / 4 / COLUMNS * 16 + (i >> 1 & 1) * 8, n = n0 + i / 4 % COLUMNS * 8 + (i & 1);
        if (m < Op::M && n < Op::N) moved[i / 4 / COLUMNS][i / 4 % COLUMNS][i & 3] = device.moved(place + m * Op::N + n, sums[i / 4 / COLUMNS][i / 4 % COLUMNS][i & 3]);
      }
#pragma unroll
      for (int i = 0; i < ROWS * COLUMNS * 4; i++) {
        const int m = m0 + i / 4 / COLUMNS * 16 + (i >> 1 & 1) * 8, n = n0 + i / 4 % COLUMNS * 8 + (i & 1);
        if (m < Op::M && n < Op::N) device.w[place + m * Op::N + n] = moved[i / 4 / COLUMNS][i / 4 % COLUMNS][i & 3];
      }
    });
  }
};
