//! Qwen3's attention: one line for each step of the paper.
//!
//! Absent: what the families share (`decoder`), buffers' making (`state`), ids and positions
//! (`run`), and every rule of arithmetic. The invariant: no branch on device, dtype, order or cache
//! state.

use super::decoder::{LayerStep, attend, form};
use super::shape::Shape;
use super::state::State;
use super::weights::Attention;
use crate::op::{Backend, Op, Rows};

/// Attention over the normed rows in `h`, to `branch`.
pub fn attention<B: Backend>(
    b: &mut B,
    shape: &Shape,
    w: &Attention<B::M>,
    s: &mut State<B::M>,
    step: LayerStep,
) {
    let heads = shape.heads(s.limits.batch);
    let (q, kv, dim, rotary) =
        (heads.query * heads.dim, heads.kv * heads.dim, heads.dim, shape.rotary_dim);
    let (eps, form, rows) = (shape.eps, form(shape.family), s.limits.batch * step.rows);
    let (q_rows, k_rows, all) = (rows * heads.query, rows * heads.kv, Rows::all(rows));
    let at = |op| step.at(op);
    let (a, cache, positions, table) =
        (&mut s.acts, s.carried[step.index].kv(), &s.positions, &s.rotary);

    let (out, x, weight) = (&mut a.q, &a.h, &w.q_proj);
    b.run(at("q_proj"), Op::Linear { out, x, weight, rows: all, width: q });
    let (out, x, weight) = (&mut a.k, &a.h, &w.k_proj);
    b.run(at("k_proj"), Op::Linear { out, x, weight, rows: all, width: kv });
    let (out, x, weight) = (&mut a.v, &a.h, &w.v_proj);
    b.run(at("v_proj"), Op::Linear { out, x, weight, rows: all, width: kv });
    let (out, x, weight) = (&mut a.q_norm, &a.q, &w.q_norm);
    b.run(at("q_norm"), Op::RmsNorm { out, x, weight, eps, form, rows: q_rows, width: dim });
    let (out, x, weight) = (&mut a.k_norm, &a.k, &w.k_norm);
    b.run(at("k_norm"), Op::RmsNorm { out, x, weight, eps, form, rows: k_rows, width: dim });
    let (out, x, heads_q) = (&mut a.q_rope, &a.q_norm, heads.query);
    b.run(at("q_rope"), Op::Rope { out, x, table, positions, rows, heads: heads_q, dim, rotary });
    let (out, x, heads_k) = (&mut a.k_rope, &a.k_norm, heads.kv);
    b.run(at("k_rope"), Op::Rope { out, x, table, positions, rows, heads: heads_k, dim, rotary });
    let (k, v, rows) = (&a.k_rope, &a.v, step.rows);
    b.run(at("kv_append"), Op::KvAppend { cache, k, v, positions, heads, rows });
    attend(b, shape, s, step);
    let (a, weight, width) = (&mut s.acts, &w.o_proj, shape.hidden);
    let (out, x) = (&mut a.branch, &a.mix);
    b.run(at("o_proj"), Op::Linear { out, x, weight, rows: all, width });
}
