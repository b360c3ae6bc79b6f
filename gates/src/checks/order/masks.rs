//! Products: the tree from counts of surviving ones.

use samebits::contract::Dtype;
use samebits::op::Backend;

use super::{Case, Found, MANY, Reduction, Tree, ops};

const BIG: f32 = 1.267_650_6e30; // 2^100

/// Probes executed at once.
const BATCH: usize = 512;

/// Ones in a probe, so that their count is exact in what the op writes.
fn ones(dtype: Dtype) -> usize {
    if dtype == Dtype::Bf16 { 256 } else { 1 << 24 }
}

pub fn compare<B: Backend>(b: &mut B, case: Case, want: &Tree) -> Found {
    let mut uneven = None;
    let terms: Vec<usize> = (0..case.k).collect();
    let got = reveal(b, case, &terms, &mut uneven);
    if let Some(row) = uneven {
        let expected = format!("all {MANY} rows are summed alike");
        return Some((0, [expected, format!("row {row} differs from row 0")]));
    }
    if got == *want {
        return None;
    }
    let found = terms.iter().find_map(|&i| {
        let (a, b) = (want.meets(i, case.k), got.meets(i, case.k));
        let j = (0..case.k).find(|&j| a[j] != b[j])?;
        Some((j, [a[j], b[j]].map(|n| format!("terms {i} and {j} meet in a sum of {n}"))))
    });
    Some(found.expect("two trees with equal meeting points are one tree"))
}

/// The tree over `terms`: what hangs on the way from the lowest term to the root, in order.
fn reveal<B: Backend>(b: &mut B, case: Case, terms: &[usize], uneven: &mut Option<usize>) -> Tree {
    let mut tree = Tree::leaf(terms[0]);
    let sizes = meets(b, case, terms, uneven);
    let mut others: Vec<(usize, usize)> = sizes.into_iter().zip(terms[1..].to_vec()).collect();
    others.sort_unstable();
    for group in others.chunk_by(|a, b| a.0 == b.0) {
        let group: Vec<usize> = group.iter().map(|(_, term)| *term).collect();
        let part =
            if group.len() == 1 { Tree::leaf(group[0]) } else { reveal(b, case, &group, uneven) };
        tree = Tree::sum(tree, part);
    }
    tree
}

/// For each of `terms[1..]`, the terms under its meeting point with `terms[0]`.
fn meets<B: Backend>(
    b: &mut B,
    case: Case,
    terms: &[usize],
    uneven: &mut Option<usize>,
) -> Vec<usize> {
    let mut survived = vec![0; terms.len() - 1];
    for ones in terms.chunks(ones(case.dtype)) {
        for (batch, partners) in terms[1..].chunks(BATCH).enumerate() {
            let mut probes = vec![0.0; partners.len() * case.k];
            for (probe, partner) in probes.chunks_mut(case.k).zip(partners) {
                ones.iter().for_each(|term| probe[*term] = 1.0);
                (probe[terms[0]], probe[*partner]) = (BIG, -BIG);
            }
            let sums = sums(b, case, &probes, uneven);
            for (i, sum) in sums.iter().enumerate() {
                survived[batch * BATCH + i] += sum.clamp(0.0, case.k as f32) as usize;
            }
        }
    }
    survived.into_iter().map(|n| terms.len() - n.min(terms.len())).collect()
}

/// Whether, for each `[x, y, z]`, terms `x` and `y` meet before `z`: +2^100 and -2^100 there leave
/// a one that comes later. An uneven row counts as none.
pub fn meet<B: Backend>(b: &mut B, case: Case, terms: &[[usize; 3]]) -> Vec<bool> {
    let mut met = Vec::with_capacity(terms.len());
    for batch in terms.chunks(BATCH) {
        let mut probes = vec![0.0; batch.len() * case.k];
        for (probe, [x, y, z]) in probes.chunks_mut(case.k).zip(batch) {
            (probe[*x], probe[*y], probe[*z]) = (BIG, -BIG, 1.0);
        }
        let mut uneven = None;
        let sums = sums(b, case, &probes, &mut uneven);
        met.extend(sums.into_iter().map(|sum| sum == 1.0 && uneven.is_none()));
    }
    met
}

/// One row's sums of the probes, and the first row that has others.
fn sums<B: Backend>(b: &mut B, case: Case, probes: &[f32], uneven: &mut Option<usize>) -> Vec<f32> {
    let mut sums = match case.reduction {
        Reduction::Scores => ops::scores(b, case, probes),
        Reduction::Mix => ops::mix(b, case, probes),
        _ => ops::linear(b, case, probes),
    };
    let count = probes.len() / case.k;
    *uneven = uneven.or(sums.chunks(count).position(|row| *row != sums[..count]));
    sums.truncate(count);
    sums
}
