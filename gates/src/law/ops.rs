//! What each op may write, from its exact result on its own inputs.
//!
//! Absent: tests, and legal orders. The invariants: every bound follows from the op's own terms;
//! hidden keys have one right answer; nothing falls back to another op's law.

use samebits::contract::Dtype;
use samebits_oracle::Arithmetic;
use samebits_oracle::ops::Out;

use super::sum::{Sum, U, rounded};
use super::test::{Allowed, Map, Shape};
use super::{Law, Setting};
use crate::forced::Forced;
use crate::sites::{dtype_at, op_of};

/// What f32 flushes to zero may cost a result.
const LEAST: f64 = f32::MIN_POSITIVE as f64;
/// Roundings of a norm beside its sum, in U: the mean, the root, its inverse, the products.
const OF_NORM: f64 = 4.0;
/// Roundings of a sigmoid and of the exponential in it, in U, and per unit of its argument.
const OF_EXP: f64 = 4.0;

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
        "q_proj" | "k_proj" | "v_proj" | "o_proj" | "in_proj_qkv" | "in_proj_z" | "in_proj_b"
        | "in_proj_a" | "out_proj" | "gate_proj" | "up_proj" | "down_proj" | "lm_head" => "linear",
        _ => "none",
    }
}

/// What the op of a site may write.
///
/// # Errors
/// Why it has no law.
pub fn allowed<'a>(
    law: &Law,
    exact: &'a Forced<'a>,
    setting: Setting,
    name: &str,
) -> Result<Allowed<'a>, String> {
    let (law, op, dtype) = (*law, op_of(name), dtype_at(name, setting.dtype));
    let dims = setting.dims;
    Ok(match family(op) {
        "exact" => Allowed::of(dtype, exact.rounded_site(name), Shape::Exact, |_, _| 0.0),
        "linear" | "conv" => {
            let out = exact.site(name);
            let k = if op == "conv" { dims.delta.kernel } else { exact.terms_of_row(name) };
            let width = dims.width(op, setting.keys());
            Allowed { width, ..counted(law, dtype, sums(out, |_| k), exact, name) }
        }
        "mix" => {
            let out = exact.site(name);
            let width = dims.width(op, setting.keys());
            let k = |i: usize| setting.past + i / width + 1;
            let head = move |i: usize| i / dims.head_dim % dims.heads;
            let of = counted(law, dtype, sums(out, k), exact, name);
            Allowed { width, group: Some(Box::new(head)), ..of }
        }
        "scores" => scores(law, exact, setting, name),
        "probs" => probs(law, exact, setting, name),
        "norm" | "gated_norm" | "l2_norm" => norm(law, exact, setting, name),
        "rope" => rope(exact, setting, name),
        "silu" | "sigmoid" | "decay" => {
            let (y, x) = (exact.site(name).values, exact.argument(name));
            let more = if family(op) == "decay" { 2.0 } else { 0.0 };
            let (size, x_size) = (sizes(&y), sizes(&x));
            Allowed::of(dtype, y, Shape::Once, move |i, _| {
                LEAST + size[i] * U * (OF_EXP + more) * (1.0 + x_size[i])
            })
        }
        "delta_rule" => {
            let (y, sigma) = exact.delta(name, law.rms).ok_or("the model has no delta rule")?;
            let size = sizes(&y);
            Allowed::of(dtype, y, Shape::Once, move |i, nats| {
                LEAST + law.delta * sigma[i] * (nats + 3.5) + size[i] * U
            })
        }
        _ => return Err(format!("{op} is no op of a known law")),
    })
}

fn sizes(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.abs()).collect()
}

/// The sums of an op whose element `i` has `k(i)` terms.
fn sums(out: Out, k: impl Fn(usize) -> usize) -> Vec<Sum> {
    let squares = out.squares.expect("exact sums come with the squares of their terms");
    let both = out.values.into_iter().zip(squares).enumerate();
    both.map(|(i, (y, q))| Sum { y, q, k: k(i) as f64 }).collect()
}

