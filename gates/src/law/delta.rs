//! The gated delta rule in exact arithmetic, with the variance that f32 adds to its state.
//!
//! `V <- g^2 V + 2 c^2 U^2 S^2 + k^2 (beta^2 sigma_m^2 + 2 c^2 U^2 d^2)` beside the state S, d the
//! corrected value; an output has the variance of its own sum and that of `sum q^2 V`. Old errors
//! are corrected by later keys, which is left out: it only makes them smaller. Absent: the order of
//! sums. The invariant: a variance is never negative.

use rayon::prelude::*;
use samebits_oracle::ops::DeltaRule;

use super::sum::{Sum, U};

/// Outputs, `[rows, value_heads, value_dim]`, and the rms of their errors at `c` a rounding.
pub fn outputs(op: &DeltaRule<'_>, c: f64) -> (Vec<f64>, Vec<f64>) {
    let h = op.heads;
    let rows = op.g.len() / h.value_heads;
    let heads: Vec<Vec<(f64, f64)>> =
        (0..h.value_heads).into_par_iter().map(|head| of_head(op, head, rows, c)).collect();
    let at = |i: usize| {
        let (row, head, column) =
            (i / h.value_dim / h.value_heads, i / h.value_dim % h.value_heads, i % h.value_dim);
        heads[head][row * h.value_dim + column]
    };
    (0..rows * h.values()).map(at).unzip()
}

/// One head: outputs and their deviations, `[rows, value_dim]`.
fn of_head(op: &DeltaRule<'_>, head: usize, rows: usize, c: f64) -> Vec<(f64, f64)> {
    let (h, n, unit) = (op.heads, op.heads.value_dim, 2.0 * (c * U).powi(2));
    let key_head = head / (h.value_heads / h.key_heads);
    let scale = 1.0 / (h.key_dim as f64).sqrt();
    let mut state = op.state[head * h.key_dim * n..][..h.key_dim * n].to_vec();
    let mut variance = vec![0.0; state.len()];
    let mut out = Vec::with_capacity(rows * n);
    for row in 0..rows {
        let key = (row * h.key_heads + key_head) * h.key_dim;
        let (q, k) = (&op.q[key..][..h.key_dim], &op.k[key..][..h.key_dim]);
        let at = row * h.value_heads + head;
        let (v, beta, decay) = (&op.v[at * n..][..n], op.beta[at], op.g[at].exp());
        let (mut seen, mut squares) = (vec![0.0; n], vec![0.0; n]);
        for (i, k) in k.iter().enumerate() {
            for column in 0..n {
                let s = &mut state[i * n + column];
                *s *= decay;
                seen[column] += k * *s;
                squares[column] += (k * *s).powi(2);
            }
        }
        let sum = |y: f64, q: f64| Sum { y, q, k: h.key_dim as f64 };
        let delta = |j: usize| {
            let d = (v[j] - seen[j]) * beta;
            let of_sum = beta * sum(seen[j], squares[j]).sigma(c);
            (d, of_sum.powi(2) + unit * d * d)
        };
        let deltas: Vec<(f64, f64)> = (0..n).map(delta).collect();
        let (mut y, mut q2, mut carried) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        for (i, (k, q)) in k.iter().zip(q).enumerate() {
            let q = q * scale;
            for (column, (d, own)) in deltas.iter().enumerate() {
                let (s, var) = (&mut state[i * n + column], &mut variance[i * n + column]);
                *s += k * d;
                *var = decay * decay * *var + unit * *s * *s + k * k * own;
                y[column] += q * *s;
                q2[column] += (q * *s).powi(2);
                carried[column] += q * q * *var;
            }
        }
        out.extend((0..n).map(|j| {
            let own = sum(y[j], q2[j]).sigma(c).powi(2) + unit * y[j] * y[j];
            (y[j], (own + carried[j]).sqrt())
        }));
    }
    out
}
