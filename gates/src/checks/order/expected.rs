//! The contract's trees, from its text.

use samebits::contract::{Dtype, Order};

use super::{Reduction, Tree};

pub fn tree(reduction: Reduction, (k, rows): (usize, usize), dtype: Dtype, order: Order) -> Tree {
    let eager = order == Order::Transformers;
    let few = eager && dtype == Dtype::F32;
    let tree = match reduction {
        Reduction::Linear | Reduction::Scores if few && rows == 1 => few_lanes(k),
        Reduction::Mix if few && rows < 4 => Tree::chain((0..k).map(Tree::leaf)),
        Reduction::Linear | Reduction::Scores => blocks(k, linear(k, rows, dtype, eager), dtype),
        Reduction::Mix => blocks(k, mix(k, rows, dtype, eager), dtype),
        Reduction::Softmax if eager && k < 16 => Tree::chain((0..k).map(Tree::leaf)),
        Reduction::Softmax => lanes(k),
        Reduction::SumOfSquares => squares(k),
    };
    tree.expect("a sum has terms")
}

fn linear(k: usize, rows: usize, dtype: Dtype, eager: bool) -> usize {
    match dtype {
        Dtype::Bf16 if (eager && rows == 1) || k <= 1024 => 512,
        Dtype::Bf16 => 1024,
        Dtype::F32 if k <= 192 => k,
        Dtype::F32 if k < 384 => k / 2,
        Dtype::F32 => 192,
    }
}

fn mix(keys: usize, rows: usize, dtype: Dtype, eager: bool) -> usize {
    match dtype {
        Dtype::Bf16 if eager && (rows == 1 || keys <= 1024) => 512,
        Dtype::Bf16 => 1024,
        Dtype::F32 if eager => linear(keys, rows, dtype, eager),
        Dtype::F32 => 192,
    }
}

/// One f32 row in the order of Transformers: a head of terms into lane 0, four lanes, the rest.
fn few_lanes(k: usize) -> Option<Tree> {
    let head = 4 - 3 * k % 4;
    let end = head + (k - head) / 4 * 4;
    let lane = |l: usize| {
        let before = if l == 0 { 0..head } else { 0..0 };
        Tree::chain(before.chain((head + l..end).step_by(4)).map(Tree::leaf))
    };
    let lanes = join(join(lane(0), lane(2)), join(lane(1), lane(3)));
    (end..k).map(|t| Some(Tree::leaf(t))).fold(lanes, join)
}

/// A chain in each block, bf16 pairs odd term first; block sums one after another.
fn blocks(k: usize, block: usize, dtype: Dtype) -> Option<Tree> {
    let terms: Vec<usize> = (0..k).collect();
    Tree::chain(terms.chunks(block).filter_map(|block| {
        let swapped = block.chunks(2).flat_map(|pair| pair.iter().rev());
        match dtype {
            Dtype::Bf16 => Tree::chain(swapped.map(|t| Tree::leaf(*t))),
            Dtype::F32 => Tree::chain(block.iter().map(|t| Tree::leaf(*t))),
        }
    }))
}

fn join(a: Option<Tree>, b: Option<Tree>) -> Option<Tree> {
    Tree::chain([a, b].into_iter().flatten())
}

/// Sixteen lanes, lane = key mod 16, then halves: 8, 4, 2, 1.
fn lanes(k: usize) -> Option<Tree> {
    let lane = |l: usize| Tree::chain((l..k).step_by(16).map(Tree::leaf));
    let mut lanes: Vec<Option<Tree>> = (0..16).map(lane).collect();
    while lanes.len() > 1 {
        let upper = lanes.split_off(lanes.len() / 2);
        lanes = lanes.into_iter().zip(upper).map(|(a, b)| join(a, b)).collect();
    }
    lanes.remove(0)
}

/// Eight lanes in four accumulators, each a cascade by groups of sixteen steps.
fn squares(k: usize) -> Option<Tree> {
    let (vectors, steps) = (k / 8, k / 8 / 4);
    let lane = |lane: usize| {
        let slot = |slot: usize| {
            let mut level: [Option<Tree>; 4] = Default::default();
            for step in 0..steps {
                let term = Tree::leaf((4 * step + slot) * 8 + lane);
                level[0] = join(level[0].take(), Some(term));
                let mut group = 16;
                for i in 1..4 {
                    if (step + 1) % group == 0 {
                        level[i] = join(level[i].take(), level[i - 1].take());
                    }
                    group *= 16;
                }
            }
            level.into_iter().fold(None, join)
        };
        let rest = (4 * steps..vectors).map(|v| Some(Tree::leaf(8 * v + lane)));
        let first = rest.fold(slot(0), join);
        (1..4).map(slot).fold(first, join)
    };
    let tail = Tree::chain((8 * vectors..k).map(Tree::leaf));
    (0..8).map(lane).fold(tail, join)
}
