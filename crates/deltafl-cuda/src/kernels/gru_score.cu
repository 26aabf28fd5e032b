// Forward passes of the GRU: a block processes WINDOWS windows at a time through all time steps.
//
// Warp w computes units 16w … 16w+15 of all three gates for all windows, so that one thread has all
// gates of a unit and a window. Both fp16 parts of W_hh stay in shared memory in fragment order
// (192 KB), next to the states.
//
// Macros: LEN, ALPHABET, CLASSES (≤ 64), EMBEDDING (0: one-hot), TEXT (windows of a text, otherwise
// tokens).

#include "common.cuh"
#include "split.cuh"

constexpr int HIDDEN = 128, WARPS = HIDDEN / 16, THREADS = 32 * WARPS, WINDOWS = 64, N_TILES = WINDOWS / 8, K_TILES = HIDDEN / 16;
constexpr int FRAGMENTS = WARPS * 3 * K_TILES;
constexpr float STATE_SCALE = 16.f, WEIGHT_SCALE = 64.f;

constexpr int INPUTS = EMBEDDING ? EMBEDDING : ALPHABET;
constexpr int AT_INPUT = ALPHABET * EMBEDDING, AT_RECURRENT = AT_INPUT + 3 * HIDDEN * INPUTS, AT_INPUT_BIAS = AT_RECURRENT + 3 * HIDDEN * HIDDEN;
constexpr int AT_BIAS = AT_INPUT_BIAS + 3 * HIDDEN, AT_FULL = AT_BIAS + 3 * HIDDEN, AT_FULL_BIAS = AT_FULL + CLASSES * HIDDEN, PARAMS = AT_FULL_BIAS + CLASSES;

/// The parameters in the layout of the forward pass.
struct Prepared {
  uint4 recurrent[FRAGMENTS][2][32];      // fragment, part, lane
  float table[ALPHABET][3 * HIDDEN];      // W_ih x + b_ih of each symbol, and b_hh of r and z
  float inner_bias[HIDDEN];               // b_hn
  float full[HIDDEN][64], full_bias[64];  // transposed
};
extern "C" __device__ u32 prepared_bytes = sizeof(Prepared);

struct Memory {
  uint4 recurrent[FRAGMENTS][2][32];
  alignas(128) u8 states[2][WINDOWS * 2 * HIDDEN]; // both parts; a row per window, its 16-byte pieces in another order
  double losses[WINDOWS];
  u32 errors[WINDOWS];
};
extern "C" __device__ u32 memory_bytes = sizeof(Memory);

/// A block per vector of parameters.
extern "C" __global__ void prepare(const float* params, Prepared* prepared) {
  const float* w = params + (size_t)blockIdx.x * PARAMS;
  Prepared& p = prepared[blockIdx.x];
  for (int i = threadIdx.x; i < FRAGMENTS * 32; i += blockDim.x) {
    const int f = i / 32, lane = i % 32, k = f % K_TILES, q = f / K_TILES % 3, warp = f / K_TILES / 3;
    u32 h[4], l[4];
    for (int e = 0; e < 4; e++) {
      const float* from = w + AT_RECURRENT + (q * HIDDEN + warp * 16 + (lane >> 2) + (e & 1) * 8) * HIDDEN + k * 16 + (e >> 1) * 8 + 2 * (lane & 3);
      split(from[0] * WEIGHT_SCALE, from[1] * WEIGHT_SCALE, h[e], l[e]);
    }
    p.recurrent[f][0][lane] = make_uint4(h[0], h[1], h[2], h[3]);
    p.recurrent[f][1][lane] = make_uint4(l[0], l[1], l[2], l[3]);
  }
  for (int i = threadIdx.x; i < ALPHABET * 3 * HIDDEN; i += blockDim.x) {
    const int s = i / (3 * HIDDEN), row = i % (3 * HIDDEN);
    float x = 0.f;
#if EMBEDDING
    for (int d = 0; d < EMBEDDING; d++) x = fmaf(w[s * EMBEDDING + d], w[AT_INPUT + row * EMBEDDING + d], x);
#else
    x = w[AT_INPUT + row * ALPHABET + s];
#endif
    p.table[s][row] = x + (w[AT_INPUT_BIAS + row] + (row < 2 * HIDDEN ? w[AT_BIAS + row] : 0.f));
  }
  for (int i = threadIdx.x; i < HIDDEN; i += blockDim.x) p.inner_bias[i] = w[AT_BIAS + 2 * HIDDEN + i];
  for (int i = threadIdx.x; i < HIDDEN * 64; i += blockDim.x) p.full[i / 64][i % 64] = i % 64 < CLASSES ? w[AT_FULL + i % 64 * HIDDEN + i / 64] : 0.f;
  for (int i = threadIdx.x; i < 64; i += blockDim.x) p.full_bias[i] = i < CLASSES ? w[AT_FULL_BIAS + i] : 0.f;
}

