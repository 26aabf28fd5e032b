//! The heap of a server that holds thousands of connections: two settings of the C library, where it is GNU's.
#![allow(unsafe_code, reason = "functions of the C library")]

/// Gives every long buffer memory of its own, which the system gets back with it.
///
/// A connection has buffers that it hardly ever fills, and memory that is not written to costs nothing. Left to itself, the C
/// library puts them where the params that were sent to the connection before had been, into memory that is in use: 10 kB for
/// each device. The longest of them, of 16 kB, is what HTTP/2 writes small frames into.
pub(super) fn return_long_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LONG: libc::c_int = 16 << 10;
        // SAFETY: a setting of the allocator, which takes effect for what is allocated later. What it answers, whether the
        // setting is known, changes nothing but how much memory is used.
        let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LONG) };
    }
}

/// Gives back what lies free between things that stay, such as connections: 30 MB after a round of 500 devices, which the next
/// round, with other devices, would not find.
pub(super) fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it touches nothing that is allocated, and locks what it looks at.
    let _ = unsafe { libc::malloc_trim(0) };
}
