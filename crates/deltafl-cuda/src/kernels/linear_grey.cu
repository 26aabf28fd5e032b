// Softmax regression on grey levels: a block per device, products on tensor cores (split.cuh).
//
// W stays in registers for the whole update, in fp32, in the fragments of mma.sync. A warp has 16
// classes and every PARTS-th tile of 16 inputs, with eight entries of a tile per thread. Tiles
// after the tenth are in shared memory. A product leaves its result in the fragment in which the
// next product uses it as a factor, so W never moves. A step is
//   logits    W x     partial sums per warp, over its tiles, then over the warps in their order
//   residuals         a warp per example
//   descent   W ← keep·W + pull·anchor − γ/b Σ (p − 1[y]) xᵀ
// x is split into two parts when it is unpacked, W and the residuals before they are multiplied.
// The next batch is fetched from the resident data concurrently.
//
// |x| < 60 and |W| < 255 fit in fp16 with their scales. The host checks the first. A larger W has
// diverged long before.
//
// Macros: INPUTS, CLASSES, BATCH (≤ 16).

#include "common.cuh"
#include "split.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32, EXAMPLES = 16;
__host__ __device__ constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
constexpr int CLASS_TILES = power_of_two((CLASSES + 15) / 16), PARTS = WARPS / CLASS_TILES;
constexpr int INPUT_TILES = (INPUTS + 15) / 16, TILES = (INPUT_TILES + PARTS - 1) / PARTS; // of all, of a warp
constexpr int HELD = TILES < 10 ? TILES : 10, SHARED = TILES - HELD;                       // in registers, in shared memory
constexpr int PADDED = 16 * INPUT_TILES, COLUMNS = 16 * CLASS_TILES, PITCH = COLUMNS + 4;
constexpr int X_ROW = 2 * PADDED + 16, RESIDUAL_ROW = 2 * COLUMNS + 16; // bytes of a row of a part: an odd number of sixteens
constexpr float X_SCALE = 1024.f, WEIGHT_SCALE = 256.f, RESIDUAL_SCALE = 16384.f;
constexpr int COPY = INPUTS % 16 == 0 ? 16 : INPUTS % 4 == 0 ? 4 : 0;

/// Shared memory. The host allocates sizeof(Memory).
struct Memory {
  alignas(16) u8 raw[2][BATCH * PADDED];
  alignas(16) u8 x[2][EXAMPLES * X_ROW];
  alignas(16) u8 residuals[2][EXAMPLES * RESIDUAL_ROW];
  float4 tiles[SHARED > 0 ? SHARED : 1][2][THREADS];
  alignas(16) float scale[PADDED], shift[PADDED];
  float partial[PARTS][EXAMPLES * PITCH];
  double losses[EXAMPLES];
  u32 errors[EXAMPLES], order[2][EXAMPLES];
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);

struct Block {
  Memory& m;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int row = warp % CLASS_TILES * 16, part = warp / CLASS_TILES; // the first class; which tiles of inputs
  float w[HELD][8];

  __device__ Block(Memory& memory, const float* scale, const float* shift) : m(memory) {
    for (int i = tid; i < sizeof(Memory) / 4; i += THREADS) ((u32*)&m)[i] = 0u;
    __syncthreads();
    for (int j = tid; j < INPUTS; j += THREADS) m.scale[j] = X_SCALE * scale[j], m.shift[j] = X_SCALE * shift[j];
  }

