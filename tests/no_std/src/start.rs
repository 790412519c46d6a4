//! Entry and exit through the C library's start-up code. This module has the only unsafe code of the program.

use core::panic::PanicInfo;

#[link(name = "c")]
unsafe extern "C" {
    safe fn _exit(code: i32) -> !;
}

// SAFETY: no other `main` is defined in this program; the C start-up code calls it once, with this signature.
#[unsafe(no_mangle)]
extern "C" fn main(_count: i32, _arguments: *const *const u8) -> i32 {
    crate::outcome()
}

// SAFETY: the precompiled core names this symbol in its unwind tables; std, which defines it, is not linked. With panic
// = "abort" nothing unwinds, so this function is never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    _exit(255)
}
