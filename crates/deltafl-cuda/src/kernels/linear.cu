// Softmax regression: a block per device, W in registers for the whole update.
//
// Thread (quad q of classes, group g of inputs) holds W[g + GROUPS·i][4q … 4q+3] for all i. A step is
//   logits    partial sums per warp, over its groups, then over the warps in their order
//   residuals a warp per example
//   descent   W ← keep·W + pull·anchor − γ/b Σ x (p − 1[y])
// The next batch is fetched from the resident data concurrently.
//
// Macros: INPUTS, CLASSES, BATCH (even, concurrent examples), BYTES (grey levels, otherwise
// floats).

#include "common.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;
__host__ __device__ constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
constexpr int QUADS = power_of_two((CLASSES + 3) / 4), PER_WARP = 32 / QUADS, GROUPS = WARPS * PER_WARP;
constexpr int ROWS = (INPUTS + GROUPS - 1) / GROUPS, COLUMNS = 4 * QUADS;
constexpr int PITCH = BATCH + 2, PARTIAL = BATCH * COLUMNS + 4;
#if BYTES
typedef u8 Feature;
#else
typedef float Feature;
#endif
constexpr int ROW_BYTES = INPUTS * sizeof(Feature);
constexpr int COPY = ROW_BYTES % 16 == 0 ? 16 : ROW_BYTES % 4 == 0 ? 4 : 0;

/// Shared memory. The host allocates sizeof(Memory).
struct Memory {
  alignas(16) Feature raw[2][BATCH * INPUTS + 16];
  alignas(16) float x[INPUTS * PITCH];
  alignas(16) float partial[WARPS * PARTIAL];
  alignas(16) float residuals[COLUMNS * PITCH];
  double losses[BATCH];
  u32 errors[BATCH];
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);

struct Block {
  Memory& m;
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, quad = lane % QUADS, group = warp * PER_WARP + lane / QUADS;
  float w[ROWS][4];

  __device__ Block(Memory& memory) : m(memory) {}

  /// Returns the first input of this thread's row `i`, if any.
  __device__ int input(int i) const { return group + GROUPS * i; }

  __device__ void load(const float* start) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int j = input(i), k = 4 * quad + c;
        w[i][c] = j < INPUTS && k < CLASSES ? start[j * CLASSES + k] : 0.f;
      }
  }

  /// Requests the features of `size` examples. `index(b)` is their position in the column.
  template <class Index>
  __device__ void fetch(const Feature* column, int size, int stage, Index index) {
    if (COPY) {
      constexpr int PIECES = COPY ? ROW_BYTES / COPY : 1;
      for (int i = tid; i < size * PIECES; i += THREADS) {
        const int b = i / PIECES, piece = i % PIECES;
        const u32 to = shared_address(m.raw[stage]) + b * ROW_BYTES + piece * COPY;
        const u8* from = (const u8*)column + (size_t)index(b) * ROW_BYTES + piece * COPY;
        if (COPY == 16) copy_async_16(to, from); else copy_async_4(to, from);
      }
    } else {
      for (int i = tid; i < size * INPUTS; i += THREADS) m.raw[stage][i] = column[(size_t)index(i / INPUTS) * INPUTS + i % INPUTS];
    }
  }

  /// Normalises and transposes the fetched examples, with zeros after the last.
  __device__ void unpack(int size, int stage, const float* scale, const float* shift) {
    for (int j = tid; j < INPUTS; j += THREADS) {
      const float a = scale[j], s = shift[j];
#pragma unroll
      for (int b = 0; b < BATCH; b += 2) {
        float2 v;
        v.x = b < size ? fmaf((float)m.raw[stage][b * INPUTS + j], a, s) : 0.f;
        v.y = b + 1 < size ? fmaf((float)m.raw[stage][(b + 1) * INPUTS + j], a, s) : 0.f;
        *(float2*)&m.x[j * PITCH + b] = v;
      }
    }
  }

  /// Computes partial logits of this warp's inputs, two examples at a time.
  __device__ void logits() {
#pragma unroll 1
    for (int b = 0; b < BATCH; b += 2) {
      float a[4][2] = {};
#pragma unroll
      for (int i = 0; i < ROWS; i++)
        if (GROUPS * (i + 1) <= INPUTS || input(i) < INPUTS) {
          const float2 v = *(const float2*)&m.x[input(i) * PITCH + b];
#pragma unroll
          for (int c = 0; c < 4; c++) {
            a[c][0] = fmaf(w[i][c], v.x, a[c][0]);
            a[c][1] = fmaf(w[i][c], v.y, a[c][1]);
          }
        }
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int k = QUADS; k < 32; k <<= 1)
#pragma unroll
          for (int c = 0; c < 4; c++) a[c][e] += __shfl_xor_sync(ALL, a[c][e], k);
        if (lane < QUADS) *(float4*)&m.partial[warp * PARTIAL + (b + e) * COLUMNS + 4 * quad] = make_float4(a[0][e], a[1][e], a[2][e], a[3][e]);
      }
    }
  }

  /// Returns the logits of example `b` for a whole warp.
  __device__ Row<CLASSES> row(int b) const {
    Row<CLASSES> row;
#pragma unroll
    for (int k = 0; k < Row<CLASSES>::PARTS; k++) {
      const int c = lane + 32 * k;
      float z = 0.f;
      if (c < CLASSES)
#pragma unroll
        for (int from = 0; from < WARPS; from++) z += m.partial[from * PARTIAL + b * COLUMNS + c];
      row.z[k] = z;
    }
    return row;
  }

  __device__ void descend(float keep, float pull, const float* anchor) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) w[i][c] *= keep;
    if (pull != 0.f) {
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int j = input(i), k = 4 * quad + c;
          if (j < INPUTS && k < CLASSES) w[i][c] = fmaf(pull, anchor[j * CLASSES + k], w[i][c]);
        }
    }
