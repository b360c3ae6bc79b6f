//! The CPU backend: dispatch of ops to kernels over plain memory.
//!
//! Here: the backend and the row-wise ops; in the submodules memory and packed panels, products,
//! attention, and the kernel tables per instruction set. Absent: arithmetic rules, which live in
//! [`crate::contract`]. The invariant: threads and tiles split outputs, never a sum.

mod attention;
mod delta;
mod kernels;
mod linear;
mod memory;
mod panels;
mod rowwise;
mod scalar;
mod simd;
mod vector;

pub use attention::Attention;
pub use kernels::{ConvRow, DeltaRule, DeltaStep, GatedNorm, Kernels, ROWS, Table, Tile, TileArgs};
pub use memory::{Act, CpuMem, CpuMemory, Ints, Weight};
pub use panels::{PANEL, Panels};

use crate::contract::{Dtype, Element, Order};
use crate::op::{Backend, Memory, Op, Site};
use delta::{Batch, Rule, Slot};

/// Executes ops on the CPU, in the rayon pool it is called from.
pub struct Cpu {
    kernels: &'static Kernels,
    order: Order,
    memory: CpuMemory,
}

impl Cpu {
    /// A backend with the given kernels, summing in the given order.
    pub fn new(kernels: &'static Kernels, order: Order) -> Self {
        Self { kernels, order, memory: CpuMemory::default() }
    }

    /// The kernel table in use.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// The summation order in use.
    pub fn order(&self) -> Order {
        self.order
    }
}

impl Backend for Cpu {
    type M = CpuMem;

