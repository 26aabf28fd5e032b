// Local updates of the GRU over symbols: a cluster of CLUSTER blocks per device, each with HIDDEN/CLUSTER units.
//
//   r = σ(W_ir x + b_r + W_hr h)     z = σ(W_iz x + b_z + W_hz h)     a = W_hn h + b_hn
//   n = tanh(W_in x + b_in + r a)    h ← n + z (h − n)
//
// Eight warps compute: products on tensor cores (split.cuh), gates, and the backward pass. Four
// other warps store the states for the gradient, add the rows of symbols, and fetch the next batch.
// The blocks of a cluster exchange their parts of h (forward) and of ∂h (backward) by asynchronous
// stores that count on the receiver's barriers.
//   W_hh    fp32 in global memory in fragment order, one copy per cluster (it stays in L2);
//           both fp16 parts in shared memory, and with CLUSTER = 4 in registers for a whole pass
//   W_ih    a table with a row per symbol in shared memory: a look-up forward, a row addition
//           backward
// A cluster processes one task after another from a queue, largest first.
//
// Macros: LEN, ALPHABET, CLASSES (≤ 64), EMBEDDING (0: one-hot), CLUSTER (2 or 4), TEXT (windows of
// a text, otherwise tokens).

#include "common.cuh"
#include "split.cuh"
#include "cluster.cuh"
#include "gru/layout.cuh"
#include "gru/computing.cuh"
#include "gru/forward.cuh"
#include "gru/backward.cuh"
#include "gru/descend.cuh"
#include "gru/beside.cuh"

/// The end of a step: no thread continues before all blocks have used their states and parameters.
__device__ __forceinline__ void end_step(Cluster& c) {
  __syncthreads();
#if EMBEDDING
  descend_embedding(c);
  __syncthreads();
#endif
  sync_cluster();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
update(const Task* tasks, u32 count, u32* queue, const float* params, const u32* order, const void* inputs, const u16* labels, float* local, u8* scratch) {
  extern __shared__ __align__(128) u8 shared[];
  Memory& m = *(Memory*)shared;
  const int tid = threadIdx.x, rank = rank_in_cluster();
  scratch += (size_t)blockIdx.x * scratch_bytes;
  if (tid == 0) {
    for (int i = 0; i < 5; i++) init_barrier(shared_address(&m.barriers[i]), i < 2 ? 8 : i < 4 ? UNITS / 16 : 1);
    publish_barriers();
  }
  __syncthreads();
  sync_cluster();
  u32 done = 0; // steps of this cluster, which say the parity of its barriers
  // Takes the next task. Returns false if none is left. Every thread of the cluster calls it.
  const auto next = [&] {
    sync_cluster();
    if (rank == 0 && tid == 0) {
      const u32 taken = atomicAdd(queue, 1u);
      for (int to = 0; to < CLUSTER; to++) store_remote(in_block(shared_address(&m.next), to), taken);
    }
    sync_cluster();
    if (m.next >= count) return false;
    if (tid == 0) {
      m.task = tasks[m.next];
      m.start = params + (size_t)m.task.params * PARAMS;
      m.anchor = params + (size_t)m.task.anchor * PARAMS;
      m.local = local + (size_t)m.task.slot * PARAMS;
      m.order = order + m.task.order;
    }
    __syncthreads();
    return true;
  };
  Cluster c{m, tid, rank};
  if (tid < COMPUTING) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
    while (next()) {
      Computing computing(c, (float*)scratch, (float4*)(scratch + KEPT + KEPT_STATES));
      c.load();
      c.fetch(inputs, labels, 0, tid, THREADS);
      computing.load_master();
      __syncthreads();
      const u32 steps = Batches(m.task).count;
      for (u32 s = 0; s < steps; s++, done++) {
        computing.forward(done, m.symbols[s & 1]);
        computing.output(done, m.symbols[s & 1], Batches(m.task).size(s));
        computing.backward(done);
        computing.descend();
        end_step(c);
      }
      computing.store();
    }
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 120;");
    while (next()) {
      Beside beside{c, m, scratch + KEPT};
      c.load();
      c.fetch(inputs, labels, 0, tid, THREADS);
      __syncthreads();
      const u32 steps = Batches(m.task).count;
      for (u32 s = 0; s < steps; s++, done++) {
        beside.forward(done, s, inputs, labels);
        beside.backward(m.symbols[s & 1]);
        end_step(c);
      }
    }
  }
}