#pragma unroll 1
    for (int b = 0; b < BATCH; b += 2) {
      float2 d[4];
#pragma unroll
      for (int c = 0; c < 4; c++) d[c] = *(const float2*)&m.residuals[(4 * quad + c) * PITCH + b];
#pragma unroll
      for (int i = 0; i < ROWS; i++)
        if (GROUPS * (i + 1) <= INPUTS || input(i) < INPUTS) {
          const float2 v = *(const float2*)&m.x[input(i) * PITCH + b];
#pragma unroll
          for (int c = 0; c < 4; c++) w[i][c] = fmaf(d[c].y, v.y, fmaf(d[c].x, v.x, w[i][c]));
        }
    }
  }

  __device__ void store(float* local) const {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int j = input(i), k = 4 * quad + c;
        if (j < INPUTS && k < CLASSES) local[j * CLASSES + k] = w[i][c];
      }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
update(const Task* tasks, const float* params, const u32* order, const Feature* inputs, const u16* labels, const float* scale, const float* shift, float* local) {
  extern __shared__ __align__(16) u8 shared[];
  const Task task = tasks[blockIdx.x];
  const Batches batches(task);
  const float *start = params + (size_t)task.params * INPUTS * CLASSES, *anchor = params + (size_t)task.anchor * INPUTS * CLASSES;
  order += task.order;
  Block block(*(Memory*)shared);
  block.load(start);
  for (int i = block.tid; i < COLUMNS * PITCH; i += THREADS) block.m.residuals[i] = 0.f;
  const auto fetch = [&](u32 s) {
    const u32 first = batches.first(s);
    block.fetch(inputs, batches.size(s), s & 1, [&](int b) { return order[first + b]; });
  };
  if (batches.count) fetch(0);
  for (u32 s = 0; s < batches.count; s++) {
    const int size = batches.size(s);
    wait_for_copies();
    __syncthreads();
    if (s + 1 < batches.count) fetch(s + 1);
    block.unpack(size, s & 1, scale, shift);
    __syncthreads();
    block.logits();
    __syncthreads();
    for (int b = block.warp; b < BATCH; b += WARPS) {
      Row<CLASSES> row = block.row(b);
      if (b < size) row.to_residuals(block.lane, labels[order[batches.first(s) + b]], -task.rate / size);
#pragma unroll
      for (int k = 0; k < Row<CLASSES>::PARTS; k++)
        if (block.lane + 32 * k < CLASSES) block.m.residuals[(block.lane + 32 * k) * PITCH + b] = b < size ? row.z[k] : 0.f;
    }
    __syncthreads();
    block.descend(task.keep, task.pull, anchor);
  }
  block.store(local + (size_t)task.slot * INPUTS * CLASSES);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
score(const Item* items, const float* params, const Feature* inputs, const u16* labels, const float* scale, const float* shift, double* losses, u32* errors) {
  extern __shared__ __align__(16) u8 shared[];
  const Item item = items[blockIdx.x];
  Block block(*(Memory*)shared);
  block.load(params + (size_t)blockIdx.y * INPUTS * CLASSES);
  double total = 0;
  u32 wrong = 0;
  const auto fetch = [&](u32 start) {
    block.fetch(inputs, min(item.count - start, (u32)BATCH), start / BATCH & 1, [&](int b) { return item.first + start + b; });
  };
  fetch(0);
  for (u32 start = 0; start < item.count; start += BATCH) {
    const int size = min(item.count - start, (u32)BATCH);
    wait_for_copies();
    __syncthreads();
    if (start + BATCH < item.count) fetch(start + BATCH);
    block.unpack(size, start / BATCH & 1, scale, shift);
    __syncthreads();
    block.logits();
    __syncthreads();
    for (int b = block.warp; b < size; b += WARPS) {
      bool missed;
      const double loss = block.row(b).loss(block.lane, labels[item.first + start + b], missed);
      if (block.lane == 0) block.m.losses[b] = loss, block.m.errors[b] = missed;
    }
    __syncthreads();
    if (block.tid == 0)
      for (int b = 0; b < size; b++) total += block.m.losses[b], wrong += block.m.errors[b];
  }
  if (block.tid == 0) {
    losses[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = total;
    errors[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
  }
}
