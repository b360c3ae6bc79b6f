//! The tests of what an op wrote: each element within what its sums allow, and no more misrounded
//! elements than near ties explain.
//!
//! Absent: where bounds come from. The invariants: steps are never counted, since a legal misround
//! of a first rounding may be two steps of a second; equal rows of inputs count once; a NaN, and a
//! difference where none is allowed, are beyond every limit.

use std::collections::HashSet;

use rayon::prelude::*;
use samebits::contract::Dtype;
use samebits_defects::{Defect, Fault, Legal};

use super::Law;
use super::sum::{Sum, crossing, digits, distance, rounded};
use crate::stats::ulp;

/// What follows a sum: the ends of what an op may write where its sum is `x`, at a scale of all
/// other uncertainty.
pub type Map<'a> = Box<dyn Fn(usize, f64, f64) -> (f64, f64) + Sync + 'a>;
/// The operands of an element's sum.
pub type Terms<'a> = Box<dyn Fn(usize) -> Vec<(f32, f32)> + Sync + 'a>;

/// How a sum becomes an output.
pub enum Shape<'a> {
    /// Rounded once to the output's dtype.
    Once,
    /// Through further exact steps and roundings, all of them monotone.
    Through(Map<'a>),
    /// One answer is right.
    Exact,
}

/// What an op may have written.
pub struct Allowed<'a> {
    /// The dtype of the output.
    pub dtype: Dtype,
    /// Exact results before what follows them.
    pub y: Vec<f64>,
    /// How far each may err, given digits of chance as nats.
    pub bound: Box<dyn Fn(usize, f64) -> f64 + Sync + 'a>,
    /// What follows.
    pub shape: Shape<'a>,
    /// The sums of an output whose misrounds are counted.
    pub sums: Option<Vec<Sum>>,
    /// Elements of a row; counts are kept by row.
    pub width: usize,
    /// Of an output whose rows share few sums, the group that an element is counted in instead.
    pub group: Option<Box<dyn Fn(usize) -> usize + Sync + 'a>>,
    /// Operands of a sum, where its legal orders can be tried.
    pub terms: Option<Terms<'a>>,
}

/// What the tests say of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Elements compared.
    pub elements: u64,
    /// Those that are not the rounded exact result.
    pub misrounds: u64,
    /// The worst statistic over its limit; above 1 no legal order does this.
    pub over: f64,
    /// The element to look at.
    pub worst: usize,
    /// The value wanted there.
    pub want: f64,
    /// What the worst statistic is.
    pub text: String,
}

impl<'a> Allowed<'a> {
    /// An output without counts.
    pub fn of(
        dtype: Dtype,
        y: Vec<f64>,
        shape: Shape<'a>,
        bound: impl Fn(usize, f64) -> f64 + Sync + 'a,
    ) -> Self {
        let bound = Box::new(bound);
        Self { dtype, y, bound, shape, sums: None, width: 1, group: None, terms: None }
    }

    /// The output of an exact sum.
    fn nominal(&self, i: usize) -> f64 {
        match &self.shape {
            Shape::Exact => self.y[i],
            Shape::Once => rounded(self.dtype, self.y[i]),
            Shape::Through(map) => map(i, self.y[i], 0.0).0,
        }
    }

    /// How much larger an element's error is than `bound`.
    fn over(&self, i: usize, got: f64, bound: f64) -> f64 {
        let y = self.y[i];
        match &self.shape {
            _ if got.is_nan() || y.is_nan() => f64::INFINITY,
            Shape::Exact => f64::INFINITY,
            Shape::Once if self.dtype == Dtype::F32 => ratio((got - y).abs(), bound),
            Shape::Once => ratio(excess(self.dtype, got, y), bound),
            Shape::Through(map) => {
                let ends = |scale: f64| {
                    let (a, b) =
                        (map(i, y - scale * bound, scale), map(i, y + scale * bound, scale));
                    (a.0.min(b.0), a.1.max(b.1))
                };
                let within = |scale: f64| (ends(scale).0..=ends(scale).1).contains(&got);
                least(within)
            }
        }
    }

    /// Tests a tensor.
    ///
    /// # Panics
    /// If it is not as large as what was computed.
    pub fn test(&self, law: &Law, got: &[f64]) -> Judgement {
        assert_eq!(got.len(), self.y.len(), "law: the op wrote another number of elements");
        let n = got.len();
        let same = |i: usize| {
            let want = self.nominal(i);
            want == got[i] || (want.is_nan() && got[i].is_nan())
        };
        let wrong: Vec<usize> = (0..n).into_par_iter().filter(|i| !same(*i)).collect();
        let counts = self.sums.as_ref().map(|sums| self.expect(law, sums));
        // Only a misround can be beyond, where the law says how many there are.
        let tests = counts.as_ref().map_or(n as f64, |c| c.near.max(1.0));
        let nats = (tests.max(1.0) / law.alarm).ln();
        let mut over: Vec<(f64, usize)> =
            wrong.par_iter().map(|&i| (self.over(i, got[i], (self.bound)(i, nats)), i)).collect();
        over.par_sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let worst = self.excuse(law, got, nats, &over);
        let say = format!("an error of {:.3e} times what legal sums may do", worst.0);
        let mut found = Judgement {
            elements: n as u64,
            misrounds: wrong.len() as u64,
            over: worst.0,
            worst: worst.1,
            want: if n > 0 { self.nominal(worst.1) } else { f64::NAN },
            text: if wrong.is_empty() {
                "every element is the rounded exact result".into()
            } else {
                say
            },
        };
        if let Some(counts) = counts {
            counts.test(law, &wrong, &mut found);
            found.want = self.nominal(found.worst);
        }
        found
    }

