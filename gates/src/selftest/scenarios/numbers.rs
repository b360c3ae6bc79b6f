//! Comparison and statistics, on numbers small enough for paper.

use std::collections::BTreeMap;

use samebits::contract::Dtype;

use crate::checks::determinism::Answer;
use crate::context::Context;
use crate::manifest::Check;
use crate::probe::{MODEL_SEED, Stage};
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, gate, hold, said, same, site, sites};
use crate::sites::Sites;
use crate::stats::Residual;

const ONE: u32 = 0x3F80;
const NAN: u32 = 0x7FC0;
const INFINITY: u32 = 0x7F80;
const MINUS_ZERO: u32 = 0x8000;

pub(super) fn bits(runner: &Runner, _ctx: &Context) -> Verdict {
    let norm = |shape: &[usize], bits: &[u32]| sites(&[("norm", site(shape, bits))]);
    let want = norm(&[2, 2], &[ONE, ONE, 0, ONE]);
    for (why, got, differing, element) in [
        ("equal", want.clone(), 0, None),
        ("NaN", norm(&[2, 2], &[ONE, ONE, 0, NAN]), 1, Some(1)),
        ("infinite", norm(&[2, 2], &[ONE, INFINITY, 0, ONE]), 1, Some(1)),
        ("signed zero", norm(&[2, 2], &[ONE, ONE, MINUS_ZERO, ONE]), 1, Some(0)),
        ("shape", norm(&[4, 1], &[ONE, ONE, 0, ONE]), 1, None),
        ("absent", Sites::new(), 1, None),
    ] {
        let found = (runner.compare)(&want, &got, std::slice::from_ref(&(0..2)));
        same(why, found.differing, differing)?;
        same(why, found.first.as_ref().and_then(|f| f.element), element)?;
        same(why, found.first.is_some(), differing > 0)?;
    }
    let mut wider = want.clone();
    wider.values_mut().for_each(|site| site.dtype = Dtype::F32);
    let found = (runner.compare)(&want, &wider, std::slice::from_ref(&(0..2)));
    same("the same bits in another dtype", (found.differing, found.compared), (1, 0))?;
    let none = (runner.compare)(&want, &Sites::new(), std::slice::from_ref(&(0..2)));
    same("absent tensors do not count as compared", none.compared, 0)
}

pub(super) fn zeros(runner: &Runner, _ctx: &Context) -> Verdict {
    let want = sites(&[("norm", site(&[2, 2], &[ONE, ONE, ONE, 0]))]);
    let got = sites(&[("norm", site(&[2, 2], &[0; 4]))]);
    let found = (runner.compare)(&want, &got, std::slice::from_ref(&(0..2)));
    same("zeros that differ", found.differing, 3)?;
    same("zeros compared", found.compared, 4)?;
    let found = (runner.residual)(&[0.0; 4], &[1.0, 1.0, 1.0, 0.0], &|_| 1.0);
    same("zeros that are misrounded", (found.misrounds, found.elements), (3, 4))
}

pub(super) fn residuals(runner: &Runner, _ctx: &Context) -> Verdict {
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    for (why, got, want, misrounds, max) in [
        ("equal", [1.0, 2.0], [1.0, 2.0], 0, 0.0),
        ("NaN", [nan, 2.0], [1.0, 2.0], 1, infinite),
        ("NaN wanted", [1.0, 2.0], [nan, 2.0], 1, infinite),
        ("infinity", [infinite, 2.0], [1.0, 2.0], 1, infinite),
        ("a large error of a large value", [1e6, 2.0], [1.0, 2.0], 1, 1e6 - 1.0),
        ("a small value for a large one", [1.0, 2.0], [1e6, 2.0], 1, 1e6 - 1.0),
        ("zero for a value", [0.0, 2.0], [1.0, 2.0], 1, 1.0),
    ] {
        let found = (runner.residual)(&got, &want, &|_| 1.0);
        same(why, (found.misrounds, found.max), (misrounds, max))?;
        same(why, found.elements, 2)?;
    }
    let units = (runner.residual)(&[3.0, 3.0], &[1.0, 1.0], &|i| [0.5, 2.0][i]);
    same("the unit of each element", (units.max, units.worst), (4.0, 0))
}

