// Blocks of a cluster that write to each other's shared memory (Hopper).

/// Returns the address of this block's shared memory in block `rank` of the cluster.
__device__ __forceinline__ u32 in_block(u32 address, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm("mov.u32 %0,%%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Synchronises all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Writes 16 bytes to another block and counts them on its barrier.
__device__ __forceinline__ void send_16(u32 to, uint4 v, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier) : "memory");
}

/// Copies shared memory to another block and counts the bytes on its barrier.
__device__ __forceinline__ void send_bulk(u32 to, u32 from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
}

/// Makes ordinary stores visible to the copy engine.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void store_remote(u32 to, float v) { asm volatile("st.shared::cluster.f32 [%0],%1;" ::"r"(to), "f"(v) : "memory"); }
__device__ __forceinline__ void store_remote(u32 to, u32 v) { asm volatile("st.shared::cluster.u32 [%0],%1;" ::"r"(to), "r"(v) : "memory"); }

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals)); }
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Arrives, and expects this many bytes from other blocks in this phase.
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory"); }

/// Waits for the end of a phase of this parity.
__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
  asm volatile("{\n.reg .pred p;\nL_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[%0],%1;\n@p bra D_%=;\nbra L_%=;\nD_%=:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
