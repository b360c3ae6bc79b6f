//! A row-major matrix as disjoint tiles, each written by one thread.

use std::marker::PhantomData;

use rayon::prelude::*;

/// One tile of a matrix: the only way to its elements while it lives.
pub struct TileMut<'a, T> {
    start: *mut T,
    width: usize,
    rows: usize,
    columns: usize,
    /// First row in the matrix.
    pub first_row: usize,
    /// First column in the matrix.
    pub first_column: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T> TileMut<'_, T> {
    /// Rows of the tile.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the tile.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Row `i` of the tile.
    pub fn row(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows, "row {i} is beyond the tile's {}", self.rows);
        // SAFETY: the tile lies within the matrix that `for_each_tile` borrowed mutably, no two
        // tiles share an element, and `&mut self` keeps other rows of this tile unborrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(i * self.width), self.columns) }
    }
}

/// A pointer that threads may share, because each touches its own tile only.
struct Base<T>(*mut T);

// SAFETY: `for_each_tile` derives disjoint tiles from the pointer, and `T: Send`.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    /// Tile `at` of a matrix of `rows` by `width`; no two numbers share an element.
    fn tile<'a>(&self, at: usize, rows: usize, width: usize, tile: [usize; 2]) -> TileMut<'a, T> {
        let across = width.div_ceil(tile[1]);
        let (first_row, first_column) = (at / across * tile[0], at % across * tile[1]);
        TileMut {
            start: self.0.wrapping_add(first_row * width + first_column),
            width,
            rows: tile[0].min(rows - first_row),
            columns: tile[1].min(width - first_column),
            first_row,
            first_column,
            life: PhantomData,
        }
    }
}

/// Calls `f` once for each tile of at most `tile` rows and columns, in the current rayon pool.
pub fn for_each_tile<T: Send>(
    matrix: &mut [T],
    width: usize,
    tile: [usize; 2],
    f: impl Fn(TileMut<'_, T>) + Sync,
) {
    let rows = matrix.len() / width;
    assert_eq!(matrix.len(), rows * width, "matrix is not whole rows");
    let count = rows.div_ceil(tile[0]) * width.div_ceil(tile[1]);
    let base = Base(matrix.as_mut_ptr());
    (0..count).into_par_iter().for_each(|at| f(base.tile(at, rows, width, tile)));
}

/// Calls `f` once for each tile, with the chunk of `beside` that has the tile's number.
pub fn for_each_tile_beside<T: Send, U: Send>(
    matrix: &mut [T],
    width: usize,
    tile: [usize; 2],
    beside: &mut [U],
    f: impl Fn(TileMut<'_, T>, &mut [U]) + Sync,
) {
    let rows = matrix.len() / width;
    assert_eq!(matrix.len(), rows * width, "matrix is not whole rows");
    let count = rows.div_ceil(tile[0]) * width.div_ceil(tile[1]);
    let chunk = beside.len() / count;
    assert_eq!(beside.len(), count * chunk, "what lies beside is not whole chunks");
    let base = Base(matrix.as_mut_ptr());
    let chunks = beside.par_chunks_exact_mut(chunk).enumerate();
    chunks.for_each(|(at, chunk)| f(base.tile(at, rows, width, tile), chunk));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_written_once() {
        for (rows, width, tile) in [(1, 1, [1, 1]), (7, 130, [3, 64]), (5, 9, [8, 16])] {
            let mut matrix = vec![0u32; rows * width];
            for_each_tile(&mut matrix, width, tile, |mut t| {
                for r in 0..t.rows() {
                    let from = (t.first_row + r) * width + t.first_column;
                    t.row(r).iter_mut().enumerate().for_each(|(c, x)| *x += (from + c) as u32 + 1);
                }
            });
            assert!(matrix.iter().enumerate().all(|(i, x)| *x == i as u32 + 1));
        }
    }
}
