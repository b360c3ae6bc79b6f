//! A backend with one defect of the catalogue planted in it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use half::bf16;
use samebits::contract::Dtype;
use samebits::op::{Backend, Memory, Op, Out, Site};
use samebits::tensor::Tensor;

use crate::beyond::{self, Beyond, Counts, Quantity};
use crate::catalogue::Defect;
use crate::fault::{Fault, Norm, Positions, Reach, Softmax, When};
use crate::{altered, attention, host, hybrid, rope, sums, weights};

/// A choice that a process makes once: the keys of a new hasher differ from process to process.
static COIN: LazyLock<bool> = LazyLock::new(|| RandomState::new().hash_one(0).is_multiple_of(2));

/// A backend that executes ops as `inner` does, but for the defect's.
pub struct Defective<B> {
    inner: B,
    defect: Defect,
    hits: u64,
    kept: BTreeMap<&'static str, Tensor>,
    weights: BTreeMap<&'static str, Tensor>,
    positions: BTreeMap<usize, Vec<u32>>, // of the first forward with as many rows
    counts: Counts,
}

impl<B: Backend> Defective<B> {
    /// Plants `defect` in `inner`.
    pub fn new(inner: B, defect: &Defect) -> Self {
        Self {
            inner,
            defect: defect.clone(),
            hits: 0,
            kept: BTreeMap::new(),
            weights: BTreeMap::new(),
            positions: BTreeMap::new(),
            counts: Counts::default(),
        }
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
            (Fault::Legal(_), _) => return true,
            (Fault::MaskEdge { .. } | Fault::TopLeft, "scores" | "probs" | "mix") => true,
            (Fault::HeadMap, "scores" | "mix") => true,
            (Fault::GateUpSwap, "silu" | "mul") => true,
            (Fault::Stale { .. } | Fault::CacheOf { .. }, op) => op == "kv_append",
            (Fault::Wrap { .. }, op) if self.defect.site.op == "k_cache" => op == "kv_append",
            (Fault::Hybrid { form }, _) => form.sees(site, &self.defect.site.op),
            (Fault::Cut | Fault::Unwritten, "kv_append") => {
                matches!(self.defect.site.op.as_str(), "k_cache" | "v_cache")
            }
            (_, op) => self.defect.site.op == op,
        };
        named && self.defect.site.covers(site)
    }

    /// Executes the op with the fault in it; `false` where nothing was executed.
    fn apply(&mut self, site: Site, op: &mut Op<'_, B::M>) -> bool {
        let (b, own) = (&mut self.inner, self.defect.site.op.as_str());
        let kept = |op: &str| self.kept.get(op);
        match &self.defect.fault {
            Fault::Hybrid { form } => hybrid::apply(form, b, &mut self.kept, (site, own), op),
            Fault::Null => {
                b.exec(site, op);
                true
            }
            Fault::FlipBit { bit, element } => flip(b, site, op, (*bit, *element)),
            Fault::Norm { form } => norm(b, site, op, *form),
            Fault::Scale { form } => altered::scale(b, site, op, *form),
            Fault::MaskEdge { keys } => altered::mask_edge(b, site, op, Some(*keys)),
            Fault::TopLeft => altered::mask_edge(b, site, op, None),
            Fault::Softmax { form } => host::softmax(b, site, op, (*form, None)),
            Fault::Sentinel { value } => {
                host::softmax(b, site, op, (Softmax::FirstMax(usize::MAX), Some(*value)))
            }
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
            Fault::Activation { form } => host::activation(b, op, *form),
            Fault::Narrowed => narrowed(b, site, op),
            Fault::Twice => altered::twice(b, site, op),
            Fault::Weight { form } => weights::wrong(b, site, op, *form),
            Fault::WeightOf { from } => self
                .weights
                .get(from.as_str())
                .is_some_and(|data| weights::taking(b, site, op, data)),
            Fault::CacheOf { from } => {
                kept(from).is_some_and(|x| altered::cache_of(b, site, op, x))
            }
            Fault::RopePower { power } => rope::retable(b, site, op, (*power, 64)),
            Fault::RopePartial { of64 } => rope::retable(b, site, op, (1.0, *of64)),
            Fault::RopePositions { form } => self.moved(site, op, *form),
            Fault::Accumulator { terms } => sums::accumulator(b, site, op, *terms),
            Fault::Race { elements } => race(b, site, op, *elements),
            Fault::Wrap { bits } => altered::wrapped(b, site, op, *bits),
            Fault::Legal(how) => sums::legal(b, site, op, *how),
            Fault::Unrounded if matches!(op, Op::Scores { .. }) => {
                sums::scores_unrounded(b, site, op)
            }
            Fault::Unrounded if matches!(op, Op::Rope { .. }) => rope::unrounded(b, op),
            Fault::Unrounded => kept("gate_proj").is_some_and(|gate| host::unrounded(b, op, gate)),
            Fault::Residual { from } => kept(from).is_some_and(|x| altered::add_to(b, site, op, x)),
            Fault::Block { terms, when } => {
                let many = matches!(op, Op::Linear { rows, .. } if rows.of > 1);
                let on = match when {
                    When::Always => true,
                    When::ManyRows => many,
                    When::Coin => *COIN,
                };
                on && host::block(b, site, op, *terms)
            }
            Fault::Gain { exponent } => host::gain(b, site, op, 1.0 + 2f32.powi(-exponent)),
            Fault::ArgmaxLast => host::argmax_last(b, op),
            Fault::RowShift { form } => altered::row_shift(b, site, op, *form),
            Fault::Lost => beyond::lost(b, site, op, self.defect.beyond),
            Fault::Cut | Fault::Unwritten | Fault::Host { .. } => false,
        }
    }

    /// Whether the op lies beyond the defect's threshold, as far as whole ops are told apart.
    fn reached(&mut self, site: Site, op: &Op<'_, B::M>) -> bool {
        let Some(at) = self.defect.beyond else { return true };
        self.counts.see(&mut self.inner, op);
        self.counts.reached(&mut self.inner, (site, op), at)
    }

    /// Executes the op with the fault in those elements that stand beyond a number.
    fn beyond(&mut self, site: Site, op: &mut Op<'_, B::M>, at: Beyond) {
        let place = self.defect.site.clone();
        let own = (site, place.op.as_str());
        let before = match self.defect.fault {
            Fault::Unwritten => beyond::written(&mut self.inner, own, op),
            _ => None,
        };
        self.inner.exec(site, op);
        let Some((shape, right)) = beyond::written(&mut self.inner, own, op) else { return };
        let numbered = self.counts.stands(&mut self.inner, op, (shape, at.quantity));
        let Some(numbered) = numbered else { return };
        let (len, far) = (right.len(), |i: usize| numbered.beyond(i, at.from));
        if !(0..len).any(far) {
            return;
        }
        if self.defect.fault == Fault::Cut {
            let step = if at.quantity == Quantity::Byte { shape.element_bytes } else { 1 };
            let pick = |i| numbered.cut(i, (at.from, step));
            beyond::overwrite(&mut self.inner, own, op, (&right, &pick));
        } else {
            let wrong = match before {
                Some((_, before)) => before,
                None if self.apply(site, op) => {
                    let written = beyond::written(&mut self.inner, own, op);
                    written.expect("the op writes what it wrote before").1
                }
                None => return,
            };
            let mut both = right;
            both.extend(&wrong);
            let pick = |i| if far(i) { len + i } else { i };
            beyond::overwrite(&mut self.inner, own, op, (&both, &pick));
        }
        self.hits += 1;
    }

    /// A rotation by other positions.
    fn moved(&mut self, site: Site, op: &mut Op<'_, B::M>, form: Positions) -> bool {
        let Op::Rope { positions, rows, .. } = op else { return false };
        let now = self.inner.mem().read_ints(positions, *rows);
        let first = self.positions.entry(*rows).or_insert(now);
        rope::positions(&mut self.inner, site, op, (form, Some(first)))
    }

    /// Keeps what a fault further on needs of an op: its weight or its output.
    fn keep(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        if let Fault::WeightOf { from } = &self.defect.fault
            && from == site.op
            && let Some((.., data)) = weights::of(&mut self.inner, op)
        {
            self.weights.insert(site.op, data);
        }
        let name = match (&self.defect.fault, site.op) {
            (Fault::GateUpSwap, name @ ("gate_proj" | "up_proj")) => name,
            (Fault::Unrounded, name @ "gate_proj") => name,
            (Fault::Residual { from } | Fault::CacheOf { from }, name) if from == name => name,
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
        let acts = self.reached(site, op) && self.acts_at(site);
        let within = self.defect.beyond.filter(|at| at.quantity.within_ops());
        if !acts {
            self.inner.exec(site, op);
        } else if let Some(at) = within {
            self.beyond(site, op, at);
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

/// A norm gone wrong.
fn norm<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, form: Norm) -> bool {
    match form {
        Norm::Eps(eps) => altered::eps(b, site, op, eps),
        Norm::EpsOutside => host::wrong_root(b, op, false),
        Norm::Sum => host::wrong_root(b, op, true),
        Norm::CastOrder => altered::cast_order(b, site, op),
        Norm::OnePlusWeight => altered::one_plus_weight(b, site, op),
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

/// Runs the op, then rounds what it wrote to bf16.
fn narrowed<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    b.exec(site, op);
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        let data = part.read(b.mem(), act).data;
        let short = Tensor::from_f32(Dtype::Bf16, &data.to_f32()).to_f32();
        part.write(b.mem(), act, &Tensor::from_f32(data.dtype(), &short));
    }
    true
}

/// Runs the op; the last elements of one row, another at every execution, keep what was there.
fn race<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, elements: usize) -> bool {
    let before = outputs(b, op);
    b.exec(site, op);
    for (out, before) in op.outs().into_iter().zip(before) {
        let Out::Act { act, part, .. } = out else { continue };
        let after = part.read(b.mem(), act);
        let width = after.shape[3];
        let rows = after.data.len() / width;
        let row = RandomState::new().hash_one(0) as usize % rows;
        let mut both = before.clone();
        both.extend(&after.data);
        let len = before.len();
        let stale = |i: usize| i / width == row && i % width + elements >= width;
        let data = altered::gather(&both, |i| if i < len && !stale(i) { len + i } else { i });
        part.write(b.mem(), act, &data.slice(0, len));
    }
    true
}
