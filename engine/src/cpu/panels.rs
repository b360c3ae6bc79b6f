//! Packed panels: how a matrix `[n, k]` lies in memory so that 64 rows advance together along k.
//!
//! A panel holds 64 rows (outputs of a product); along k it holds groups of `LANES` terms: one f32,
//! or two bf16 side by side as the dot product instruction wants them. Rows and terms beyond the
//! matrix are positive zero in weights and unspecified in caches; kernels never let them count.

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

#[cfg(test)]
mod tests {
    use super::*;

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
