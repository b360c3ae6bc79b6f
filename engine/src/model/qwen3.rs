//! Qwen3's forward pass: one line for each step of the paper.
//!
//! Absent: caches' and buffers' making (`state`), ids and positions (`run`), and every rule of
//! arithmetic. The invariant: no branch on device, dtype, order or cache state.

use super::state::State;
use super::weights::{Layer, Model, Shape};
use crate::checkpoint::CheckpointError;
use crate::op::{Backend, NormForm, Op, Rows, Site, Span};

/// What one forward computes. Ids, positions, key count and kept rows are in the state already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// New rows of each sequence.
    pub rows: usize,
    /// Rows whose logits are wanted, over all sequences; none skips the head.
    pub kept: usize,
}

const FORM: NormForm = NormForm::RoundThenScale;

/// Runs the model over the rows of `step`, appends to the caches, and leaves logits and argmax.
///
/// # Errors
/// What the checkpoint's files answered, where layers are streamed.
pub fn forward<B: Backend>(
    b: &mut B,
    model: &Model<B::M>,
    s: &mut State<B::M>,
    step: Step,
) -> Result<(), CheckpointError> {
    let Shape { hidden: width, vocab, eps, layers, .. } = model.shape;
    let (at, rows, a) = (Site::global, s.limits.batch * step.rows, &mut s.acts);
    let table = &model.embed_tokens;
    b.run(at("embed_tokens"), Op::Embed { out: &mut a.x, table, ids: &s.ids, rows, width });
    for i in 0..layers {
        let layer = model.layer(i)?;
        decode(b, &model.shape, &layer, s, LayerStep { index: i, rows: step.rows });
        layer.release(b.mem().fence());
    }
    s.len += step.rows;
    if step.kept == 0 {
        return Ok(());
    }
    let (a, kept, ids) = (&mut s.acts, step.kept, &s.kept_rows);
    let (out, weight) = (&mut a.h, &model.norm);
    b.run(at("norm"), Op::RmsNorm { out, x: &a.x, weight, eps, form: FORM, rows, width });
    let x = if kept == rows {
        &a.h
    } else {
        b.run(at("kept"), Op::Take { out: &mut a.kept, x: &a.h, ids, rows: kept, width });
        &a.kept
    };
    let (out, weight, rows) = (&mut a.logits, model.lm_head(), Rows::all(kept));
    b.run(at("lm_head"), Op::Linear { out, x, weight, rows, width: vocab });
    let (out, x) = (&mut s.argmax, &a.logits);
    b.run(at("argmax"), Op::Argmax { out, x, rows: kept, width: vocab });
    Ok(())
}

/// One layer's share of a step.
struct LayerStep {
    index: usize,
    rows: usize,
}

/// One decoder layer: attention, then the gated MLP, each added to the residual stream.
fn decode<B: Backend>(
    b: &mut B,
    shape: &Shape,
    w: &Layer<B::M>,
    s: &mut State<B::M>,
    step: LayerStep,
) {
    let heads = shape.heads(s.limits.batch);
    let (q, kv, dim) = (heads.query * heads.dim, heads.kv * heads.dim, heads.dim);
    let (width, inner, eps, form) = (shape.hidden, shape.intermediate, shape.eps, FORM);
    let (seq, rows) = (step.rows, s.limits.batch * step.rows);
    let (q_rows, k_rows, all) = (rows * heads.query, rows * heads.kv, Rows::all(rows));
    let at = |op| Site { layer: Some(step.index), op };
    let (a, cache, positions, table) =
        (&mut s.acts, &mut s.kv[step.index], &s.positions, &s.rotary);

    let weight = &w.input_layernorm;
    b.run(
        at("input_layernorm"),
        Op::RmsNorm { out: &mut a.h, x: &a.x, weight, eps, form, rows, width },
    );
    b.run(
        at("q_proj"),
        Op::Linear { out: &mut a.q, x: &a.h, weight: &w.q_proj, rows: all, width: q },
    );
    b.run(
        at("k_proj"),
        Op::Linear { out: &mut a.k, x: &a.h, weight: &w.k_proj, rows: all, width: kv },
    );
    b.run(
        at("v_proj"),
        Op::Linear { out: &mut a.v, x: &a.h, weight: &w.v_proj, rows: all, width: kv },
    );
    let (out, x, weight) = (&mut a.q_norm, &a.q, &w.q_norm);
    b.run(at("q_norm"), Op::RmsNorm { out, x, weight, eps, form, rows: q_rows, width: dim });
    let (out, x, weight) = (&mut a.k_norm, &a.k, &w.k_norm);
    b.run(at("k_norm"), Op::RmsNorm { out, x, weight, eps, form, rows: k_rows, width: dim });
    let (out, x) = (&mut a.q_rope, &a.q_norm);
    b.run(at("q_rope"), Op::Rope { out, x, table, positions, rows, heads: heads.query, dim });
    let (out, x) = (&mut a.k_rope, &a.k_norm);
    b.run(at("k_rope"), Op::Rope { out, x, table, positions, rows, heads: heads.kv, dim });
    b.run(
        at("kv_append"),
        Op::KvAppend { cache, k: &a.k_rope, v: &a.v, positions, heads, rows: seq },
    );

    let scale = (1.0 / (dim as f64).sqrt()) as f32;
    let (keys, stride, cache) = (&s.keys, s.limits.positions, &s.kv[step.index]);
    for first in (0..seq).step_by(s.limits.chunk) {
        let rows = Rows { first, count: s.limits.chunk.min(seq - first), of: seq };
        let span = Span { heads, rows, positions, keys, stride };
        b.run(at("scores"), Op::Scores { out: &mut a.scores, q: &a.q_rope, cache, scale, span });
        b.run(at("probs"), Op::Softmax { out: &mut a.probs, x: &a.scores, span });
        b.run(at("mix"), Op::Mix { out: &mut a.mix, probs: &a.probs, cache, span });
    }
    let (out, weight) = (&mut a.branch, &w.o_proj);
    b.run(at("o_proj"), Op::Linear { out, x: &a.mix, weight, rows: all, width });
    b.run(at("attn_residual"), Op::Add { out: &mut a.mid, a: &a.x, b: &a.branch, rows, width });

    let (out, weight) = (&mut a.h, &w.post_attention_layernorm);
    b.run(
        at("post_attention_layernorm"),
        Op::RmsNorm { out, x: &a.mid, weight, eps, form, rows, width },
    );
    let (out, weight) = (&mut a.gate, &w.gate_proj);
    b.run(at("gate_proj"), Op::Linear { out, x: &a.h, weight, rows: all, width: inner });
    let (out, weight) = (&mut a.up, &w.up_proj);
    b.run(at("up_proj"), Op::Linear { out, x: &a.h, weight, rows: all, width: inner });
    b.run(at("silu"), Op::Silu { out: &mut a.silu, x: &a.gate, rows, width: inner });
    b.run(at("mul"), Op::Mul { out: &mut a.mul, a: &a.silu, b: &a.up, rows, width: inner });
    let (out, weight) = (&mut a.branch, &w.down_proj);
    b.run(at("down_proj"), Op::Linear { out, x: &a.mul, weight, rows: all, width });
    b.run(at("mlp_residual"), Op::Add { out: &mut a.x, a: &a.mid, b: &a.branch, rows, width });
}