/// An op of sums that are rounded once. Those of bf16 are counted too.
fn counted<'a>(
    law: Law,
    dtype: Dtype,
    sums: Vec<Sum>,
    exact: &'a Forced<'a>,
    name: &str,
) -> Allowed<'a> {
    let y = sums.iter().map(|sum| sum.y).collect();
    let (of_bound, c) = match dtype {
        Dtype::Bf16 => (sums.clone(), law.rms),
        Dtype::F32 => (sums.clone(), law.most),
    };
    let bound = move |i: usize, nats: f64| {
        let sum = &of_bound[i];
        sum.bound(c, nats) + sum.k * LEAST
    };
    let name = name.to_owned();
    let terms = move |i: usize| exact.terms(&name, i);
    Allowed {
        sums: (dtype == Dtype::Bf16).then_some(sums),
        terms: Some(Box::new(terms)),
        ..Allowed::of(dtype, y, Shape::Once, bound)
    }
}

/// Two roundings: the product's, and that of its scaled value.
fn scores<'a>(law: Law, exact: &'a Forced<'a>, setting: Setting, name: &str) -> Allowed<'a> {
    let (dtype, dim) = (setting.dtype, setting.dims.head_dim);
    let scale = f64::from((1.0 / (dim as f64).sqrt()) as f32);
    let out = exact.site(name);
    let squares = out.squares.expect("exact scores come with the squares of their terms");
    let dots: Vec<f64> = out.values.iter().map(|y| y / scale).collect();
    let masked = exact.rounded.masked();
    let map = move |i: usize, x: f64, scaled: f64| match (setting.hidden(i), scaled > 0.0) {
        (true, false) => (masked, masked),
        // What is hidden may be any number that vanishes, also minus infinity.
        (true, true) => (f64::NEG_INFINITY, masked),
        _ => {
            let y = rounded(dtype, scale * rounded(dtype, x));
            (y, y)
        }
    };
    let y = dots.clone();
    let bound = move |i: usize, nats: f64| {
        let sum = Sum { y: dots[i], q: squares[i] / (scale * scale), k: dim as f64 };
        sum.bound(law.most, nats) + dots[i].abs() * U + LEAST * sum.k
    };
    Allowed::of(dtype, y, Shape::Through(Box::new(map)), bound)
}

/// Softmax: the relative errors of an exponential and of the sum of a row.
fn probs<'a>(law: Law, exact: &'a Forced<'a>, setting: Setting, name: &str) -> Allowed<'a> {
    let y = exact.site(name).values;
    let x = exact.input(name).into_owned();
    let keys = setting.keys();
    let rows: Vec<(f64, Sum)> = x
        .chunks(keys)
        .enumerate()
        .map(|(row, x)| {
            let seen = &x[..setting.seen(row * keys)];
            let most = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let of = |e: f64| (e - most).exp();
            let (sum, squares) =
                seen.iter().fold((0.0, 0.0), |(s, q), e| (s + of(*e), q + of(*e).powi(2)));
            (most, Sum { y: sum, q: squares, k: seen.len() as f64 })
        })
        .collect();
    let size = sizes(&y);
    let bound = move |i: usize, nats: f64| {
        if setting.hidden(i) {
            return 0.0;
        }
        let (most, sum) = &rows[i / keys];
        let of_sum = sum.bound(law.most, nats) / sum.y;
        LEAST + size[i] * (U * (OF_EXP + most - x[i]) + of_sum)
    };
    Allowed::of(setting.dtype, y, Shape::Once, bound)
}

