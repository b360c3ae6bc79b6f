//! The law of legal sums on one linear of published width: no legal order is beyond it, and faults
//! of one row, of one step, of one accumulator are.

use samebits::contract::Dtype;
use samebits_defects::{Defect, Fault, Legal, Tree};
use samebits_gates::context::data;
use samebits_gates::law::sum::{Sum, rounded};
use samebits_gates::law::{Allowed, Judgement, Law, Shape};
use samebits_gates::limits::Limits;
use samebits_oracle::ops::Linear;
use samebits_oracle::{Arithmetic, Ideal};

const ROWS: usize = 24;
const COLUMNS: usize = 384;

/// Operands of a linear, in bf16.
struct Case {
    k: usize,
    x: Vec<f64>,
    w: Vec<f64>,
}

impl Case {
    fn draw(k: usize, seed: u64) -> Self {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / 2f64.powi(24) - 0.5
        };
        let mut bell = |n: usize| -> Vec<f64> {
            let one = |_| rounded(Dtype::Bf16, (0..12).map(|_| uniform()).sum());
            (0..n).map(one).collect()
        };
        Self { k, x: bell(ROWS * k), w: bell(COLUMNS * k) }
    }

    fn judge(&self, got: &[f64]) -> Judgement {
        let limits = Limits::load(&data("limits.json")).expect("the project's own limits");
        let law = Law::of(&limits).expect("all constants are there");
        let op = Linear { x: &self.x, weight: &self.w, k: self.k, true_rows: ROWS };
        let out = Ideal.linear(&op);
        let squares = out.squares.expect("exact sums have squares");
        let sum = |(y, q): (&f64, &f64)| Sum { y: *y, q: *q, k: self.k as f64 };
        let sums: Vec<Sum> = out.values.iter().zip(&squares).map(sum).collect();
        let own = sums.clone();
        let bound = move |i: usize, nats: f64| own[i].bound(law.rms, nats);
        let allowed = Allowed {
            sums: Some(sums),
            width: COLUMNS,
            ..Allowed::of(Dtype::Bf16, out.values, Shape::Once, bound)
        };
        allowed.test(&law, got)
    }

    /// The sums in an order, `change` of each before its rounding.
    fn summed(&self, how: &Legal, change: impl Fn(usize, f32) -> f64) -> Vec<f64> {
        let one = |i: usize| {
            let (x, w) = (&self.x[i / COLUMNS * self.k..], &self.w[i % COLUMNS * self.k..]);
            change(i, how.sum(self.k, |j| (x[j] as f32, w[j] as f32)))
        };
        (0..ROWS * COLUMNS).map(|i| rounded(Dtype::Bf16, one(i))).collect()
    }
}

const PLAIN: Legal = Legal { tree: Tree::Blocks(512), fused: false };

#[test]
fn no_legal_order_is_beyond_the_law() {
    for (k, seed) in [(256, 1), (1024, 2), (3072, 3)] {
        let case = Case::draw(k, seed);
        for defect in Defect::all() {
            let Fault::Legal(how) = &defect.fault else { continue };
            if how.fused && k > 1024 {
                continue; // Slow where the target has no instruction for it.
            }
            let found = case.judge(&case.summed(how, |_, sum| f64::from(sum)));
            assert!(found.over < 0.6, "{k} {}: {found:?}", defect.id);
        }
    }
}

#[test]
fn faults_of_one_row_are_beyond_it() {
    for (k, seed) in [(256, 4), (1024, 5), (3072, 6)] {
        let case = Case::draw(k, seed);
        let last = (ROWS - 1) * COLUMNS;
        let gain = 1.0 + 2f64.powi(-13);
        let with_gain = |i: usize, sum: f32| f64::from(sum) * if i >= last { gain } else { 1.0 };
        let found = case.judge(&case.summed(&PLAIN, with_gain));
        assert!(found.over > 1.0 && found.worst >= last, "{k}: gain {found:?}");
        let narrow = |i: usize, sum: f32| match i >= last {
            true => rounded(Dtype::Bf16, f64::from(sum) * (1.0 + 2f64.powi(-9))),
            false => f64::from(sum),
        };
        let found = case.judge(&case.summed(&PLAIN, narrow));
        assert!(found.over > 1.0 && found.worst >= last, "{k}: bf16 {found:?}");
    }
}

#[test]
fn one_element_off_by_one_step_is_seen_nearly_always() {
    let case = Case::draw(1024, 7);
    let clean = case.summed(&PLAIN, |_, sum| f64::from(sum));
    let caught = (0..40).filter(|at| {
        let (mut got, i) = (clean.clone(), at * 211);
        let step = samebits_gates::stats::ulp(Dtype::Bf16, got[i]);
        got[i] += step;
        case.judge(&got).over > 1.0
    });
    assert!(caught.count() >= 38);
}
