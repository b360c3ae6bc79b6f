//! Ops of hybrids that take each row by itself, gone wrong.

use samebits::contract::{Dtype, decay_log, exp_f32, sigmoid, silu, softplus, sum_of_squares};
use samebits::op::{Backend, NormForm, Op, Out, Rotary, Site};
use samebits::tensor::Tensor;

use super::{Centred, Decay, Gate, Gated, Taps, Unit};
use crate::altered::{gather, upload};

/// A convolution whose taps stand elsewhere.
pub fn taps<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Taps) -> bool {
    let Op::Conv { out, state, x, weight, positions, batch, rows, heads } = op else {
        return false;
    };
    let (batch, rows, heads) = (*batch, *rows, *heads);
    let (len, kernel) = (heads.channels() * heads.kernel, heads.kernel);
    if kernel < 2 {
        return false;
    }
    let mut right = b.mem().read_weight(weight, 0, len);
    right.extend(&Tensor::zeros(right.dtype(), len));
    // What lies in the second half is zero.
    let moved = |i: usize| match (how, i % kernel) {
        (Taps::Reversed, tap) => i - tap + kernel - 1 - tap,
        (Taps::Early, tap) if tap + 1 == kernel => len + i,
        (Taps::Early, _) => i + 1,
        (Taps::Short, 0) => len + i,
        (Taps::Short, _) => i,
    };
    let other = gather(&right, |i| if i < len { moved(i) } else { i }).slice(0, len);
    let mut weight = b.mem().alloc_weight(len, None, right.dtype());
    b.mem().write_weight(&mut weight, 0, &other);
    let weight = &weight;
    b.run(site, Op::Conv { out, state, x, weight, positions, batch, rows, heads });
    true
}

/// The sums of a convolution before they are rounded.
pub fn sums<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> Option<Tensor> {
    let Op::Conv { state, x, weight, positions, batch, rows, heads, .. } = op else { return None };
    let (channels, kernel) = (heads.channels(), heads.kernel);
    let begins = b.mem().read_ints(positions, 1)[0] == 0;
    let state = b.mem().read(state, 0, batch * kernel * channels);
    let x = b.mem().read(x, 0, batch * rows * channels);
    let w = b.mem().read_weight(weight, 0, channels * kernel);
    let input = |sequence: usize, row: usize, c: usize| match row.checked_sub(kernel) {
        Some(row) => x.get((sequence * rows + row) * channels + c),
        None if begins => 0.0,
        None => state.get((sequence * kernel + row) * channels + c),
    };
    let sum = |i: usize| {
        let (row, c) = (i / channels, i % channels);
        (0..kernel).fold(0.0f32, |acc, tap| {
            let x = input(row / rows, row % rows + tap + 1, c);
            w.get(c * kernel + tap).mul_add(x, acc)
        })
    };
    Some(Tensor::F32((0..batch * rows * channels).map(sum).collect()))
}

/// Writes `values` to the first output of an op, in its dtype.
fn write<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, values: &[f32]) -> bool {
    let Some(Out::Act { act, part, .. }) = op.outs().into_iter().next() else { return false };
    let dtype = part.read(b.mem(), act).data.dtype();
    part.write(b.mem(), act, &Tensor::from_f32(dtype, values));
    true
}

/// An activation of sums that were not rounded.
pub fn silu_of<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, sums: &Tensor) -> bool {
    let values: Vec<f32> = sums.to_f32().into_iter().map(silu).collect();
    write(b, op, &values)
}

/// An activation, a unit vector or a gated norm that copies its input.
pub fn bare<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> bool {
    let values = match op {
        Op::Silu { x, rows, width, .. } | Op::GatedNorm { x, rows, width, .. } => {
            b.mem().read(x, 0, *rows * *width).to_f32()
        }
        Op::L2Norm { x, first, stride, rows, heads, dim, .. } => {
            let x = b.mem().read(x, 0, *rows * *stride).to_f32();
            let part = *first..*first + *heads * *dim;
            x.chunks_exact(*stride).flat_map(|row| row[part.clone()].to_vec()).collect()
        }
        _ => return false,
    };
    write(b, op, &values)
}

