//! What a program has to do itself that has no library beneath it: begin, ask for memory, become another one, end.
#![expect(unsafe_code, reason = "the beginning and the end of a program are the kernel's")]

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::Cell;
use core::ffi::CStr;
use core::ptr::null;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

// The kernel puts the count of arguments, the arguments, and the environment on the stack, and jumps here.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, #0",
    "mov x30, #0",
    "mov x0, sp",
    "bl {begin}",
    "brk #1",
    begin = sym begin,
);

/// # Safety
///
/// `stack` is what the kernel gave this program.
unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the first word is the count of arguments.
    let count = unsafe { *stack };
    // SAFETY: as many pointers follow.
    let first = unsafe { stack.add(1) }.cast::<*const u8>();
    // SAFETY: they are there for as long as the program is, and nobody writes to them.
    let arguments = unsafe { core::slice::from_raw_parts(first, count) };
    // SAFETY: a null pointer ends the arguments, and the environment comes after it.
    let environment = unsafe { first.add(count + 1) };
    exit(super::run(arguments, environment))
}

/// An argument of the program.
pub(crate) fn argument(arguments: &[*const u8], number: usize) -> Option<&'static CStr> {
    let word = arguments.get(number)?;
    // SAFETY: the kernel ends each by a zero, and keeps it for as long as the program is there.
    Some(unsafe { CStr::from_ptr(word.cast()) })
}

/// Becomes the program in a file, under the name `path`, with these arguments after it (the first of them makes room for
/// the name). Returns why it could not.
pub(crate) fn execute(
    file: &OwnedFd,
    path: &str,
    arguments: &[*const u8],
    environment: *const *const u8,
) -> Errno {
    let Ok(path) = CString::new(path) else { return Errno::INVAL };
    let own = core::iter::once(path.as_ptr().cast());
    let rest = arguments.iter().skip(1).copied();
    let words: Vec<*const u8> = own.chain(rest).chain([null()]).collect();
    let flags = rustix::fs::AtFlags::EMPTY_PATH.bits() as usize;
    let file = file.as_raw_fd() as usize;
    // SAFETY: all lists end by a null pointer, all words by a zero; the call returns only if nothing was done.
    let result = unsafe {
        system_call(
            EXECVEAT,
            [file, c"".as_ptr() as usize, words.as_ptr() as usize, environment as usize, flags],
        )
    };
    Errno::from_raw_os_error(i32::try_from(result.wrapping_neg()).unwrap_or(i32::MAX))
}

/// Writes to standard error. With nobody to hear it there is the exit code.
pub(crate) fn say(line: &str) {
    // SAFETY: nothing of this program closes it.
    let to = unsafe { rustix::stdio::stderr() };
    let _ = rustix::io::write(to, line.as_bytes());
}

fn exit(code: i32) -> ! {
    // SAFETY: nothing comes after it.
    unsafe { system_call(EXIT_GROUP, [code as usize, 0, 0, 0, 0]) };
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(target_arch = "x86_64")]
const EXECVEAT: usize = 322;
#[cfg(target_arch = "x86_64")]
const EXIT_GROUP: usize = 231;
#[cfg(target_arch = "aarch64")]
const EXECVEAT: usize = 281;
#[cfg(target_arch = "aarch64")]
const EXIT_GROUP: usize = 94;

/// # Safety
///
/// As the call says.
#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: usize, arguments: [usize; 5]) -> isize {
    let [a, b, c, d, e] = arguments;
    let result: isize;
    // SAFETY: these are the registers of the kernel's convention.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
///
/// As the call says.
#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: usize, arguments: [usize; 5]) -> isize {
    let [a, b, c, d, e] = arguments;
    let result: isize;
    // SAFETY: these are the registers of the kernel's convention.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            options(nostack),
        );
    }
    result
}

/// How much is asked of the kernel at once, unless more is needed.
const CHUNK: usize = 1 << 20;

/// Memory that is never given back: the program is another one in a moment.
struct Memory {
    next: Cell<usize>,
    end: Cell<usize>,
}

#[global_allocator]
static MEMORY: Memory = Memory { next: Cell::new(0), end: Cell::new(0) };

// SAFETY: the program has one thread.
unsafe impl Sync for Memory {}

// SAFETY: every piece is given out once, aligned and as large as it was asked for.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let begin = self.next.get().next_multiple_of(layout.align());
        let end = begin.saturating_add(layout.size());
        if self.next.get() != 0 && end <= self.end.get() {
            self.next.set(end);
            return begin as *mut u8;
        }
        let size = layout.size().saturating_add(layout.align()).max(CHUNK);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a place that is free.
        let mapped =
            unsafe { mmap_anonymous(core::ptr::null_mut(), size, rights, MapFlags::PRIVATE) };
        let Ok(mapped) = mapped else { return core::ptr::null_mut() };
        let begin = (mapped as usize).next_multiple_of(layout.align());
        self.next.set(begin + layout.size());
        self.end.set(mapped as usize + size);
        begin as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

// What follows the compiler calls by these names. Nothing in it may be a loop that the compiler knows for what it is: it would
// be made a call of itself.

/// # Safety
///
/// There are `count` bytes at both, which do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: as the caller says.
    unsafe { copy_up(to, from, count) };
    to
}

/// # Safety
///
/// There are `count` bytes at both.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: nothing is written that is still to be read.
        unsafe { copy_up(to, from, count) };
        return to;
    }
    for at in (0..count).rev() {
        // SAFETY: it is one of the bytes, and nothing before it was written.
        let byte = unsafe { from.add(at).read_volatile() };
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(byte) };
    }
    to
}

/// Copies from the first byte to the last.
///
/// # Safety
///
/// There are `count` bytes at both; those to be read do not begin within those to be written.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_up(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: as the caller says.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies from the first byte to the last.
///
/// # Safety
///
/// There are `count` bytes at both; those to be read do not begin within those to be written.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_up(to: *mut u8, from: *const u8, count: usize) {
    for at in 0..count {
        // SAFETY: it is one of the bytes.
        let byte = unsafe { from.add(at).read_volatile() };
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(byte) };
    }
}

/// # Safety
///
/// There are `count` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: it is one of the bytes.
        unsafe { to.add(at).write_volatile(value.to_le_bytes()[0]) };
    }
    to
}

/// # Safety
///
/// There are `count` bytes at both.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(first: *const u8, second: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: it is one of the bytes.
        let one = unsafe { first.add(at).read_volatile() };
        // SAFETY: as above.
        let other = unsafe { second.add(at).read_volatile() };
        if one != other {
            return i32::from(one) - i32::from(other);
        }
    }
    0
}

/// # Safety
///
/// There are `count` bytes at both.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(first: *const u8, second: *const u8, count: usize) -> i32 {
    // SAFETY: as the caller says.
    unsafe { memcmp(first, second, count) }
}

/// # Safety
///
/// A zero is the last of these bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(word: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: nothing before it was the zero.
    while unsafe { word.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Named by what the compiler brings along, and never called: nothing unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(70)
}
