//! The buffers of a run, all made once: caches, tables, activations.

use super::shape::Shape;
use super::weights::Model;
use crate::checkpoint::Family;
use crate::contract::{Dtype, RotaryTables};
use crate::op::{Backend, Gdn, Heads, Kv, Layout, Mem, Memory, Rotary, Site};
use crate::tensor::Tensor;

/// How large a run may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences, of equal length.
    pub batch: usize,
    /// Positions of a sequence, prompt and continuation.
    pub positions: usize,
    /// New rows of a sequence in one forward.
    pub rows: usize,
    /// Rows of a sequence whose logits one forward keeps.
    pub logit_rows: usize,
    /// Query rows whose scores exist at once.
    pub chunk: usize,
}

/// Activations of one forward, named for their sites. Rows are those of all sequences.
pub struct Activations<M: Mem> {
    /// Residual stream.
    pub x: M::Act, // [rows, hidden]
    /// Output of either norm of a layer.
    pub h: M::Act, // [rows, hidden]
    /// Queries.
    pub q: M::Act, // [rows, heads, head_dim]
    /// Keys.
    pub k: M::Act, // [rows, kv_heads, head_dim]
    /// Values.
    pub v: M::Act, // [rows, kv_heads, head_dim]
    /// Normed queries.
    pub q_norm: M::Act, // [rows, heads, head_dim]
    /// Normed keys.
    pub k_norm: M::Act, // [rows, kv_heads, head_dim]
    /// Rotated queries.
    pub q_rope: M::Act, // [rows, heads, head_dim]
    /// Rotated keys.
    pub k_rope: M::Act, // [rows, kv_heads, head_dim]
    /// Scores of a chunk.
    pub scores: M::Act, // [batch, heads, chunk, positions]
    /// Probabilities of a chunk.
    pub probs: M::Act, // [batch, heads, chunk, positions]
    /// Attention before its output projection.
    pub mix: M::Act, // [rows, heads, head_dim]
    /// Output of attention, then of the MLP.
    pub branch: M::Act, // [rows, hidden]
    /// Residual stream after attention.
    pub mid: M::Act, // [rows, hidden]
    /// Gate of the MLP.
    pub gate: M::Act, // [rows, intermediate]
    /// Value of the MLP.
    pub up: M::Act, // [rows, intermediate]
    /// Activated gate.
    pub silu: M::Act, // [rows, intermediate]
    /// Gated value.
    pub mul: M::Act, // [rows, intermediate]
    /// What only the layers of a hybrid write.
    pub hybrid: HybridActivations<M>,
    /// Rows of the final norm whose logits are wanted.
    pub kept: M::Act, // [logit rows, hidden]
    /// Logits.
    pub logits: M::Act, // [logit rows, vocab]
}

/// Activations of a hybrid's layers; all empty in a dense model.
pub struct HybridActivations<M: Mem> {
    /// Each head's query and gate.
    pub q_proj: M::Act, // [rows, heads, 2, head_dim]
    /// Gates of attention.
    pub q_gate: M::Act, // [rows, heads, head_dim]
    /// Their sigmoids.
    pub gate_sigmoid: M::Act, // [rows, heads, head_dim]
    /// Gated attention.
    pub mix_gated: M::Act, // [rows, heads, head_dim]
    /// Queries, keys and values as projected.
    pub qkv: M::Act, // [rows, channels]
    /// The same after the convolution.
    pub conv: M::Act, // [rows, channels]
    /// The same, activated.
    pub conv_silu: M::Act, // [rows, channels]
    /// Gates of the norm.
    pub z: M::Act, // [rows, value heads, value_dim]
    /// Strengths of the write, as projected.
    pub b: M::Act, // [rows, value heads]
    /// Steps of the decay, as projected.
    pub a: M::Act, // [rows, value heads]
    /// Strengths of the write.
    pub beta: M::Act, // [rows, value heads]
    /// Logarithms of the decay, in f32.
    pub g: M::Act, // [rows, value heads]
    /// Unit queries, in f32.
    pub q_l2: M::Act, // [rows, key heads, key_dim]
    /// Unit keys, in f32.
    pub k_l2: M::Act, // [rows, key heads, key_dim]
    /// What the delta rule reads from its state.
    pub core: M::Act, // [rows, value heads, value_dim]
    /// The same, normed and gated.
    pub gdn_norm: M::Act, // [rows, value heads, value_dim]
}

