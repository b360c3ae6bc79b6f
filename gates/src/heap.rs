//! The counting allocator of the `gates` binary: how often the heap is asked, and what is held.
//!
//! Absent: any opinion; the allocator gates compare. The invariant: every block of the process goes
//! through here, whatever thread asks for it, so that nothing is held or freed uncounted.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What is counted.
const SYSTEM: samebits::heap::Heap = samebits::heap::Heap("gates");

static CALLS: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);

/// The programs' allocator, counted.
///
/// A refused request ends the program in one line, as in the engine's.
pub struct Counting;

/// What was counted since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// Blocks asked for, resized ones included.
    pub calls: u64,
    /// Bytes held.
    pub held: i64,
}

impl Heap {
    /// The counts at this moment; all zero in a process without [`Counting`].
    pub fn now() -> Self {
        Self { calls: CALLS.load(Ordering::SeqCst), held: HELD.load(Ordering::SeqCst) }
    }
}

fn note(calls: u64, bytes: i64) {
    CALLS.fetch_add(calls, Ordering::SeqCst);
    HELD.fetch_add(bytes, Ordering::SeqCst);
}

fn bytes(size: usize) -> i64 {
    // `Layout` allows at most isize::MAX bytes.
    size as i64
}

// SAFETY: every method hands its arguments to the programs' allocator unchanged and returns its
// answer; counting touches only atomics and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, bytes(layout.size()));
        // SAFETY: the caller's promise about `layout` is that of `System`.
        unsafe { SYSTEM.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, bytes(layout.size()));
        // SAFETY: as in `alloc`.
        unsafe { SYSTEM.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(0, -bytes(layout.size()));
        // SAFETY: the block came from `System` through `alloc`, with this layout.
        unsafe { SYSTEM.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, bytes(size) - bytes(layout.size()));
        // SAFETY: as in `dealloc`; the caller's promise about `size` is that of `System`.
        unsafe { SYSTEM.realloc(block, layout, size) }
    }
}
