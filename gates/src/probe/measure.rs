//! What a designed run measures: each site on the run's own inputs.
//!
//! The invariant: a hidden key has one right answer, whatever the unit of its neighbours.

use std::collections::BTreeMap;

use samebits::contract::Dtype;
use samebits_oracle::{Arithmetic, Ideal, Rounded};

use super::{Ran, Stage, family};
use crate::forced::{Forced, KEPT};
use crate::sites::{keyed, op_of, oracle_dtype};
use crate::stats::{Residual, ulp};

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

impl Stage {
    /// Measures every judged site of a run, in the order of the names.
    ///
    /// `units` gives, by op, the f32 errors that are legal in units of u times the terms' sizes.
    pub fn measure(&self, ran: &Ran, units: &dyn Fn(&str) -> f64) -> Vec<SiteResidual> {
        let mut all = Vec::new();
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
                let got = &values[name];
                let (residual, want) = self.site(&exact, &rounded, (name, got), units(op));
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

    /// The statistics of a site, and what was expected of it.
    fn site(
        &self,
        exact: &Forced<'_>,
        rounded: &Forced<'_>,
        (name, got): (&str, &[f64]),
        legal: f64,
    ) -> (Residual, Vec<f64>) {
        let (dtype, op) = (self.probe.dtype, op_of(name));
        let u = f64::from(f32::EPSILON) / 2.0;
        let least = f64::from(f32::MIN_POSITIVE);
        let sizes = || {
            let out = exact.site(name);
            let terms = exact.terms(name, &out.values).or(out.magnitude);
            let y = out.values;
            let terms = terms.unwrap_or_else(|| y.iter().map(|y| y.abs()).collect());
            terms.iter().zip(&y).map(|(a, y)| a.max(y.abs())).collect::<Vec<f64>>()
        };
        let hidden = |i: usize| keyed(name) && self.hidden(i);
        if family(op) == "exact" {
            let want = rounded.site(name).values;
            return (Residual::of(got, &want, |i| ulp(dtype, want[i])), want);
        }
        match dtype {
            Dtype::Bf16 => {
                let want = rounded.site(name).values;
                let far = |i: usize| (got[i] - want[i]).abs() > ulp(dtype, want[i]);
                let sizes = if (0..got.len()).any(far) { sizes() } else { Vec::new() };
                let unit = |i: usize| {
                    let terms = sizes.get(i).map_or(0.0, |a| legal * u * a);
                    if hidden(i) { least } else { ulp(dtype, want[i]) + terms }
                };
                (Residual::of(got, &want, unit), want)
            }
            Dtype::F32 => {
                let mut want = exact.site(name).values;
                if op == "scores" {
                    let masked = rounded.arithmetic.masked();
                    (0..want.len()).filter(|i| hidden(*i)).for_each(|i| want[i] = masked);
                }
                let sizes = sizes();
                let unit = |i: usize| if hidden(i) { least } else { u * sizes[i].max(least) };
                (Residual::of(got, &want, unit), want)
            }
        }
    }

    /// Whether an element of scores or probabilities belongs to a key that its row does not see.
    fn hidden(&self, i: usize) -> bool {
        let (rows, keys) = (self.rows(), self.probe.past + self.rows());
        i % keys > self.probe.past + i / keys % rows
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
