// Noisy updates as integers, summed modulo 2^64: clipped, rotated, rounded at random, with discrete
// Gaussian noise. `privacy/update.rs` and `privacy/noise.rs` are the CPU code of the same sum. Both
// agree bit for bit on the same w_k: every float operation and its rounding are those of the CPU,
// in the same order, and random words depend on their key and entry only.
//
// The few samples that a word does not decide are listed, and the host draws them.

#include "common.cuh"
#include "norm.cuh"

/// The share of one device in a noisy sum.
struct NoisyJob {
  double weight;        // ω
  double clip;          // C
  double units;         // K
  double most_squares;  // of the rounded entries
  double norm;          // ‖w_k − w‖
  double scale;         // of w_k − w
  u64 counted;          // ω in units of the footer
  u32 params;           // w
  u32 slot;             // w_k, and the row of the rotated update
  u32 sum;              // which sum
  u32 table;            // offset of the thresholds, or NONE
  u32 signs;            // offset of the signs
  u32 attempt;          // the accepted rounding, or a constant below
  u32 keys[16];         // of the rounding and of the noise; without an update, of the noise first
};
static_assert(sizeof(NoisyJob) == 144, "the layout of the host");

/// A sample that the host draws.
struct Undecided {
  u32 job, entry, word;
  u32 keys;  // drawn from the stream before
};
static_assert(sizeof(Undecided) == 16, "the layout of the host");

constexpr u32 NONE = 0xffffffffu, PER_BLOCK = 16, GROUP = 256, TILE = 4096;
/// Values of `attempt` after the roundings at random: towards zero, all zero, no update.
constexpr u32 TRUNCATED = ROUNDINGS, ZERO = ROUNDINGS + 1, NOTHING = ROUNDINGS + 2;

/// The CPU flushes numbers below the smallest normal one to zero.
__device__ __forceinline__ float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }

/// The size of the block of the rotation that contains entry `i`: blocks are the ones in the binary
/// expansion of `entries`, largest first.
__device__ __forceinline__ u32 block_size(u32 entries, u32 i) { return 0x80000000u >> __clz(entries ^ i); }

__device__ __forceinline__ double change(const float* __restrict__ to, const float* __restrict__ from, u32 i) {
  return __dadd_rn((double)flushed(to[i]), -(double)flushed(from[i]));
}

__device__ __forceinline__ void butterfly(float& left, float& right) {
  const float a = left, b = right;
  left = flushed(__fadd_rn(a, b));
  right = flushed(__fadd_rn(a, -b));
}

__device__ __forceinline__ u32 rotated_left(u32 x, u32 by) { return x << by | x >> (32 - by); }

__device__ __forceinline__ void quarter_round(u32& a, u32& b, u32& c, u32& d) {
  a += b, d = rotated_left(d ^ a, 16);
  c += d, b = rotated_left(b ^ c, 12);
  a += b, d = rotated_left(d ^ a, 8);
  c += d, b = rotated_left(b ^ c, 7);
}

/// Writes the words of a block of ChaCha8. Word w belongs to entry 16·w + block % 16 of group
/// block / 16.
__device__ __forceinline__ void chacha(const u32* key, u64 block, u32 (&x)[16]) {
  u32 start[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
#pragma unroll
  for (int i = 0; i < 8; i++) start[4 + i] = key[i];
  start[12] = (u32)block, start[13] = (u32)(block >> 32), start[14] = 0, start[15] = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = start[i];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    quarter_round(x[0], x[4], x[8], x[12]);
    quarter_round(x[1], x[5], x[9], x[13]);
    quarter_round(x[2], x[6], x[10], x[14]);
    quarter_round(x[3], x[7], x[11], x[15]);
    quarter_round(x[0], x[5], x[10], x[15]);
    quarter_round(x[1], x[6], x[11], x[12]);
    quarter_round(x[2], x[7], x[8], x[13]);
    quarter_round(x[3], x[4], x[9], x[14]);
  }
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] += start[i];
}

/// Rounds down or up at random, with 24 bits of a word.
__device__ __forceinline__ int rounded(float entry, u32 word) {
  const float floor = floorf(entry);
  return (int)floor + (__fmul_rn((float)(int)(word >> 8), 1.f / 16777216.f) < __fadd_rn(entry, -floor));
}

