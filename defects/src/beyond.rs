//! Faults that act beyond a threshold only: of what an engine counts with, the first `from` are
//! right.
//!
//! Here: what can be counted, and where an op or an element of what it writes stands. Absent: what
//! goes wrong there, which any fault may be. The invariant: an op that lies within the threshold is
//! executed as it came.

#[cfg(test)]
mod tests;

use samebits::op::{Backend, Op, Out, Part, Site};
use samebits::tensor::Tensor;
use serde::Deserialize;

use crate::altered::{gather, upload};

/// Where a fault begins to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beyond {
    /// What is counted.
    pub quantity: Quantity,
    /// The first number at which the fault acts, all counted from 0; `terms` above it.
    pub from: usize,
}

/// What an engine counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Layers.
    Layer,
    /// Forwards through one backend.
    Forward,
    /// Forwards since the last one that began at position 0.
    Step,
    /// Forwards that began at position 0: requests, whatever their buffers.
    Request,
    /// Query chunks of a forward.
    Chunk,
    /// Terms of a product's sums; keys, where probabilities meet values.
    Terms,
    /// Sequences of a batch.
    Sequence,
    /// Rows of an op, over all sequences.
    Row,
    /// Positions.
    Position,
    /// Columns of a row.
    Column,
    /// Heads of a row.
    Head,
    /// Keys of a row of scores or probabilities.
    Key,
    /// Bytes of what is written.
    Byte,
}

impl Quantity {
    /// Whether it tells elements of one op apart, or whole ops.
    pub const fn within_ops(self) -> bool {
        use Quantity::{Byte, Column, Head, Key, Position, Row, Sequence};
        matches!(self, Sequence | Row | Position | Column | Head | Key | Byte)
    }
}

/// What a run has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    forwards: usize,
    steps: usize,
    requests: usize,
    chunk: usize,
    batch: usize, // 0 until an op has told
    fresh: bool,  // the forward's positions have not been seen
}

/// The positions of the rows that an op works on.
fn positions<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> Option<(Vec<u32>, Option<usize>)> {
    let (ints, len, batch) = match op {
        Op::Rope { positions, rows, .. } => (*positions, *rows, None),
        Op::KvAppend { positions, heads, rows, .. } => {
            (*positions, heads.batch * *rows, Some(heads.batch))
        }
        Op::Conv { positions, batch, rows, .. } | Op::DeltaRule { positions, batch, rows, .. } => {
            (*positions, batch * *rows, Some(*batch))
        }
        Op::Scores { span, .. } | Op::Softmax { span, .. } | Op::Mix { span, .. } => {
            (span.positions, span.heads.batch * span.rows.of, Some(span.heads.batch))
        }
        _ => return None,
    };
    Some((b.mem().read_ints(ints, len), batch))
}

impl Counts {
    /// Counts an op that is about to be executed.
    pub fn see<B: Backend>(&mut self, b: &mut B, op: &Op<'_, B::M>) {
        if let Op::Embed { .. } = op {
            self.forwards += 1;
            self.steps += 1;
            self.fresh = true;
        }
        if let Op::Scores { span, .. } = op {
            self.chunk = if span.rows.first == 0 { 0 } else { self.chunk + 1 };
        }
        if !self.fresh {
            return;
        }
        let Some((positions, batch)) = positions(b, op) else { return };
        self.fresh = false;
        // Sequences of a batch stand at the same positions.
        let begins = positions.iter().filter(|p| **p == positions[0]).count();
        self.batch = batch.unwrap_or(begins);
        if positions[0] == 0 {
            self.requests += 1;
            self.steps = 0;
        }
    }

    /// Whether an op lies beyond, as far as ops are told apart.
    pub fn reached<B: Backend>(
        &self,
        b: &mut B,
        (site, op): (Site, &Op<'_, B::M>),
        Beyond { quantity, from }: Beyond,
    ) -> bool {
        match quantity {
            Quantity::Layer => site.layer.is_some_and(|layer| layer >= from),
            Quantity::Forward => self.forwards > from,
            Quantity::Step => self.steps > from,
            Quantity::Request => self.requests > from && !self.fresh,
            Quantity::Chunk => self.chunk >= from,
            Quantity::Terms => terms(b, op) > from,
            _ => true,
        }
    }

    /// The number at which each element of a written part stands, and how far the element lies from
    /// the one that stands one lower; nothing where the op does not count such a thing.
    pub fn stands<B: Backend>(
        &self,
        b: &mut B,
        op: &Op<'_, B::M>,
        (part, quantity): (Shape, Quantity),
    ) -> Option<Numbered> {
        let [sequences, by_head, rows, width] = part.shape;
        let (each, first) = match part.joined {
            true if self.batch > 0 && rows % self.batch == 0 => (rows / self.batch, 0),
            true => (rows, 0),
            false => (rows, part.first),
        };
        let flat = move |i: usize| {
            let row = i / width % rows;
            let sequence = if part.joined { row / each } else { i / width / rows / by_head };
            (sequence, first + if part.joined { row % each } else { row })
        };
        let heads = heads(op);
        let numbered = |stride: usize, at: Box<dyn Fn(usize) -> usize>| {
            Some(Numbered { stride: Some(stride), at })
        };
        match quantity {
            Quantity::Sequence if part.joined && self.batch == 0 => None,
            Quantity::Sequence => {
                let stride = if part.joined { each * width } else { by_head * rows * width };
                numbered(stride, Box::new(move |i| flat(i).0))
            }
            Quantity::Row => {
                let of = if part.joined { 0 } else { part.of };
                let at = move |i: usize| match part.joined {
                    true => i / width % rows,
                    false => flat(i).0 * of + flat(i).1,
                };
                numbered(width, Box::new(at))
            }
            Quantity::Column => numbered(1, Box::new(move |i| i % width)),
            Quantity::Key if part.keyed => numbered(1, Box::new(move |i| i % width)),
            Quantity::Head if by_head > 1 => {
                numbered(rows * width, Box::new(move |i| i / width / rows % by_head))
            }
            Quantity::Head => {
                let wide = width / heads?;
                numbered(wide, Box::new(move |i| i % width / wide))
            }
            Quantity::Position => {
                let (positions, _) = positions(b, op)?;
                let of = positions.len() / if part.joined { 1 } else { sequences };
                let at = move |i: usize| match part.joined {
                    true => positions[i / width % rows] as usize,
                    false => positions[flat(i).0 * of + flat(i).1] as usize,
                };
                Some(Numbered { stride: None, at: Box::new(at) })
            }
            Quantity::Byte => {
                let size = part.element_bytes;
                numbered(1, Box::new(move |i| i * size))
            }
            _ => None,
        }
    }
}

/// Numbers of the elements of a part.
pub struct Numbered {
    stride: Option<usize>,
    at: Box<dyn Fn(usize) -> usize>,
}

impl Numbered {
    /// Whether an element stands at `from` or beyond.
    pub fn beyond(&self, i: usize, from: usize) -> bool {
        (self.at)(i) >= from
    }