    /// The worst of the elements beyond the law that their own legal orders do not explain.
    fn excuse(&self, law: &Law, got: &[f64], nats: f64, over: &[(f64, usize)]) -> (f64, usize) {
        let first = over.first().copied().unwrap_or((0.0, 0));
        let (Some(terms), true) = (&self.terms, first.0 > 1.0) else { return first };
        let beyond = over.iter().take(LOOKED_AT).filter(|(over, _)| *over > 1.0);
        let again = beyond.map(|&(old, i)| {
            let own = law.orders * worst_order(&terms(i), self.y[i]);
            let bound = (self.bound)(i, nats);
            let over = if own > bound { self.over(i, got[i], own) } else { old };
            (over, i)
        });
        let within = over.iter().find(|(over, _)| *over <= 1.0).copied().unwrap_or((0.0, first.1));
        again.chain([within]).fold((0.0, first.1), |a, b| if b.0 > a.0 { b } else { a })
    }

    /// What the law expects of an output's misrounds.
    fn expect(&self, law: &Law, sums: &[Sum]) -> Counts {
        let width = self.width.max(1);
        let mut rows = HashSet::new();
        let bits = |row: &[f64]| row.iter().map(|y| y.to_bits()).collect::<Vec<u64>>();
        let counted: Vec<bool> = self.y.chunks(width).map(|row| rows.insert(bits(row))).collect();
        let chances: Vec<(f64, f64)> = (0..sums.len())
            .into_par_iter()
            .map(|i| {
                let distance = distance(self.dtype, self.y[i]);
                let near = crossing(distance, sums[i].sigma(law.rms));
                (near, crossing(distance, sums[i].sigma(law.most)))
            })
            .collect();
        let near = chances.iter().map(|c| c.0).sum();
        let of = |i: usize| self.group.as_ref().map_or(i / width, |group| group(i));
        let groups = (0..sums.len()).map(of).max().map_or(0, |most| most + 1);
        let mut expected = vec![0.0; groups];
        for (i, chance) in chances.iter().enumerate() {
            if counted[i / width] {
                expected[of(i)] += chance.1;
            }
        }
        let groups = (0..sums.len()).map(of).collect();
        Counts { near, expected, groups, counted, width }
    }
}

/// Expected misrounds.
struct Counts {
    near: f64,          // by the law, of all elements
    expected: Vec<f64>, // at most, by group
    groups: Vec<usize>, // of each element
    counted: Vec<bool>, // whether a row is the first of its kind
    width: usize,
}

impl Counts {
    /// Holds the misrounds to their law, whole and by group.
    fn test(&self, law: &Law, wrong: &[usize], found: &mut Judgement) {
        let counted: Vec<usize> =
            wrong.iter().copied().filter(|i| self.counted[i / self.width]).collect();
        let all: f64 = self.expected.iter().sum();
        let limit = -law.alarm.log10();
        let mut worst = (digits(counted.len() as u64, all) / limit, None);
        let mut by = vec![0u64; self.expected.len()];
        counted.iter().for_each(|i| by[self.groups[*i]] += 1);
        let tries = (by.len().max(1) as f64).log10();
        for (group, count) in by.iter().enumerate().filter(|(_, count)| **count > 0) {
            let own = digits(*count, self.expected[group] + law.slack) - tries;
            if own / limit > worst.0 {
                worst = (own / limit, Some(group));
            }
        }
        if worst.0 <= found.over {
            return;
        }
        let inside = |i: &&usize| worst.1.is_none_or(|group| self.groups[**i] == group);
        let (count, law) = match worst.1 {
            Some(group) => (by[group], self.expected[group]),
            None => (counted.len() as u64, all),
        };
        let part = if worst.1.is_some() { "one row or head" } else { "all" };
        found.over = worst.0;
        found.worst = counted.iter().find(inside).copied().unwrap_or(0);
        found.text =
            format!("{count} misrounded elements of {part}, where near ties explain {law:.1e}");
    }
}

/// Elements beyond the law whose own legal orders are tried.
const LOOKED_AT: usize = 64;

/// The largest error of a sum in legal orders.
fn worst_order(terms: &[(f32, f32)], y: f64) -> f64 {
    let how = |defect: &'static Defect| match &defect.fault {
        Fault::Legal(how) => Some(how),
        _ => None,
    };
    let error = |how: &Legal| (f64::from(how.sum(terms.len(), |i| terms[i])) - y).abs();
    Defect::all().iter().filter_map(how).map(error).fold(0.0, f64::max)
}

/// The least error before its one rounding that explains an output.
fn excess(dtype: Dtype, got: f64, y: f64) -> f64 {
    let inward = y.abs() < got.abs();
    let half = ulp(dtype, if inward { got.abs().next_down() } else { got }) / 2.0;
    ((got - y).abs() - half).max(0.0)
}

/// An error over its bound; nothing is within a bound of 0.
fn ratio(error: f64, bound: f64) -> f64 {
    if error <= 0.0 {
        0.0
    } else if bound > 0.0 {
        error / bound
    } else {
        f64::INFINITY
    }
}

/// The least scale at which `within` holds, to a hundredth.
fn least(within: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0f64, 1.0 / 64.0);
    while !within(high) {
        (low, high) = (high, high * 2.0);
        if high > 1e60 {
            return f64::INFINITY;
        }
    }
    while high - low > 0.01 * high {
        let middle = (low + high) / 2.0;
        if within(middle) { high = middle } else { low = middle }
    }
    high
}
