//! Faults of weights: read wrongly, or another op's taken.

use samebits::op::{Backend, Op, Site};
use samebits::tensor::Tensor;
use serde::Deserialize;

use crate::altered::gather;

/// How a weight is read wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightFault {
    /// The first two rows change places; of a vector the first two elements.
    SwapRows,
    /// Every element is the one before it: an offset of one element.
    Shift,
    /// The last row is zero: a short read.
    ZeroRow,
    /// The lowest stored bit of one element.
    Bit,
    /// Rows are read as columns.
    Transposed,
}

/// Rows and columns of an op's weight, and all its elements.
pub fn of<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> Option<(usize, usize, Tensor)> {
    let (weight, vector) = match op {
        Op::Linear { weight, .. } => (weight, false),
        Op::RmsNorm { weight, .. } => (weight, true),
        Op::Embed { table, .. } => (table, false),
        _ => return None,
    };
    let (n, k) = b.mem().weight_shape(weight);
    Some((n, if vector { 1 } else { k }, b.mem().read_weight(weight, 0, n)))
}

/// The op with a weight read wrongly.
pub fn wrong<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: WeightFault) -> bool {
    let Some((n, k, right)) = of(b, op) else { return false };
    let len = right.len();
    if n < 2 {
        return false; // One row has no other to be taken for.
    }
    let data = match how {
        WeightFault::SwapRows => gather(&right, |i| if i < 2 * k { (i + k) % (2 * k) } else { i }),
        WeightFault::Shift => gather(&right, |i| i.saturating_sub(1)),
        WeightFault::Transposed => gather(&right, |i| i % k * n + i / k),
        WeightFault::ZeroRow => {
            let mut data = right.slice(0, len - k);
            data.extend(&Tensor::zeros(right.dtype(), k));
            data
        }
        WeightFault::Bit => {
            let mut data = right.clone();
            let at = len / 2;
            match &mut data {
                Tensor::Bf16(v) => v[at] = half::bf16::from_bits(v[at].to_bits() ^ 1),
                // The lowest bit that a bf16 checkpoint stores.
                Tensor::F32(v) => v[at] = f32::from_bits(v[at].to_bits() ^ (1 << 16)),
            }
            data
        }
    };
    taking(b, site, op, &data)
}

/// The op with `data` for its weight, if it fits.
pub fn taking<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, data: &Tensor) -> bool {
    let Some((n, k, right)) = of(b, op) else { return false };
    if right.len() != data.len() {
        return false;
    }
    let columns = if matches!(op, Op::RmsNorm { .. }) { None } else { Some(k) };
    let mut other = b.mem().alloc_weight(n, columns, right.dtype());
    b.mem().write_weight(&mut other, 0, data);
    match op {
        Op::Linear { out, x, rows, width, .. } => {
            b.run(site, Op::Linear { out, x, weight: &other, rows: *rows, width: *width });
        }
        Op::RmsNorm { out, x, eps, form, rows, width, .. } => {
            let (eps, form, rows, width) = (*eps, *form, *rows, *width);
            b.run(site, Op::RmsNorm { out, x, weight: &other, eps, form, rows, width });
        }
        Op::Embed { out, ids, rows, width, .. } => {
            b.run(site, Op::Embed { out, table: &other, ids, rows: *rows, width: *width });
        }
        _ => return false,
    }
    true
}