/// Computes the norm and the scale of each update: a warp each.
extern "C" __global__ void __launch_bounds__(32) measure_noisy(NoisyJob* jobs, const float* __restrict__ params, const float* __restrict__ local, u32 len) {
  NoisyJob& job = jobs[blockIdx.x];
  const float *from = params + (size_t)job.params * len, *to = local + (size_t)job.slot * len;
  const double total = squared_norm(len, [&](u32 i) { return change(to, from, i); });
  if (threadIdx.x) return;
  const double norm = __dsqrt_rn(total), factor = norm > job.clip ? __ddiv_rn(job.clip, norm) : 1.;
  // The comparisons are false for an update that is not a number.
  const bool is_update = norm <= 1.7976931348623157e308 && job.weight > 0. && job.weight <= 1.;
  job.norm = norm;
  job.scale = __ddiv_rn(__dmul_rn(__dmul_rn(job.weight, factor), job.units), job.clip);
  job.attempt = is_update ? 0 : NOTHING;
}

/// Writes scaled updates with changed signs, and transforms the entries of each tile: a block each.
extern "C" __global__ void __launch_bounds__(256) rotate_tiles(const NoisyJob* __restrict__ jobs, const u32* __restrict__ signs, const float* __restrict__ params, const float* __restrict__ local, u32 len, u32 entries, float* __restrict__ rotated) {
  __shared__ float tile[TILE];
  const u32 tiles = (entries + TILE - 1) / TILE, first = blockIdx.x % tiles * TILE, count = min(TILE, entries - first);
  const NoisyJob& job = jobs[blockIdx.x / tiles];
  if (job.attempt == NOTHING) return;
  const float *from = params + (size_t)job.params * len, *to = local + (size_t)job.slot * len;
  u32 size = 0;
  double scale = 0.;
  for (u32 k = threadIdx.x; k < count; k += blockDim.x) {
    const u32 i = first + k;
    if (size != block_size(entries, i)) {
      size = block_size(entries, i);
      scale = __ddiv_rn(job.scale, __dsqrt_rn((double)size));
    }
    tile[k] = 0.f;
    if (i < len) {
      const float value = flushed(__double2float_rn(__dmul_rn(change(to, from, i), scale)));
      tile[k] = __uint_as_float(__float_as_uint(value) ^ signs[job.signs + i / 32] >> i % 32 << 31);
    }
  }
  for (u32 half = 1; half < count; half *= 2) {
    __syncthreads();
    for (u32 t = threadIdx.x; t < count / 2; t += blockDim.x) {
      const u32 k = 2 * (t & ~(half - 1)) + (t & (half - 1));
      if (block_size(entries, first + k) > half) butterfly(tile[k], tile[k + half]);
    }
  }
  __syncthreads();
  for (u32 k = threadIdx.x; k < count; k += blockDim.x) rotated[(size_t)job.slot * entries + first + k] = tile[k];
}

/// Transforms ROWS entries at this distance.
template <int ROWS>
__device__ __forceinline__ void transform_rows(float* first, u32 stride) {
  float rows[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) rows[i] = first[(size_t)i * stride];
#pragma unroll
  for (int half = 1; half < ROWS; half *= 2) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
      if (!(i & half)) butterfly(rows[i], rows[i + half]);
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++) first[(size_t)i * stride] = rows[i];
}

/// Transforms entries that are at least `stride` apart, up to four levels. `places` contains the
/// first entry and the number of levels of each group of rows.
extern "C" __global__ void __launch_bounds__(256) rotate_rows(const NoisyJob* __restrict__ jobs, const u32* __restrict__ places, u32 groups, u32 stride, u32 entries, float* __restrict__ rotated) {
  const u32 chunks = stride / 256, chunk = blockIdx.x % chunks, group = blockIdx.x / chunks % groups;
  const NoisyJob& job = jobs[blockIdx.x / chunks / groups];
  if (job.attempt == NOTHING) return;
  float* first = rotated + (size_t)job.slot * entries + places[2 * group] + chunk * 256 + threadIdx.x;
  switch (places[2 * group + 1]) {
    case 1: return transform_rows<2>(first, stride);
    case 2: return transform_rows<4>(first, stride);
    case 3: return transform_rows<8>(first, stride);
    default: return transform_rows<16>(first, stride);
  }
}

