//! The CPU backend: dispatch of ops to kernels over plain memory.
//!
//! Here: the backend and the row-wise ops; in the submodules memory and packed panels, products,
//! attention, and the kernel tables per instruction set. Absent: arithmetic rules, which live in
//! [`crate::contract`]. The invariant: threads and tiles split outputs, never a sum.

mod attention;
mod kernels;
mod linear;
mod memory;
mod panels;
mod rowwise;
mod scalar;
mod simd;
mod vector;

pub use attention::Attention;
pub use kernels::{Kernels, ROWS, Table, Tile, TileArgs};
pub use memory::{Act, CpuMem, CpuMemory, Ints, Weight};
pub use panels::{PANEL, Panels};

use crate::contract::{Dtype, Element, Order};
use crate::op::{Backend, Memory, Op, Site};

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
        | Op::Take { out, .. }
        | Op::Mul { out, .. }
        | Op::Add { out, .. } => out.dtype(),
        Op::KvAppend { k, .. } => k.dtype(),
        Op::Argmax { x, .. } => x.dtype(),
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
        Op::Rope { out, x, table: rotary, positions, rows, heads, dim } => {
            let width = *heads * *dim;
            let positions = &positions.values()[..*rows];
            let (out, x) = (out.rows_mut(*rows, width), x.rows(*rows, width));
            rowwise::rope(table, out, x, rotary, positions, rowwise::Split { width, dim: *dim });
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
    }
}
