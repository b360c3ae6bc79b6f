//! Everything that needs `unsafe` for speed: intrinsics, and one matrix written by many threads.

mod split;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod tile;

pub use split::{for_each_tile, for_each_tile_beside};

use super::kernels::Kernels;

/// The tables beyond the scalar one that this CPU can run, slowest first.
#[cfg(target_arch = "x86_64")]
pub fn supported() -> Vec<&'static Kernels> {
    avx2::table().into_iter().chain(avx512::tables()).collect()
}

/// The tables beyond the scalar one that this CPU can run: none.
#[cfg(not(target_arch = "x86_64"))]
pub fn supported() -> Vec<&'static Kernels> {
    Vec::new()
}
