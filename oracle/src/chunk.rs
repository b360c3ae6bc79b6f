//! The delta rule in its chunk form, in f64: a second way to the same numbers.
//!
//! Within a chunk the corrections of all tokens solve one unit triangular system; the state is
//! read and written once a chunk. Deliberately absent: rounding of any kind. Invariant: nothing
//! here calls the token-by-token form that it checks.

use crate::hybrid::{Delta, DeltaRule};
use crate::ops::Out;

/// The gated delta rule by chunks of `chunk` tokens, in f64 without any rounding.
///
/// # Panics
/// If `chunk` is 0, or the lengths of the operands do not fit their heads.
pub fn delta_rule_in_chunks(op: &DeltaRule<'_>, chunk: usize) -> Delta {
    let (h, rows) = (op.heads, op.rows());
    let mut core = Out { values: vec![0.0; rows * h.values()], squares: None };
    let mut state = op.state.to_vec();
    for (head, state) in state.chunks_exact_mut(h.key_dim * h.value_dim).enumerate() {
        for first in (0..rows).step_by(chunk) {
            let part = Chunk::new(op, head, first, chunk.min(rows - first));
            let corrections = part.corrections(state);
            for (t, o) in part.outputs(state, &corrections).chunks(h.value_dim).enumerate() {
                let at = ((first + t) * h.value_heads + head) * h.value_dim;
                core.values[at..at + h.value_dim].copy_from_slice(o);
            }
            part.advance(state, &corrections);
        }
    }
    Delta { core, state }
}

/// One chunk of one head.
struct Chunk<'a> {
    q: Vec<Vec<f64>>, // scaled
    k: Vec<&'a [f64]>,
    v: Vec<&'a [f64]>,
    beta: Vec<f64>,
    sum: Vec<f64>, // of g, up to and with each token
    value_dim: usize,
}

impl<'a> Chunk<'a> {
    fn new(op: &DeltaRule<'a>, head: usize, first: usize, n: usize) -> Self {
        let h = op.heads;
        let rows = || first..first + n;
        let at = |row: usize| row * h.value_heads + head;
        let scale = 1.0 / (h.key_dim as f64).sqrt();
        let running = |sum: &mut f64, g: f64| {
            *sum += g;
            Some(*sum)
        };
        Self {
            q: rows().map(|r| op.q[h.key(r, head)].iter().map(|x| x * scale).collect()).collect(),
            k: rows().map(|r| &op.k[h.key(r, head)]).collect(),
            v: rows().map(|r| &op.v[at(r) * h.value_dim..][..h.value_dim]).collect(),
            beta: rows().map(|r| op.beta[at(r)]).collect(),
            sum: rows().map(|r| op.g[at(r)]).scan(0.0, running).collect(),
            value_dim: h.value_dim,
        }
    }

    /// What each token adds along its key: the solution, from the first token on, of
    /// `d_t = beta_t (v_t - e^G_t k_t S - sum over s < t of e^(G_t - G_s) (k_t k_s) d_s)`.
    fn corrections(&self, state: &[f64]) -> Vec<Vec<f64>> {
        let mut solved: Vec<Vec<f64>> = Vec::new();
        for t in 0..self.k.len() {
            let mut d = self.v[t].to_vec();
            add(&mut d, -self.sum[t].exp(), &product(self.k[t], state, self.value_dim));
            for (s, earlier) in solved.iter().enumerate() {
                let overlap = dot(self.k[t], self.k[s]);
                add(&mut d, -(self.sum[t] - self.sum[s]).exp() * overlap, earlier);
            }
            d.iter_mut().for_each(|x| *x *= self.beta[t]);
            solved.push(d);
        }
        solved
    }

    fn outputs(&self, state: &[f64], corrections: &[Vec<f64>]) -> Vec<f64> {
        let output = |(t, q): (usize, &Vec<f64>)| {
            let mut o = vec![0.0; self.value_dim];
            add(&mut o, self.sum[t].exp(), &product(q, state, self.value_dim));
            for (s, d) in corrections[..=t].iter().enumerate() {
                add(&mut o, (self.sum[t] - self.sum[s]).exp() * dot(q, self.k[s]), d);
            }
            o
        };
        self.q.iter().enumerate().flat_map(output).collect()
    }

    fn advance(&self, state: &mut [f64], corrections: &[Vec<f64>]) {
        let last = self.sum[self.sum.len() - 1];
        state.iter_mut().for_each(|x| *x *= last.exp());
        for (t, d) in corrections.iter().enumerate() {
            for (row, k) in state.chunks_exact_mut(self.value_dim).zip(self.k[t]) {
                add(row, (last - self.sum[t]).exp() * k, d);
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `y += a x`.
fn add(y: &mut [f64], a: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// `x S` for `S` of rows of `n`.
fn product(x: &[f64], matrix: &[f64], n: usize) -> Vec<f64> {
    let mut y = vec![0.0; n];
    matrix.chunks_exact(n).zip(x).for_each(|(row, &x)| add(&mut y, x, row));
    y
}
