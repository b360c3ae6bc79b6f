//! Faults that execute an op with other fields than it came with.
//!
//! Every function answers whether the op was one it knows; if not, nothing was executed.

use half::bf16;
use samebits::op::{Backend, Heads, Layout, Mem, NormForm, Op, Rows, Site, Span};
use samebits::tensor::Tensor;

use crate::fault::{Rows as Picked, ScaleFault};

/// A buffer of a backend.
pub type Act<B> = <<B as Backend>::M as Mem>::Act;
/// Integers of a backend.
pub type Ints<B> = <<B as Backend>::M as Mem>::Ints;

/// A new buffer that holds `data`.
pub fn upload<B: Backend>(b: &mut B, data: &Tensor) -> Act<B> {
    let mut act = b.mem().alloc(data.len(), data.dtype(), Layout::RowMajor);
    b.mem().write(&mut act, 0, data);
    act
}

/// New integers that hold `data`.
pub fn upload_ints<B: Backend>(b: &mut B, data: &[u32]) -> Ints<B> {
    let mut ints = b.mem().alloc_ints(data.len());
    b.mem().write_ints(&mut ints, data);
    ints
}

/// Elements of `data` in the order `from(i)`.
pub fn gather(data: &Tensor, from: impl Fn(usize) -> usize) -> Tensor {
    match data {
        Tensor::Bf16(v) => Tensor::Bf16((0..v.len()).map(|i| v[from(i)]).collect::<Vec<bf16>>()),
        Tensor::F32(v) => Tensor::F32((0..v.len()).map(|i| v[from(i)]).collect()),
    }
}

/// A norm with another epsilon.
pub fn eps<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, eps: f32) -> bool {
    let Op::RmsNorm { out, x, weight, form, rows, width, .. } = op else { return false };
    let (form, rows, width) = (*form, *rows, *width);
    b.run(site, Op::RmsNorm { out, x, weight, eps, form, rows, width });
    true
}

/// A norm that rounds once, after the weight.
pub fn cast_order<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    let Op::RmsNorm { out, x, weight, eps, rows, width, .. } = op else { return false };
    let (form, eps, rows, width) = (NormForm::ScaleThenRound, *eps, *rows, *width);
    b.run(site, Op::RmsNorm { out, x, weight, eps, form, rows, width });
    true
}

/// A norm whose weight is `1 + w`, rounded to the dtype.
pub fn one_plus_weight<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    let Op::RmsNorm { out, x, weight, eps, form, rows, width } = op else { return false };
    let (eps, form, rows, width) = (*eps, *form, *rows, *width);
    let w = b.mem().read_weight(weight, 0, width);
    let more: Vec<f32> = w.to_f32().iter().map(|w| 1.0 + w).collect();
    let mut weight = b.mem().alloc_weight(width, None, w.dtype());
    b.mem().write_weight(&mut weight, 0, &Tensor::from_f32(w.dtype(), &more));
    b.run(site, Op::RmsNorm { out, x, weight: &weight, eps, form, rows, width });
    true
}

/// Scores with another scale.
pub fn scale<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: ScaleFault) -> bool {
    let Op::Scores { out, q, cache, scale, span } = op else { return false };
    let (right, span) = (*scale, *span);
    match how {
        ScaleFault::Missing => b.run(site, Op::Scores { out, q, cache, scale: 1.0, span }),
        ScaleFault::Twice => b.run(site, Op::Scores { out, q, cache, scale: right * right, span }),
        ScaleFault::Times(by) => {
            b.run(site, Op::Scores { out, q, cache, scale: right * by, span });
        }
        ScaleFault::Folded => {
            let Heads { batch, query, dim, .. } = span.heads;
            let data = b.mem().read(q, 0, batch * span.rows.of * query * dim);
            let scaled: Vec<f32> = data.to_f32().iter().map(|q| q * right).collect();
            let q = upload(b, &Tensor::from_f32(data.dtype(), &scaled));
            b.run(site, Op::Scores { out, q: &q, cache, scale: 1.0, span });
        }
    }
    true
}

/// Attention in which every row sees other keys, as far as there are any; at least one. `more` is
/// how many more than it should, or none where the mask sits in the other corner.
pub fn mask_edge<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    more: Option<i32>,
) -> bool {
    let span = match op {
        Op::Scores { span, .. } | Op::Softmax { span, .. } | Op::Mix { span, .. } => *span,
        _ => return false,
    };
    let keys = i64::from(b.mem().read_ints(span.keys, 1)[0]);
    let positions = b.mem().read_ints(span.positions, span.heads.batch * span.rows.of);
    let by = more.map_or(span.rows.of as i64 - keys, i64::from);
    if by == 0 {
        return false;
    }
    let moved = |p: &u32| (i64::from(*p) + by).clamp(0, keys - 1) as u32;
    let positions = upload_ints(b, &positions.iter().map(moved).collect::<Vec<_>>());
    let Span { heads, rows, keys, stride, .. } = span;
    let span = Span { heads, rows, positions: &positions, keys, stride };
    match op {
        Op::Scores { out, q, cache, scale, .. } => {
            b.run(site, Op::Scores { out, q, cache, scale: *scale, span });
        }
        Op::Softmax { out, x, .. } => b.run(site, Op::Softmax { out, x, span }),
        Op::Mix { out, probs, cache, .. } => b.run(site, Op::Mix { out, probs, cache, span }),
        _ => unreachable!("the span came from one of these"),
    }
    true
}

