//! Logits alone: how far a run's answer lies from exact arithmetic, in units of what its dtype costs.
//!
//! Absent: which op is to blame, which logits cannot say. The invariant: the unit is the error of
//! the reference that rounds where Transformers does, on the same ids and the same rows.

use std::fmt;

use samebits::contract::Dtype;
use samebits_oracle::{Ideal, Model, OracleError, Rounded, RunOptions, run};

use crate::sites::{Bits, oracle_dtype};

/// A verdict on logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// The rms error of all rows over the unit's.
    pub multiple: f64,
    /// Rows whose largest logit is another than that of exact arithmetic.
    pub flips: usize,
    /// Those whose margin in exact arithmetic is beyond twice the unit's largest error of the row.
    pub beyond: Vec<usize>,
    /// Rows.
    pub rows: usize,
    /// The largest multiple that legal runs had.
    pub limit: f64,
}

impl Logits {
    /// Whether no legal run does this.
    pub fn departs(&self) -> bool {
        self.multiple.is_nan() || self.multiple > self.limit || !self.beyond.is_empty()
    }
}

impl fmt::Display for Logits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { multiple, flips, beyond, rows, limit } = self;
        let verdict = if self.departs() { "beyond" } else { "within" };
        writeln!(
            f,
            "logits: error {multiple:.2} times that of the rounded reference, limit {limit}; \
             {flips} of {rows} rows have another argmax, {} beyond the margin{}: {verdict} limits",
            beyond.len(),
            beyond.first().map_or_else(String::new, |p| format!(" (first at position {p})")),
        )?;
        write!(f, "logits do not say which op departs, and faults below the limit stay hidden")
    }
}

fn argmax(x: &[f64]) -> usize {
    (1..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best })
}

/// Judges the logits of the last rows of a run of `ids`.
///
/// # Errors
/// Ids that the model does not have.
///
/// # Panics
/// If there are more rows than ids.
pub fn judge(got: &Bits, model: &Model, ids: &[u32], limit: f64) -> Result<Logits, OracleError> {
    let vocab = model.config().vocab;
    let rows = got.bits.len() / vocab;
    assert!(rows <= ids.len(), "logits: more rows than ids");
    let first = ids.len() - rows;
    let kept = RunOptions { logit_rows: Some((first..ids.len()).collect()), ..Default::default() };
    let exact = run(model, &Ideal, ids, &kept)?.logits().values.clone();
    let rounded = Rounded { dtype: oracle_dtype(got.dtype) };
    let rounded = run(model, &rounded, ids, &kept)?.logits().values.clone();
    let (mut own, mut unit) = (0.0, 0.0);
    let mut verdict = Logits { multiple: 0.0, flips: 0, beyond: Vec::new(), rows, limit };
    let values = got.values();
    let each = values.chunks_exact(vocab).zip(exact.chunks_exact(vocab));
    for (row, ((got, exact), rounded)) in each.zip(rounded.chunks_exact(vocab)).enumerate() {
        let square = |x: &[f64]| -> f64 { x.iter().zip(exact).map(|(a, b)| (a - b).powi(2)).sum() };
        own += square(got);
        unit += square(rounded);
        let (is, was) = (argmax(got), argmax(exact));
        if is != was {
            let error = rounded.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            verdict.flips += 1;
            if exact[was] - exact[is] > 2.0 * error {
                verdict.beyond.push(first + row);
            }
        }
    }
    verdict.multiple = if own == 0.0 { 0.0 } else { (own / unit).sqrt() };
    Ok(verdict)
}

/// The limit's name.
pub fn limit_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "localize-logits-bf16",
        Dtype::F32 => "localize-logits-f32",
    }
}
