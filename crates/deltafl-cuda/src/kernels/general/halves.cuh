// Convolutions with eight or more input channels. Operands are pairs of fp16 numbers (`split.cuh`),
// which need half the instructions of TF32. Layers are those of `conv.cuh`, except that filters are
// [O][SIDE][SIDE][C]. Each operand is copied once per step into rows of halves: for a position, the
// high parts of all channels and then the low parts. A power of two scales the largest entry of an
// operand to 2¹⁴ … 2¹⁵, so that entries of any magnitude have a fixed precision. A layer L also
// defines
//   X_HALVES, DZ_HALVES, FILTER_HALVES   places of the rows
//   INVERSES                             place of the inverse scales: that of the filters, then those
//                                        of the maps and of the slopes of each example
//   FILTER_BLOCKS                        blocks that copy the filters
// Tensor cores round sums towards zero, so sums are added in fp32 after every 16 products.

/// A row of halves: chunks of eight channels.
template <int CHANNELS>
struct HalfRow {
  static constexpr int CHUNKS = (CHANNELS + 7) / 8, LOW = 16 * CHUNKS, BYTES = 2 * LOW;
  static constexpr int PITCH = BYTES + 16; // in shared memory, where adjacent rows are in different banks

  /// Writes eight channels.
  static __device__ __forceinline__ void store(u8* row, int chunk, const float (&v)[8]) {
    u32 h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) split(v[2 * i], v[2 * i + 1], h[i], l[i]);
    *(uint4*)(row + 16 * chunk) = make_uint4(h[0], h[1], h[2], h[3]);
    *(uint4*)(row + LOW + 16 * chunk) = make_uint4(l[0], l[1], l[2], l[3]);
  }
};

/// Sizes of a layer's operands.
template <class L>
struct HalfSizes {
  typedef HalfRow<L::C> In;
  typedef HalfRow<L::O> Out;
  static constexpr int TAPS = L::SIDE * L::SIDE, CELLS = L::QH * L::QW, HEIGHT = L::POOL * L::QH, WIDTH = L::POOL * L::QW;
  static constexpr int POSITIONS = HEIGHT * WIDTH, MAP = L::H * L::W;
  static constexpr int FILTERS = Out::CHUNKS * 8 * TAPS; // rows; those after the last filter are zero
};

/// Copies the map of an example.
template <class L>
__device__ __forceinline__ void split_map(const Device& device, int example) {
  typedef HalfSizes<L> S;
  const float* x = device.arena + L::X + (size_t)example * L::C * S::MAP;
  float most = 0.f;
#pragma unroll 8
  for (int i = threadIdx.x; i < L::C * S::MAP; i += 256) most = fmaxf(most, fabsf(x[i]));
  const float scale = half_scale(largest_of_block<256>(most));
  if (threadIdx.x == 0) device.arena[L::INVERSES + 1 + example] = 1.f / scale;
  u8* rows = (u8*)(device.arena + L::X_HALVES) + (size_t)example * S::MAP * S::In::BYTES;
  for (int i = threadIdx.x; i < S::MAP * S::In::CHUNKS; i += 256) {
    const int at = i % S::MAP, chunk = i / S::MAP;
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = 8 * chunk + k < L::C ? x[(8 * chunk + k) * S::MAP + at] * scale : 0.f;
    S::In::store(rows + at * S::In::BYTES, chunk, v);
  }
}

