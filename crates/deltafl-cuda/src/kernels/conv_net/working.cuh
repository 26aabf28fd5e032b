// The working form of the parameters, and the flat order.

/// Returns the position of entry `i` of the working form in the flat order, or PARAMS for padding.
__device__ __forceinline__ int flat_index(int i) {
  if (i < TAPS * FIRST) return i % FIRST * TAPS + i / FIRST;
  if (i < AT_SECOND) return i;
  if (i < AT_SECOND_BIAS) {
    const int k = i - AT_SECOND, tap = k / (FIRST * SECOND), from = k / SECOND % FIRST, to = k % SECOND;
    return AT_SECOND + (to * FIRST + from) * TAPS + tap;
  }
  if (i < AT_FULL) return i;
  if (i < AT_FULL_BIAS) {
    const int c = (i - AT_FULL) / FEATURES, k = (i - AT_FULL) % FEATURES;
    return c < CLASSES ? AT_FULL + c * FEATURES + k % SECOND * CELLS_2 + k / SECOND : PARAMS;
  }
  const int c = i - AT_FULL_BIAS;
  return c < CLASSES ? AT_FULL + CLASSES * FEATURES + c : PARAMS;
}

/// Computes the working form of each vector of parameters.
extern "C" __global__ void to_working(const float* params, float* starts) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= WORKING) return;
  const int at = flat_index(i);
  starts[(size_t)blockIdx.y * WORKING + i] = at < PARAMS ? params[(size_t)blockIdx.y * PARAMS + at] : 0.f;
}

/// Starts each device from the vector of its task. Without tasks, from the vector of its number.
extern "C" __global__ void spread(const Task* tasks, const float* starts, float* working, Scratch* scratch) {
  const int i = blockIdx.x * 256 + threadIdx.x, device = blockIdx.y;
  if (i >= WORKING) return;
  const float v = starts[(size_t)(tasks ? tasks[device].params : device) * WORKING + i];
  if (working) working[(size_t)device * WORKING + i] = v;
  if (i >= AT_SECOND && i < AT_SECOND_BIAS) {
    u32 h, l;
    split(v * WEIGHT_SCALE, 0.f, h, l);
    scratch[device].second_high[0][i - AT_SECOND] = (u16)h;
    scratch[device].second_low[0][i - AT_SECOND] = (u16)l;
  }
}

/// Returns the position of entry `i` of the flat order in the working form: the inverse of
/// flat_index.
__device__ __forceinline__ int working_index(int i) {
  if (i < TAPS * FIRST) return i % TAPS * FIRST + i / TAPS;
  if (i < AT_SECOND) return i;
  if (i < AT_SECOND_BIAS) {
    const int k = i - AT_SECOND, tap = k % TAPS, from = k / TAPS % FIRST, to = k / TAPS / FIRST;
    return AT_SECOND + (tap * FIRST + from) * SECOND + to;
  }
  if (i < AT_FULL) return i;
  if (i < AT_FULL + CLASSES * FEATURES) {
    const int c = (i - AT_FULL) / FEATURES, k = (i - AT_FULL) % FEATURES;
    return AT_FULL + c * FEATURES + k % CELLS_2 * SECOND + k / CELLS_2;
  }
  return AT_FULL_BIAS + i - AT_FULL - CLASSES * FEATURES;
}

/// Writes w_k in flat order.
extern "C" __global__ void collect(const Task* tasks, const float* working, float* local) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < PARAMS) local[(size_t)tasks[blockIdx.y].slot * PARAMS + i] = working[(size_t)blockIdx.y * WORKING + working_index(i)];
}
