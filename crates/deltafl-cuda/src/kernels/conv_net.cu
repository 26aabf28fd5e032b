// The convolutional network on images of 28 × 28: five kernels per SGD step, each over all devices
// of a wave.
//
//   first_forward    conv 5×5 1→32, max-pool, ReLU          a block per image, FMA
//   second_forward   conv 5×5 32→64, max-pool, ReLU         four images per block, implicit GEMM on tensor cores
//   full_layer       logits, residuals, descent of the full layer, slopes of the second map
//   second_backward  half of the blocks: slopes of the first map, then of the first filters;
//                    the others: gradient of the second filters and their descent
//   first_descend    descent of the first filters
// Devices are sorted largest first. Only devices with a remaining batch take part in a step.
// Products on tensor cores are near fp32 (split.cuh): with plain fp16 or TF32 an epoch ends 12 %
// off.
//
// Working form of the parameters, as floats: first filters [25 taps and bias][32], second filters
// [25][32][64], their biases [64], full layer [64 classes][16 cells × 64 channels], its biases
// [64]. The second filters also have a copy in fp16.
//
// Macros: CLASSES (≤ 64), BYTES (grey levels, else floats).

#include "common.cuh"
#include "split.cuh"
#include "groups.cuh"
#include "conv_net/layout.cuh"
#include "conv_net/working.cuh"
#include "conv_net/forward.cuh"
#include "conv_net/full.cuh"
#include "conv_net/backward.cuh"
