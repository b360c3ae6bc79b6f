//! What subnormal weights cost a product, on every kernel table.
//!
//! The same product with ordinary weights and with a subnormal in some panels, by turns in one
//! process: a ratio of medians says nothing of this machine's speed. Turns are short, so that most
//! of them are whole on a busy machine too. Absent: bits, which the other checks of kernels compare.
//! The invariant: a table is compared with itself.

use std::time::{Duration, Instant};

use half::bf16;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Act, Cpu, Kernels, PANEL, Weight};
use samebits::op::{Backend, Layout, Op, Rows, Site};
use samebits::tensor::Tensor;

use super::draw::Draw;
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::Context;
use crate::engine::pool;
use crate::manifest::Plant;

const HERE: Site = Site::global("linear");
/// Rows of the product, of a prefill: one tile.
const ROWS: usize = 6;
/// Terms of a sum on a fast table, and at least on a slow one: its turns are no longer than others.
const TERMS: [usize; 2] = [256, 8];
/// Panels of the weight.
const PANELS: usize = 8;
/// What one turn takes at least, by repeating the product.
const TURN: Duration = Duration::from_micros(200);
/// Turns of every table and weight.
const TURNS: usize = 41;

/// How much slower a product is when `holding` of its eight panels hold a subnormal.
pub fn prepare(ctx: &Context, holding: usize) -> Result<Measure<'_>, CheckError> {
    if !(1..=PANELS).contains(&holding) {
        return Err(CheckError::missing(format!("a count of {holding}"), "1 to 8 panels"));
    }
    Ok(Box::new(move |plant| {
        // One operation after another, as if the instruction set had no flushing chain.
        let scalar = match plant {
            None => false,
            Some(Plant::Material(what)) if what == "scalar-slow-path" => true,
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let tables = Kernels::supported();
        let mut slowdowns = Vec::new();
        for table in &tables {
            let slow = if scalar { tables[0] } else { table };
            let sides = [(*table, 0), (slow, holding)];
            let [ordinary, slowed] = pool(1).install(|| medians(sides, ctx.seed));
            slowdowns.push((table.name, slowed / ordinary));
        }
        let worst = slowdowns.iter().map(|(_, times)| *times).fold(0.0, f64::max);
        let mut divergence = at(HERE.op, None);
        let each = slowdowns.iter().map(|(name, times)| format!("{name} {times:.2}"));
        divergence.text = format!("times as long: {}", each.collect::<Vec<_>>().join(", "));
        let compared = slowdowns.len() as u64;
        let found = Comparison { compared, first: Some(divergence), ..Comparison::default() };
        let outcome = Outcome::bitwise(found, tables.len() as u64);
        Ok(Outcome { statistic: "slowdown_max", measured: worst, ..outcome })
    }))
}

/// Median seconds of one product on either side: a table, and panels that hold a subnormal.
fn medians(sides: [(&'static Kernels, usize); 2], seed: u64) -> [f64; 2] {
    let mut terms = TERMS[0];
    while terms > TERMS[1] && Product::new(sides[0], terms, seed).turn() > TURN.as_secs_f64() {
        terms /= 2;
    }
    let mut products = sides.map(|side| Product::new(side, terms, seed));
    let mut turns = [const { Vec::new() }; 2];
    for turn in 0..TURNS {
        // Who goes first changes.
        for side in [turn % 2, 1 - turn % 2] {
            turns[side].push(products[side].turn());
        }
    }
    turns.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[TURNS / 2]
    })
}

/// One product, made again and again.
struct Product {
    b: Cpu,
    out: Act,
    x: Act,
    weight: Weight,
    repeats: u32,
}

impl Product {
    fn new((table, holding): (&'static Kernels, usize), terms: usize, seed: u64) -> Self {
        let mut draw = Draw::new([seed, 0, 0]);
        // Near 1, so that nothing but a subnormal asks for flushes.
        let mut ordinary = |len: usize| -> Vec<bf16> {
            let one =
                |_| bf16::from_bits((draw.within(0x3F00, 0x3FFF) | draw.within(0, 1) << 15) as u16);
            (0..len).map(one).collect()
        };
        let (x, mut w) = (ordinary(ROWS * terms), ordinary(PANELS * PANEL * terms));
        let panels = w.chunks_mut(PANEL * terms).take(holding);
        panels.for_each(|panel| panel[PANEL * terms / 2] = bf16::from_bits(1));
        let mut b = Cpu::new(table, Order::Invariant);
        let mem = b.mem();
        let out = mem.alloc(ROWS * PANELS * PANEL, Dtype::Bf16, Layout::RowMajor);
        let mut act = mem.alloc(x.len(), Dtype::Bf16, Layout::RowMajor);
        mem.write(&mut act, 0, &Tensor::Bf16(x));
        let mut weight = mem.alloc_weight(PANELS * PANEL, Some(terms), Dtype::Bf16);
        mem.write_weight(&mut weight, 0, &Tensor::Bf16(w));
        let mut made = Self { b, out, x: act, weight, repeats: 1 };
        made.turn();
        let once = made.turn();
        made.repeats = (TURN.as_secs_f64() / once).ceil().max(1.0) as u32;
        made
    }

    /// Seconds of one product, by repeating it.
    fn turn(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..self.repeats {
            let Self { out, x, weight, .. } = self;
            let rows = Rows { first: 0, count: ROWS, of: ROWS };
            self.b.run(HERE, Op::Linear { out, x, weight, rows, width: PANELS * PANEL });
        }
        start.elapsed().as_secs_f64() / f64::from(self.repeats)
    }
}
