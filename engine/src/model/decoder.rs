//! What both families share: embedding, the layer loop, the MLP and the head.
//!
//! Absent: how a layer mixes positions, which `qwen3` and `qwen3_5` say, and every rule of
//! arithmetic. The invariant: no branch on device, dtype, order or cache state.

use super::shape::Shape;
use super::state::{Activations, State};
use super::weights::{Layer, Mixer, Model};
use super::{qwen3, qwen3_5};
use crate::checkpoint::{CheckpointError, Family};
use crate::op::{Backend, Kv, NormForm, Op, Rows, Site, Span};

/// What one forward computes. Ids, positions, key count and kept rows are in the state already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// New rows of each sequence.
    pub rows: usize,
    /// Rows whose logits are wanted, over all sequences; none skips the head.
    pub kept: usize,
}

/// One layer's share of a step.
#[derive(Clone, Copy)]
pub struct LayerStep {
    /// Which layer.
    pub index: usize,
    /// New rows of each sequence.
    pub rows: usize,
}

impl LayerStep {
    /// A site of the layer.
    pub const fn at(self, op: &'static str) -> Site {
        Site { layer: Some(self.index), op }
    }
}

/// Where the norms of a family round.
pub const fn form(family: Family) -> NormForm {
    match family {
        Family::Qwen3 => NormForm::RoundThenScale,
        Family::Qwen3_5 => NormForm::ZeroCentred,
    }
}

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
    let Shape { hidden: width, vocab, eps, layers, family, .. } = model.shape;
    let (at, rows, a) = (Site::global, s.limits.batch * step.rows, &mut s.acts);
    let table = &model.embed_tokens;
    b.run(at("embed_tokens"), Op::Embed { out: &mut a.x, table, ids: &s.ids, rows, width });
    for index in 0..layers {
        let layer = model.layer(index)?;
        decode(b, &model.shape, &layer, s, LayerStep { index, rows: step.rows });
        layer.release(b.mem().fence());
    }
    s.len += step.rows;
    if step.kept == 0 {
        return Ok(());
    }
    let (a, kept, ids, form) = (&mut s.acts, step.kept, &s.kept_rows, form(family));
    let (out, weight) = (&mut a.h, &model.norm);
    b.run(at("norm"), Op::RmsNorm { out, x: &a.x, weight, eps, form, rows, width });
    b.run(at("kept"), Op::Take { out: &mut a.kept, x: &a.h, ids, rows: kept, width });
    let (out, x, weight, rows) = (&mut a.logits, &a.kept, model.lm_head(), Rows::all(kept));
    b.run(at("lm_head"), Op::Linear { out, x, weight, rows, width: vocab });
    let (out, x) = (&mut s.argmax, &a.logits);
    b.run(at("argmax"), Op::Argmax { out, x, rows: kept, width: vocab });
    Ok(())
}

/// One decoder layer: a mixer, then the gated MLP, each added to the residual stream.
fn decode<B: Backend>(
    b: &mut B,
    shape: &Shape,
    w: &Layer<B::M>,
    s: &mut State<B::M>,
    step: LayerStep,
) {
    let (width, eps, form) = (shape.hidden, shape.eps, form(shape.family));
    let rows = s.limits.batch * step.rows;
    let (a, weight) = (&mut s.acts, &w.input_layernorm);
    let (out, x) = (&mut a.h, &a.x);
    b.run(step.at("input_layernorm"), Op::RmsNorm { out, x, weight, eps, form, rows, width });
    match (&w.mixer, shape.family) {
        (Mixer::Attention(w), Family::Qwen3) => qwen3::attention(b, shape, w, s, step),
        (Mixer::Attention(w), Family::Qwen3_5) => qwen3_5::attention(b, shape, w, s, step),
        (Mixer::DeltaNet(w), _) => qwen3_5::delta_net(b, shape, w, s, step),
    }
    let (a, at) = (&mut s.acts, step.at("attn_residual"));
    b.run(at, Op::Add { out: &mut a.mid, a: &a.x, b: &a.branch, rows, width });
    mlp(b, shape, w, a, rows, step);
}

/// The gated MLP, from the residual stream after the mixer to that after the layer.
fn mlp<B: Backend>(
    b: &mut B,
    shape: &Shape,
    w: &Layer<B::M>,
    a: &mut Activations<B::M>,
    rows: usize,
    step: LayerStep,
) {
    let (width, inner, eps, form) =
        (shape.hidden, shape.intermediate, shape.eps, form(shape.family));
    let (at, all) = (|op| step.at(op), Rows::all(rows));
    let (out, x, weight) = (&mut a.h, &a.mid, &w.post_attention_layernorm);
    let at_norm = at("post_attention_layernorm");
    b.run(at_norm, Op::RmsNorm { out, x, weight, eps, form, rows, width });
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

/// Rotated queries and appended keys to `mix`, a chunk of query rows at a time.
pub fn attend<B: Backend>(b: &mut B, shape: &Shape, s: &mut State<B::M>, step: LayerStep) {
    let (heads, seq) = (shape.heads(s.limits.batch), step.rows);
    let scale = (1.0 / (heads.dim as f64).sqrt()) as f32;
    let (a, positions, keys, stride) = (&mut s.acts, &s.positions, &s.keys, s.limits.positions);
    let cache: &Kv<B::M> = s.carried[step.index].kv();
    for first in (0..seq).step_by(s.limits.chunk) {
        let rows = Rows { first, count: s.limits.chunk.min(seq - first), of: seq };
        let span = Span { heads, rows, positions, keys, stride };
        let (out, q) = (&mut a.scores, &a.q_rope);
        b.run(step.at("scores"), Op::Scores { out, q, cache, scale, span });
        b.run(step.at("probs"), Op::Softmax { out: &mut a.probs, x: &a.scores, span });
        b.run(step.at("mix"), Op::Mix { out: &mut a.mix, probs: &a.probs, cache, span });
    }
}