/// Unit vectors gone wrong.
pub fn unit<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Unit) -> bool {
    let Op::L2Norm { out, x, first, stride, rows, heads, dim } = op else { return false };
    let (first, stride, rows, heads, dim) = (*first, *stride, *rows, *heads, *dim);
    if how == Unit::OtherPart {
        let first = if first == 0 { heads * dim } else { 0 };
        b.run(site, Op::L2Norm { out, x, first, stride, rows, heads, dim });
        return true;
    }
    let x = b.mem().read(x, 0, rows * stride).to_f32();
    let mut values = Vec::with_capacity(rows * heads * dim);
    for row in x.chunks_exact(stride) {
        for x in row[first..first + heads * dim].chunks_exact(dim) {
            let sum = sum_of_squares(|i| x[i], dim);
            let root = match how {
                Unit::Mean => (sum / dim as f32 + 1e-6).sqrt(),
                Unit::Eps(eps) => (sum + eps).sqrt(),
                Unit::EpsOutside => sum.sqrt() + 1e-6,
                Unit::Floor => sum.sqrt().max(1e-6),
                Unit::OtherPart => unreachable!("answered above"),
            };
            let scale = 1.0 / root;
            values.extend(x.iter().map(|x| x * scale));
        }
    }
    write(b, op, &values)
}

/// Logarithms of decays gone wrong.
pub fn decay<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, how: Decay) -> bool {
    let Op::Decay { a, a_log, dt_bias, rows, heads, .. } = op else { return false };
    let heads = *heads;
    let a = b.mem().read(a, 0, *rows * heads).to_f32();
    let log = b.mem().read_weight(a_log, 0, heads).to_f32();
    let bias = b.mem().read_weight(dt_bias, 0, heads).to_f32();
    let short = |x: f32| Tensor::from_f32(Dtype::Bf16, &[x]).get(0);
    let value = |(i, a): (usize, &f32)| {
        let (log, bias) = (log[i % heads], bias[i % heads]);
        match how {
            Decay::Bare => log * softplus(a + bias),
            Decay::ShortSum => decay_log(log, short(a + bias), 0.0),
            Decay::NoBias => decay_log(log, *a, 0.0),
            Decay::ShortRate => -short(exp_f32(log)) * softplus(a + bias),
        }
    };
    let values: Vec<f32> = a.iter().enumerate().map(value).collect();
    write(b, op, &values)
}

/// Gated norms gone wrong.
pub fn gated<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Gated) -> bool {
    let Op::GatedNorm { out, x, z, weight, eps, rows, width } = op else { return false };
    let (rows, width, own) = (*rows, *width, *eps);
    if let Gated::Eps(eps) = how {
        b.run(site, Op::GatedNorm { out, x, z, weight, eps, rows, width });
        return true;
    }
    let x = b.mem().read(x, 0, rows * width);
    let z = b.mem().read(z, 0, rows * width).to_f32();
    let weight = b.mem().read_weight(weight, 0, width).to_f32();
    let dtype = x.dtype();
    let round = |x: f32| Tensor::from_f32(dtype, &[x]).get(0);
    let (x, mut values) = (x.to_f32(), Vec::with_capacity(rows * width));
    for (x, z) in x.chunks_exact(width).zip(z.chunks_exact(width)) {
        let first = |(x, z): (&f32, &f32)| round(x * round(silu(*z)));
        let x: Vec<f32> = match how {
            Gated::GateFirst => x.iter().zip(z).map(first).collect(),
            _ => x.to_vec(),
        };
        let scale = 1.0 / (sum_of_squares(|i| x[i], width) / width as f32 + own).sqrt();
        for ((x, z), w) in x.iter().zip(z).zip(&weight) {
            let w = if how == Gated::Centred { 1.0 + w } else { *w };
            let scaled = round(w * round(x * scale));
            values.push(match how {
                Gated::GateFirst | Gated::Ungated => scaled,
                Gated::GateRounded => scaled * round(silu(*z)),
                Gated::RoundedOnce => w * (x * scale) * silu(*z),
                Gated::Sigmoid => scaled * sigmoid(*z),
                Gated::Centred | Gated::Eps(_) => scaled * silu(*z),
            });
        }
    }
    write(b, op, &values)
}