/// Returns the position of unit `u` of a window among the states.
__device__ __forceinline__ int state_at(int window, int u) { return window * 2 * HIDDEN + (((u >> 3) ^ (window & 7)) * 16) + (u & 7) * 2; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
score(const Item* items, const Prepared* prepared, const void* inputs, const u16* labels, double* losses, u32* errors) {
  extern __shared__ __align__(128) u8 shared[];
  Memory& m = *(Memory*)shared;
  const Item item = items[blockIdx.x];
  const Prepared& p = prepared[blockIdx.y];
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  for (int i = tid; i < FRAGMENTS * 64; i += THREADS) (&m.recurrent[0][0][0])[i] = (&p.recurrent[0][0][0])[i];
  const auto symbol = [&](u64 at, int t) -> u32 {
#if TEXT
    return ((const u8*)inputs)[at + t];
#else
    return t < LEN ? ((const u32*)inputs)[at * LEN + t] : labels[at];
#endif
  };
  const int unit = warp * 16 + g;
  const float inner[2] = {p.inner_bias[unit], p.inner_bias[unit + 8]};
  double total = 0;
  u32 wrong = 0;
  __syncthreads();
  for (u32 start = 0; start < item.count; start += WINDOWS) {
    const u64 first = item.first + start;
    const int size = min(item.count - start, (u32)WINDOWS);
    float h[N_TILES][4];
#pragma unroll
    for (int j = 0; j < N_TILES; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) h[j][e] = 0.f;
    for (int t = 0; t < LEN; t++) {
      float s[3][N_TILES][4];
#pragma unroll
      for (int q = 0; q < 3; q++)
#pragma unroll
        for (int i = 0; i < N_TILES * 4; i++) s[q][i >> 2][i & 3] = 0.f;
      if (t > 0) {
#pragma unroll 1
        for (int k = 0; k < K_TILES; k++) {
          u32 xh[N_TILES / 2][4], xl[N_TILES / 2][4];
#pragma unroll
          for (int j = 0; j < N_TILES / 2; j++) {
            const int at = state_at(j * 16 + (tile >> 1) * 8 + tile_row, k * 16 + (tile & 1) * 8);
            load_tiles(xh[j], shared_address(m.states[0]) + at);
            load_tiles(xl[j], shared_address(m.states[1]) + at);
          }
#pragma unroll
          for (int q = 0; q < 3; q++) {
            const uint4 *f = &m.recurrent[(warp * 3 + q) * K_TILES + k][0][lane], vh = f[0], vl = f[32];
            const u32 ah[4] = {vh.x, vh.y, vh.z, vh.w}, al[4] = {vl.x, vl.y, vl.z, vl.w};
#pragma unroll
            for (int j = 0; j < N_TILES; j++) multiply_add(s[q][j], al, xh[j >> 1] + 2 * (j & 1));
#pragma unroll
            for (int j = 0; j < N_TILES; j++) multiply_add(s[q][j], ah, xl[j >> 1] + 2 * (j & 1));
#pragma unroll
            for (int j = 0; j < N_TILES; j++) multiply_add(s[q][j], ah, xh[j >> 1] + 2 * (j & 1));
          }
        }
        __syncthreads();
      }
      constexpr float UNSCALE = 1.f / (STATE_SCALE * WEIGHT_SCALE);
#pragma unroll
      for (int j = 0; j < N_TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int window = j * 8 + 2 * t4 + e;
          const float* x = p.table[symbol(first + (window < size ? window : 0), t)] + unit;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int i = 2 * half + e;
            const float r = sigmoid(fmaf(s[0][j][i], UNSCALE, __ldg(x + 8 * half))), z = sigmoid(fmaf(s[1][j][i], UNSCALE, __ldg(x + HIDDEN + 8 * half)));
            const float n = tanh_of(fmaf(r, fmaf(s[2][j][i], UNSCALE, inner[half]), __ldg(x + 2 * HIDDEN + 8 * half)));
            h[j][i] = n + z * (h[j][i] - n);
          }
          u32 hi, lo;
          split(h[j][e] * STATE_SCALE, h[j][2 + e] * STATE_SCALE, hi, lo);
          const int at = state_at(window, unit), above = state_at(window, unit + 8);
          *(u16*)(m.states[0] + at) = (u16)hi, *(u16*)(m.states[0] + above) = (u16)(hi >> 16);
          *(u16*)(m.states[1] + at) = (u16)lo, *(u16*)(m.states[1] + above) = (u16)(lo >> 16);
        }
      __syncthreads();
    }
    // Eight windows per warp through the full layer.
    float logits[8][2];
#pragma unroll
    for (int i = 0; i < 8; i++) logits[i][0] = logits[i][1] = 0.f;
#pragma unroll 2
    for (int k = 0; k < HIDDEN; k += 2) {
      const float w[4] = {__ldg(&p.full[k][lane]), __ldg(&p.full[k][lane + 32]), __ldg(&p.full[k + 1][lane]), __ldg(&p.full[k + 1][lane + 32])};
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int at = state_at(warp * 8 + i, k);
        const float2 v = join(*(const u32*)(m.states[0] + at), *(const u32*)(m.states[1] + at));
        logits[i][0] = fmaf(w[2], v.y, fmaf(w[0], v.x, logits[i][0]));
        logits[i][1] = fmaf(w[3], v.y, fmaf(w[1], v.x, logits[i][1]));
      }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int window = warp * 8 + i;
      Row<CLASSES> row;
#pragma unroll
      for (int k = 0; k < Row<CLASSES>::PARTS; k++) row.z[k] = fmaf(logits[i][k], 1.f / STATE_SCALE, p.full_bias[lane + 32 * k]);
      bool missed;
      const double loss = row.loss(lane, symbol(first + (window < size ? window : 0), LEN), missed);
      if (lane == 0) m.losses[window] = loss, m.errors[window] = missed;
    }
    __syncthreads();
    if (tid == 0)
      for (int i = 0; i < size; i++) total += m.losses[i], wrong += m.errors[i];
  }
  if (tid == 0) {
    losses[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = total;
    errors[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
  }
}