    fn exec(&mut self, _site: Site, op: &mut Op<'_, CpuMem>) {
        match dtype(op) {
            Dtype::Bf16 => exec::<half::bf16>(self.kernels, self.order, op),
            Dtype::F32 => exec::<f32>(self.kernels, self.order, op),
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<CpuMem> {
        &mut self.memory
    }
}

/// The dtype of the op's float buffers.
fn dtype(op: &Op<'_, CpuMem>) -> Dtype {
    match op {
        Op::Embed { out, .. }
        | Op::RmsNorm { out, .. }
        | Op::Linear { out, .. }
        | Op::Rope { out, .. }
        | Op::Scores { out, .. }
        | Op::Softmax { out, .. }
        | Op::Mix { out, .. }
        | Op::Silu { out, .. }
        | Op::Sigmoid { out, .. }
        | Op::Conv { out, .. }
        | Op::DeltaRule { out, .. }
        | Op::GatedNorm { out, .. }
        | Op::Take { out, .. }
        | Op::Mul { out, .. }
        | Op::Add { out, .. } => out.dtype(),
        Op::KvAppend { k, .. } => k.dtype(),
        Op::Argmax { x, .. } | Op::L2Norm { x, .. } | Op::SplitGate { x, .. } => x.dtype(),
        Op::Decay { a, .. } => a.dtype(),
    }
}

fn exec<E: Element>(kernels: &Kernels, order: Order, op: &mut Op<'_, CpuMem>) {
    let table = E::table(kernels);
    match op {
        Op::Embed { out, table, ids, rows, width } => {
            rowwise::embed::<E>(out, table, &ids.values()[..*rows], *width);
        }
        Op::RmsNorm { out, x, weight, eps, form, rows, width } => {
            let norm = rowwise::Norm { eps: *eps, form: *form, width: *width };
            rowwise::rms_norm(
                table,
                out.rows_mut(*rows, *width),
                x.rows(*rows, *width),
                weight,
                norm,
            );
        }
        Op::Linear { out, x, weight, rows, width } => {
            linear::linear::<E>(table, order, out, x, weight, *rows, *width);
        }
        Op::Rope { out, x, table: rotary, positions, rows, heads, dim, rotary: turned } => {
            let width = *heads * *dim;
            let positions = &positions.values()[..*rows];
            let (out, x) = (out.rows_mut(*rows, width), x.rows(*rows, width));
            let split = rowwise::Split { width, dim: *dim, rotary: *turned };
            rowwise::rope(table, out, x, rotary, positions, split);
        }
        Op::KvAppend { cache, k, v, positions, heads, rows } => {
            attention::append::<E>(cache, k, v, positions, *heads, *rows);
        }
        Op::Scores { out, q, cache, scale, span } => {
            Attention::<E> { table, order, span }.scores(out, q, cache, *scale);
        }
        Op::Softmax { out, x, span } => Attention::<E> { table, order, span }.softmax(out, x),
        Op::Mix { out, probs, cache, span } => {
            Attention::<E> { table, order, span }.mix(out, probs, cache);
        }
        Op::Silu { out, x, rows, width } => {
            rowwise::map(out.rows_mut(*rows, *width), x.rows(*rows, *width), *width, table.silu);
        }
        Op::Sigmoid { out, x, rows, width } => {
            rowwise::map(out.rows_mut(*rows, *width), x.rows(*rows, *width), *width, table.sigmoid);
        }
        Op::Mul { out, a, b, rows, width } => {
            let (a, b) = (a.rows(*rows, *width), b.rows(*rows, *width));
            rowwise::zip(out.rows_mut(*rows, *width), a, b, *width, table.mul);
        }
        Op::Add { out, a, b, rows, width } => {
            let (a, b) = (a.rows(*rows, *width), b.rows(*rows, *width));
            rowwise::zip(out.rows_mut(*rows, *width), a, b, *width, table.add);
        }
        Op::Take { out, x, ids, rows, width } => {
            let ids = &ids.values()[..*rows];
            let last = ids.iter().max().map_or(0, |id| *id as usize + 1);
            rowwise::take(out.rows_mut::<E>(*rows, *width), x.rows(last, *width), ids, *width);
        }
        Op::Argmax { out, x, rows, width } => {
            rowwise::argmax::<E>(&mut out.values_mut()[..*rows], x.rows(*rows, *width), *width);
        }
        other => exec_delta::<E>(table, other),
    }
}

/// Ops that only hybrids have.
fn exec_delta<E: Element>(table: &Table<E>, op: &mut Op<'_, CpuMem>) {
    match op {
        Op::SplitGate { query, gate, x, rows, heads, dim } => {
            let width = *heads * *dim;
            let (query, gate) = (query.rows_mut(*rows, width), gate.rows_mut(*rows, width));
            delta::split_gate::<E>(query, gate, x.rows(*rows, 2 * width), *dim);
        }
        Op::Conv { out, state, x, weight, positions, batch, rows, heads } => {
            let batch = Batch { sequences: *batch, rows: *rows };
            delta::conv::<E>(table, out, state, x, weight.vector(), positions, (batch, *heads));
        }
        Op::L2Norm { out, x, first, stride, rows, heads, dim } => {
            let slot = Slot { first: *first, stride: *stride, heads: *heads, dim: *dim };
            delta::l2_norm::<E>(table, out, x, *rows, slot);
        }
        Op::Decay { out, a, a_log, dt_bias, rows, heads } => {
            let (out, a) = (out.rows_mut(*rows, *heads), a.rows(*rows, *heads));
            delta::decay::<E>(out, a, a_log.vector(), dt_bias.vector());
        }
        Op::DeltaRule { out, state, q, k, qkv, g, beta, scale, positions, batch, rows, heads } => {
            let batch = Batch { sequences: *batch, rows: *rows };
            let rule = Rule { q, k, qkv, g, beta, scale: *scale, positions };
            delta::rule::<E>(table, out, state, &rule, (batch, *heads));
        }
        Op::GatedNorm { out, x, z, weight, eps, rows, width } => {
            let inputs = (x.rows(*rows, *width), z.rows(*rows, *width));
            delta::gated_norm::<E>(table, out.rows_mut(*rows, *width), inputs, weight, *eps);
        }
        _ => unreachable!("every other op is executed above"),
    }
}
