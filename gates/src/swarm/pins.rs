//! Designed cases: each quantity that the engine counts with at 1, at every power of two and length
//! of a block, and at their neighbours.
//!
//! The invariant: a pin holds one large quantity and is small in all others, so that the reference
//! stays cheap; the points are those of [`super::coverage`].

use samebits::contract::{Dtype, Order};
use samebits_fixtures::{Spec, WeightDtype};

use super::coverage::Quantity;
use super::{Asked, Case, Inputs, Shape};
use crate::manifest::Lane;

fn spec(hidden: usize, intermediate: usize, vocab: usize) -> Spec {
    Spec {
        name: "pin".to_owned(),
        hidden,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        intermediate,
        vocab,
        theta: 1e6,
        eps: 1e-6,
        tied: true,
        dtype: WeightDtype::Bf16,
        max_positions: 262_144,
    }
}

/// A small case of a shape; `turn` goes round tables, threads and dtypes.
fn small(spec: Spec, turn: usize) -> Case {
    Case {
        shape: Shape::Dense(spec),
        inputs: Inputs::Plain,
        dtype: if turn.is_multiple_of(2) { Dtype::Bf16 } else { Dtype::F32 },
        order: Order::Invariant,
        table: 3 - turn / 2 % 4,
        threads: 1 + turn % 17,
        batch: 1,
        past: 0,
        pieces: vec![3],
        chunk: 2,
        logits: false,
        seed: turn as u64,
        asked: None,
    }
}

/// Sums of more than two blocks under a batch and threads of `n` each.
fn crowd(n: usize) -> Case {
    let case = small(spec(8, 2_100, 24), 2 * n);
    Case { batch: n, threads: n, ..case }
}

/// `total` rows in one forward, in as many sequences as divide it.
fn rows(total: usize, turn: usize) -> Case {
    let batch = (1..=17).rev().find(|b| total.is_multiple_of(*b)).unwrap_or(1);
    let case = small(spec(4, 6, 24), turn);
    Case { batch, pieces: vec![total / batch], chunk: 64, ..case }
}

/// Positions and keys around `at`, behind a filled cache.
fn filled(at: usize, turn: usize) -> Case {
    Case { past: at.saturating_sub(3).max(1), pieces: vec![2, 1, 2, 1], ..small(spec(6, 8, 24), turn) }
}

/// More than 1,024 draws of a sequence, beside another.
fn draws(new: usize) -> Case {
    let asked = Asked {
        new,
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 11,
        stop: Vec::new(),
        resumed: false,
    };
    let case = small(spec(6, 8, 24), 4);
    Case { batch: 2, asked: Some(asked), ..case }
}

/// Sequences that stop at different steps, and go on from there.
fn stops() -> Case {
    let asked = Asked {
        new: 40,
        temperature: 1.5,
        top_k: 15,
        top_p: 0.95,
        min_p: 0.01,
        seed: 3,
        stop: vec![5, 17],
        resumed: true,
    };
    let case = small(spec(6, 8, 24), 6);
    Case { batch: 5, asked: Some(asked), ..case }
}

/// Every position of a whole run to `most`, in pieces.
fn whole(most: usize) -> Case {
    let pieces = [vec![64; most / 64], vec![1; most % 64]].concat();
    Case { pieces, logits: true, chunk: 64, ..small(spec(4, 6, 24), 2) }
}

/// The pins of a lane, in a fixed order.
pub fn all(lane: Lane) -> Vec<Case> {
    let mut all = vec![stops(), draws(if lane == Lane::Long { 1_026 } else { 260 })];
    let points = |quantity: Quantity| quantity.points(lane);
    all.extend(points(Quantity::Batch).into_iter().map(crowd));
    all.extend(points(Quantity::Rows).into_iter().enumerate().map(|(i, n)| rows(n, i)));
    for (i, n) in points(Quantity::Terms).into_iter().enumerate() {
        // Two turns: both dtypes, on the best table and on another.
        all.extend([0, 3].map(|turn| small(spec(5, n, 24), i * 4 + turn)));
    }
    let columns = points(Quantity::Columns);
    let wide = columns.iter().filter(|n| !points(Quantity::Terms).contains(n));
    all.extend(wide.enumerate().map(|(i, n)| small(spec(5, *n, 24), i)));
    // An id of `n` needs a vocabulary of one more.
    let ids = points(Quantity::Ids);
    all.extend(ids.into_iter().enumerate().map(|(i, n)| small(spec(4, 6, n + 1), i)));
    // One point of each three: a case holds its neighbours too.
    let positions = points(Quantity::Positions);
    let powers = positions.into_iter().filter(|n| n.is_power_of_two());
    all.extend(powers.enumerate().map(|(i, at)| filled(at, i)));
    all.extend(points(Quantity::Bytes).into_iter().map(|bytes| small(tensor(bytes), 0)));
    if lane == Lane::Long {
        all.push(whole(8_194));
    }
    all
}

/// An embedding of this many bytes in bf16, of as near a square shape as divides them.
fn tensor(bytes: usize) -> Spec {
    let elements = bytes / 2;
    let hidden = (1..=64).rev().find(|h| elements.is_multiple_of(*h)).unwrap_or(1);
    spec(hidden, 6, (elements / hidden).max(1))
}
