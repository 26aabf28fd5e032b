// Layers without matrix products: activations, pooling, normalisation, residual connections, and
// changes of layout. Places X, Z, DX and DZ are as in the other layers. CUT: x has passed a ReLU,
// so that its slopes are zero where x is.

/// Calls `use(i)` for i in 0 … LEN − 1, with all threads of a device.
template <int LEN, class Use>
__device__ __forceinline__ void each_index(Use use) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < LEN; i += gridDim.x * blockDim.x) use(i);
}

enum { RELU, TANH, GELU };

/// Entry by entry: LEN entries, KIND.
template <class L>
__device__ void activation_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<L::LEN>([&](int i) {
    const float x = device.arena[L::X + i];
    device.arena[L::Z + i] = L::KIND == RELU ? (x < 0.f ? 0.f : x) : L::KIND == TANH ? tanhf(x) : x * normcdff(x);
  });
}

template <class L>
__device__ void activation_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<L::LEN>([&](int i) {
    const float x = device.arena[L::X + i], z = device.arena[L::Z + i], dz = device.arena[L::DZ + i];
    const float slope = L::KIND == RELU ? (z > 0.f ? dz : 0.f) : L::KIND == TANH ? dz * (1.f - z * z) : dz * (normcdff(x) + x * 0.3989422804f * expf(-.5f * x * x));
    device.arena[L::DX + i] = !L::CUT || x > 0.f ? slope : 0.f;
  });
}

/// Windows of SIDE × SIDE cells, STRIDE apart, of MAPS maps of H × W cells per example. MAX: the
/// largest, whose cell is stored in WINNERS; else the mean.
template <class L>
__device__ void pool_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  u32* winners = (u32*)(device.arena + L::WINNERS);
  each_index<BATCH * L::MAPS * L::QH * L::QW>([&](int i) {
    const int left = i % L::QW * L::STRIDE, top = i / L::QW % L::QH * L::STRIDE;
    const float* map = device.arena + L::X + (size_t)(i / (L::QH * L::QW)) * L::H * L::W;
    float value = L::MAX ? map[top * L::W + left] : 0.f;
    int winner = top * L::W + left;
    for (int y = top; y < top + L::SIDE; y++)
      for (int x = left; x < left + L::SIDE; x++) {
        const float v = map[y * L::W + x];
        if (!L::MAX) value += v;
        else if (v > value) value = v, winner = y * L::W + x;
      }
    device.arena[L::Z + i] = L::MAX ? value : value * (1.f / (L::SIDE * L::SIDE));
    if (TRAINS && L::MAX) winners[i] = winner;
  });
}

/// A cell adds the slopes of the windows that contain it, in their order.
template <class L>
__device__ void pool_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  const u32* winners = (const u32*)(device.arena + L::WINNERS);
  each_index<BATCH * L::MAPS * L::H * L::W>([&](int i) {
    const int x = i % L::W, y = i / L::W % L::H, map = i / (L::H * L::W), cell = y * L::W + x;
    const int top = max(0, (y - L::SIDE + L::STRIDE) / L::STRIDE), left = max(0, (x - L::SIDE + L::STRIDE) / L::STRIDE);
    float slope = 0.f;
    for (int qy = top; qy <= min(y / L::STRIDE, L::QH - 1); qy++)
      for (int qx = left; qx <= min(x / L::STRIDE, L::QW - 1); qx++) {
        const int at = (map * L::QH + qy) * L::QW + qx;
        if (!L::MAX) slope += device.arena[L::DZ + at] * (1.f / (L::SIDE * L::SIDE));
        else if (winners[at] == cell) slope += device.arena[L::DZ + at];
      }
    device.arena[L::DX + i] = !L::CUT || device.arena[L::X + i] > 0.f ? slope : 0.f;
  });
}

