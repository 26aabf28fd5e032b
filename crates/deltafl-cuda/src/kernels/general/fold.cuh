// The slopes of a convolution's input as a product and a sum: the slopes of the outputs times the
// filters are contributions of each output to the inputs under its filter, and an input adds those
// of all outputs. Compared with `slab_backward`, no product has a factor in the border of the
// slopes. A block processes CHANNELS channels of EACH examples. A plan P defines
//   CHANNELS, EACH    channels and examples of a block
//   WR, WC, MT, NT    warps along the outputs and the entries of filters, and 16×8 tiles of a warp
//   SHARED            bytes of shared memory

template <class L, class P>
__device__ void fold_backward(const Wave& wave) {
  constexpr int TAPS = L::SIDE * L::SIDE, CELLS = L::QH * L::QW, HEIGHT = L::POOL * L::QH, WIDTH = L::POOL * L::QW, POSITIONS = HEIGHT * WIDTH;
  constexpr int THREADS = 32 * P::WR * P::WC, K = (L::O + 7) / 8 * 8, N = P::CHANNELS * TAPS, GROUPS = (L::C + P::CHANNELS - 1) / P::CHANNELS;
  // Entries of fragments are in different banks: [filter][position], [filter][entry], [entry][position].
  constexpr int BM = P::WR * P::MT * 16, ROWS = (POSITIONS + 15) / 16 * 16, COLUMNS = (N + 7) / 8 * 8;
  constexpr int A_PITCH = ROWS + 8, B_PITCH = (COLUMNS + 15) / 16 * 16 + 8, C_PITCH = ROWS + 4;
  static_assert(4 * (K * (A_PITCH + B_PITCH) + N * C_PITCH) <= P::SHARED, "the plan reserves the shared memory");
  const Device device(wave);
  if (device.now.size == 0) return;
  float *left = (float*)conv_memory, *right = left + K * A_PITCH, *parts = right + K * B_PITCH;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int channel = blockIdx.x % GROUPS * P::CHANNELS, first = blockIdx.x / GROUPS * P::EACH, last = min(first + P::EACH, BATCH);
  constexpr int COPY = smaller(copied_at_once(L::C * TAPS), copied_at_once(N));
  const float* filters = device.w + L::FILTERS + channel * TAPS;
  for (int i = tid; i < K * (COLUMNS / COPY); i += THREADS) {
    const int o = i / (COLUMNS / COPY), n = i % (COLUMNS / COPY) * COPY;
    copy_async_or_zero<COPY>(shared_address(right + o * B_PITCH + n), o < L::O && n < N && channel * TAPS + n < L::C * TAPS ? filters + o * (L::C * TAPS) + n : nullptr, device.w);
  }
  commit_copies();
  for (int i = tid; i < (K - L::O) * A_PITCH; i += THREADS) left[L::O * A_PITCH + i] = 0.f;
  const auto fill = [&](int example) {
    const float* dz = device.arena + L::DZ + (size_t)example * L::O * CELLS;
    const u8* winners = (const u8*)(device.arena + L::WINNERS) + example * L::O * CELLS;
#pragma unroll 4
    for (int i = tid; i < L::O * CELLS; i += THREADS) {
      const int at = i % CELLS;
      const float slope = __ldg(dz + i);
      float* to = left + i / CELLS * A_PITCH;
      if (L::POOL == 1) to[at] = slope;
      else {
        const int winner = __ldg(winners + i);
#pragma unroll
        for (int k = 0; k < 4; k++) to[(at / L::QW * 2 + (k >> 1)) * WIDTH + at % L::QW * 2 + (k & 1)] = winner == k ? slope : 0.f;
      }
    }
  };
  fill(first);
  wait_for_groups<0>();
  __syncthreads();
  const float* x = device.arena + L::X;
  float* dx = device.arena + L::DX;
  const int wm = warp / P::WC * P::MT * 16, wn = warp % P::WC;
  for (int example = first; example < last; example++) {
#pragma unroll 1
    for (int m0 = wm; m0 < ROWS; m0 += BM) {
      float sums[P::MT][P::NT][4];
#pragma unroll
      for (int i = 0; i < P::MT * P::NT * 4; i++) sums[i / 4 / P::NT][i / 4 % P::NT][i % 4] = 0.f;
#pragma unroll 1
      for (int k = 0; k < K; k += 8) {
        u32 bh[P::NT][2], bl[P::NT][2];
#pragma unroll
        for (int j = 0; j < P::NT; j++)
#pragma unroll
          for (int e = 0; e < 2; e++)
            if (wn + j * P::WC < COLUMNS / 8) tf32_parts(right[(k + t + 4 * e) * B_PITCH + (wn + j * P::WC) * 8 + g], bh[j][e], bl[j][e]);
#pragma unroll
        for (int i = 0; i < P::MT; i++) {
          if (m0 + i * 16 >= ROWS) break;
          u32 ah[4], al[4];
#pragma unroll
          for (int e = 0; e < 4; e++) tf32_parts(left[(k + t + (e >> 1) * 4) * A_PITCH + m0 + i * 16 + g + (e & 1) * 8], ah[e], al[e]);
          add_tf32_products(sums[i], ah, al, bh, bl, (COLUMNS / 8 - wn + P::WC - 1) / P::WC);
        }
      }
#pragma unroll
      for (int i = 0; i < P::MT; i++)
#pragma unroll
        for (int j = 0; j < P::NT; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int m = m0 + i * 16 + g + (e >> 1) * 8, n = (wn + j * P::WC) * 8 + 2 * t + (e & 1);
            if (m < ROWS && n < N) parts[n * C_PITCH + m] = sums[i][j][e];
          }
    }
    __syncthreads();
    if (example + 1 < last) fill(example + 1);
    for (int i = tid; i < P::CHANNELS * L::H * L::W; i += THREADS) {
      const int c = i / (L::H * L::W), y = i / L::W % L::H + L::PAD, x_ = i % L::W + L::PAD;
      if (channel + c >= L::C) break;
      const float* from = parts + c * TAPS * C_PITCH;
      float sum = 0.f;
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++) {
        const int dy = y - tap / L::SIDE, dx_ = x_ - tap % L::SIDE;
        const bool inside = dy >= 0 && dx_ >= 0 && dy % L::STRIDE == 0 && dx_ % L::STRIDE == 0 && dy / L::STRIDE < HEIGHT && dx_ / L::STRIDE < WIDTH;
        if (inside) sum += from[tap * C_PITCH + dy / L::STRIDE * WIDTH + dx_ / L::STRIDE];
      }
      const size_t at = (size_t)(example * L::C + channel) * (L::H * L::W) + i;
      dx[at] = !L::CUT || __ldg(x + at) > 0.f ? sum : 0.f;
    }
    __syncthreads();
  }
}