  /// Calls `use(tile, entries)` for each tile of this warp. `CHANGES` is set if it writes them.
  template <bool CHANGES, class Use>
  __device__ void each_tile(Use use) {
#pragma unroll
    for (int i = 0; i < HELD; i++)
      if ((i + 1) * PARTS <= INPUT_TILES || i * PARTS + part < INPUT_TILES) use(i * PARTS + part, w[i]);
#pragma unroll 1
    for (int i = 0; i < SHARED; i++) {
      const int tile = (HELD + i) * PARTS + part;
      if (tile >= INPUT_TILES) break;
      float4 &a = m.tiles[i][0][tid], &b = m.tiles[i][1][tid];
      float entries[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      use(tile, entries);
      if (CHANGES) a = make_float4(entries[0], entries[1], entries[2], entries[3]), b = make_float4(entries[4], entries[5], entries[6], entries[7]);
    }
  }

  /// Returns class and input of entry `e` of a tile. Entries after the last of either are unused.
  __device__ int class_of(int e) const { return row + g + (e >> 1 & 1) * 8; }
  __device__ int input_of(int tile, int e) const { return tile * 16 + (e >> 2) * 8 + 2 * t + (e & 1); }
  __device__ bool exists(int tile, int e) const { return class_of(e) < CLASSES && input_of(tile, e) < INPUTS; }
  __device__ int place(int tile, int e) const { return input_of(tile, e) * CLASSES + class_of(e); }

  __device__ void load(const float* start) {
    each_tile<true>([&](int tile, float(&entries)[8]) {
#pragma unroll
      for (int e = 0; e < 8; e++) entries[e] = exists(tile, e) ? start[place(tile, e)] : 0.f;
    });
  }

  __device__ void store(float* local) {
    each_tile<false>([&](int tile, float(&entries)[8]) {
#pragma unroll
      for (int e = 0; e < 8; e++)
        if (exists(tile, e)) local[place(tile, e)] = entries[e];
    });
  }

  /// Replaces the entries by their parts once W no longer changes: first the large ones, two per
  /// word.
  __device__ void split_entries() {
    each_tile<true>([&](int, float(&entries)[8]) {
      u32 high[4], low[4];
      parts(entries, high, low);
#pragma unroll
      for (int k = 0; k < 4; k++) entries[k] = __uint_as_float(high[k]), entries[4 + k] = __uint_as_float(low[k]);
    });
  }

  __device__ static void parts(const float (&entries)[8], u32 (&high)[4], u32 (&low)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) split(entries[2 * k] * WEIGHT_SCALE, entries[2 * k + 1] * WEIGHT_SCALE, high[k], low[k]);
  }

  /// Requests the grey levels of `size` examples. `index(b)` is their position in the column.
  template <class Index>
  __device__ void fetch(const u8* column, int size, int stage, Index index) {
    if (COPY) {
      constexpr int PIECES = COPY ? INPUTS / COPY : 1;
      for (int i = tid; i < size * PIECES; i += THREADS) {
        const int b = i / PIECES, piece = i % PIECES * COPY;
        const u32 to = shared_address(m.raw[stage]) + b * PADDED + piece;
        const u8* from = column + (size_t)index(b) * INPUTS + piece;
        if (COPY == 16) copy_async_16(to, from); else copy_async_4(to, from);
      }
    } else {
      for (int i = tid; i < size * INPUTS; i += THREADS) m.raw[stage][i / INPUTS * PADDED + i % INPUTS] = column[(size_t)index(i / INPUTS) * INPUTS + i % INPUTS];
    }
  }

