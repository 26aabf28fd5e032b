//! Memory of a server with thousands of connections: two functions of the GNU C library.
#![allow(unsafe_code, reason = "functions of the C library")]

/// Allocates every long buffer separately, so that its memory is returned to the system with it.
/// This is a setting of the whole process, for programs that only serve.
///
/// A connection has buffers that it rarely fills, and memory that is not written costs nothing. By
/// default the C library places them into memory that was used before: 10 kB for each device. The
/// longest of them, of 16 kB, is the buffer into which HTTP/2 writes small frames.
pub fn return_long_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LONG: libc::c_int = 16 << 10;
        // SAFETY: a setting of the allocator, which affects later allocations. The return value,
        // whether the setting is known, affects only the amount of memory used.
        let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LONG) };
    }
}

/// Returns free memory between long-lived allocations, such as connections, to the system: 30 MB
/// after a round of 500 devices.
pub(super) fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it does not access allocated memory, and locks the arenas.
    let _ = unsafe { libc::malloc_trim(0) };
}
