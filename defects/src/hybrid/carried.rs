//! What layers carry from one forward to the next, gone wrong.

use samebits::contract::silu;
use samebits::op::{Backend, Memory, Op, Site};
use samebits::tensor::Tensor;

use super::Carried;
use crate::altered::upload_ints;

/// Sequences, rows of each, elements of a sequence's state, and elements of a row of it.
struct Geometry {
    batch: usize,
    rows: usize,
    each: usize,
    width: usize,
    taps: usize,
}

/// The geometry of an op that carries something on.
fn geometry<M: samebits::op::Mem>(op: &Op<'_, M>) -> Option<Geometry> {
    match op {
        Op::Conv { batch, rows, heads, .. } => {
            let (width, taps) = (heads.channels(), heads.kernel);
            Some(Geometry { batch: *batch, rows: *rows, each: taps * width, width, taps })
        }
        Op::DeltaRule { batch, rows, heads, .. } => {
            let width = heads.value_dim;
            let each = heads.value * heads.key_dim * width;
            Some(Geometry { batch: *batch, rows: *rows, each, width, taps: 1 })
        }
        _ => None,
    }
}

fn state<'o, M: samebits::op::Mem>(op: &'o mut Op<'_, M>) -> &'o mut M::Act {
    match op {
        Op::Conv { state, .. } | Op::DeltaRule { state, .. } => state,
        _ => unreachable!("only these carry anything on"),
    }
}

/// Runs the op as if its sequences had begun one row earlier: nothing is reset.
fn unreset<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) {
    let (positions, count) = match op {
        Op::Conv { positions, batch, rows, .. } | Op::DeltaRule { positions, batch, rows, .. } => {
            (*positions, *batch * *rows)
        }
        _ => unreachable!("only these are reset"),
    };
    let later: Vec<u32> = b.mem().read_ints(positions, count).iter().map(|p| p + 1).collect();
    let positions = &upload_ints(b, &later);
    match op {
        Op::Conv { out, state, x, weight, batch, rows, heads, .. } => {
            let (batch, rows, heads) = (*batch, *rows, *heads);
            b.run(site, Op::Conv { out, state, x, weight, positions, batch, rows, heads });
        }
        Op::DeltaRule { out, state, q, k, qkv, g, beta, scale, batch, rows, heads, .. } => {
            let (scale, batch, rows, heads) = (*scale, *batch, *rows, *heads);
            b.run(
                site,
                Op::DeltaRule {
                    out,
                    state,
                    q,
                    k,
                    qkv,
                    g,
                    beta,
                    scale,
                    positions,
                    batch,
                    rows,
                    heads,
                },
            );
        }
        _ => unreachable!("only these are reset"),
    }
}

/// Runs the op with what it carries gone wrong.
pub fn wrong<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Carried) -> bool {
    let Some(g) = geometry(op) else { return false };
    let len = g.batch * g.each;
    let begins = begins(b, op);
    let dtype = b.mem().read(state(op), 0, 1).dtype();
    match how {
        Carried::Lost | Carried::LostInSteps => {
            let lost = !begins && (how == Carried::Lost || g.rows == 1);
            if lost {
                b.mem().write(state(op), 0, &Tensor::zeros(dtype, len));
                b.exec(site, op);
            }
            lost
        }
        Carried::Kept if begins => {
            unreset(b, site, op);
            true
        }
        Carried::Ones if begins => {
            b.mem().write(state(op), 0, &Tensor::from_f32(dtype, &vec![1.0; len]));
            unreset(b, site, op);
            true
        }
        Carried::Kept | Carried::Ones => false,
        Carried::OtherSequence => {
            b.exec(site, op);
            let first = b.mem().read(state(op), 0, g.each);
            b.mem().write(state(op), len - g.each, &first);
            g.batch > 1
        }
        Carried::ShortUnwritten | Carried::StepUnwritten => {
            let most = if how == Carried::StepUnwritten { 2 } else { g.taps };
            if g.rows + 1 >= most.max(3) && how == Carried::ShortUnwritten || g.rows >= most {
                return false;
            }
            // Where a sequence begins, what was there before are the zeros it starts from.
            let old = b.mem().read(state(op), 0, len);
            b.exec(site, op);
            let old = if begins { Tensor::zeros(dtype, len) } else { old };
            b.mem().write(state(op), 0, &old);
            true
        }
        Carried::Late => {
            b.exec(site, op);
            older(b.mem(), state(op), &g);
            true
        }
        Carried::Activated => {
            b.exec(site, op);
            let data = b.mem().read(state(op), 0, len).to_f32();
            // What an earlier forward left is activated already.
            let new = g.rows.min(g.taps) * g.width;
            let active = |(i, x): (usize, &f32)| {
                if i % g.each >= g.each - new { silu(*x) } else { *x }
            };
            let data: Vec<f32> = data.iter().enumerate().map(active).collect();
            b.mem().write(state(op), 0, &Tensor::from_f32(dtype, &data));
            true
        }
    }
}

/// Whether the op's sequences are at their start.
fn begins<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> bool {
    match op {
        Op::Conv { positions, .. } | Op::DeltaRule { positions, .. } => {
            b.mem().read_ints(positions, 1)[0] == 0
        }
        _ => false,
    }
}

/// Moves every row of each sequence's state one place up; the oldest stays.
fn older<M: samebits::op::Mem>(mem: &mut dyn Memory<M>, state: &mut M::Act, g: &Geometry) {
    for sequence in 0..g.batch {
        let start = sequence * g.each;
        let kept = mem.read(state, start, g.each - g.width);
        mem.write(state, start + g.width, &kept);
    }
}