  /// Converts byte `k` of a word to float as (2^23 + byte) − 2^23.
  __device__ static float byte_of(u32 word, int k) { return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 + k)) - 8388608.f; }

  /// Normalises and splits the fetched examples, with zeros after the last.
  __device__ void unpack(int size, int stage) {
    for (int i = tid; i < BATCH * (PADDED / 4); i += THREADS) {
      const int b = i / (PADDED / 4), j = i % (PADDED / 4) * 4;
      uint2 high = make_uint2(0, 0), low = high;
      if (b < size) {
        const u32 word = *(const u32*)&m.raw[stage][b * PADDED + j];
        const float4 a = *(const float4*)&m.scale[j], s = *(const float4*)&m.shift[j];
        split(fmaf(byte_of(word, 0), a.x, s.x), fmaf(byte_of(word, 1), a.y, s.y), high.x, low.x);
        split(fmaf(byte_of(word, 2), a.z, s.z), fmaf(byte_of(word, 3), a.w, s.w), high.y, low.y);
      }
      *(uint2*)&m.x[0][b * X_ROW + 2 * j] = high, *(uint2*)&m.x[1][b * X_ROW + 2 * j] = low;
    }
  }

  /// Computes partial logits of this warp's classes and inputs. `SPLIT` is set after
  /// `split_entries`.
  template <bool SPLIT>
  __device__ void logits() {
    const u32 x = shared_address(m.x[0]) + ((lane >> 4) * 8 + (lane & 7)) * X_ROW + (lane >> 3 & 1) * 16;
    float a[2][4] = {};
    each_tile<false>([&](int tile, float(&entries)[8]) {
      u32 high[4], low[4], p[4];
      if (SPLIT)
#pragma unroll
        for (int k = 0; k < 4; k++) high[k] = __float_as_uint(entries[k]), low[k] = __float_as_uint(entries[4 + k]);
      else
        parts(entries, high, low);
      load_tiles(p, x + EXAMPLES * X_ROW + tile * 32);
      multiply_add(a[0], high, p), multiply_add(a[1], high, p + 2);
      load_tiles(p, x + tile * 32);
      multiply_add(a[0], low, p), multiply_add(a[1], low, p + 2);
      multiply_add(a[0], high, p), multiply_add(a[1], high, p + 2);
    });
#pragma unroll
    for (int i = 0; i < 8; i++)
      m.partial[part][((i >> 2) * 8 + 2 * t + (i & 1)) * PITCH + row + g + (i >> 1 & 1) * 8] = a[i >> 2][i & 3] * (1.f / (X_SCALE * WEIGHT_SCALE));
  }

  /// Returns the logits of example `b` for a whole warp.
  __device__ Row<CLASSES> logits_of(int b) const {
    Row<CLASSES> row;
#pragma unroll
    for (int k = 0; k < Row<CLASSES>::PARTS; k++) {
      const int c = lane + 32 * k;
      float z = 0.f;
      if (c < CLASSES)
#pragma unroll
        for (int from = 0; from < PARTS; from++) z += m.partial[from][b * PITCH + c];
      row.z[k] = z;
    }
    return row;
  }

  /// Computes p − 1[y] of example `b`, split. Zeros if the batch has no such example.
  __device__ void residuals(int b, bool present, int label) {
    Row<CLASSES> row = logits_of(b);
    row.to_residuals(lane, label, RESIDUAL_SCALE);
#pragma unroll
    for (int k = 0; k < Row<CLASSES>::PARTS; k++) {
      const int c = lane + 32 * k;
      u32 high, low;
      split(present ? row.z[k] : 0.f, 0.f, high, low);
      if (c < COLUMNS) *(u16*)&m.residuals[0][b * RESIDUAL_ROW + 2 * c] = high, *(u16*)&m.residuals[1][b * RESIDUAL_ROW + 2 * c] = low;
    }
  }

  /// `step` is −γ/b.
  __device__ void descend(float step, float keep, float pull, const float* anchor) {
    const u32 at = shared_address(m.residuals[0]) + ((lane >> 4) * 8 + (lane & 7)) * RESIDUAL_ROW + (row + (lane >> 3 & 1) * 8) * 2;
    const u32 x = shared_address(m.x[0]) + ((lane >> 3 & 1) * 8 + (lane & 7)) * X_ROW + (lane >> 4) * 16;
    u32 high[4], low[4];
    load_transposed(high, at), load_transposed(low, at + EXAMPLES * RESIDUAL_ROW);
    step *= 1.f / (RESIDUAL_SCALE * X_SCALE);
    if (pull != 0.f) {
      each_tile<true>([&](int tile, float(&entries)[8]) {
#pragma unroll
        for (int e = 0; e < 8; e++) entries[e] = fmaf(entries[e], keep, exists(tile, e) ? pull * anchor[place(tile, e)] : 0.f);
      });
      keep = 1.f;
    }
    each_tile<true>([&](int tile, float(&entries)[8]) {
      u32 p[4];
      float sum[2][4] = {};
      load_transposed(p, x + EXAMPLES * X_ROW + tile * 32);
      multiply_add(sum[0], high, p), multiply_add(sum[1], high, p + 2);
      load_transposed(p, x + tile * 32);
      multiply_add(sum[0], low, p), multiply_add(sum[1], low, p + 2);
      multiply_add(sum[0], high, p), multiply_add(sum[1], high, p + 2);
#pragma unroll
      for (int e = 0; e < 8; e++) entries[e] = fmaf(step, sum[e >> 2][e & 3], entries[e] * keep);
    });
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
update(const Task* tasks, const float* params, const u32* order, const u8* inputs, const u16* labels, const float* scale, const float* shift, float* local) {
  extern __shared__ __align__(16) u8 shared[];
  const Task task = tasks[blockIdx.x];
  const Batches batches(task);
  const float *start = params + (size_t)task.params * INPUTS * CLASSES, *anchor = params + (size_t)task.anchor * INPUTS * CLASSES;
  order += task.order;
  Block block(*(Memory*)shared, scale, shift);
  Memory& m = block.m;
  const int tid = block.tid, warp = block.warp;
  block.load(start);
  // Entry `tid` of the order of step `s`: requested two steps in advance, because it takes a step
  // to arrive.
  const auto entry = [&](u32 s) { return s < batches.count && tid < batches.size(s) ? order[batches.first(s) + tid] : 0u; };
  const auto fetch = [&](u32 s) {
    if (s < batches.count) block.fetch(inputs, batches.size(s), s & 1, [&](int b) { return m.order[s & 1][b]; });
  };
  if (tid < EXAMPLES) m.order[0][tid] = entry(0), m.order[1][tid] = entry(1);
  __syncthreads();
  fetch(0);
  for (u32 s = 0; s < batches.count; s++) {
    const int size = batches.size(s);
    wait_for_copies();
    __syncthreads();
    fetch(s + 1);
    const u32 next = tid < EXAMPLES ? entry(s + 2) : 0u;
    const int label = warp < size ? labels[m.order[s & 1][warp]] : 0;
    block.unpack(size, s & 1);
    __syncthreads();
    block.logits<false>();
    __syncthreads();
    if (warp < BATCH) block.residuals(warp, warp < size, label);
    if (tid < EXAMPLES) m.order[s & 1][tid] = next;
    __syncthreads();
    block.descend(-task.rate / size, task.keep, task.pull, anchor);
  }
  block.store(local + (size_t)task.slot * INPUTS * CLASSES);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
score(const Item* items, const float* params, const u8* inputs, const u16* labels, const float* scale, const float* shift, double* losses, u32* errors) {
  extern __shared__ __align__(16) u8 shared[];
  const Item item = items[blockIdx.x];
  Block block(*(Memory*)shared, scale, shift);
  Memory& m = block.m;
  const auto fetch = [&](u32 start) {
    if (start < item.count) block.fetch(inputs, min(item.count - start, (u32)BATCH), start / BATCH & 1, [&](int b) { return item.first + start + b; });
  };
  fetch(0);
  block.load(params + (size_t)blockIdx.y * INPUTS * CLASSES);
  block.split_entries();
  double total = 0;
  u32 wrong = 0;
  for (u32 start = 0; start < item.count; start += BATCH) {
    const int size = min(item.count - start, (u32)BATCH);
    wait_for_copies();
    __syncthreads();
    fetch(start + BATCH);
    const int label = block.warp < size ? labels[item.first + start + block.warp] : 0;
    block.unpack(size, start / BATCH & 1);
    __syncthreads();
    block.logits<true>();
    __syncthreads();
    if (block.warp < size) {
      bool missed;
      const double loss = block.logits_of(block.warp).loss(block.lane, label, missed);
      if (block.lane == 0) m.losses[block.warp] = loss, m.errors[block.warp] = missed;
    }
    __syncthreads();
    if (block.tid == 0)
      for (int b = 0; b < size; b++) total += m.losses[b], wrong += m.errors[b];
  }
  if (block.tid == 0) {
    losses[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = total;
    errors[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
  }
}
