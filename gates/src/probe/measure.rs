//! What a designed run measures: each site on the run's own inputs, and the argmax of its rows.
//!
//! Absent: the statistics, which the ruler has. The invariant: sites are never pooled.

use std::collections::BTreeMap;

use samebits_oracle::{Arithmetic, Ideal, Rounded};

use super::{Ran, Stage};
use crate::forced::{Forced, KEPT};
use crate::localize::inputs;
use crate::sites::{Sites, op_of, oracle_dtype};
use crate::stats::Residual;

/// What one site measures.
#[derive(Clone, Debug)]
pub struct SiteResidual {
    /// Its name.
    pub site: String,
    /// Which sequence.
    pub sequence: usize,
    /// Its statistics.
    pub residual: Residual,
    /// Value wanted at the worst element.
    pub want: f64,
    /// Value there.
    pub got: f64,
}

/// A run and what it measured.
pub struct Known {
    /// Taps of each sequence.
    sequences: Vec<Sites>,
    /// Every site of each.
    found: BTreeMap<(usize, String), SiteResidual>,
}

impl Known {
    /// Keeps a run.
    pub fn new(ran: &Ran, found: &[SiteResidual]) -> Self {
        let found = found.iter().map(|f| ((f.sequence, f.site.clone()), f.clone())).collect();
        Self { sequences: ran.sequences.clone(), found }
    }

    /// What a site measured, if `sites` holds the same bits there and at all that the op reads.
    fn same(&self, sequence: usize, name: &str, sites: &Sites) -> Option<&SiteResidual> {
        let own = &self.sequences[sequence];
        let mut read = inputs(name, own);
        read.push(name.to_owned());
        let equal = read.iter().all(|site| own.get(site) == sites.get(site));
        self.found.get(&(sequence, name.to_owned())).filter(|_| equal)
    }
}

impl Stage {
    /// Measures every judged site of a run, in the order of the names.
    ///
    /// `units` gives, by op, the f32 errors that are legal in units of u times the terms' sizes.
    /// What `known`, a run of the same inputs, has measured is not measured again where the op read
    /// and wrote the same bits.
    pub fn measure(
        &self,
        ran: &Ran,
        known: Option<&Known>,
        units: &dyn Fn(&str) -> f64,
    ) -> Vec<SiteResidual> {
        let (mut all, ruler) = (Vec::new(), self.ruler());
        for (sequence, sites) in ran.sequences.iter().enumerate() {
            let mut values: BTreeMap<String, Vec<f64>> =
                sites.iter().map(|(name, bits)| (name.clone(), bits.values())).collect();
            if self.probe.last {
                let kept = self.last_rows(&values["norm"]);
                values.insert(KEPT.to_owned(), kept);
            }
            let rounded = Rounded { dtype: oracle_dtype(self.probe.dtype) };
            let forced = |arithmetic| Forced {
                arithmetic,
                model: &self.reference,
                values: &values,
                ids: &ran.ids[sequence],
                tables: &self.tables,
                past: &ran.past[sequence],
            };
            let (exact, rounded) = (forced(&Ideal as &dyn Arithmetic), forced(&rounded));
            for name in crate::compare::in_order(sites) {
                let op = op_of(name);
                if !self.probe.ops.is_empty() && !self.probe.ops.iter().any(|o| o == op) {
                    continue;
                }
                if let Some(old) = known.and_then(|known| known.same(sequence, name, sites)) {
                    all.push(old.clone());
                    continue;
                }
                let got = &values[name];
                let (residual, want) = ruler.site(&exact, &rounded, (name, got), units(op));
                let (want, got) = (want.get(residual.worst), got.get(residual.worst).copied());
                all.push(SiteResidual {
                    site: name.clone(),
                    sequence,
                    residual,
                    want: want.copied().unwrap_or(f64::NAN),
                    got: got.unwrap_or(f64::NAN),
                });
            }
        }
        all
    }

    /// The last row of each forward.
    fn last_rows(&self, norm: &[f64]) -> Vec<f64> {
        let (hidden, mut end) = (self.dims().hidden, 0);
        let mut kept = Vec::new();
        for piece in &self.probe.pieces {
            end += piece;
            kept.extend_from_slice(&norm[(end - 1) * hidden..end * hidden]);
        }
        kept
    }

    /// Rows whose argmax is not the lowest index of their largest logit.
    pub fn wrong_argmax(&self, ran: &Ran) -> Vec<(usize, usize)> {
        let vocab = self.dims().vocab;
        let mut wrong = Vec::new();
        for (sequence, sites) in ran.sequences.iter().enumerate() {
            let logits = sites["lm_head"].values();
            for (row, logits) in logits.chunks(vocab).enumerate() {
                let best = (0..vocab).fold(0, |b, i| if logits[i] > logits[b] { i } else { b });
                let nan = logits.iter().any(|x| x.is_nan());
                let want = if nan { u32::MAX } else { best as u32 };
                if ran.argmax[sequence][row] != want {
                    wrong.push((sequence, row));
                }
            }
        }
        wrong
    }
}