/// Norms whose weights are offsets, gone wrong.
pub fn centred<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Centred) -> bool {
    let Op::RmsNorm { out, x, weight, eps, form, rows, width } = op else { return false };
    if *form != NormForm::ZeroCentred {
        return false;
    }
    let (eps, rows, width) = (*eps, *rows, *width);
    let stored = b.mem().read_weight(weight, 0, width);
    let sums: Vec<f32> = stored.to_f32().iter().map(|w| 1.0 + w).collect();
    if how == Centred::RoundedFirst {
        let x = b.mem().read(x, 0, rows * width);
        let round = |x: f32| Tensor::from_f32(stored.dtype(), &[x]).get(0);
        let mut values = Vec::with_capacity(rows * width);
        for x in x.to_f32().chunks_exact(width) {
            let scale = 1.0 / (sum_of_squares(|i| x[i], width) / width as f32 + eps).sqrt();
            values.extend(x.iter().zip(&sums).map(|(x, w)| w * round(x * scale)));
        }
        return write(b, op, &values);
    }
    let form = NormForm::ScaleThenRound;
    let baked = Tensor::from_f32(Dtype::Bf16, &sums).to_f32();
    let mut other = b.mem().alloc_weight(width, None, stored.dtype());
    b.mem().write_weight(&mut other, 0, &Tensor::from_f32(stored.dtype(), &baked));
    let weight = if how == Centred::Baked { &other } else { *weight };
    b.run(site, Op::RmsNorm { out, x, weight, eps, form, rows, width });
    true
}

/// Gates of attention gone wrong; `gate` is the one that was taken apart.
pub fn gate<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    how: Gate,
    gate: Option<&Tensor>,
) -> bool {
    match (op, how) {
        (Op::SplitGate { query, gate, x, rows, heads, dim }, _) => {
            let (rows, heads, dim) = (*rows, *heads, *dim);
            let (half, width) = (heads * dim, 2 * heads * dim);
            let data = b.mem().read(x, 0, rows * width);
            // Element `[row, head, query or gate, i]` of the op's input comes from elsewhere.
            let from = |i: usize| {
                let (row, head, part, e) = (i / width, i % width / (2 * dim), i / dim % 2, i % dim);
                let at = |head: usize, part: usize| row * width + (2 * head + part) * dim + e;
                match how {
                    Gate::Halves => row * width + part * half + head * dim + e,
                    Gate::Swapped => at(head, 1 - part),
                    Gate::Neighbour if part == 1 => at((head + 1) % heads, 1),
                    _ => i,
                }
            };
            let x = &upload(b, &gather(&data, from));
            b.run(site, Op::SplitGate { query, gate, x, rows, heads, dim });
            true
        }
        (Op::Mul { out, a, rows, width, .. }, Gate::Missing) => {
            let a = b.mem().read(a, 0, *rows * *width);
            b.mem().write(out, 0, &a);
            true
        }
        (Op::Mul { out, a, rows, width, .. }, Gate::Unrounded) => {
            let Some(gate) = gate else { return false };
            let a = b.mem().read(a, 0, *rows * *width);
            let both = a.to_f32().into_iter().zip(gate.to_f32());
            let values: Vec<f32> = both.map(|(a, g)| a * sigmoid(g)).collect();
            b.mem().write(out, 0, &Tensor::from_f32(a.dtype(), &values));
            true
        }
        (Op::Sigmoid { out, x, rows, width }, Gate::Silu) => {
            b.run(site, Op::Silu { out, x, rows: *rows, width: *width });
            true
        }
        _ => false,
    }
}

/// A rotation of the whole head, at the frequencies of the whole head.
pub fn whole_head<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    let Op::Rope { out, x, table, positions, rows, heads, dim, rotary } = op else { return false };
    let (rows, heads, dim, half) = (*rows, *heads, *dim, *rotary / 2);
    let at = b.mem().read_ints(positions, rows);
    let count = at.iter().max().map_or(0, |p| *p as usize + 1);
    if count < 2 || *rotary == dim || half < 2 {
        return false;
    }
    // The second pair's angle at position 1 tells the base.
    let [cos, sin] = [&table.cos, &table.sin].map(|act| b.mem().read(act, half + 1, 1));
    let dtype = cos.dtype();
    let step = f64::from(sin.get(0).atan2(cos.get(0))).ln() * (2 * half) as f64 / dim as f64;
    let [cos, sin] = [f64::cos as fn(f64) -> f64, f64::sin].map(|f| {
        let entry = |i: usize| {
            let (position, pair) = (i / (dim / 2), i % (dim / 2));
            f(position as f64 * (step * pair as f64).exp()) as f32
        };
        let values: Vec<f32> = (0..count * (dim / 2)).map(entry).collect();
        upload(b, &Tensor::from_f32(dtype, &values))
    });
    let table = &Rotary { cos, sin };
    b.run(site, Op::Rope { out, x, table, positions, rows, heads, dim, rotary: dim });
    true
}