    /// The element whose number is cut to what lies below `from`.
    pub fn cut(&self, i: usize, (from, step): (usize, usize)) -> usize {
        let at = (self.at)(i);
        let back = self.stride.and_then(|s| i.checked_sub((at - at % from) / step * s));
        if at < from { i } else { back.unwrap_or(i) }
    }
}

/// What must be known of a written part to number its elements.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `[sequences, heads, rows, width]`
    pub shape: [usize; 4],
    joined: bool,
    keyed: bool,
    first: usize,
    of: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
}

impl Shape {
    /// The shape of a part that holds `data`.
    pub fn of<B: Backend>(part: &Part<'_, B::M>, shape: [usize; 4], data: &Tensor) -> Self {
        let (joined, keyed, first, of) = match part {
            Part::Rows { rows, .. } => (true, false, 0, *rows),
            Part::Chunk { rows, .. } => (false, false, rows.first, rows.of),
            Part::Keys(span) => (false, true, span.rows.first, span.rows.of),
            Part::Cache { rows, .. } => (false, false, 0, *rows),
        };
        let element_bytes = data.dtype().size();
        Self { shape, joined, keyed, first, of, element_bytes }
    }
}

/// Heads in a row of what an op writes.
fn heads<M: samebits::op::Mem>(op: &Op<'_, M>) -> Option<usize> {
    Some(match op {
        Op::Rope { heads, .. } | Op::L2Norm { heads, .. } | Op::Decay { heads, .. } => *heads,
        Op::Mix { span, .. } => span.heads.query,
        Op::KvAppend { heads, .. } => heads.kv,
        Op::DeltaRule { heads, .. } => heads.value,
        _ => return None,
    })
}

/// Terms of an op's sums.
fn terms<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> usize {
    match op {
        Op::Linear { weight, .. } => b.mem().weight_shape(weight).1,
        Op::Mix { span, .. } => b.mem().read_ints(span.keys, 1)[0] as usize,
        _ => 0,
    }
}

/// A product whose sums end at as many terms as the threshold says.
pub fn lost<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    beyond: Option<Beyond>,
) -> bool {
    let Some(Beyond { from, .. }) = beyond else { return false };
    let zeroed = |data: Tensor, width: usize| {
        let mut both = data.clone();
        both.extend(&Tensor::zeros(data.dtype(), data.len()));
        let len = data.len();
        gather(&both, |i| if i < len && i % width >= from { len + i } else { i }).slice(0, len)
    };
    match op {
        Op::Linear { out, x, weight, rows, width } => {
            let k = b.mem().weight_shape(weight).1;
            let data = b.mem().read(x, 0, (rows.first + rows.count) * k);
            let x = upload(b, &zeroed(data, k));
            b.run(site, Op::Linear { out, x: &x, weight, rows: *rows, width: *width });
        }
        Op::Mix { out, probs, cache, span } => {
            let rows = span.heads.batch * span.heads.query * span.rows.count;
            let data = b.mem().read(probs, 0, rows * span.stride);
            let probs = upload(b, &zeroed(data, span.stride));
            b.run(site, Op::Mix { out, probs: &probs, cache, span: *span });
        }
        _ => return false,
    }
    true
}

/// What an op has written under the name `own`, with its shape.
pub fn written<B: Backend>(
    b: &mut B,
    (site, own): (Site, &str),
    op: &mut Op<'_, B::M>,
) -> Option<(Shape, Tensor)> {
    op.outs().into_iter().find_map(|out| match out {
        Out::Act { name, act, part } if name.unwrap_or(site.op) == own => {
            let written = part.read(b.mem(), act);
            Some((Shape::of::<B>(&part, written.shape, &written.data), written.data))
        }
        _ => None,
    })
}

/// Overwrites what an op has written under the name `own` with elements of `both`, picked by
/// number.
pub fn overwrite<B: Backend>(
    b: &mut B,
    (site, own): (Site, &str),
    op: &mut Op<'_, B::M>,
    (both, pick): (&Tensor, &dyn Fn(usize) -> usize),
) {
    for out in op.outs() {
        if let Out::Act { name, act, part } = out
            && name.unwrap_or(site.op) == own
        {
            let len = part.read(b.mem(), act).data.len();
            let data = gather(both, |i| if i < len { pick(i) } else { i });
            part.write(b.mem(), act, &data.slice(0, len));
        }
    }
}
