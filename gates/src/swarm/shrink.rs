//! Makes a failing case smaller while it still fails.
//!
//! The invariant: what is returned was seen to fail itself; nothing is guessed.

use std::time::{Duration, Instant};

use samebits_fixtures::{HybridSpec, Spec};

use super::judge::judge;
use super::{Case, Inputs, Shape};
use crate::checks::CheckError;
use crate::manifest::Plant;

/// How long a shrink may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn half(n: usize) -> usize {
    n.div_ceil(2)
}

/// The case with one change.
fn with(case: &Case, change: impl FnOnce(&mut Case)) -> Case {
    let mut other = case.clone();
    change(&mut other);
    other
}

fn dense(spec: &Spec, change: impl FnOnce(&mut Spec)) -> Shape {
    let mut spec = spec.clone();
    change(&mut spec);
    Shape::Dense(spec)
}

fn hybrid(spec: &HybridSpec, change: impl FnOnce(&mut HybridSpec)) -> Shape {
    let mut spec = spec.clone();
    change(&mut spec);
    Shape::Hybrid(spec)
}

/// Smaller shapes.
fn shapes(shape: &Shape) -> Vec<Shape> {
    match shape {
        Shape::Dense(s) => vec![
            dense(s, |s| s.layers = half(s.layers)),
            dense(s, |s| s.hidden = half(s.hidden)),
            dense(s, |s| s.intermediate = half(s.intermediate)),
            dense(s, |s| s.vocab = half(s.vocab).max(2)),
            dense(s, |s| (s.heads, s.kv_heads) = (1, 1)),
            dense(s, |s| s.head_dim = 2 * half(s.head_dim / 2)),
        ],
        Shape::Hybrid(s) => vec![
            hybrid(s, |s| s.layers = half(s.layers).max(s.interval)),
            hybrid(s, |s| s.hidden = half(s.hidden)),
            hybrid(s, |s| s.intermediate = half(s.intermediate)),
            hybrid(s, |s| s.vocab = half(s.vocab).max(2)),
            hybrid(s, |s| (s.heads, s.kv_heads) = (1, 1)),
            hybrid(s, |s| (s.key_heads, s.value_heads) = (1, 1)),
            hybrid(s, |s| (s.key_dim, s.value_dim) = (half(s.key_dim), half(s.value_dim))),
        ],
    }
}

/// Cases that are smaller by one step each.
fn smaller(case: &Case) -> Vec<Case> {
    let mut all = vec![
        with(case, |c| c.batch = half(c.batch)),
        with(case, |c| c.batch -= usize::from(c.batch > 1)),
        with(case, |c| c.threads = half(c.threads)),
        with(case, |c| c.threads -= usize::from(c.threads > 1)),
        with(case, |c| c.past = c.past / 2),
        with(case, |c| c.pieces = vec![c.rows()]),
        with(case, |c| c.pieces = vec![half(c.rows())]),
        with(case, |c| c.inputs = Inputs::Plain),
        with(case, |c| c.table = 0),
        with(case, |c| c.chunk = c.rows()),
    ];
    all.extend(shapes(&case.shape).into_iter().map(|shape| Case { shape, ..case.clone() }));
    if let Some(asked) = &case.asked {
        let mut less = vec![asked.clone(); 4];
        less[0].new = half(asked.new);
        less[1].resumed = false;
        less[2].stop.pop();
        (less[3].top_k, less[3].top_p, less[3].min_p) = (0, 1.0, 0.0);
        all.extend(less.into_iter().map(|asked| with(case, |c| c.asked = Some(asked))));
        // A stop id is one of the vocabulary.
        let fits = |c: &Case| {
            let vocab = c.shape.vocab();
            c.asked.as_ref().is_none_or(|a| a.stop.iter().all(|id| (*id as usize) < vocab))
        };
        all.retain(fits);
    }
    // A filled cache stays one: the two are judged in different ways.
    all.retain(|c| c != case && (c.past > 0) == (case.past > 0));
    all
}

/// The smallest case found that still fails.
///
/// # Errors
/// Those of [`judge`].
pub fn shrink(case: &Case, plant: Option<&Plant>) -> Result<Case, CheckError> {
    let (start, mut best) = (Instant::now(), case.clone());
    'smaller: loop {
        for other in smaller(&best) {
            if start.elapsed() > PATIENCE {
                return Ok(best);
            }
            if judge(&other, plant)?.red() {
                best = other;
                continue 'smaller;
            }
        }
        return Ok(best);
    }
}