/// An activation of another input.
pub fn silu_of<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, x: &Tensor) -> bool {
    let Op::Silu { out, rows, width, .. } = op else { return false };
    let x = upload(b, x);
    b.run(site, Op::Silu { out, x: &x, rows: *rows, width: *width });
    true
}

/// A product with another second factor.
pub fn mul_by<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, by: &Tensor) -> bool {
    let Op::Mul { out, a, rows, width, .. } = op else { return false };
    let by = upload(b, by);
    b.run(site, Op::Mul { out, a, b: &by, rows: *rows, width: *width });
    true
}

/// A sum with another first term.
pub fn add_to<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, to: &Tensor) -> bool {
    let Op::Add { out, b: branch, rows, width, .. } = op else { return false };
    let to = upload(b, to);
    b.run(site, Op::Add { out, a: &to, b: branch, rows: *rows, width: *width });
    true
}

/// Rows picked by other numbers.
pub fn row_shift<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, form: Picked) -> bool {
    let Op::Take { out, x, ids, rows, width } = op else { return false };
    let right = b.mem().read_ints(ids, *rows);
    let most = right.iter().max().copied().unwrap_or(0);
    let other = |id: &u32| match form {
        Picked::Early => id.saturating_sub(1),
        Picked::First => 0,
        Picked::Last => most,
    };
    let other: Vec<u32> = right.iter().map(other).collect();
    if other == right {
        return false;
    }
    let ids = upload_ints(b, &other);
    b.run(site, Op::Take { out, x, ids: &ids, rows: *rows, width: *width });
    true
}

/// An embedding whose ids, or an append whose slots, keep only their lowest bits.
pub fn wrapped<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, bits: u32) -> bool {
    let (ints, len) = match op {
        Op::Embed { ids, rows, .. } => (*ids, *rows),
        Op::KvAppend { positions, heads, rows, .. } => (*positions, heads.batch * *rows),
        _ => return false,
    };
    let right = b.mem().read_ints(ints, len);
    let other: Vec<u32> = right.iter().map(|i| i & ((1 << bits) - 1)).collect();
    if other == right {
        return false;
    }
    let ints = upload_ints(b, &other);
    match op {
        Op::Embed { out, table, rows, width, .. } => {
            b.run(site, Op::Embed { out, table, ids: &ints, rows: *rows, width: *width });
        }
        Op::KvAppend { cache, k, v, heads, rows, .. } => {
            let (heads, rows) = (*heads, *rows);
            b.run(site, Op::KvAppend { cache, k, v, positions: &ints, heads, rows });
        }
        _ => unreachable!("the integers came from one of these"),
    }
    true
}

/// An append of other keys.
pub fn cache_of<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, keys: &Tensor) -> bool {
    let Op::KvAppend { cache, v, positions, heads, rows, .. } = op else { return false };
    let k = upload(b, keys);
    let (heads, rows) = (*heads, *rows);
    b.run(site, Op::KvAppend { cache, k: &k, v, positions, heads, rows });
    true
}

/// A norm of its own output.
pub fn twice<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    if !matches!(op, Op::RmsNorm { .. } | Op::Rope { .. }) {
        return false;
    }
    b.exec(site, op);
    match op {
        Op::RmsNorm { out, weight, eps, form, rows, width, .. } => {
            let (eps, form, rows, width) = (*eps, *form, *rows, *width);
            let once = b.mem().read(out, 0, rows * width);
            let x = upload(b, &once);
            b.run(site, Op::RmsNorm { out, x: &x, weight, eps, form, rows, width });
        }
        Op::Rope { out, table, positions, rows, heads, dim, rotary, .. } => {
            let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
            let once = b.mem().read(out, 0, rows * heads * dim);
            let x = upload(b, &once);
            b.run(site, Op::Rope { out, x: &x, table, positions, rows, heads, dim, rotary });
        }
        _ => unreachable!("matched above"),
    }
    true
}

/// The last row of a linear's output: the row of `x` it came from.
pub fn last(rows: Rows) -> usize {
    rows.first + rows.count - 1
}