/// Norms: a relative error of the whole row, then the roundings of the op's own kind.
fn norm<'a>(law: Law, exact: &'a Forced<'a>, setting: Setting, name: &str) -> Allowed<'a> {
    let (op, dtype) = (op_of(name), dtype_at(name, setting.dtype));
    let x = exact.input(name).into_owned();
    let (weight, eps, n) = exact.norm_of(name);
    let mean = if family(op) == "l2_norm" { 1.0 } else { n as f64 };
    let centred = setting.dims.gated && family(op) == "norm";
    let roots: Vec<(f64, Row)> = x
        .chunks(n)
        .map(|x| {
            let row = Row::of(x);
            (1.0 / (row.sum.y / mean + eps).sqrt(), row)
        })
        .collect();
    let root = |i: usize| roots[i / n].0;
    let factor = |i: usize| if centred { 1.0 + weight[i % n] } else { 1.0 };
    let y: Vec<f64> = (0..x.len()).map(|i| x[i] * root(i) * factor(i)).collect();
    let size = sizes(&y);
    let bound = move |i: usize, nats: f64| {
        let Row { sum, own } = &roots[i / n].1;
        let of_sum = sum.bound(law.most, nats).max(2.0 * own);
        let half = if sum.y > 0.0 { of_sum / (2.0 * sum.y) } else { 0.0 };
        LEAST + size[i] * (half + OF_NORM * U)
    };
    let shape = match family(op) {
        "norm" if !centred => {
            let map = move |i: usize, t: f64, _: f64| {
                let y = rounded(dtype, weight[i % n] * rounded(dtype, t));
                (y, y)
            };
            Shape::Through(Box::new(map))
        }
        "gated_norm" => Shape::Through(gated(dtype, weight, exact.gate_of(name))),
        _ => Shape::Once,
    };
    Allowed::of(dtype, y, shape, bound)
}

/// After a gated norm's weight its gate, `silu`, which has an error of its own.
fn gated<'a>(dtype: Dtype, weight: Vec<f64>, gate: Vec<f64>) -> Map<'a> {
    Box::new(move |i, t, scale| {
        let (z, n) = (gate[i], weight.len());
        let u = rounded(dtype, weight[i % n] * rounded(dtype, t));
        let silu = z / (1.0 + (-z).exp());
        let slack = scale * (silu.abs() * U * OF_EXP * (1.0 + z.abs()) + LEAST);
        let (a, b) = (rounded(dtype, u * (silu - slack)), rounded(dtype, u * (silu + slack)));
        (a.min(b), a.max(b))
    })
}

/// The sum of squares of a norm's row.
struct Row {
    sum: Sum,
    own: f64, // the largest error of plain chains: squares of few bits do not err at random
}

impl Row {
    fn of(x: &[f64]) -> Self {
        let square = |x: &f64| x * x;
        let y: f64 = x.iter().map(square).sum();
        let q = x.iter().map(|x| square(x).powi(2)).sum();
        let chain = |sum: f32, x: &f64| sum + (*x as f32) * (*x as f32);
        let (up, down) = (x.iter().fold(0.0, chain), x.iter().rev().fold(0.0, chain));
        let own = (f64::from(up) - y).abs().max((f64::from(down) - y).abs());
        let own = if own.is_finite() { own } else { 0.0 };
        Self { sum: Sum { y, q, k: x.len() as f64 }, own }
    }
}

/// A rotation: table entries are f32 numbers whose last bit may be another, then rounded to the
/// run's dtype; products and their sum are rounded in bf16 each, in f32 as a sum of two.
fn rope<'a>(exact: &'a Forced<'a>, setting: Setting, name: &str) -> Allowed<'a> {
    let dtype = setting.dtype;
    let pairs = exact.rope_pairs(name);
    let y: Vec<f64> = pairs.iter().map(|p| p.x * p.cos + p.turned * p.sin).collect();
    if dtype == Dtype::F32 {
        let size: Vec<f64> =
            pairs.iter().map(|p| (p.x * p.cos).abs() + (p.turned * p.sin).abs()).collect();
        let passes: Vec<bool> = pairs.iter().map(|p| p.passes).collect();
        return Allowed::of(dtype, y, Shape::Once, move |i, _| {
            if passes[i] { 0.0 } else { 3.0 * U * size[i] + LEAST * U }
        });
    }
    let map = move |i: usize, _: f64, scale: f64| {
        let p = &pairs[i];
        if p.passes {
            return (p.x, p.x);
        }
        let ends =
            |t: f64| [1.0 - 2.0 * U * scale, 1.0 + 2.0 * U * scale].map(|s| rounded(dtype, t * s));
        let mut range = (f64::INFINITY, f64::NEG_INFINITY);
        for cos in ends(p.cos) {
            for sin in ends(p.sin) {
                let y = rounded(dtype, rounded(dtype, p.x * cos) + rounded(dtype, p.turned * sin));
                range = (range.0.min(y), range.1.max(y));
            }
        }
        range
    };
    Allowed::of(dtype, y, Shape::Through(Box::new(map)), |_, _| 0.0)
}
