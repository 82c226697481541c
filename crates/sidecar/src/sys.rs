//! The only module of this program that may hold `unsafe`.
#![expect(unsafe_code, reason = "how the C library keeps memory has no safe form")]

/// From here on memory is given back to the system when it is freed. Beneath it, it is kept for the next blocks.
const GIVEN_BACK: libc::c_int = 4 << 20;

/// Stores of free memory, each of which keeps some for itself.
const ARENAS: libc::c_int = 2;

/// Has the C library keep little of what is freed. By itself it takes the first large buffer that is freed, a part of an
/// upload, for a reason to keep all buffers up to that size, in each of its arenas.
pub(crate) fn keep_little_memory() {
    // SAFETY: it changes settings of the allocator, before there is a second thread.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK) };
    // SAFETY: as above.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
}
