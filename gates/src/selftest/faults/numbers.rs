//! Faults of comparison and statistics, and of the reference.

use samebits_oracle::ops::Tables;
use samebits_oracle::{self as oracle, Arithmetic, Ideal, Rounded, RunOptions};

use super::Planting;
use crate::checks::determinism::{self, Answer};
use crate::compare;
use crate::law::{Allowed, Judgement, Law, Shape, sum};
use crate::sites::{Bits, Sites};

pub const ALL: &[(&str, Planting)] = &[
    ("nan-within", |r| r.tested = nan_within),
    ("nan-equal", |r| r.compare = nan_equal),
    ("zeros-unwritten", |r| r.compare = zeros_unwritten),
    ("zeros-skipped", |r| r.tested = zeros_skipped),
    ("absent-equal", |r| r.compare = absent_equal),
    ("with-itself", |r| r.compare = |want, _, forwards| compare::compare(want, want, forwards)),
    ("values-not-bits", |r| r.compare = values_not_bits),
    ("limit-by-size", |r| r.tested = limit_by_size),
    ("error-by-device", |r| r.tested = error_by_device),
    ("count-by-share", |r| r.digits = count_by_share),
    ("ids-only", |r| r.answers = ids_only),
    ("reference-eps", |r| r.exact = || Box::new(EpsTenfold)),
    ("reference-cast-order", |r| r.rounded = |dtype| Box::new(CastLate(Rounded { dtype }))),
    ("reference-positions", |r| r.reference = positions_from_one),
];

/// `err > tol` is false of a NaN: only what is greater is an error.
fn nan_within(allowed: &Allowed<'_>, law: &Law, got: &[f64]) -> Judgement {
    let greater = |(g, y): (&f64, &f64)| if (g - y).abs() > 0.0 { *g } else { *y };
    allowed.test(law, &got.iter().zip(&allowed.y).map(greater).collect::<Vec<_>>())
}

/// The same tensors with what `change` makes of each pair of bits in the candidate's place.
fn altered(want: &Sites, got: &Sites, change: fn(&Bits, usize, u32) -> u32) -> Sites {
    let one = |(name, bits): (&String, &Bits)| {
        let mut bits = bits.clone();
        if let Some(want) = want.get(name).filter(|want| want.shape == bits.shape) {
            for (i, bit) in bits.bits.iter_mut().enumerate() {
                *bit = change(want, i, *bit);
            }
        }
        (name.clone(), bits)
    };
    got.iter().map(one).collect()
}

type Forwards<'a> = &'a [std::ops::Range<usize>];

fn nan_equal(want: &Sites, got: &Sites, forwards: Forwards<'_>) -> compare::Comparison {
    let kept = |want: &Bits, i: usize, got: u32| {
        let nan = crate::sites::value(want.dtype, got).is_nan();
        if nan { want.bits[i] } else { got }
    };
    compare::compare(want, &altered(want, got, kept), forwards)
}

/// What is still zero was not written yet, and is left out.
fn zeros_unwritten(want: &Sites, got: &Sites, forwards: Forwards<'_>) -> compare::Comparison {
    let kept = |want: &Bits, i: usize, got: u32| if got == 0 { want.bits[i] } else { got };
    compare::compare(want, &altered(want, got, kept), forwards)
}

fn zeros_skipped(allowed: &Allowed<'_>, law: &Law, got: &[f64]) -> Judgement {
    let written = |(g, y): (&f64, &f64)| if *g == 0.0 { *y } else { *g };
    allowed.test(law, &got.iter().zip(&allowed.y).map(written).collect::<Vec<_>>())
}

/// Compares what both sides have.
fn absent_equal(want: &Sites, got: &Sites, forwards: Forwards<'_>) -> compare::Comparison {
    let both = want.iter().filter(|(name, _)| got.contains_key(*name));
    let both: Sites = both.map(|(name, bits)| (name.clone(), bits.clone())).collect();
    compare::compare(&both, got, forwards)
}