/// Copies a part of the filters. Every block determines the scale.
template <class L>
__device__ __forceinline__ void split_filters(const Device& device, int part) {
  typedef HalfSizes<L> S;
  constexpr int LEN = L::O * S::TAPS * L::C;
  const float* filters = device.w + L::FILTERS;
  float most = 0.f;
#pragma unroll 8
  for (int i = threadIdx.x; i < LEN / 4; i += 256) {
    const float4 v = ((const float4*)filters)[i];
    most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
  }
  if (threadIdx.x < LEN % 4) most = fmaxf(most, fabsf(filters[LEN / 4 * 4 + threadIdx.x]));
  const float scale = half_scale(largest_of_block<256>(most));
  if (part == 0 && threadIdx.x == 0) device.arena[L::INVERSES] = 1.f / scale;
  u8* rows = (u8*)(device.arena + L::FILTER_HALVES);
  for (int i = part * 256 + threadIdx.x; i < S::FILTERS * S::In::CHUNKS; i += L::FILTER_BLOCKS * 256) {
    const int at = i / S::In::CHUNKS, chunk = i % S::In::CHUNKS;
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = 8 * chunk + k < L::C && at < L::O * S::TAPS ? filters[at * L::C + 8 * chunk + k] * scale : 0.f;
    S::In::store(rows + (size_t)at * S::In::BYTES, chunk, v);
  }
}

/// Copies the maps, a block each, and the filters.
template <class L>
__device__ void halves_prepare(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  if (blockIdx.x < BATCH) split_map<L>(device, blockIdx.x);
  else split_filters<L>(device, blockIdx.x - BATCH);
}

/// Copies the slopes before pooling, an example per block.
template <class L>
__device__ void halves_slopes(const Wave& wave) {
  typedef HalfSizes<L> S;
  const Device device(wave);
  if (device.now.size == 0) return;
  const int example = blockIdx.x;
  const float* dz = device.arena + L::DZ + (size_t)example * L::O * S::CELLS;
  const u8* winners = (const u8*)(device.arena + L::WINNERS) + (size_t)example * L::O * S::CELLS;
  float most = 0.f;
#pragma unroll 8
  for (int i = threadIdx.x; i < L::O * S::CELLS; i += 256) most = fmaxf(most, fabsf(dz[i]));
  const float scale = half_scale(largest_of_block<256>(most));
  if (threadIdx.x == 0) device.arena[L::INVERSES + 1 + BATCH + example] = 1.f / scale;
  u8* rows = (u8*)(device.arena + L::DZ_HALVES) + (size_t)example * S::POSITIONS * S::Out::BYTES;
  for (int i = threadIdx.x; i < S::POSITIONS * S::Out::CHUNKS; i += 256) {
    const int at = i % S::POSITIONS, chunk = i / S::POSITIONS, y = at / S::WIDTH, x = at % S::WIDTH;
    const int cell = y / L::POOL * L::QW + x / L::POOL, pixel = (y & 1) * 2 + (x & 1);
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int o = 8 * chunk + k, from = o * S::CELLS + cell;
      v[k] = o < L::O && (L::POOL == 1 || winners[from] == pixel) ? dz[from] * scale : 0.f;
    }
    S::Out::store(rows + at * S::Out::BYTES, chunk, v);
  }
}

/// Returns the bytes of a line of a map in shared memory, so that the first position of the next line
/// is in the bank of position `next` of this one.
__host__ __device__ constexpr int line_bytes(int wide, int pitch, int next) { return wide * pitch + 16 * (((next - wide) * (pitch / 16) % 8 + 8) % 8); }

/// Computes sums += scale · a b for a tile a and the first `count` of N tiles b: high parts of both
/// chunks, then low parts.
template <int N>
__device__ __forceinline__ void add_split_products(float (&sums)[N][4], const u32 (&ah)[4], const u32 (&al)[4], const u32 (&b)[N][4], int count, float scale = 1.f) {
  float parts[N][4];
#pragma unroll
  for (int j = 0; j < N; j++)
    if (j < count) multiply(parts[j], al, b[j]);
#pragma unroll
  for (int j = 0; j < N; j++)
    if (j < count) multiply_add(parts[j], ah, b[j] + 2);
#pragma unroll
  for (int j = 0; j < N; j++)
    if (j < count) multiply_add(parts[j], ah, b[j]);
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (j < count) sums[j][e] = fmaf(parts[j][e], scale, sums[j][e]);
}

