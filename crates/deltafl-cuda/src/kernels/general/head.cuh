// The loss. A layer L defines CLASSES, Z (a logit per class) and DZ (their slopes). LOGISTIC: the only
// logit decides between the classes 0 and 1.

/// The logits of an example, which a warp processes.
template <class L>
struct Logits {
  const float* z;
  const int lane;

  __device__ float largest() const {
    float m = __int_as_float(0xff800000);
    for (int c = lane; c < L::CLASSES; c += 32) m = fmaxf(m, z[c]);
    return warp_max(m);
  }

  /// Writes scale·(softmax(z) − 1[c = y]).
  __device__ void residuals(float* dz, u32 label, float scale) const {
    if (L::LOGISTIC) {
      if (lane == 0) dz[0] = scale * (sigmoid(z[0]) - (float)label);
      return;
    }
    const float m = largest();
    float total = 0.f;
    for (int c = lane; c < L::CLASSES; c += 32) total += expf(z[c] - m);
    const float factor = scale / warp_sum(total);
    for (int c = lane; c < L::CLASSES; c += 32) dz[c] = expf(z[c] - m) * factor - (c == label ? scale : 0.f);
  }

  /// Returns the loss, and whether the first largest logit is of another class.
  __device__ double loss(u32 label, bool& wrong) const {
    if (L::LOGISTIC) {
      const double logit = z[0], y = label;
      wrong = (logit > 0.) != (y == 1.);
      return fmax(logit, 0.) + log1p(exp(-fabs(logit))) - y * logit;
    }
    const float m = largest();
    float total = 0.f;
    int first = L::CLASSES;
    for (int c = lane; c < L::CLASSES; c += 32) {
      total += expf(z[c] - m);
      if (z[c] >= m) first = min(first, c);
    }
    total = warp_sum(total);
    for (int k = 16; k; k >>= 1) first = min(first, __shfl_xor_sync(ALL, first, k));
    wrong = first != label;
    return log((double)total) - (double)(z[label] - m);
  }
};

/// The slopes of the logits, zeros after the last example. Also counts the step: no later kernel of
/// the step reads its number.
template <class L>
__device__ void head_backward(const Wave& wave) {
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) wave.step[0] += 1;
  const Device device(wave);
  if (device.now.size == 0) return;
  const u32* labels = (const u32*)(device.arena + LABELS);
  const int lane = threadIdx.x & 31, b = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (b >= BATCH) return;
  const Logits<L> logits{device.arena + L::Z + (size_t)b * L::CLASSES, lane};
  float* dz = device.arena + L::DZ + (size_t)b * L::CLASSES;
  if (b < device.now.size) logits.residuals(dz, labels[b], 1.f / device.now.size);
  else
    for (int c = lane; c < L::CLASSES; c += 32) dz[c] = 0.f;
}

/// Loss and errors of a group, a block each.
template <class L>
__device__ void head_score(const Wave& wave) {
  __shared__ double losses[BATCH];
  __shared__ u32 errors[BATCH];
  const Device device(wave);
  const u32* labels = (const u32*)(device.arena + LABELS);
  const int lane = threadIdx.x & 31;
  for (int b = threadIdx.x / 32; b < device.now.size; b += blockDim.x / 32) {
    bool wrong;
    const double loss = Logits<L>{device.arena + L::Z + (size_t)b * L::CLASSES, lane}.loss(labels[b], wrong);
    if (lane == 0) losses[b] = loss, errors[b] = wrong;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    u32 wrong = 0;
    for (int b = 0; b < device.now.size; b++) total += losses[b], wrong += errors[b];
    wave.losses[blockIdx.y] = total, wave.errors[blockIdx.y] = wrong;
  }
}
