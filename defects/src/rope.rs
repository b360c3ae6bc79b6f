//! Faults of the rotation: pairs, tables, positions.

use samebits::contract::Dtype;
use samebits::op::{Backend, Mem, Op, Out, Rotary, Site};
use samebits::tensor::Tensor;

use crate::altered::{gather, upload, upload_ints};
use crate::fault::{Positions, Tables};

/// Neighbours rotate together: the op on the elements dealt to halves, dealt back.
pub fn pairing<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
    let half = dim / 2;
    let x = b.mem().read(x, 0, rows * heads * dim);
    let dealt = |i: usize| i / dim * dim + 2 * (i % dim % half) + i % dim / half;
    let back = |i: usize| i / dim * dim + i % dim / 2 + i % 2 * half;
    let x = upload(b, &gather(&x, dealt));
    b.run(site, Op::Rope { out, x: &x, table, positions, rows, heads, dim, rotary });
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        let rotated = part.read(b.mem(), act).data;
        part.write(b.mem(), act, &gather(&rotated, back));
    }
    true
}

/// Positions one too small, where the forward does not start at 0.
pub fn late<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let right = b.mem().read_ints(positions, *rows);
    if right.contains(&0) {
        return false;
    }
    let positions = upload_ints(b, &right.iter().map(|p| p - 1).collect::<Vec<_>>());
    let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
    b.run(site, Op::Rope { out, x, table, positions: &positions, rows, heads, dim, rotary });
    true
}

/// Tables of too few bits.
pub fn tables<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, form: Tables) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
    let at = b.mem().read_ints(positions, rows);
    if form == Tables::Positions {
        let short: Vec<u32> = at.iter().map(|p| eight_bits(*p)).collect();
        let positions = upload_ints(b, &short);
        b.run(site, Op::Rope { out, x, table, positions: &positions, rows, heads, dim, rotary });
        return true;
    }
    let count = at.iter().max().map_or(0, |p| *p as usize + 1);
    let [cos, sin] = match form {
        Tables::Frequencies => from_short_frequencies(b, table, count, rotary / 2),
        _ => [&table.cos, &table.sin].map(|act| {
            let data = b.mem().read(act, 0, count * rotary / 2);
            let short = Tensor::from_f32(Dtype::Bf16, &data.to_f32());
            Tensor::from_f32(data.dtype(), &short.to_f32())
        }),
    };
    let table = Rotary { cos: upload(b, &cos), sin: upload(b, &sin) };
    b.run(site, Op::Rope { out, x, table: &table, positions, rows, heads, dim, rotary });
    true
}

/// Keeps the eight most significant bits.
fn eight_bits(p: u32) -> u32 {
    let drop = (u32::BITS - p.leading_zeros()).saturating_sub(8);
    p >> drop << drop
}

/// Tables for positions `0 .. count` of the frequencies that row 1 shows, rounded to bf16.
fn from_short_frequencies<B: Backend>(
    b: &mut B,
    table: &Rotary<B::M>,
    count: usize,
    half: usize,
) -> [Tensor; 2]
where
    B::M: Mem,
{
    let dtype = b.mem().read(&table.cos, 0, 1).dtype();
    let mut short = vec![0.0; half];
    if count > 1 {
        let (cos, sin) =
            (b.mem().read(&table.cos, half, half), b.mem().read(&table.sin, half, half));
        let angles: Vec<f32> = (0..half).map(|i| sin.get(i).atan2(cos.get(i))).collect();
        short = Tensor::from_f32(Dtype::Bf16, &angles).to_f32();
    }
    [f64::cos as fn(f64) -> f64, f64::sin].map(|f| {
        let entry = |i: usize| f(f64::from(short[i % half] * (i / half) as f32)) as f32;
        Tensor::from_f32(dtype, &(0..count * half).map(entry).collect::<Vec<_>>())
    })
}

/// Tables recomputed from the angles of position 1, which must be below a half turn: every
/// frequency raised to `power`, and only the first `share` of 64 of the pairs turned at all.
pub fn retable<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    (power, share): (f32, usize),
) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
    let half = rotary / 2;
    let at = b.mem().read_ints(positions, rows);
    let count = at.iter().max().map_or(0, |p| *p as usize + 1);
    if count < 2 {
        return false;
    }
    let read = |b: &mut B, act, at, len| b.mem().read(act, at, len);
    let [mut cos, mut sin] =
        [&table.cos, &table.sin].map(|act| read(b, act, 0, count * half).to_f32());
    let dtype = b.mem().read(&table.cos, 0, 1).dtype();
    // The middle pair's angle tells the base to about seven digits.
    let base = f64::from(sin[half + half / 2].atan2(cos[half + half / 2]));
    let step = base.ln() / (half / 2).max(1) as f64;
    for i in 0..count * half {
        let (position, pair) = (i / half, i % half);
        if pair * 64 >= share * half {
            (cos[i], sin[i]) = (1.0, 0.0);
        } else if power != 1.0 {
            let angle = position as f64 * (step * pair as f64 * f64::from(power)).exp();
            (cos[i], sin[i]) = (angle.cos() as f32, angle.sin() as f32);
        }
    }
    let [cos, sin] = [cos, sin].map(|values| upload(b, &Tensor::from_f32(dtype, &values)));
    let table = Rotary { cos, sin };
    b.run(site, Op::Rope { out, x, table: &table, positions, rows, heads, dim, rotary });
    true
}

/// Other positions; `first` are those of the first forward with as many rows.
pub fn positions<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    (form, first): (Positions, Option<&Vec<u32>>),
) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let right = b.mem().read_ints(positions, *rows);
    let start = right.first().copied().unwrap_or(0);
    let most = right.iter().max().copied().unwrap_or(0);
    let other: Vec<u32> = match form {
        Positions::Clamp(last) => right.iter().map(|p| *p.min(&last)).collect(),
        Positions::More(n) => right.iter().map(|p| (p + n).min(most)).collect(),
        Positions::Stale => first.cloned().unwrap_or_else(|| right.clone()),
        Positions::Local => right.iter().map(|p| p - start.min(*p)).collect(),
        Positions::Scaled(of64) => right.iter().map(|p| p * of64 / 64).collect(),
        Positions::Wrap(bits) => right.iter().map(|p| p & ((1 << bits) - 1)).collect(),
    };
    if other == right {
        return false;
    }
    let positions = upload_ints(b, &other);
    let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
    b.run(site, Op::Rope { out, x, table, positions: &positions, rows, heads, dim, rotary });
    true
}

/// A rotation whose products are not rounded before they are added.
pub fn unrounded<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let (rows, heads, dim, rotary) = (*rows, *heads, *dim, *rotary);
    let half = rotary / 2;
    let at = b.mem().read_ints(positions, rows);
    let x = b.mem().read(x, 0, rows * heads * dim);
    let mut values = Vec::with_capacity(x.len());
    for i in 0..x.len() {
        if i % dim >= rotary {
            values.push(x.get(i));
            continue;
        }
        let entry = at[i / (heads * dim)] as usize * half + i % dim % half;
        let (cos, sin) = (b.mem().read(&table.cos, entry, 1), b.mem().read(&table.sin, entry, 1));
        let low = i % dim < half;
        let other = if low { -x.get(i + half) } else { x.get(i - half) };
        values.push(x.get(i).mul_add(cos.get(0), other * sin.get(0)));
    }
    b.mem().write(out, 0, &Tensor::from_f32(x.dtype(), &values));
    true
}