/// What a layer carries from one position to the next.
pub enum Carried<M: Mem> {
    /// Attention: keys and values.
    Kv(Kv<M>),
    /// A gated delta net: its last inputs and its state.
    Gdn(Gdn<M>),
}

impl<M: Mem> Carried<M> {
    /// The cache of an attention layer.
    pub fn kv(&mut self) -> &mut Kv<M> {
        match self {
            Self::Kv(kv) => kv,
            Self::Gdn(_) => panic!("a gated delta net has no keys and values"),
        }
    }

    /// The state of a gated delta net.
    pub fn gdn(&mut self) -> &mut Gdn<M> {
        match self {
            Self::Gdn(gdn) => gdn,
            Self::Kv(_) => panic!("attention has no recurrent state"),
        }
    }
}

/// Everything a run writes.
pub struct State<M: Mem> {
    /// What the buffers were made for.
    pub limits: Limits,
    /// Positions filled so far.
    pub len: usize,
    /// Rotary tables for all positions.
    pub rotary: Rotary<M>,
    /// Caches and states, one a layer.
    pub carried: Vec<Carried<M>>,
    /// Activations.
    pub acts: Activations<M>,
    /// Ids of the forward.
    pub ids: M::Ints, // [rows]
    /// Positions of the forward.
    pub positions: M::Ints, // [rows]
    /// Keys in the cache after the forward.
    pub keys: M::Ints, // [1]
    /// Numbers of the rows whose logits are wanted.
    pub kept_rows: M::Ints, // [logit rows]
    /// Argmax of the logits.
    pub argmax: M::Ints, // [logit rows]
    vocab: usize,
    sequences: Vec<u32>, // 0 .. batch
    host: Vec<u32>,      // [batch]
}

/// Site of the rotary cosines.
pub const ROTARY_COS: Site = Site::global("rotary.cos");
/// Site of the rotary sines.
pub const ROTARY_SIN: Site = Site::global("rotary.sin");

impl<M: Mem> State<M> {
    /// Buffers for a run of `model`; `tables` replaces the contract's own rotary tables.
    pub fn new<B: Backend<M = M>>(
        b: &mut B,
        model: &Model<M>,
        limits: Limits,
        tables: Option<&RotaryTables>,
    ) -> Self {
        let Limits { batch, positions, rows, logit_rows, .. } = limits;
        let own;
        let tables = match tables {
            Some(tables) => tables,
            None => {
                let (theta, dim) = (model.shape.theta, model.shape.rotary_dim);
                own = RotaryTables::new(model.dtype, theta, dim, positions);
                &own
            }
        };
        assert_eq!(tables.half, model.shape.rotary_dim / 2, "rotary tables are of another width");
        assert!(tables.positions() >= positions, "rotary tables are too short");
        let mem = b.mem();
        let rotary = upload(mem, model.dtype, tables, positions);
        let carried = (0..model.shape.layers).map(|i| carried(mem, model, i, limits)).collect();
        Self {
            limits,
            len: 0,
            rotary,
            carried,
            acts: activations(mem, &model.shape, model.dtype, limits),
            ids: mem.alloc_ints(batch * rows),
            positions: mem.alloc_ints(batch * rows),
            keys: mem.alloc_ints(1),
            kept_rows: mem.alloc_ints(batch * logit_rows),
            argmax: mem.alloc_ints(batch * logit_rows),
            vocab: model.shape.vocab,
            sequences: (0..batch as u32).collect(),
            host: vec![0; batch],
        }
    }

    /// Writes the next id of each sequence; every row's logits are kept. Allocates nothing.
    pub fn feed_one<B: Backend<M = M>>(&mut self, b: &mut B, ids: &[u32]) {
        let mem = b.mem();
        self.host.fill(self.len as u32);
        mem.write_ints(&mut self.ids, ids);
        mem.write_ints(&mut self.positions, &self.host);
        mem.write_ints(&mut self.keys, &[self.len as u32 + 1]);
        mem.write_ints(&mut self.kept_rows, &self.sequences);
    }

    /// Row `row` of the kept logits, on the host.
    pub fn logits_row<B: Backend<M = M>>(&self, b: &mut B, row: usize) -> Tensor {
        b.mem().read(&self.acts.logits, row * self.vocab, self.vocab)
    }

    /// Forgets all positions; buffers stay as they are, since a sequence at position 0 reads none.
    pub fn reset(&mut self) {
        self.len = 0;
    }
}

