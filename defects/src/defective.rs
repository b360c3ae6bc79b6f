//! A backend with one defect of the catalogue planted in it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use half::bf16;
use samebits::op::{Backend, Memory, Op, Out, Site};
use samebits::tensor::Tensor;

use crate::catalogue::Defect;
use crate::fault::{Fault, Norm, Reach, Softmax, When};
use crate::{altered, attention, host, rope};

/// A backend that executes ops as `inner` does, but for the defect's.
pub struct Defective<B> {
    inner: B,
    defect: Defect,
    hits: u64,
    kept: BTreeMap<&'static str, Tensor>,
    coin: bool,
}

impl<B: Backend> Defective<B> {
    /// Plants `defect` in `inner`.
    pub fn new(inner: B, defect: &Defect) -> Self {
        // A new hasher's keys differ from process to process; the process keeps its own.
        let coin = RandomState::new().hash_one(0).is_multiple_of(2);
        Self { inner, defect: defect.clone(), hits: 0, kept: BTreeMap::new(), coin }
    }

    /// Ops at which the fault was applied. 0 means that the run never reached it.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// The backend without the defect.
    pub fn into_inner(self) -> B {
        self.inner
    }

    /// Whether the fault acts at the site.
    fn acts_at(&self, site: Site) -> bool {
        let named = match (&self.defect.fault, site.op) {
            (Fault::MaskEdge { .. }, "scores" | "probs" | "mix") => true,
            (Fault::HeadMap, "scores" | "mix") => true,
            (Fault::GateUpSwap, "silu" | "mul") => true,
            (Fault::Stale { .. }, op) => op == "kv_append",
            (_, op) => self.defect.site.op == op,
        };
        named && self.defect.site.covers(site)
    }

    /// Executes the op with the fault in it; `false` where nothing was executed.
    fn apply(&mut self, site: Site, op: &mut Op<'_, B::M>) -> bool {
        let b = &mut self.inner;
        let kept = |op: &str| self.kept.get(op);
        match &self.defect.fault {
            Fault::Null => {
                b.exec(site, op);
                true
            }
            Fault::FlipBit { bit, element } => flip(b, site, op, (*bit, *element)),
            Fault::Norm { form: Norm::Eps(eps) } => altered::eps(b, site, op, *eps),
            Fault::Norm { form: Norm::EpsOutside } => host::eps_outside(b, op),
            Fault::Norm { form: Norm::CastOrder } => altered::cast_order(b, site, op),
            Fault::Norm { form: Norm::OnePlusWeight } => altered::one_plus_weight(b, site, op),
            Fault::Scale { form } => altered::scale(b, site, op, *form),
            Fault::MaskEdge { keys } => altered::mask_edge(b, site, op, *keys),
            Fault::Softmax { form } => host::softmax(b, site, op, *form == Softmax::Half),
            Fault::RopePairing => rope::pairing(b, site, op),
            Fault::RopeTable { form } => rope::tables(b, site, op, *form),
            Fault::RopeLate => rope::late(b, site, op),
            Fault::Skip => host::skip(b, op),
            Fault::HeadMap => attention::head_map(b, site, op),
            Fault::Stale { form, cache } => attention::stale(b, site, op, (*form, *cache)),
            Fault::GateUpSwap if site.op == "silu" => {
                kept("up_proj").is_some_and(|up| altered::silu_of(b, site, op, up))
            }
            Fault::GateUpSwap => {
                kept("gate_proj").is_some_and(|gate| altered::mul_by(b, site, op, gate))
            }
            Fault::Gelu => host::gelu(b, op),
            Fault::Unrounded => kept("gate_proj").is_some_and(|gate| host::unrounded(b, op, gate)),
            Fault::Residual { from } => kept(from).is_some_and(|x| altered::add_to(b, site, op, x)),
            Fault::Block { terms, when } => {
                let many = matches!(op, Op::Linear { rows, .. } if rows.of > 1);
                let on = match when {
                    When::Always => true,
                    When::ManyRows => many,
                    When::Coin => self.coin,
                };
                on && host::block(b, site, op, *terms)
            }
            Fault::Gain { exponent } => host::gain(b, site, op, 1.0 + 2f32.powi(-exponent)),
            Fault::ArgmaxLast => host::argmax_last(b, op),
            Fault::RowShift => altered::row_shift(b, site, op),
        }
    }

    /// Keeps the output of an op that a fault further on needs.
    fn keep(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        let name = match (&self.defect.fault, site.op) {
            (Fault::GateUpSwap, name @ ("gate_proj" | "up_proj")) => name,
            (Fault::Unrounded, name @ "gate_proj") => name,
            (Fault::Residual { from }, name) if from == name => name,
            // The input of the first layer comes from the embedding.
            (Fault::Residual { from }, "embed_tokens") if from == "mlp_residual" => "mlp_residual",
            _ => return,
        };
        self.kept.insert(name, outputs(&mut self.inner, op).remove(0));
    }
}

impl<B: Backend> Backend for Defective<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        if !self.acts_at(site) {
            self.inner.exec(site, op);
        } else if self.defect.reach == Reach::All {
            if self.apply(site, op) {
                self.hits += 1;
            } else {
                self.inner.exec(site, op);
            }
        } else {
            self.inner.exec(site, op);
            let right = outputs(&mut self.inner, op);
            if self.apply(site, op) {
                self.hits += 1;
                merge(&mut self.inner, op, (&right, self.defect.reach));
            }
        }
        self.keep(site, op);
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self.inner.mem()
    }
}

/// The activations that an op has written, in the order of its outs.
fn outputs<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> Vec<Tensor> {
    let mut outputs = Vec::new();
    for out in op.outs() {
        if let Out::Act { act, part, .. } = out {
            outputs.push(part.read(b.mem(), act).data);
        }
    }
    outputs
}

/// Puts back what lies outside the reach.
fn merge<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, (right, reach): (&[Tensor], Reach)) {
    let heads = match op {
        Op::Rope { heads, .. } => *heads,
        Op::Mix { span, .. } => span.heads.query,
        _ => 4,
    };
    let mut right = right.iter();
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        let wrong = part.read(b.mem(), act);
        let right = right.next().expect("an op's outs do not change");
        let [_, by_head, rows, width] = wrong.shape;
        let within = |i: usize| match reach {
            Reach::All => true,
            Reach::LastRow => i / width / rows < by_head && i / width % rows == rows - 1,
            Reach::FirstHead if by_head > 1 => (i / width / rows).is_multiple_of(by_head),
            Reach::FirstHead => i % width < width / heads,
        };
        let mut both = right.clone();
        both.extend(&wrong.data);
        let len = right.len();
        let merged = altered::gather(&both, |i| if i < len && within(i) { len + i } else { i });
        part.write(b.mem(), act, &merged.slice(0, len));
    }
}

/// Runs the op, then flips one bit of what it wrote.
fn flip<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, which: (u32, usize)) -> bool {
    b.exec(site, op);
    let mut flipped = false;
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        let mut data = part.read(b.mem(), act).data;
        let at = which.1.min(data.len() - 1);
        match &mut data {
            Tensor::Bf16(v) => v[at] = bf16::from_bits(v[at].to_bits() ^ (1 << (which.0 % 16))),
            Tensor::F32(v) => v[at] = f32::from_bits(v[at].to_bits() ^ (1 << (which.0 % 32))),
        }
        part.write(b.mem(), act, &data);
        flipped = true;
    }
    flipped
}
