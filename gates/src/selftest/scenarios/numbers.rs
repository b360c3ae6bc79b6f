//! Comparison and statistics, on numbers small enough for paper.

use std::collections::BTreeMap;

use samebits::contract::Dtype;

use crate::checks::determinism::Answer;
use crate::context::Context;
use crate::limits::Limit;
use crate::manifest::Check;
use crate::probe::{MODEL_SEED, Stage};
use crate::ruler::{Ruler, limit_name, rate_name, surprise_name};
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

/// Statistics with so many misrounds, the largest an error of `max`, among `elements`.
fn errors(misrounds: u64, max: f64, elements: u64) -> Residual {
    let rms = max * (misrounds as f64 / elements as f64).sqrt();
    Residual { elements, misrounds, max, rms, mean: 0.0, worst: 0 }
}

/// A limit of a self-test's own.
fn limit(value: f64, dtype: Dtype) -> Limit {
    let [statistic, provenance] = ["a statistic", "a self-test"].map(str::to_owned);
    let (dtype, recompute) = (dtype.name().to_owned(), String::new());
    Limit { value, statistic, dtype, provenance, recompute }
}

pub(super) fn sizes(runner: &Runner, ctx: &Context) -> Verdict {
    let gate = gate("residual/prefill/f32")?;
    let Check::TeacherForced { probe } = &gate.check else {
        return Err(format!("{} is no designed run", gate.id));
    };
    let ruler = Stage::new(probe, MODEL_SEED).map_err(said)?.ruler();
    let over = |dtype: Dtype, most: f64, op: &str, found: Residual| {
        let ruler = Ruler { dtype, ..ruler };
        let terms = ruler.terms(op);
        let rate = limit(0.001, Dtype::Bf16);
        let limits = ctx.limits.clone().with(&limit_name(op, dtype, terms), limit(most, dtype));
        let limits = limits.with(&rate_name(op, terms), rate);
        let limits = limits.with(&surprise_name(op, terms), limit(6.0, dtype));
        let found = (runner.over_limit)(&ruler, &limits, &format!("layers.0.{op}"), &found);
        found.map(|(over, _)| over).map_err(said)
    };
    let (few, many) = (8, 1_000_000);
    for elements in [few, many] {
        for (max, want) in [(2.0, 0.5), (4.0, 1.0), (8.0, 2.0), (f64::INFINITY, f64::INFINITY)] {
            let got = over(Dtype::F32, 4.0, "q_proj", errors(1, max, elements))?;
            same(&format!("an error of {max} among {elements}, over a limit of 4"), got, want)?;
        }
        let one = |most, op| over(Dtype::F32, most, op, errors(1, 0.5, elements));
        // A copy has one right answer; so has an op whose legal orders never differ.
        for (most, op) in [(4.0, "k_cache"), (0.0, "q_proj")] {
            let beyond = one(most, op)? > 1.0;
            hold(&format!("one wrong element of {elements} in {op} is within a limit"), beyond)?;
        }
    }
    for (misrounds, elements, red) in [(1, few, false), (1_000, many, false), (2_000, many, true)] {
        let found = errors(misrounds, 0.5, elements);
        let red_is = over(Dtype::Bf16, 1.0, "q_proj", found)? > 1.0;
        same(&format!("{misrounds} misrounds of {elements} at one in a thousand"), red_is, red)?;
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
