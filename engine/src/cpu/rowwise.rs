//! Ops on rows that need no neighbours: embedding, norm, rotation, elementwise, argmax.

use rayon::prelude::*;

use super::kernels::Table;
use super::memory::{Act, CpuMem, Weight};
use crate::contract::Element;
use crate::op::{NormForm, Rotary};

/// Elements below which an op is not worth a second thread.
const TASK: usize = 8192;

/// `out[r] = table[ids[r]]`.
pub fn embed<E: Element>(out: &mut Act, table: &Weight, ids: &[u32], width: usize) {
    let (panels, packed) = table.panels::<E>();
    assert_eq!(panels.k, width, "embed: table columns are not the output's width");
    let out = out.rows_mut::<E>(ids.len(), width);
    for (out, id) in out.chunks_exact_mut(width).zip(ids) {
        for (k, out) in out.iter_mut().enumerate() {
            *out = packed[panels.index(*id as usize, k)];
        }
    }
}

/// `out[r] = x[ids[r]]`.
pub fn take<E: Element>(out: &mut [E], x: &[E], ids: &[u32], width: usize) {
    for (out, id) in out.chunks_exact_mut(width).zip(ids) {
        out.copy_from_slice(&x[*id as usize * width..][..width]);
    }
}

/// What a norm does to each vector.
#[derive(Clone, Copy)]
pub struct Norm {
    /// Added to the mean of squares.
    pub eps: f32,
    /// Where it rounds.
    pub form: NormForm,
    /// Elements of a vector.
    pub width: usize,
}

/// RMSNorm of each vector of `x`.
pub fn rms_norm<E: Element>(table: &Table<E>, out: &mut [E], x: &[E], w: &Weight, norm: Norm) {
    let weight = w.vector::<E>();
    assert_eq!(weight.len(), norm.width, "rms_norm: weight is not as long as a vector");
    map(out, x, norm.width, |out, x| {
        for (out, x) in out.chunks_exact_mut(norm.width).zip(x.chunks_exact(norm.width)) {
            (table.rms_norm)(out, x, weight, norm.eps, norm.form);
        }
    });
}

/// How a row divides into heads.
#[derive(Clone, Copy)]
pub struct Split {
    /// Elements of a row.
    pub width: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Elements of a head that are rotated.
    pub rotary: usize,
}

/// Rotates each head of each row by the angles of the row's position.
pub fn rope<E: Element>(
    table: &Table<E>,
    out: &mut [E],
    x: &[E],
    rotary: &Rotary<CpuMem>,
    positions: &[u32],
    split: Split,
) {
    let half = split.rotary / 2;
    let rows = positions.iter().max().map_or(0, |p| *p as usize + 1);
    let (cos, sin) = (rotary.cos.rows::<E>(rows, half), rotary.sin.rows::<E>(rows, half));
    let rows = out.par_chunks_exact_mut(split.width).zip(x.par_chunks_exact(split.width));
    rows.zip(positions).with_min_len(TASK.div_ceil(split.width)).for_each(
        |((out, x), position)| {
            let at = *position as usize * half;
            let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
            for (out, x) in out.chunks_exact_mut(split.dim).zip(x.chunks_exact(split.dim)) {
                (table.rope)(out, x, cos, sin);
            }
        },
    );
}

/// `f(out, x)` on runs of whole rows.
pub fn map<E: Element>(out: &mut [E], x: &[E], width: usize, f: impl Fn(&mut [E], &[E]) + Sync) {
    let run = TASK.div_ceil(width) * width;
    out.par_chunks_mut(run).zip(x.par_chunks(run)).for_each(|(out, x)| f(out, x));
}

/// `f(out, a, b)` on runs of whole rows.
pub fn zip<E: Element>(
    out: &mut [E],
    a: &[E],
    b: &[E],
    width: usize,
    f: impl Fn(&mut [E], &[E], &[E]) + Sync,
) {
    let run = TASK.div_ceil(width) * width;
    let inputs = a.par_chunks(run).zip(b.par_chunks(run));
    out.par_chunks_mut(run).zip(inputs).for_each(|(out, (a, b))| f(out, a, b));
}

/// The lowest index among the largest of each row; `u32::MAX` where a row holds a NaN.
pub fn argmax<E: Element>(out: &mut [u32], x: &[E], width: usize) {
    out.par_iter_mut().zip(x.par_chunks_exact(width)).for_each(|(out, x)| {
        let mut best = (f32::NEG_INFINITY, 0);
        let mut nan = false;
        for (i, x) in x.iter().enumerate() {
            let x = x.widen();
            nan |= x.is_nan();
            if x > best.0 {
                best = (x, i as u32);
            }
        }
        *out = if nan { u32::MAX } else { best.1 };
    });
}
