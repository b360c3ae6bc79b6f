//! The allocator of a program: the system's, but a refused request ends the program in one line.
//!
//! Without it std aborts by a signal where memory runs out. Absent: any budget; commands check
//! theirs before they load. The invariant: nothing on the way to the exit needs the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator; a request it refuses prints one line and exits with code 5.
pub struct Heap;

/// Exit code where memory does not suffice.
const EXHAUSTED: i32 = 5;

/// Only the first thread speaks; one that fails while it does so must not wait for itself.
static SPOKEN: AtomicBool = AtomicBool::new(false);

#[cold]
fn refused(bytes: usize) -> ! {
    if !SPOKEN.swap(true, Ordering::SeqCst) {
        let mut line = [0; 80];
        let mut rest = &mut line[..];
        // stderr may be full or closed; the exit code says it as well.
        let _ = writeln!(rest, "samebits: out of memory: {bytes} bytes were refused");
        let len = 80 - rest.len();
        let _ = io::stderr().write_all(&line[..len]);
    }
    std::process::exit(EXHAUSTED)
}

fn given(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() { refused(bytes) } else { block }
}

// SAFETY: every method hands its arguments to `System` unchanged and returns its answer, or does
// not return.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is that of `System`.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `System` through `alloc`, with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the caller's promise about `size` is that of `System`.
        given(unsafe { System.realloc(block, layout, size) }, size)
    }
}
