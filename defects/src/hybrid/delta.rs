//! The delta rule, computed again on the host, with one thing wrong.

use samebits::contract::{Dtype, exp_s, sigmoid};
use samebits::op::{Backend, DeltaHeads, Op};
use samebits::tensor::Tensor;

use super::Delta;

/// Rows of all sequences, on the host.
struct Inputs {
    q: Vec<f32>,         // [rows, key heads, key_dim]
    k: Vec<f32>,         // [rows, key heads, key_dim]
    qkv: Vec<f32>,       // [rows, channels]
    g: Vec<f32>,         // [rows, value heads]
    beta: Vec<f32>,      // [rows, value heads]
    positions: Vec<u32>, // [rows]
    scale: f32,
}

/// Computes the rule with the fault in the first `heads` heads, in place of the engine's.
/// `strengths` are those of the write, as projected.
pub fn rule<B: Backend>(
    b: &mut B,
    op: &mut Op<'_, B::M>,
    (how, heads): (Delta, Option<usize>),
    strengths: Option<&Tensor>,
) -> bool {
    let Op::DeltaRule { out, state, q, k, qkv, g, beta, scale, positions, batch, rows, heads: h } =
        op
    else {
        return false;
    };
    let (h, batch, rows) = (*h, *batch, *rows);
    let count = batch * rows;
    let mem = b.mem();
    let mut inputs = Inputs {
        q: mem.read(q, 0, count * h.keys()).to_f32(),
        k: mem.read(k, 0, count * h.keys()).to_f32(),
        qkv: mem.read(qkv, 0, count * h.channels()).to_f32(),
        g: mem.read(g, 0, count * h.value).to_f32(),
        beta: mem.read(beta, 0, count * h.value).to_f32(),
        positions: mem.read_ints(positions, count),
        scale: *scale,
    };
    if let (Delta::UnroundedStrength, Some(b)) = (how, strengths) {
        inputs.beta = b.to_f32().into_iter().map(sigmoid).collect();
    }
    let each = h.key_dim * h.value_dim;
    let mut states = mem.read(state, 0, batch * h.value * each).to_f32();
    let dtype = mem.read(out, 0, 1).dtype();
    let mut core = vec![0.0f32; count * h.values()];
    for (i, state) in states.chunks_exact_mut(each).enumerate() {
        let (sequence, head) = (i / h.value, i % h.value);
        let how = if heads.is_none_or(|n| head < n) { how } else { Delta::Right };
        for row in sequence * rows..(sequence + 1) * rows {
            let at = (row * h.value + head) * h.value_dim;
            let out = &mut core[at..at + h.value_dim];
            step(out, state, &inputs, (how, h), (row, head));
        }
    }
    mem.write(out, 0, &Tensor::from_f32(dtype, &core));
    mem.write(state, 0, &Tensor::F32(states));
    true
}

/// One position of one head.
fn step(
    out: &mut [f32],
    state: &mut [f32],
    inputs: &Inputs,
    (how, h): (Delta, DeltaHeads),
    (row, head): (usize, usize),
) {
    let position = inputs.positions[row] as usize;
    if position == 0 || matches!(how, Delta::Forgets(n) if position.is_multiple_of(n)) {
        state.fill(0.0);
    }
    let key_head = if how == Delta::CyclicHeads { head % h.key } else { head / (h.value / h.key) };
    let key = (row * h.key + key_head) * h.key_dim;
    let (q, k) = (&inputs.q[key..][..h.key_dim], &inputs.k[key..][..h.key_dim]);
    let (q, k) = if how == Delta::Swapped { (k, q) } else { (q, k) };
    let value = row * h.channels() + 2 * h.keys() + head * h.value_dim;
    let v = &inputs.qkv[value..][..h.value_dim];
    let of = if how == Delta::NeighboursDecay { (head + 1) % h.value } else { head };
    let g = inputs.g[row * h.value + of];
    let decay = exp_s(if how == Delta::Grows { -g } else { g });
    let beta = if how == Delta::Whole { 1.0 } else { inputs.beta[row * h.value + head] };
    let (scale_q, scale_k) = match how {
        Delta::Unscaled => (1.0, 1.0),
        Delta::ScaledKeys => (inputs.scale, inputs.scale),
        _ => (inputs.scale, 1.0),
    };
    let n = h.value_dim;
    for (column, out) in out.iter_mut().enumerate() {
        let cell = |i: usize| i * n + column;
        let old: Vec<f32> = (0..h.key_dim).map(|i| state[cell(i)]).collect();
        let decayed: Vec<f32> = old.iter().map(|s| s * decay).collect();
        let sum = |x: &[f32], scale: f32, s: &[f32]| {
            x.iter().zip(s).fold(0.0f32, |acc, (x, s)| (x * scale).mul_add(*s, acc))
        };
        let before = if how == Delta::DecaysLast { &old } else { &decayed };
        let seen = if how == Delta::Undecayed { &old } else { before };
        let error = (v[column] - sum(k, scale_k, seen)) * beta;
        let new: Vec<f32> =
            before.iter().zip(k).map(|(s, k)| (k * scale_k).mul_add(error, *s)).collect();
        *out = sum(q, scale_q, if how == Delta::ReadsOld { before } else { &new });
        let late = if how == Delta::DecaysLast { decay } else { 1.0 };
        for (i, new) in new.iter().enumerate() {
            state[cell(i)] = new * late;
        }
    }
    if matches!(how, Delta::Narrow(every) if (position + 1).is_multiple_of(every)) {
        let short = Tensor::from_f32(Dtype::Bf16, state).to_f32();
        state.copy_from_slice(&short);
    }
}