fn upload<M: Mem>(
    mem: &mut dyn Memory<M>,
    dtype: Dtype,
    tables: &RotaryTables,
    positions: usize,
) -> Rotary<M> {
    let mut table = |values: &[f32]| {
        let values = Tensor::from_f32(dtype, &values[..positions * tables.half]);
        let mut act = mem.alloc(values.len(), dtype, Layout::RowMajor);
        mem.write(&mut act, 0, &values);
        act
    };
    Rotary { cos: table(&tables.cos), sin: table(&tables.sin) }
}

/// What layer `i` carries.
fn carried<M: Mem>(
    mem: &mut dyn Memory<M>,
    model: &Model<M>,
    i: usize,
    limits: Limits,
) -> Carried<M> {
    let (shape, Limits { batch, positions, .. }) = (&model.shape, limits);
    if shape.kinds.is_full(i) {
        return Carried::Kv(cache(mem, model.dtype, shape.heads(batch), positions));
    }
    let delta = shape.delta;
    let conv = batch * delta.kernel * delta.channels();
    let s = batch * delta.value * delta.key_dim * delta.value_dim;
    Carried::Gdn(Gdn {
        conv: mem.alloc(conv, model.dtype, Layout::RowMajor),
        s: mem.alloc(s, Dtype::F32, Layout::RowMajor),
    })
}

fn cache<M: Mem>(mem: &mut dyn Memory<M>, dtype: Dtype, heads: Heads, capacity: usize) -> Kv<M> {
    let len = heads.batch * heads.kv * capacity * heads.dim;
    Kv {
        k: mem.alloc(len, dtype, Layout::Keys(heads)),
        v: mem.alloc(len, dtype, Layout::Values(heads)),
        capacity,
    }
}

fn activations<M: Mem>(
    mem: &mut dyn Memory<M>,
    shape: &Shape,
    dtype: Dtype,
    limits: Limits,
) -> Activations<M> {
    let rows = limits.batch * limits.rows;
    let (query, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let keys = limits.batch * shape.heads * limits.chunk * limits.positions;
    let kept = limits.batch * limits.logit_rows;
    let hybrid = hybrid_activations(mem, shape, dtype, rows);
    let mut act = |len| mem.alloc(len, dtype, Layout::RowMajor);
    Activations {
        hybrid,
        x: act(rows * shape.hidden),
        h: act(rows * shape.hidden),
        q: act(rows * query),
        k: act(rows * kv),
        v: act(rows * kv),
        q_norm: act(rows * query),
        k_norm: act(rows * kv),
        q_rope: act(rows * query),
        k_rope: act(rows * kv),
        scores: act(keys),
        probs: act(keys),
        mix: act(rows * query),
        branch: act(rows * shape.hidden),
        mid: act(rows * shape.hidden),
        gate: act(rows * shape.intermediate),
        up: act(rows * shape.intermediate),
        silu: act(rows * shape.intermediate),
        mul: act(rows * shape.intermediate),
        kept: act(kept * shape.hidden),
        logits: act(kept * shape.vocab),
    }
}

fn hybrid_activations<M: Mem>(
    mem: &mut dyn Memory<M>,
    shape: &Shape,
    dtype: Dtype,
    rows: usize,
) -> HybridActivations<M> {
    let gates = match shape.family {
        Family::Qwen3 => 0,
        Family::Qwen3_5 => rows * shape.heads * shape.head_dim,
    };
    let delta = shape.delta;
    let (channels, values) = (rows * delta.channels(), rows * delta.values());
    let (keys, heads) = (rows * delta.keys(), rows * delta.value);
    let mut wide = |len| mem.alloc(len, Dtype::F32, Layout::RowMajor);
    let (g, q_l2, k_l2) = (wide(heads), wide(keys), wide(keys));
    let mut act = |len| mem.alloc(len, dtype, Layout::RowMajor);
    HybridActivations {
        q_proj: act(2 * gates),
        q_gate: act(gates),
        gate_sigmoid: act(gates),
        mix_gated: act(gates),
        qkv: act(channels),
        conv: act(channels),
        conv_silu: act(channels),
        z: act(values),
        b: act(heads),
        a: act(heads),
        beta: act(heads),
        g,
        q_l2,
        k_l2,
        core: act(values),
        gdn_norm: act(values),
    }
}
