//! The sums of a gated delta net in other legal orders: taps of a convolution, squares of a norm,
//! and what a state predicts and answers.
//!
//! The invariant: what is carried to the next forward is what the other order computed.

use samebits::op::{Backend, Op, Site};
use samebits::tensor::Tensor;

use crate::sums::Legal;

/// Executes an op of a delta net in a legal order; `false` where it has no sum.
pub fn legal<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Legal) -> bool {
    match op {
        Op::Conv { .. } => conv(b, site, op, how),
        Op::L2Norm { .. } => l2_norm(b, op, how),
        Op::DeltaRule { .. } => delta_rule(b, site, op, how),
        Op::GatedNorm { .. } => gated_norm(b, op, how),
        _ => return false,
    }
    true
}

fn conv<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::Conv { state, x, weight, positions, batch, rows, heads, .. } = op else { return };
    let (batch, rows, kernel, channels) = (*batch, *rows, heads.kernel, heads.channels());
    let x = b.mem().read(x, 0, batch * rows * channels);
    let (dtype, x) = (x.dtype(), x.to_f32());
    let history = b.mem().read(state, 0, batch * kernel * channels).to_f32();
    let at = b.mem().read_ints(positions, batch * rows);
    let weight = b.mem().read_weight(weight, 0, channels * kernel).to_f32();
    b.exec(site, op);
    let mut out = Vec::with_capacity(x.len());
    for i in 0..x.len() {
        let (sequence, row, c) = (i / channels / rows, i / channels % rows, i % channels);
        let input = |tap: usize| match (row + tap + 1).checked_sub(kernel) {
            Some(row) => x[(sequence * rows + row) * channels + c],
            None if at[sequence * rows] == 0 => 0.0,
            None => history[(sequence * kernel + row + tap + 1) * channels + c],
        };
        out.push(how.sum(kernel, |tap| (input(tap), weight[c * kernel + tap])));
    }
    let Op::Conv { out: to, .. } = op else { unreachable!("matched above") };
    b.mem().write(to, 0, &Tensor::from_f32(dtype, &out));
}

/// `x` over the root of `sum`, by a reciprocal or by a quotient.
fn over_root(how: Legal, x: f32, sum: f32) -> f32 {
    if how.fused { x * (1.0 / sum.sqrt()) } else { x / sum.sqrt() }
}

fn l2_norm<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::L2Norm { out, x, first, stride, rows, heads, dim } = op else { return };
    let x = b.mem().read(x, 0, *rows * *stride).to_f32();
    let mut values = Vec::with_capacity(*rows * *heads * *dim);
    for row in x.chunks(*stride) {
        for x in row[*first..][..*heads * *dim].chunks(*dim) {
            let sum = how.sum(*dim, |i| (x[i], x[i])) + 1e-6;
            values.extend(x.iter().map(|x| over_root(how, *x, sum)));
        }
    }
    b.mem().write(out, 0, &Tensor::F32(values));
}

fn delta_rule<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::DeltaRule { state, q, k, qkv, g, beta, scale, positions, batch, rows, heads, .. } = op
    else {
        return;
    };
    let (batch, rows, scale, h) = (*batch, *rows, *scale, *heads);
    let (n, all) = (h.value_dim, batch * rows);
    let mut read = |act, len| b.mem().read(act, 0, len);
    let (q, k) = (read(q, all * h.keys()).to_f32(), read(k, all * h.keys()).to_f32());
    let (g, beta) = (read(g, all * h.value).to_f32(), read(beta, all * h.value).to_f32());
    let v = read(qkv, all * h.channels());
    let (dtype, v) = (v.dtype(), v.to_f32());
    let mut states = read(state, batch * h.value * h.key_dim * n).to_f32();
    let at = b.mem().read_ints(positions, all);
    b.exec(site, op);
    let mut out = vec![0.0f32; all * h.values()];
    for (i, state) in states.chunks_mut(h.key_dim * n).enumerate() {
        let (sequence, head) = (i / h.value, i % h.value);
        if at[sequence * rows] == 0 {
            state.fill(0.0);
        }
        for row in sequence * rows..(sequence + 1) * rows {
            let key = (row * h.key + head / (h.value / h.key)) * h.key_dim;
            let (q, k) = (&q[key..][..h.key_dim], &k[key..][..h.key_dim]);
            let (decay, beta) = (g[row * h.value + head].exp(), beta[row * h.value + head]);
            state.iter_mut().for_each(|s| *s *= decay);
            for c in 0..n {
                let v = v[row * h.channels() + 2 * h.keys() + head * n + c];
                let seen = how.sum(h.key_dim, |j| (k[j], state[j * n + c]));
                let error = (v - seen) * beta;
                for (j, k) in k.iter().enumerate() {
                    let s = &mut state[j * n + c];
                    *s = if how.fused { k.mul_add(error, *s) } else { *s + k * error };
                }
                let answer = how.sum(h.key_dim, |j| (q[j] * scale, state[j * n + c]));
                out[row * h.values() + head * n + c] = answer;
            }
        }
    }
    let Op::DeltaRule { out: to, state, .. } = op else { unreachable!("matched above") };
    b.mem().write(to, 0, &Tensor::from_f32(dtype, &out));
    b.mem().write(state, 0, &Tensor::F32(states));
}

fn gated_norm<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::GatedNorm { out, x, z, weight, eps, rows, width } = op else { return };
    let (eps, n, all) = (*eps, *width, *rows * *width);
    let (x, z) = (b.mem().read(x, 0, all), b.mem().read(z, 0, all).to_f32());
    let (dtype, x) = (x.dtype(), x.to_f32());
    let weight = b.mem().read_weight(weight, 0, n).to_f32();
    let mut units = Vec::with_capacity(all);
    for x in x.chunks(n) {
        let sum = how.sum(n, |i| (x[i], x[i])) / n as f32 + eps;
        units.extend(x.iter().map(|x| over_root(how, *x, sum)));
    }
    let units = Tensor::from_f32(dtype, &units).to_f32();
    let scaled: Vec<f32> = units.iter().enumerate().map(|(i, u)| weight[i % n] * u).collect();
    let scaled = Tensor::from_f32(dtype, &scaled).to_f32();
    let silu = |z: f32| f64::from(z) / (1.0 + f64::from(-z).exp());
    let gated = scaled.iter().zip(&z).map(|(s, z)| s * silu(*z) as f32);
    b.mem().write(out, 0, &Tensor::from_f32(dtype, &gated.collect::<Vec<f32>>()));
}