/// The product of a block: rows of halves in shared memory, times filters in stages. A step has 16
/// products, which are two chunks of a tap or of two. A plan P is that of `slab.cuh`; rows and columns
/// of 16×8 tiles alternate among the warps. CHUNKS: those of a tap. TRANSPOSED: the sum is over the
/// filters.
template <class P, int COLUMNS, int TAPS, int CHUNKS, bool TRANSPOSED>
struct HalfProduct {
  static constexpr int STEPS = (TAPS * CHUNKS + 1) / 2, DEPTH = 2, STAGES = 3, PADDED = (STEPS + DEPTH - 1) / DEPTH * DEPTH;
  static constexpr int BN = P::WC * P::NT * 8, TILES_N = (COLUMNS + BN - 1) / BN, TILES = (COLUMNS + 7) / 8;
  static constexpr int STAGE_COPIES = DEPTH * BN * 4, COPIES = (STAGE_COPIES + 255) / 256; // of 16 bytes: of a block, and of a thread
  static constexpr int STAGE = 16 * STAGE_COPIES, BYTES = STAGES * STAGE + 16 * PADDED; // of a stage, and of stages and offsets
  static_assert(P::WR * P::WC == 8, "256 threads");

  /// `origin(low, i)` returns the offset of 16 bytes of the filters at the first chunk, −1 for zeros,
  /// and `shift(chunk)` what another chunk adds to it. `offset(chunk)` returns the offset of a chunk
  /// from its row, `base(row)` that of a row from the slab. `needs(row)` returns the lines of taps, a
  /// bit each, that are not zero for 16 rows. The result is passed to `use(row, column, sums)`.
  template <class Origin, class Shift, class Offset, class Base, class Needs, class Use>
  static __device__ __forceinline__ void run(const u8* slab, u8* memory, int tile, const u8* filters, Origin origin, Shift shift, Offset offset, Base base, Needs needs, int side, int low, Use use) {
    int *offsets = (int*)(memory + STAGES * STAGE), *shifts = offsets + 2 * PADDED;
    const int tid = threadIdx.x, lane = tid & 31, warp = warp_number(), wr = warp / P::WC, wc = warp % P::WC, n0 = tile * P::WC * P::NT;
    for (int q = tid; q < 2 * PADDED; q += 256) offsets[q] = q < TAPS * CHUNKS ? offset(q) : 0, shifts[q] = shift(q);
    int origins[COPIES];
#pragma unroll
    for (int k = 0; k < COPIES; k++) {
      const int i = tid + 256 * k;
      origins[k] = origin(i / BN >> 1 & 1, n0 * 8 + i % BN);
    }
    __syncthreads();
    const auto fetch = [&](int step, int stage) {
      const u32 to = shared_address(memory + stage * STAGE) + 16 * tid;
#pragma unroll
      for (int k = 0; k < COPIES; k++) {
        const int i = tid + 256 * k, q = 2 * (step + i / (4 * BN)) + (i / BN & 1);
        if (STAGE_COPIES % 256 && i >= STAGE_COPIES) break;
        const bool is_zero = origins[k] < 0 || (TAPS * CHUNKS < 2 * PADDED && q >= TAPS * CHUNKS);
        copy_async_or_zero<4>(to + 4096 * k, is_zero ? nullptr : (const float*)(filters + (origins[k] + shifts[q])), (const float*)filters);
      }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
      if (s * DEPTH < STEPS) fetch(s * DEPTH, s);
      commit_copies();
    }
    u32 rows[P::MT], needed[P::MT];
#pragma unroll
    for (int i = 0; i < P::MT; i++) {
      const int m = (wr + i * P::WR) * 16;
      rows[i] = shared_address(slab) + base(m + (lane & 15)), needed[i] = needs(m);
    }
    float sums[P::MT][P::NT][4];
#pragma unroll
    for (int i = 0; i < P::MT * P::NT * 4; i++) sums[i / 4 / P::NT][i / 4 % P::NT][i % 4] = 0.f;
    const int columns = (TILES - n0 - wc + P::WC - 1) / P::WC; // of this warp
    int stage = 0;
    for (int step = 0; step < STEPS; step += DEPTH) {
      wait_for_groups<STAGES - 2>();
      __syncthreads();
      const int next = step + (STAGES - 1) * DEPTH;
      if (next < STEPS) fetch(next, stage == 0 ? STAGES - 1 : stage - 1);
      commit_copies();
#pragma unroll
      for (int k = 0; k < DEPTH; k++) {
        const int at = offsets[2 * (step + k) + (lane >> 4)], first = 2 * (step + k) / CHUNKS / side, last = (2 * (step + k) + 1) / CHUNKS / side;
        const u32 lines = 1u << first | 1u << last;
        u32 b[P::NT][4]; // the high parts of both chunks, and the low ones
#pragma unroll
        for (int j = 0; j < P::NT; j++) {
          const u32 from = shared_address(memory + stage * STAGE + k * BN * 64) + 16 * ((lane >> 3) * BN + (wc + j * P::WC) * 8 + (lane & 7));
          if (TRANSPOSED) load_transposed(b[j], from);
          else load_tiles(b[j], from);
        }
#pragma unroll
        for (int i = 0; i < P::MT; i++) {
          if (!(needed[i] & lines)) continue;
          u32 ah[4], al[4];
          load_tiles(ah, rows[i] + at), load_tiles(al, rows[i] + at + low);
          add_split_products(sums[i], ah, al, b, columns);
        }
      }
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
#pragma unroll
    for (int i = 0; i < P::MT; i++)
#pragma unroll
      for (int j = 0; j < P::NT; j++) use((wr + i * P::WR) * 16, (n0 + wc + j * P::WC) * 8, sums[i][j]);
  }
};

/// Copies rows of halves into the positions `place(row)` of shared memory, in bytes.
template <class Row, class Place>
__device__ __forceinline__ void copy_rows(u8* to, const u8* from, int count, Place place) {
  constexpr int PIECES = Row::BYTES / 16;
  for (int i = threadIdx.x; i < count * PIECES; i += 256) copy_async_16(shared_address(to) + place(i / PIECES) + 16 * (i % PIECES), from + 16 * i);
}
__device__ __forceinline__ void zero_bytes(u8* to, int count) {
  for (int i = threadIdx.x; i < count / 16; i += 256) ((uint4*)to)[i] = make_uint4(0, 0, 0, 0);
}

/// Input maps with borders in shared memory. NEXT: as in `line_bytes`.
template <class L, int NEXT>
struct HalfMaps {
  typedef HalfSizes<L> S;
  static constexpr int WIDE = L::W + 2 * L::PAD, TALL = L::H + 2 * L::PAD, PITCH = S::In::PITCH, LINE = line_bytes(WIDE, PITCH, NEXT), BYTES = TALL * LINE;
  static __device__ const u8* rows(const Device& device, int example) { return (const u8*)(device.arena + L::X_HALVES) + (size_t)example * S::MAP * S::In::BYTES; }
  /// The place of row `i` in the maps of a block. Borders are zero.
  static __device__ int place(int i) { return i / S::MAP * BYTES + (i / L::W % L::H + L::PAD) * LINE + (i % L::W + L::PAD) * PITCH; }
  /// The offset of a tap from its position.
  static __device__ int tap(int tap) { return tap / L::SIDE * LINE + tap % L::SIDE * PITCH; }
};

template <class L, class P>
__device__ void halves_forward(const Wave& wave) {
  typedef HalfSizes<L> S;
  typedef typename S::In Row;
  typedef HalfMaps<L, L::POOL == 2 ? 4 : S::WIDTH> Maps;
  typedef HalfProduct<P, L::O, S::TAPS, Row::CHUNKS, false> Product_;
  const Device device(wave);
  if (device.now.size == 0) return;
  static_assert(P::IMAGES * Maps::BYTES + Product_::BYTES <= P::SHARED, "the plan reserves the shared memory");
  u8 *slab = (u8*)conv_memory, *memory = slab + P::IMAGES * Maps::BYTES;
  const SlabRows<P, S::POSITIONS> rows(blockIdx.x / Product_::TILES_N);
  if (L::PAD) {
    zero_bytes(slab, P::IMAGES * Maps::BYTES);
    __syncthreads();
  }
  copy_rows<Row>(slab, Maps::rows(device, rows.first_example), min(P::IMAGES, BATCH - rows.first_example) * S::MAP, [&](int i) { return Maps::place(i); });
  const u8* filters = (const u8*)(device.arena + L::FILTER_HALVES);
  const auto origin = [&](int low, int n) { return n < L::O ? n * S::TAPS * Row::BYTES + low * Row::LOW : -1; };
  const auto shift = [&](int q) { return q / Row::CHUNKS * Row::BYTES + q % Row::CHUNKS * 16; };
  const auto offset = [&](int q) { return Maps::tap(q / Row::CHUNKS) + q % Row::CHUNKS * 16; };
  // If POOL = 2, the four pixels of a cell are adjacent rows.
  const auto base = [&](int row) {
    int example, m;
    if (!rows.decode(row, example, m)) return 0;
    const int cell = L::POOL == 2 ? m >> 2 : m;
    int y = cell / L::QW, x = cell % L::QW;
    if (L::POOL == 2) y = 2 * y + (m >> 1 & 1), x = 2 * x + (m & 1);
    return example * Maps::BYTES + y * L::STRIDE * Maps::LINE + x * L::STRIDE * Maps::PITCH;
  };
  const auto needs = [&](int row) {
    int example, m;
    return rows.decode(row, example, m) ? ~0u : 0u;
  };
  float* z = device.arena + L::Z;
  u8* winners = (u8*)(device.arena + L::WINNERS);
  const float* inverses = device.arena + L::INVERSES;
  Product_::run(slab, memory, blockIdx.x % Product_::TILES_N, filters, origin, shift, offset, base, needs, L::SIDE, Row::LOW, [&](int row, int column, const float (&sums)[4]) {
    each_output<L::POOL>(row, column, sums, [&](int m, int n, float v, int winner) {
      int example, position;
      if (!rows.decode(m, example, position) || n >= L::O) return;
      example += rows.first_example;
      v *= __ldg(inverses) * __ldg(inverses + 1 + example);
      if (L::BIAS >= 0) v += __ldg(device.w + L::BIAS + n);
      store_cell<L>(z, winners, (example * L::O + n) * S::CELLS + position / (L::POOL * L::POOL), v, winner);
    });
  });
}

/// The slopes of the input map.
template <class L, class P>
__device__ void halves_backward(const Wave& wave) {
  typedef HalfSizes<L> S;
  typedef typename S::In Filter;
  typedef typename S::Out Row;
  typedef SlopeSlab<L> Slab;
  typedef HalfProduct<P, L::C, S::TAPS, Row::CHUNKS, true> Product_;
  constexpr int LINE = line_bytes(Slab::WIDE, Row::PITCH, L::W), IMAGE = (L::H + L::SIDE - 1) * LINE, BYTES = P::IMAGES * IMAGE + Slab::LEFT * Row::PITCH;
  static_assert(BYTES + Product_::BYTES <= P::SHARED, "the plan reserves the shared memory");
  const Device device(wave);
  if (device.now.size == 0) return;
  u8 *slab = (u8*)conv_memory, *memory = slab + BYTES;
  const SlabRows<P, S::MAP> rows(blockIdx.x / Product_::TILES_N);
  zero_bytes(slab, BYTES);
  __syncthreads();
  const u8* slopes = (const u8*)(device.arena + L::DZ_HALVES) + (size_t)rows.first_example * S::POSITIONS * Row::BYTES;
  copy_rows<Row>(slab, slopes, min(P::IMAGES, BATCH - rows.first_example) * S::POSITIONS, [&](int i) {
    const int y = i / S::WIDTH % S::HEIGHT, x = i % S::WIDTH;
    return i / S::POSITIONS * IMAGE + (y * L::STRIDE + Slab::LEFT) * LINE + (x * L::STRIDE + Slab::LEFT) * Row::PITCH;
  });
  const u8* filters = (const u8*)(device.arena + L::FILTER_HALVES);
  const auto origin = [&](int low, int n) { return n / 8 < Filter::CHUNKS ? n % 8 * S::TAPS * Filter::BYTES + low * Filter::LOW + n / 8 * 16 : -1; };
  const auto shift = [&](int q) { return (q % Row::CHUNKS * 8 * S::TAPS + q / Row::CHUNKS) * Filter::BYTES; };
  const auto offset = [&](int q) {
    const int tap = q / Row::CHUNKS;
    return (L::SIDE - 1 - tap / L::SIDE) * LINE + (L::SIDE - 1 - tap % L::SIDE) * Row::PITCH + q % Row::CHUNKS * 16;
  };
  const auto base = [&](int row) {
    int example, m;
    return rows.decode(row, example, m) ? example * IMAGE + m / L::W * LINE + m % L::W * Row::PITCH : 0;
  };
  // The lines of taps at which 16 rows meet slopes. Maps with fewer than 16 positions use all lines:
  // their last 16 rows may belong to several examples.
  const auto needs = [&](int row) {
    int example, m, last_example, last;
    if (!rows.decode(row, example, m)) return 0u;
    if (S::MAP < 16) return ~0u;
    if (!rows.decode(row + 15, last_example, last)) last = S::MAP - 1, last_example = example;
    if (example != last_example) return ~0u;
    const int from = max(m / L::W + L::PAD - Slab::HEIGHT + 1, 0), to = min(last / L::W + L::PAD, L::SIDE - 1);
    return from > to ? 0u : (2u << to) - (1u << from);
  };
  const float *x = device.arena + L::X, *inverses = device.arena + L::INVERSES;
  float* dx = device.arena + L::DX;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  Product_::run(slab, memory, blockIdx.x % Product_::TILES_N, filters, origin, shift, offset, base, needs, L::SIDE, Row::LOW, [&](int row, int column, const float (&sums)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int example, m;
      const int n = column + 2 * t + (e & 1);
      if (rows.decode(row + g + (e >> 1) * 8, example, m) && n < L::C) {
        example += rows.first_example;
        const size_t at = (size_t)(example * L::C + n) * S::MAP + m;
        dx[at] = !L::CUT || __ldg(x + at) > 0.f ? sums[e] * (__ldg(inverses) * __ldg(inverses + 1 + BATCH + example)) : 0.f;
      }
    }
  });
}

