//! What an op writes: buffers, the parts of them, and how the host reads or rewrites a part.

use super::{Heads, Mem, Memory, Op, Rows, Span};
use crate::tensor::Tensor;

/// Something an op writes, and how to read it as a tap.
pub enum Out<'o, M: Mem> {
    /// Activations or cache rows.
    Act {
        /// The name it is materialised under; `None` takes the name of the op's site.
        name: Option<&'static str>,
        /// The buffer.
        act: &'o mut M::Act,
        /// The written part.
        part: Part<'o, M>,
    },
    /// Integers.
    Ints {
        /// The buffer.
        ints: &'o mut M::Ints,
        /// How many of its first elements are written.
        len: usize,
    },
}

/// Which elements of a buffer an op writes.
pub enum Part<'o, M: Mem> {
    /// Elements `0 .. rows * width`.
    Rows {
        /// Rows written, over all sequences.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// In each of `batch` sequences of `rows.of` rows, `rows.count` rows from `rows.first`.
    Chunk {
        /// Sequences.
        batch: usize,
        /// Rows within a sequence.
        rows: Rows,
        /// Elements in a row.
        width: usize,
    },
    /// Scores or probabilities: the first `keys` elements of each row of `span.stride`.
    Keys(Span<'o, M>),
    /// Cache rows at `positions`: one of `[kv, dim]` for each of `batch * rows` rows.
    Cache {
        /// Head geometry.
        heads: Heads,
        /// Positions the cache can hold.
        capacity: usize,
        /// `[batch * rows]`
        positions: &'o M::Ints,
        /// New rows per sequence.
        rows: usize,
    },
}

/// Name of a convolution's state.
pub const CONV_STATE: &str = "conv_state";
/// Name of a delta rule's state.
pub const STATE: &str = "state";

impl<M: Mem> Op<'_, M> {
    /// All that the op writes, in-place caches included.
    pub fn outs(&mut self) -> Vec<Out<'_, M>> {
        fn named<'o, M: Mem>(
            name: Option<&'static str>,
            act: &'o mut M::Act,
            rows: usize,
            width: usize,
        ) -> Out<'o, M> {
            Out::Act { name, act, part: Part::Rows { rows, width } }
        }
        fn rows<M: Mem>(act: &mut M::Act, rows: usize, width: usize) -> Vec<Out<'_, M>> {
            vec![named::<M>(None, act, rows, width)]
        }
        match self {
            Self::Embed { out, rows: n, width, .. }
            | Self::RmsNorm { out, rows: n, width, .. }
            | Self::Silu { out, rows: n, width, .. }
            | Self::Sigmoid { out, rows: n, width, .. }
            | Self::GatedNorm { out, rows: n, width, .. }
            | Self::Take { out, rows: n, width, .. }
            | Self::Mul { out, rows: n, width, .. }
            | Self::Add { out, rows: n, width, .. } => rows::<M>(out, *n, *width),
            Self::Linear { out, rows: r, width, .. } => rows::<M>(out, r.count, *width),
            Self::Rope { out, rows: n, heads, dim, .. } => rows::<M>(out, *n, *heads * *dim),
            Self::L2Norm { out, rows: n, heads, dim, .. } => rows::<M>(out, *n, *heads * *dim),
            Self::Decay { out, rows: n, heads, .. } => rows::<M>(out, *n, *heads),
            Self::SplitGate { query, gate, rows, heads, dim, .. } => {
                let (rows, width) = (*rows, *heads * *dim);
                vec![
                    named::<M>(Some("q_query"), query, rows, width),
                    named::<M>(None, gate, rows, width),
                ]
            }
            Self::Conv { out, state, batch, rows, heads, .. } => {
                let (channels, kept) = (heads.channels(), *batch * heads.kernel);
                vec![
                    named::<M>(None, out, *batch * *rows, channels),
                    named::<M>(Some(CONV_STATE), state, kept, channels),
                ]
            }
            Self::DeltaRule { out, state, batch, rows, heads, .. } => {
                let kept = *batch * heads.value * heads.key_dim;
                vec![
                    named::<M>(None, out, *batch * *rows, heads.values()),
                    named::<M>(Some(STATE), state, kept, heads.value_dim),
                ]
            }
            Self::KvAppend { cache, positions, heads, rows, .. } => {
                let (heads, capacity, rows) = (*heads, cache.capacity, *rows);
                let positions: &M::Ints = positions;
                let part = || Part::Cache { heads, capacity, positions, rows };
                vec![
                    Out::Act { name: Some("k_cache"), act: &mut cache.k, part: part() },
                    Out::Act { name: Some("v_cache"), act: &mut cache.v, part: part() },
                ]
            }
            Self::Scores { out, span, .. } | Self::Softmax { out, span, .. } => {
                vec![Out::Act { name: None, act: out, part: Part::Keys(*span) }]
            }
            Self::Mix { out, span, .. } => {
                let Heads { batch, query, dim, .. } = span.heads;
                let part = Part::Chunk { batch, rows: span.rows, width: query * dim };
                vec![Out::Act { name: None, act: out, part }]
            }
            Self::Argmax { out, rows, .. } => vec![Out::Ints { ints: out, len: *rows }],
        }
    }
}