/// Normalises GROUPS groups of CHANNELS channels of CELLS cells, for each of ROWS rows, with a scale
/// and a shift per channel (BY_CELL: per entry). A warp per group.
template <class L>
struct Norm {
  static constexpr int LEN = L::CHANNELS * L::CELLS, GROUP = LEN / L::GROUPS, SCALES = L::BY_CELL ? LEN : L::CHANNELS;
  /// Returns the scale of an entry of a row.
  static __device__ int scale_of(int i) { return L::BY_CELL ? i : i / L::CELLS; }
};

template <class L>
__device__ void norm_forward(const Wave& wave) {
  typedef Norm<L> N;
  const Device device(wave);
  const int lane = threadIdx.x & 31, group = (blockIdx.x * blockDim.x + threadIdx.x) / 32, first = group % L::GROUPS * N::GROUP;
  if (device.now.size == 0 || group >= L::ROWS * L::GROUPS) return;
  const size_t at = (size_t)(group / L::GROUPS) * N::LEN + first;
  const float* x = device.arena + L::X + at;
  float sum = 0.f, squares = 0.f;
  for (int i = lane; i < N::GROUP; i += 32) sum += x[i];
  const float mean = warp_sum(sum) * (1.f / N::GROUP);
  for (int i = lane; i < N::GROUP; i += 32) squares = fmaf(x[i] - mean, x[i] - mean, squares);
  const float inverse = 1.f / sqrtf(warp_sum(squares) * (1.f / N::GROUP) + 1e-5f);
  for (int i = lane; i < N::GROUP; i += 32) {
    const int s = N::scale_of(first + i);
    device.arena[L::Z + at + i] = fmaf((x[i] - mean) * inverse, device.w[L::SCALE + s], device.w[L::SHIFT + s]);
  }
  if (TRAINS && lane == 0) device.arena[L::STATISTICS + 2 * group] = mean, device.arena[L::STATISTICS + 2 * group + 1] = inverse;
}

template <class L>
__device__ void norm_backward(const Wave& wave) {
  typedef Norm<L> N;
  const Device device(wave);
  const int lane = threadIdx.x & 31, group = (blockIdx.x * blockDim.x + threadIdx.x) / 32, first = group % L::GROUPS * N::GROUP;
  if (device.now.size == 0 || group >= L::ROWS * L::GROUPS) return;
  const size_t at = (size_t)(group / L::GROUPS) * N::LEN + first;
  const float *x = device.arena + L::X + at, *dz = device.arena + L::DZ + at;
  const float mean = device.arena[L::STATISTICS + 2 * group], inverse = device.arena[L::STATISTICS + 2 * group + 1];
  float sum = 0.f, product = 0.f;
  for (int i = lane; i < N::GROUP; i += 32) {
    const float slope = dz[i] * device.w[L::SCALE + N::scale_of(first + i)];
    sum += slope, product = fmaf(slope, (x[i] - mean) * inverse, product);
  }
  sum = warp_sum(sum) * (1.f / N::GROUP), product = warp_sum(product) * (1.f / N::GROUP);
  for (int i = lane; i < N::GROUP; i += 32) {
    const float slope = dz[i] * device.w[L::SCALE + N::scale_of(first + i)];
    const float v = inverse * (slope - sum - (x[i] - mean) * inverse * product);
    device.arena[L::DX + at + i] = !L::CUT || x[i] > 0.f ? v : 0.f;
  }
}

/// A warp per scale and shift.
template <class L>
__device__ void norm_descend(const Wave& wave) {
  typedef Norm<L> N;
  constexpr int EACH = L::BY_CELL ? 1 : L::CELLS; // entries of a row with the same scale
  const Device device(wave);
  const int lane = threadIdx.x & 31, s = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (device.now.size == 0 || s >= N::SCALES) return;
  const int group = s * EACH / N::GROUP;
  float of_scale = 0.f, of_shift = 0.f;
  for (int i = lane; i < L::ROWS * EACH; i += 32) {
    const int row = i / EACH;
    const size_t at = (size_t)row * N::LEN + s * EACH + i % EACH;
    const float* statistics = device.arena + L::STATISTICS + 2 * (row * L::GROUPS + group);
    const float dz = device.arena[L::DZ + at];
    of_shift += dz, of_scale = fmaf(dz, (device.arena[L::X + at] - statistics[0]) * statistics[1], of_scale);
  }
  of_scale = warp_sum(of_scale), of_shift = warp_sum(of_shift);
  if (lane == 0) device.descend(L::SCALE + s, of_scale), device.descend(L::SHIFT + s, of_shift);
}