/// The gradient of the filters. Columns are tiles of eight channels of a tap. A block adds a part of
/// the sum, over examples, for a part of the columns. A plan P defines
///   WR, WC, MT, NT    as in `slab.cuh`; tiles of columns alternate among the warps
///   PARTS             parts of the columns
///   SPLITS            parts of the sum
///   SHARED            bytes of shared memory
template <class L, class P>
__device__ void halves_gradient(const Wave& wave) {
  typedef HalfSizes<L> S;
  typedef typename S::In Row;
  typedef typename S::Out Left;
  typedef HalfMaps<L, S::WIDTH> Maps;
  constexpr int STEPS = (S::POSITIONS + 15) / 16, ROWS = 16 * P::WR * P::MT, TILES = S::TAPS * Row::CHUNKS, OF_PART = (TILES + P::PARTS - 1) / P::PARTS;
  constexpr int BLOCKS = (L::O + ROWS - 1) / ROWS * P::PARTS, EACH = (BATCH + P::SPLITS - 1) / P::SPLITS;
  static_assert(Maps::BYTES + 16 * STEPS * (Left::PITCH + 4) + 4 * S::MAP <= P::SHARED, "the plan reserves the shared memory");
  const Device device(wave);
  if (device.now.size == 0) return;
  if (blockIdx.x >= BLOCKS * P::SPLITS) return conv_biases<L>(device, blockIdx.x - BLOCKS * P::SPLITS);
  u8 *slab = (u8*)conv_memory, *left = slab + Maps::BYTES;
  int *offsets = (int*)(left + 16 * STEPS * Left::PITCH), *places = offsets + 16 * STEPS;
  const int lane = threadIdx.x & 31, warp = warp_number(), wr = warp / P::WC, wc = warp % P::WC;
  const int split = blockIdx.x / BLOCKS, block = blockIdx.x % BLOCKS, m0 = block / P::PARTS * ROWS, first = block % P::PARTS * OF_PART + wc;
  const int count = (min(OF_PART, TILES - block % P::PARTS * OF_PART) - wc + P::WC - 1) / P::WC; // tiles of this warp
  zero_bytes(slab, Maps::BYTES + 16 * STEPS * Left::PITCH);
  for (int k = threadIdx.x; k < 16 * STEPS; k += 256) offsets[k] = k < S::POSITIONS ? k / S::WIDTH * L::STRIDE * Maps::LINE + k % S::WIDTH * L::STRIDE * Maps::PITCH : 0;
  for (int i = threadIdx.x; i < S::MAP; i += 256) places[i] = Maps::place(i);
  u32 columns[P::NT], rows[P::MT];
#pragma unroll
  for (int j = 0; j < P::NT; j++) {
    const int tile = min(first + j * P::WC, TILES - 1);
    columns[j] = shared_address(slab) + Maps::tap(tile / Row::CHUNKS) + tile % Row::CHUNKS * 16 + (lane >> 4) * Row::LOW;
  }
#pragma unroll
  for (int i = 0; i < P::MT; i++) {
    const int chunk = (m0 + (wr + i * P::WR) * 16) / 8 + (lane >> 3 & 1);
    rows[i] = shared_address(left) + ((lane >> 4) * 8 + (lane & 7)) * Left::PITCH + min(chunk, Left::CHUNKS - 1) * 16;
  }
  float sums[P::MT][P::NT][4];
#pragma unroll
  for (int i = 0; i < P::MT * P::NT * 4; i++) sums[i / 4 / P::NT][i / 4 % P::NT][i % 4] = 0.f;
  const float* inverses = device.arena + L::INVERSES + 1;
  for (int example = split * EACH; example < min((split + 1) * EACH, BATCH); example++) {
    __syncthreads();
    copy_rows<Row>(slab, Maps::rows(device, example), S::MAP, [&](int i) { return places[i]; });
    const u8* slopes = (const u8*)(device.arena + L::DZ_HALVES) + (size_t)example * S::POSITIONS * Left::BYTES;
    copy_rows<Left>(left, slopes, S::POSITIONS, [&](int i) { return i * Left::PITCH; });
    wait_for_copies();
    __syncthreads();
    const float scale = inverses[example] * inverses[BATCH + example];
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
      const int at = offsets[16 * step + (lane & 15)];
      u32 b[P::NT][4];
#pragma unroll
      for (int j = 0; j < P::NT; j++) load_transposed(b[j], columns[j] + at);
#pragma unroll
      for (int i = 0; i < P::MT; i++) {
        u32 ah[4], al[4];
        load_transposed(ah, rows[i] + 16 * step * Left::PITCH), load_transposed(al, rows[i] + 16 * step * Left::PITCH + Left::LOW);
        add_split_products(sums[i], ah, al, b, count, scale);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < P::MT * P::NT * 4; i++) {
    const int j = i / 4 % P::NT, e = i % 4, m = m0 + (wr + i / 4 / P::NT * P::WR) * 16 + (lane >> 2) + (e >> 1) * 8;
    const int tile = first + j * P::WC, c = tile % Row::CHUNKS * 8 + 2 * (lane & 3) + (e & 1), at = (m * S::TAPS + tile / Row::CHUNKS) * L::C + c;
    if (j >= count || m >= L::O || c >= L::C) continue;
    if (P::SPLITS == 1) device.descend(L::FILTERS + at, sums[i / 4 / P::NT][j][e]);
    else device.arena[L::PARTS + split * L::O * S::TAPS * L::C + at] = sums[i / 4 / P::NT][j][e];
  }
}