/// A written part on the host.
#[derive(Clone, Debug)]
pub struct Written {
    /// `[sequences, heads, rows, width]`; rows of all sequences count as one where the part does
    /// not tell them apart, and heads are 1 but for scores and probabilities.
    pub shape: [usize; 4],
    /// The elements, row-major.
    pub data: Tensor,
}

/// A run of elements in a buffer: first element and length.
type Run = (usize, usize);

impl<M: Mem> Part<'_, M> {
    /// Shape of the part and the runs of elements that make it up, in order.
    fn runs(&self, mem: &mut dyn Memory<M>) -> ([usize; 4], Vec<Run>) {
        match self {
            Self::Rows { rows, width } => ([1, 1, *rows, *width], vec![(0, rows * width)]),
            Self::Chunk { batch, rows, width } => {
                let run = |b| ((b * rows.of + rows.first) * width, rows.count * width);
                ([*batch, 1, rows.count, *width], (0..*batch).map(run).collect())
            }
            Self::Keys(span) => {
                let keys = mem.read_ints(span.keys, 1)[0] as usize;
                let Heads { batch, query, .. } = span.heads;
                let rows = batch * query * span.rows.count;
                let runs = (0..rows).map(|r| (r * span.stride, keys)).collect();
                ([batch, query, span.rows.count, keys], runs)
            }
            Self::Cache { heads, capacity, positions, rows } => {
                let positions = mem.read_ints(positions, heads.batch * rows);
                let mut runs = Vec::new();
                for (row, position) in positions.iter().enumerate() {
                    for head in 0..heads.kv {
                        let matrix = row / rows * heads.kv + head;
                        runs.push((
                            (matrix * capacity + *position as usize) * heads.dim,
                            heads.dim,
                        ));
                    }
                }
                ([heads.batch, 1, *rows, heads.kv * heads.dim], runs)
            }
        }
    }

    /// Copies the part to the host.
    pub fn read(&self, mem: &mut dyn Memory<M>, act: &M::Act) -> Written {
        let (shape, runs) = self.runs(mem);
        let mut runs = runs.into_iter();
        let (start, len) = runs.next().expect("an op writes at least one run");
        let mut data = mem.read(act, start, len);
        for (start, len) in runs {
            data.extend(&mem.read(act, start, len));
        }
        Written { shape, data }
    }

    /// Overwrites the part with `data`, as [`Part::read`] gives it.
    pub fn write(&self, mem: &mut dyn Memory<M>, act: &mut M::Act, data: &Tensor) {
        let (shape, runs) = self.runs(mem);
        assert_eq!(shape.iter().product::<usize>(), data.len(), "write: not the part's shape");
        let mut from = 0;
        for (start, len) in runs {
            mem.write(act, start, &data.slice(from, len));
            from += len;
        }
    }
}