/// z = x + y. The slopes of y are those of z.
template <class L>
__device__ void residual_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<L::LEN>([&](int i) { device.arena[L::Z + i] = device.arena[L::X + i] + device.arena[L::Y + i]; });
}

template <class L>
__device__ void residual_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<L::LEN>([&](int i) {
    if (!L::CUT || device.arena[L::X + i] > 0.f) device.arena[L::DX + i] += device.arena[L::DZ + i];
  });
}

/// The last step or the mean of sequences of STEPS rows of WIDTH entries. SKIPS: steps of word 0 do
/// not count. A text without words has its first step, and a mean of zero.
template <class L>
struct OverTime {
  const u32* symbols;
  int b;
  __device__ bool counts(int t) const { return !L::SKIPS || symbols[t * BATCH + b] > 0; }
  __device__ int last() const {
    int t = L::STEPS - 1;
    while (t > 0 && !counts(t)) t--;
    return t;
  }
  __device__ float share() const {
    int count = 0;
    for (int t = 0; t < L::STEPS; t++) count += counts(t);
    return 1.f / max(count, 1);
  }
};

template <class L>
__device__ void over_time_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<BATCH * L::WIDTH>([&](int i) {
    const OverTime<L> steps{(const u32*)(device.arena + L::SYMBOLS), i / L::WIDTH};
    const float* x = device.arena + L::X + i;
    float value = 0.f;
    if (L::MEAN) {
      for (int t = 0; t < L::STEPS; t++)
        if (steps.counts(t)) value += x[(size_t)t * BATCH * L::WIDTH];
      value *= steps.share();
    } else value = x[(size_t)steps.last() * BATCH * L::WIDTH];
    device.arena[L::Z + i] = value;
  });
}

template <class L>
__device__ void over_time_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<BATCH * L::WIDTH>([&](int i) {
    const OverTime<L> steps{(const u32*)(device.arena + L::SYMBOLS), i / L::WIDTH};
    const float dz = device.arena[L::DZ + i] * (L::MEAN ? steps.share() : 1.f);
    const int last = L::MEAN ? 0 : steps.last();
    for (int t = 0; t < L::STEPS; t++) {
      const size_t at = (size_t)t * BATCH * L::WIDTH + i;
      const bool is_counted = L::MEAN ? steps.counts(t) : t == last;
      device.arena[L::DX + at] = is_counted && (!L::CUT || device.arena[L::X + at] > 0.f) ? dz : 0.f;
    }
  });
}

/// Steps of all examples as a row of steps per example.
template <class L>
__device__ void flatten_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<L::STEPS * BATCH * L::WIDTH>([&](int i) {
    const int e = i % L::WIDTH, b = i / L::WIDTH % BATCH, t = i / (L::WIDTH * BATCH);
    device.arena[L::Z + (b * L::STEPS + t) * L::WIDTH + e] = device.arena[L::X + i];
  });
}

template <class L>
__device__ void flatten_backward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  each_index<L::STEPS * BATCH * L::WIDTH>([&](int i) {
    const int e = i % L::WIDTH, b = i / L::WIDTH % BATCH, t = i / (L::WIDTH * BATCH);
    const float dz = device.arena[L::DZ + (b * L::STEPS + t) * L::WIDTH + e];
    device.arena[L::DX + i] = !L::CUT || device.arena[L::X + i] > 0.f ? dz : 0.f;
  });
}