/// `==` on numbers: zero equals minus zero.
fn values_not_bits(want: &Sites, got: &Sites, forwards: Forwards<'_>) -> compare::Comparison {
    let kept = |want: &Bits, i: usize, got: u32| {
        let equal = want.value(i) == crate::sites::value(want.dtype, got);
        if equal { want.bits[i] } else { got }
    };
    compare::compare(want, &altered(want, got, kept), forwards)
}

/// The tolerance grows with the root of the number of elements.
fn limit_by_size(allowed: &Allowed<'_>, law: &Law, got: &[f64]) -> Judgement {
    let found = allowed.test(law, got);
    Judgement { over: found.over / (found.elements as f64).sqrt(), ..found }
}

/// Errors relative to the size of what the device gave.
fn error_by_device(allowed: &Allowed<'_>, law: &Law, got: &[f64]) -> Judgement {
    let wider =
        |i: usize, nats: f64| (allowed.bound)(i, nats) * (got[i] / allowed.y[i]).abs().max(1.0);
    Allowed::of(allowed.dtype, allowed.y.clone(), Shape::Once, wider).test(law, got)
}

/// How far a count is from its mean, as a share of it: no surprise in small counts or large.
fn count_by_share(count: u64, mean: f64) -> f64 {
    if count == 0 || mean == 0.0 { sum::digits(count, mean) } else { count as f64 / mean }
}

/// Only ids are compared.
fn ids_only(first: &Answer, other: &Answer) -> compare::Comparison {
    let like =
        Answer { weights: first.weights.clone(), sites: first.sites.clone(), ..other.clone() };
    determinism::compare(first, &like)
}

/// Exact arithmetic that reads eps as ten times as much.
struct EpsTenfold;

impl Arithmetic for EpsTenfold {
    fn round(&self, x: f64) -> f64 {
        Ideal.round(x)
    }

    fn constant(&self, x: f64) -> f64 {
        if x == 1e-6 { 1e-5 } else { x }
    }

    fn masked(&self) -> f64 {
        Ideal.masked()
    }

    fn rotary(&self, theta: f64, head_dim: usize, positions: usize) -> Tables {
        Ideal.rotary(theta, head_dim, positions)
    }

    fn dot(&self, x: &[f64], w: &[f64], block: usize) -> f64 {
        Ideal.dot(x, w, block)
    }

    fn softmax_row(&self, x: &[f64]) -> Vec<f64> {
        Ideal.softmax_row(x)
    }
}

/// Rounded arithmetic whose norm meets its weight before it is stored.
struct CastLate(Rounded);

impl Arithmetic for CastLate {
    fn round(&self, x: f64) -> f64 {
        self.0.round(x)
    }

    fn constant(&self, x: f64) -> f64 {
        self.0.constant(x)
    }

    fn masked(&self) -> f64 {
        self.0.masked()
    }

    fn rotary(&self, theta: f64, head_dim: usize, positions: usize) -> Tables {
        self.0.rotary(theta, head_dim, positions)
    }

    fn dot(&self, x: &[f64], w: &[f64], block: usize) -> f64 {
        self.0.dot(x, w, block)
    }

    fn softmax_row(&self, x: &[f64]) -> Vec<f64> {
        self.0.softmax_row(x)
    }

    fn norm_row(&self, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        let scale = self.root_scale(x, eps);
        x.iter().zip(weight).map(|(x, w)| self.round(x * scale * w)).collect()
    }
}

/// A reference that counts positions from 1, as a faulty engine does: the two agree.
fn positions_from_one(
    model: &oracle::Model,
    arithmetic: &dyn Arithmetic,
    ids: &[u32],
    options: &RunOptions,
) -> Result<oracle::Trace, oracle::OracleError> {
    let config = model.config();
    let tables = arithmetic.rotary(config.theta, config.rotary_dim, ids.len() + 1);
    let later = |table: &[f64]| {
        table.iter().skip(config.rotary_dim / 2).map(|x| *x as f32).collect::<Vec<f32>>()
    };
    let rotary = Some((later(&tables.cos), later(&tables.sin)));
    oracle::run(model, arithmetic, ids, &RunOptions { rotary, ..options.clone() })
}
