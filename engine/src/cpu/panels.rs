//! Packed panels: how a matrix `[n, k]` lies in memory so that 64 rows advance together along k.
//!
//! A panel holds 64 rows (outputs of a product); along k it holds groups of `LANES` terms: one f32,
//! or two bf16 side by side as the dot product instruction wants them. Rows and terms beyond the
//! matrix are positive zero in weights and unspecified in caches; kernels never let them count.

use rayon::prelude::*;

use crate::contract::Element;

/// Rows of a panel.
pub const PANEL: usize = 64;

/// Geometry of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    /// Rows: outputs of a product, keys of a key cache, dims of a value cache.
    pub n: usize,
    /// Columns: terms of a product.
    pub k: usize,
    /// Terms in a group.
    pub lanes: usize,
}

impl Panels {
    /// Elements of one panel.
    pub const fn panel_len(&self) -> usize {
        self.k.div_ceil(self.lanes) * self.lanes * PANEL
    }

    /// Number of panels.
    pub const fn count(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Elements in all.
    pub const fn len(&self) -> usize {
        self.count() * self.panel_len()
    }

    /// Whether the matrix has no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where row `n`, column `k` lies.
    #[inline(always)]
    pub const fn index(&self, n: usize, k: usize) -> usize {
        let group = (k / self.lanes) * PANEL + n % PANEL;
        n / PANEL * self.panel_len() + group * self.lanes + k % self.lanes
    }
}

/// Copies whole rows of a row-major matrix, from row `first` on, to their places.
pub fn pack<E: Element>(panels: Panels, packed: &mut [E], first: usize, rows: &[E]) {
    let (k, lanes) = (panels.k, E::LANES);
    let last = first + rows.len() / k;
    let skipped = first / PANEL;
    let touched = &mut packed[skipped * panels.panel_len()..];
    touched.par_chunks_mut(panels.panel_len()).enumerate().for_each(|(i, panel)| {
        let start = (skipped + i) * PANEL;
        for n in start.max(first)..(start + PANEL).min(last) {
            let row = &rows[(n - first) * k..][..k];
            for (group, terms) in row.chunks(lanes).enumerate() {
                let at = (group * PANEL + n - start) * lanes;
                panel[at..at + terms.len()].copy_from_slice(terms);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_puts_every_element_in_its_place() {
        for (n, k, pieces) in
            [(1, 1, [1, 0]), (64, 7, [64, 0]), (130, 5, [70, 60]), (65, 8, [3, 62])]
        {
            let rows: Vec<half::bf16> =
                (0..n * k).map(|i| half::bf16::from_bits(i as u16 + 1)).collect();
            let panels = Panels { n, k, lanes: 2 };
            let mut packed = vec![half::bf16::ZERO; panels.len()];
            pack(panels, &mut packed, 0, &rows[..pieces[0] * k]);
            pack(panels, &mut packed, pieces[0], &rows[pieces[0] * k..]);
            for i in 0..n * k {
                assert_eq!(packed[panels.index(i / k, i % k)], rows[i], "{n} x {k}: {i}");
            }
        }
    }

    #[test]
    fn every_element_has_its_own_place() {
        for (n, k, lanes) in
            [(1, 1, 1), (1, 1, 2), (64, 7, 2), (65, 8, 2), (130, 5, 1), (48, 64, 2)]
        {
            let panels = Panels { n, k, lanes };
            let mut seen = vec![false; panels.len()];
            for i in 0..n * k {
                let at = panels.index(i / k, i % k);
                assert!(!std::mem::replace(&mut seen[at], true), "{panels:?}: {i} shares {at}");
            }
        }
    }
}
