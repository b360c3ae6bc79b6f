//! What a designed run measures: each site on the run's own inputs, and the argmax of its rows.
//!
//! Absent: what ops may write, which the law has. The invariant: sites are never pooled.

use std::collections::BTreeMap;

use samebits_oracle::Rounded;

use super::{Ran, Stage};
use crate::checks::CheckError;
use crate::forced::{Forced, KEPT};
use crate::law::{Judgement, Law};
use crate::localize::inputs;
use crate::sites::{Sites, op_of, oracle_dtype};

/// What one site measures.
#[derive(Clone, Debug)]
pub struct SiteVerdict {
    /// Its name.
    pub site: String,
    /// Which sequence.
    pub sequence: usize,
    /// What the law says of it.
    pub found: Judgement,
    /// Value at the element to look at.
    pub got: f64,
}

/// A run and what it measured.
pub struct Known {
    /// Taps of each sequence.
    sequences: Vec<Sites>,
    /// Every site of each.
    found: BTreeMap<(usize, String), SiteVerdict>,
}

impl Known {
    /// Keeps a run.
    pub fn new(ran: &Ran, found: &[SiteVerdict]) -> Self {
        let found = found.iter().map(|f| ((f.sequence, f.site.clone()), f.clone())).collect();
        Self { sequences: ran.sequences.clone(), found }
    }

    /// What a site measured, if `sites` holds the same bits there and at all that the op reads.
    fn same(&self, sequence: usize, name: &str, sites: &Sites) -> Option<&SiteVerdict> {
        let own = &self.sequences[sequence];
        let mut read = inputs(name, own);
        read.push(name.to_owned());
        let equal = read.iter().all(|site| own.get(site) == sites.get(site));
        self.found.get(&(sequence, name.to_owned())).filter(|_| equal)
    }
}

impl Stage {
    /// Judges every site of a run, in the order of execution. What `known`, a run of the same
    /// inputs, has measured is not measured again where the op read and wrote the same bits.
    ///
    /// # Errors
    /// An op that has no law.
    pub fn measure(
        &self,
        ran: &Ran,
        known: Option<&Known>,
        law: &Law,
    ) -> Result<Vec<SiteVerdict>, CheckError> {
        let (mut all, setting) = (Vec::new(), self.setting());
        for (sequence, sites) in ran.sequences.iter().enumerate() {
            let mut values: BTreeMap<String, Vec<f64>> =
                sites.iter().map(|(name, bits)| (name.clone(), bits.values())).collect();
            if self.probe.last {
                let kept = self.last_rows(&values["norm"]);
                values.insert(KEPT.to_owned(), kept);
            }
            let exact = Forced {
                rounded: Rounded { dtype: oracle_dtype(self.probe.dtype) },
                model: &self.reference,
                values: &values,
                ids: &ran.ids[sequence],
                tables: &self.tables,
                past: &ran.past[sequence],
            };
            for site in crate::compare::in_order(sites) {
                let op = op_of(site);
                if !self.probe.ops.is_empty() && !self.probe.ops.iter().any(|o| o == op) {
                    continue;
                }
                if let Some(old) = known.and_then(|known| known.same(sequence, site, sites)) {
                    all.push(old.clone());
                    continue;
                }
                let got = &values[site];
                let judged = law.judge(&exact, setting, site, got);
                let found = judged.map_err(|why| CheckError::missing(why, "the law"))?;
                let got = got.get(found.worst).copied().unwrap_or(f64::NAN);
                all.push(SiteVerdict { site: site.clone(), sequence, found, got });
            }
        }
        Ok(all)
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