pub(super) fn counts(runner: &Runner, _ctx: &Context) -> Verdict {
    // All of 3 at one tenth: a thousandth. 2 or 3 of them: 0.028.
    for (n, count, rate, chance) in [(3, 3, 0.1, 0.001f64), (3, 2, 0.1, 0.028), (2, 2, 0.5, 0.25)] {
        let digits = (runner.surprise)(n, count, rate);
        let close = (digits + chance.log10()).abs() < f64::from(f32::EPSILON);
        hold(&format!("{count} of {n} at {rate}: {digits} digits of surprise"), close)?;
    }
    same("none", (runner.surprise)(10, 0, 0.5), 0.0)?;
    same("one where none may be", (runner.surprise)(10, 1, 0.0), f64::INFINITY)?;
    let many = (runner.surprise)(1_000_000, 2_000, 1e-3);
    hold(&format!("twice the rate of a million: {many} digits"), many > 100.0)
}

/// Statistics with an error of `max` among `elements`.
fn one_error(max: f64, elements: u64) -> Residual {
    let rms = max / (elements as f64).sqrt();
    Residual { elements, misrounds: 1, max, rms, mean: 0.0, worst: 0 }
}

pub(super) fn sizes(runner: &Runner, ctx: &Context) -> Verdict {
    let gate = gate("residual/prefill/f32")?;
    let Check::TeacherForced { probe } = &gate.check else {
        return Err(format!("{} is no designed run", gate.id));
    };
    let ruler = Stage::new(probe, MODEL_SEED).map_err(said)?.ruler();
    let over_of = |op: &str, max, elements| {
        let site = format!("layers.0.{op}");
        let found = (runner.over_limit)(&ruler, &ctx.limits, &site, &one_error(max, elements));
        found.map(|(over, _)| over).map_err(said)
    };
    let over = |max, elements| over_of("q_proj", max, elements);
    let (few, many) = (8, 1_000_000);
    let limit = 1.0 / over(1.0, few)?;
    hold("the limit is a positive number", limit.is_finite() && limit > 0.0)?;
    for (max, red) in [(limit / 2.0, false), (limit * 2.0, true), (f64::INFINITY, true)] {
        for elements in [few, many] {
            let over = over(max, elements)?;
            same(&format!("an error of {max} among {elements}"), over > 1.0, red)?;
        }
        same("over the limit", over(max, few)?, over(max, many)?)?;
    }
    for elements in [few, many] {
        // A copy has one right answer, however near another one is.
        let over = over_of("k_cache", limit / 2.0, elements)?;
        hold(&format!("one wrong copy among {elements} is within its limit"), over > 1.0)?;
    }
    Ok(())
}

pub(super) fn processes(runner: &Runner, _ctx: &Context) -> Verdict {
    let table = |name: &str| BTreeMap::from([(name.to_owned(), "a hash".to_owned())]);
    let first = Answer {
        weights: table("Embed"),
        sites: table("norm"),
        argmax: vec![1, 2],
        generated: vec![3],
        hits: 0,
    };
    let other = |change: fn(&mut Answer)| {
        let mut answer = first.clone();
        change(&mut answer);
        answer
    };
    for (why, answer, differing) in [
        ("equal", other(|_| ()), 0),
        ("a weight", other(|a| a.weights.values_mut().for_each(|hash| hash.push('x'))), 1),
        ("a site", other(|a| a.sites.values_mut().for_each(|hash| hash.push('x'))), 1),
        ("a site that is not there", other(|a| a.sites.clear()), 1),
        ("an argmax", other(|a| a.argmax[1] = 9), 1),
        ("an id", other(|a| a.generated.clear()), 1),
    ] {
        let found = (runner.answers)(&first, &answer);
        same(why, (found.differing, found.compared), (differing, 5))?;
    }
    Ok(())
}
