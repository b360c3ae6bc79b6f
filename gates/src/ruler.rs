//! How far each op of a run is from its exact result on the run's own inputs, over what is legal.
//!
//! bf16: the digits of surprise of the misrounds, and the largest error in units of an ulp plus
//! what legal f32 sums may differ by. f32: the largest error in units of u times the terms' sizes.
//! Ops with one right answer may not differ at all. Absent: any number that is a limit. The
//! invariant: a hidden key has one right answer, whatever the unit of its neighbours.

use samebits::contract::Dtype;
use samebits_oracle::ops::Out;

use crate::forced::Forced;
use crate::limits::{LimitError, Limits};
use crate::sites::{Dims, dtype_at, keyed, op_of};
use crate::stats::{Residual, ulp};

/// What the sites of a run are measured with.
#[derive(Clone, Copy, Debug)]
pub struct Ruler {
    /// The run's dtype.
    pub dtype: Dtype,
    /// Sizes of the model.
    pub dims: Dims,
    /// Positions in the cache before the first row.
    pub past: usize,
    /// Rows of a sequence.
    pub rows: usize,
}

impl Ruler {
    /// Terms of an op's sums: what decides its size class.
    pub fn terms(&self, op: &str) -> usize {
        let d = self.dims;
        match op {
            "q_norm" | "k_norm" | "scores" => d.head_dim,
            "probs" | "mix" => self.past + self.rows,
            "o_proj" => d.heads * d.head_dim,
            "conv" => d.delta.kernel,
            "q_l2" | "k_l2" => d.delta.key_dim,
            "core" => d.delta.key_dim * (self.past + self.rows), // Every row adds to the state.
            "gdn_norm" => d.delta.value_dim,
            "out_proj" => d.delta.values(),
            "down_proj" => d.intermediate,
            _ => d.hidden,
        }
    }

    /// The f32 error that is legal for an op, in units of u times the terms' sizes.
    pub fn legal_units(&self, limits: &Limits, op: &str) -> f64 {
        let name = limit_name(op, Dtype::F32, self.terms(op));
        limits.get(&name).map_or(0.0, |limit| limit.value)
    }

    /// The statistics of a site, and what was expected of it.
    pub fn site(
        &self,
        exact: &Forced<'_>,
        rounded: &Forced<'_>,
        (name, got): (&str, &[f64]),
        legal: f64,
    ) -> (Residual, Vec<f64>) {
        let (op, dtype) = (op_of(name), dtype_at(name, self.dtype));
        let u = f64::from(f32::EPSILON) / 2.0;
        let least = f64::from(f32::MIN_POSITIVE);
        let sizes_of = |out: Out| {
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
                let any_far = (0..got.len()).any(far);
                let sizes = if any_far { sizes_of(exact.site(name)) } else { Vec::new() };
                let unit = |i: usize| {
                    let terms = sizes.get(i).map_or(0.0, |a| legal * u * a);
                    if hidden(i) { least } else { ulp(dtype, want[i]) + terms }
                };
                (Residual::of(got, &want, unit), want)
            }
            Dtype::F32 => {
                let out = exact.site(name);
                let mut want = out.values.clone();
                let sizes = sizes_of(out);
                if op == "scores" {
                    let masked = rounded.arithmetic.masked();
                    (0..want.len()).filter(|i| hidden(*i)).for_each(|i| want[i] = masked);
                }
                let unit = |i: usize| if hidden(i) { least } else { u * sizes[i].max(least) };
                (Residual::of(got, &want, unit), want)
            }
        }
    }

    /// The worst statistic of a site over its limit, and what to say of it.
    ///
    /// # Errors
    /// An op, a dtype or a size that has no limit.
    pub fn over_limit(
        &self,
        limits: &Limits,
        site: &str,
        residual: &Residual,
    ) -> Result<(f64, String), LimitError> {
        let (op, dtype) = (op_of(site), dtype_at(site, self.dtype));
        let wrong = residual.misrounds as f64;
        let any = if residual.misrounds > 0 { 1.0 + wrong } else { 0.0 };
        if family(op) == "exact" {
            return Ok((any, format!("{wrong} elements differ where one answer is right")));
        }
        let terms = self.terms(op);
        let limit = limits.get(&limit_name(op, dtype, terms))?.value;
        if limit == 0.0 {
            // Calibration saw one right answer only.
            return Ok((any, format!("{wrong} elements differ where legal orders never do")));
        }
        let by_max = residual.max / limit;
        let say = format!("largest error {:.3e} of {limit:.3e} units", residual.max);
        if dtype == Dtype::F32 {
            return Ok((by_max, say));
        }
        let rate = limits.get(&rate_name(op, terms))?.value;
        let by_count = residual.surprise(rate) / limits.get(&surprise_name(op, terms))?.value;
        if by_count > by_max {
            let (count, of) = (residual.misrounds, residual.elements);
            return Ok((by_count, format!("{count} of {of} misrounded; legal is {rate:.1e} each")));
        }
        Ok((by_max, say))
    }

    /// Whether an element of scores or probabilities belongs to a key that its row does not see.
    fn hidden(&self, i: usize) -> bool {
        let keys = self.past + self.rows;
        i % keys > self.past + i / keys % self.rows
    }
}

/// The group of ops whose errors follow one law.
pub fn family(op: &str) -> &'static str {
    match op {
        "input_layernorm" | "post_attention_layernorm" | "norm" | "q_norm" | "k_norm" => "norm",
        "q_rope" | "k_rope" => "rope",
        "scores" => "scores",
        "probs" => "probs",
        "mix" => "mix",
        "silu" | "conv_silu" => "silu",
        "beta" | "gate_sigmoid" => "sigmoid",
        "conv" => "conv",
        "g" => "decay",
        "q_l2" | "k_l2" => "l2_norm",
        "core" => "delta_rule",
        "gdn_norm" => "gated_norm",
        "embed_tokens" | "k_cache" | "v_cache" | "q_gate" | "attn_residual" | "mlp_residual"
        | "mul" | "mix_gated" => "exact",
        _ => "linear",
    }
}

/// The name of a limit of an op's largest error.
pub fn limit_name(op: &str, dtype: Dtype, terms: usize) -> String {
    format!("legal-{}-{}-{}-max", family(op), dtype.name(), size_class(terms))
}

/// The name of a limit of an op's misround rate.
pub fn rate_name(op: &str, terms: usize) -> String {
    format!("legal-{}-bf16-{}-rate", family(op), size_class(terms))
}

/// The name of a limit of how surprising an op's misrounds may be.
pub fn surprise_name(op: &str, terms: usize) -> String {
    format!("legal-{}-bf16-{}-surprise", family(op), size_class(terms))
}

/// Size classes of sums: up to 64 terms, and four times as many in each class after.
pub fn size_class(terms: usize) -> usize {
    const LEAST: usize = 64;
    let mut most = LEAST;
    while most < terms {
        most *= 4;
    }
    most
}