/// Finds the first rounding of each update whose norm is within its bound: a block each.
extern "C" __global__ void __launch_bounds__(512) round_noisy(NoisyJob* jobs, u32 entries, const float* __restrict__ rotated) {
  __shared__ u64 parts[512];
  NoisyJob& job = jobs[blockIdx.x];
  if (job.attempt == NOTHING) return;
  const float* row = rotated + (size_t)job.slot * entries;
  const u32 groups = (entries + GROUP - 1) / GROUP;
  u32 attempt = 0;
  for (; attempt <= TRUNCATED; attempt++) {
    u64 squares = 0;
    for (u32 k = threadIdx.x; k < groups * 16; k += 512) {
      u32 words[16];
      if (attempt < TRUNCATED) chacha(job.keys, (u64)attempt * groups * 16 + k, words);
#pragma unroll
      for (u32 w = 0; w < 16; w++) {
        const u32 i = k / 16 * GROUP + 16 * w + k % 16;
        const long long z = i >= entries ? 0 : attempt < TRUNCATED ? rounded(row[i], words[w]) : (int)row[i];
        squares += (u64)(z * z);
      }
    }
    parts[threadIdx.x] = squares;
    for (u32 half = 256; half; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();
    const bool is_within = (double)parts[0] <= job.most_squares;
    __syncthreads();
    if (is_within) break;
  }
  if (threadIdx.x == 0) job.attempt = attempt;
}

/// Returns the sample of a word, or lists it if the word does not decide it.
__device__ __forceinline__ int sample(const u32* __restrict__ table, u32 word, const Undecided& place, Undecided* undecided, u32 room, u32* count) {
  const u32 number = word >> 1, *thresholds = table + 2 + table[1];
  u32 magnitude = ((const u16*)(table + 2))[number >> table[0]] & 0x7fff, threshold = thresholds[magnitude];
  while (number > threshold) threshold = thresholds[++magnitude];
  if (number == threshold) {
    const u32 k = atomicAdd(count, 1u);
    if (k < room) undecided[k] = place;
    return 0;
  }
  return word & 1 ? -(int)magnitude : (int)magnitude;
}

/// Adds the rounded updates, their weights and the noise of PER_BLOCK jobs to their sums. A thread
/// computes the sixteen entries of one block of words.
extern "C" __global__ void __launch_bounds__(128) add_noisy(const NoisyJob* __restrict__ jobs, u32 count, u32 base, u32 entries, const float* __restrict__ rotated, const u32* __restrict__ tables, u64* __restrict__ sums, Undecided* undecided, u32 room, u32* undecided_count) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x, first = k / 16 * GROUP + k % 16, all = entries + FOOTER;
  const u32 start = blockIdx.y * PER_BLOCK, end = min(start + PER_BLOCK, count), groups = (entries + GROUP - 1) / GROUP;
  if (first >= all) return;
  int sum[16] = {};
  for (u32 j = start; j < end; j++) {
    const NoisyJob& job = jobs[j];
    const u32 attempt = job.attempt;
    u32 words[16];
    if (attempt < ZERO) {
      const float* row = rotated + (size_t)job.slot * entries;
      if (attempt < TRUNCATED) chacha(job.keys, (u64)attempt * groups * 16 + k, words);
#pragma unroll
      for (u32 w = 0; w < 16; w++)
        if (first + 16 * w < entries) sum[w] += attempt < TRUNCATED ? rounded(row[first + 16 * w], words[w]) : (int)row[first + 16 * w];
    }
    if (attempt != NOTHING) {
#pragma unroll
      for (u32 w = 0; w < 16; w++)
        if (first + 16 * w == entries || (first + 16 * w == entries + 1 && job.norm <= job.clip)) sum[w] += (int)job.counted;
    }
    if (job.table != NONE) {
      const u32 keys = attempt == NOTHING ? 1 : 2;
      chacha(job.keys + 8 * (keys - 1), k, words);
#pragma unroll
      for (u32 w = 0; w < 16; w++)
        if (first + 16 * w < all) sum[w] += sample(tables + job.table, words[w], {base + j, first + 16 * w, words[w], keys}, undecided, room, undecided_count);
    }
    // Jobs are sorted by sum.
    if (j + 1 == end || jobs[j + 1].sum != job.sum) {
#pragma unroll
      for (u32 w = 0; w < 16; w++) {
        if (first + 16 * w < all && sum[w]) atomicAdd(&sums[(size_t)job.sum * all + first + 16 * w], (u64)(long long)sum[w]);
        sum[w] = 0;
      }
    }
  }
}
