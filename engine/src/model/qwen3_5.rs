//! Qwen3.5's mixers, gated attention and the gated delta net: one line for each step of the paper.
//!
//! Absent: what the families share (`decoder`), buffers' making (`state`), ids and positions
//! (`run`), and every rule of arithmetic. The invariant: no branch on device, dtype, order or
//! state; a row takes the same steps in a prefill and alone.

use super::decoder::{LayerStep, attend, form};
use super::shape::Shape;
use super::state::State;
use super::weights::{Attention, DeltaNet};
use crate::op::{Backend, Op, Rows};

/// Attention whose heads are gated, over the normed rows in `h`, to `branch`.
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

    let (out, x, weight) = (&mut a.hybrid.q_proj, &a.h, &w.q_proj);
    b.run(at("q_proj"), Op::Linear { out, x, weight, rows: all, width: 2 * q });
    let (query, gate, x, heads_q) = (&mut a.q, &mut a.hybrid.q_gate, &a.hybrid.q_proj, heads.query);
    b.run(at("q_gate"), Op::SplitGate { query, gate, x, rows, heads: heads_q, dim });
    let (out, x, weight) = (&mut a.k, &a.h, &w.k_proj);
    b.run(at("k_proj"), Op::Linear { out, x, weight, rows: all, width: kv });
    let (out, x, weight) = (&mut a.v, &a.h, &w.v_proj);
    b.run(at("v_proj"), Op::Linear { out, x, weight, rows: all, width: kv });
    let (out, x, weight) = (&mut a.q_norm, &a.q, &w.q_norm);
    b.run(at("q_norm"), Op::RmsNorm { out, x, weight, eps, form, rows: q_rows, width: dim });
    let (out, x, weight) = (&mut a.k_norm, &a.k, &w.k_norm);
    b.run(at("k_norm"), Op::RmsNorm { out, x, weight, eps, form, rows: k_rows, width: dim });
    let (out, x) = (&mut a.q_rope, &a.q_norm);
    b.run(at("q_rope"), Op::Rope { out, x, table, positions, rows, heads: heads_q, dim, rotary });
    let (out, x, heads_k) = (&mut a.k_rope, &a.k_norm, heads.kv);
    b.run(at("k_rope"), Op::Rope { out, x, table, positions, rows, heads: heads_k, dim, rotary });
    let (k, v, seq) = (&a.k_rope, &a.v, step.rows);
    b.run(at("kv_append"), Op::KvAppend { cache, k, v, positions, heads, rows: seq });
    attend(b, shape, s, step);
    let (a, width) = (&mut s.acts, q);
    let (out, x) = (&mut a.hybrid.gate_sigmoid, &a.hybrid.q_gate);
    b.run(at("gate_sigmoid"), Op::Sigmoid { out, x, rows, width });
    let (out, gate) = (&mut a.hybrid.mix_gated, &a.hybrid.gate_sigmoid);
    b.run(at("mix_gated"), Op::Mul { out, a: &a.mix, b: gate, rows, width });
    let (out, x, weight) = (&mut a.branch, &a.hybrid.mix_gated, &w.o_proj);
    b.run(at("o_proj"), Op::Linear { out, x, weight, rows: all, width: shape.hidden });
}

/// The gated delta net over the normed rows in `h`, to `branch`.
pub fn delta_net<B: Backend>(
    b: &mut B,
    shape: &Shape,
    w: &DeltaNet<B::M>,
    s: &mut State<B::M>,
    step: LayerStep,
) {
    let (heads, batch, seq) = (shape.delta, s.limits.batch, step.rows);
    let (channels, values, value) = (heads.channels(), heads.values(), heads.value);
    let (rows, eps, positions) = (batch * seq, shape.eps, &s.positions);
    let (all, at) = (Rows::all(rows), |op| step.at(op));
    let (h, branch, a) = (&s.acts.h, &mut s.acts.branch, &mut s.acts.hybrid);
    let state = s.carried[step.index].gdn();

    let (out, weight) = (&mut a.qkv, &w.in_proj_qkv);
    b.run(at("in_proj_qkv"), Op::Linear { out, x: h, weight, rows: all, width: channels });
    let (out, weight) = (&mut a.z, &w.in_proj_z);
    b.run(at("in_proj_z"), Op::Linear { out, x: h, weight, rows: all, width: values });
    let (out, weight) = (&mut a.b, &w.in_proj_b);
    b.run(at("in_proj_b"), Op::Linear { out, x: h, weight, rows: all, width: value });
    let (out, weight) = (&mut a.a, &w.in_proj_a);
    b.run(at("in_proj_a"), Op::Linear { out, x: h, weight, rows: all, width: value });

    let (out, last, x, weight) = (&mut a.conv, &mut state.conv, &a.qkv, &w.conv1d);
    b.run(at("conv"), Op::Conv { out, state: last, x, weight, positions, batch, rows: seq, heads });
    b.run(at("conv_silu"), Op::Silu { out: &mut a.conv_silu, x: &a.conv, rows, width: channels });
    b.run(at("beta"), Op::Sigmoid { out: &mut a.beta, x: &a.b, rows, width: value });
    let (out, a_log, dt_bias) = (&mut a.g, &w.a_log, &w.dt_bias);
    b.run(at("g"), Op::Decay { out, a: &a.a, a_log, dt_bias, rows, heads: value });

    // Queries, keys and values lie side by side in a row.
    let (x, stride, key, dim) = (&a.conv_silu, channels, heads.key, heads.key_dim);
    let (out, first) = (&mut a.q_l2, 0);
    b.run(at("q_l2"), Op::L2Norm { out, x, first, stride, rows, heads: key, dim });
    let (out, first) = (&mut a.k_l2, heads.keys());
    b.run(at("k_l2"), Op::L2Norm { out, x, first, stride, rows, heads: key, dim });
    let scale = (1.0 / (dim as f64).sqrt()) as f32;
    let (out, state, qkv) = (&mut a.core, &mut state.s, &a.conv_silu);
    let (q, k, g, beta, rows) = (&a.q_l2, &a.k_l2, &a.g, &a.beta, seq);
    b.run(
        at("core"),
        Op::DeltaRule { out, state, q, k, qkv, g, beta, scale, positions, batch, rows, heads },
    );

    let (out, x, z, weight) = (&mut a.gdn_norm, &a.core, &a.z, &w.norm);
    let (rows, width) = (all.count * value, heads.value_dim);
    b.run(at("gdn_norm"), Op::GatedNorm { out, x, z, weight, eps, rows, width });
    let (out, x, weight, width) = (branch, &a.gdn_norm, &w.out_proj, shape.hidden);
    b.run(at("out_proj"), Op::Linear { out, x, weight, rows: all, width });
}
