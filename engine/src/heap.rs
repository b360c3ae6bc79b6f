//! The allocator of a program: the system's, but a refused request ends the program in one line.
//!
//! Without it std aborts by a signal where memory runs out. Absent: any budget; commands check
//! theirs before they load. The invariant: nothing on the way to the exit needs the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::output::discard;

/// The system's allocator; a request it refuses prints one line, which begins with the program's
/// name, and exits with code 5.
pub struct Heap(pub &'static str);

/// Exit code where memory does not suffice.
const EXHAUSTED: i32 = 5;

/// How far the one line is: nobody began, it is being written, it is out.
static LINE: AtomicU8 = AtomicU8::new(SILENT);
const SILENT: u8 = 0;
const WRITING: u8 = 1;
const WRITTEN: u8 = 2;

impl Heap {
    fn given(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        if block.is_null() { self.refused(bytes) } else { block }
    }

    #[cold]
    fn refused(&self, bytes: usize) -> ! {
        if LINE.compare_exchange(SILENT, WRITING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let mut line = [0; 80];
            let mut rest = &mut line[..];
            // stderr may be full or closed; the exit code says it as well.
            let _ = writeln!(rest, "{}: out of memory: {bytes} bytes were refused", self.0);
            let len = 80 - rest.len();
            let _ = io::stderr().write_all(&line[..len]);
            LINE.store(WRITTEN, Ordering::SeqCst);
            discard();
        }
        while LINE.load(Ordering::SeqCst) == WRITING {
            std::thread::yield_now();
        }
        std::process::exit(EXHAUSTED)
    }
}

// SAFETY: every method hands its arguments to `System` unchanged and returns its answer, or does
// not return.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is that of `System`.
        self.given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `System` through `alloc`, with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the caller's promise about `size` is that of `System`.
        self.given(unsafe { System.realloc(block, layout, size) }, size)
    }
}
