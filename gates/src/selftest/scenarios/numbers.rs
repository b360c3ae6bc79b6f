//! Comparison and statistics, on numbers small enough for paper.

use std::collections::BTreeMap;

use samebits::contract::Dtype;

use crate::checks::determinism::Answer;
use crate::context::Context;
use crate::law::sum::Sum;
use crate::law::{Allowed, Judgement, Law, Shape};
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, hold, said, same, site, sites};
use crate::sites::Sites;

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

/// What an op may have written that adds up to `want`, with an error of `bound`.
fn tested(
    runner: &Runner,
    ctx: &Context,
    (want, got): (&[f64], &[f64]),
    bound: impl Fn(usize) -> f64 + Sync,
) -> Result<Judgement, String> {
    let law = Law::of(&ctx.limits).map_err(said)?;
    let bound = |i: usize, _: f64| bound(i);
    let allowed = Allowed::of(Dtype::F32, want.to_vec(), Shape::Once, bound);
    Ok((runner.tested)(&allowed, &law, got))
}

pub(super) fn zeros(runner: &Runner, ctx: &Context) -> Verdict {
    let want = sites(&[("norm", site(&[2, 2], &[ONE, ONE, ONE, 0]))]);
    let got = sites(&[("norm", site(&[2, 2], &[0; 4]))]);
    let found = (runner.compare)(&want, &got, std::slice::from_ref(&(0..2)));
    same("zeros that differ", found.differing, 3)?;
    same("zeros compared", found.compared, 4)?;
    let found = tested(runner, ctx, (&[1.0, 1.0, 1.0, 0.0], &[0.0; 4]), |_| 1.0)?;
    same("zeros that are misrounded", (found.misrounds, found.elements), (3, 4))
}

pub(super) fn residuals(runner: &Runner, ctx: &Context) -> Verdict {
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
        let found = tested(runner, ctx, (&want, &got), |_| 1.0)?;
        same(why, (found.misrounds, found.over), (misrounds, max))?;
        same(why, found.elements, 2)?;
    }
    let bounds = tested(runner, ctx, (&[1.0, 1.0], &[3.0, 3.0]), |i| [0.5, 2.0][i])?;
    same("the bound of each element", (bounds.over, bounds.worst), (4.0, 0))
}

pub(super) fn counts(runner: &Runner, _ctx: &Context) -> Verdict {
    // One or more where a hundredth is expected, two or three where one is.
    for (count, mean, chance) in
        [(1, 0.01, 0.009_950_166), (2, 1.0, 0.264_241_118), (3, 1.0, 0.080_301_397f64)]
    {
        let digits = (runner.digits)(count, mean);
        let close = (digits + chance.log10()).abs() < f64::from(f32::EPSILON);
        hold(&format!("{count} where {mean} are expected: {digits} digits"), close)?;
    }
    same("none", (runner.digits)(0, 0.5), 0.0)?;
    same("one where none may be", (runner.digits)(1, 0.0), f64::INFINITY)?;
    let many = (runner.digits)(2_000, 1_000.0);
    hold(&format!("twice as many as a thousand: {many} digits"), many > 100.0)
}

pub(super) fn sizes(runner: &Runner, ctx: &Context) -> Verdict {
    let (few, many) = (8, 1_000_000);
    for elements in [few, many] {
        let want = vec![1.0; elements];
        for (error, over) in [(2.0, 0.5), (4.0, 1.0), (8.0, 2.0), (f64::INFINITY, f64::INFINITY)] {
            let mut got = want.clone();
            got[elements / 2] += error;
            let found = tested(runner, ctx, (&want, &got), |_| 4.0)?;
            same(&format!("an error of {error} among {elements}, of 4"), found.over, over)?;
        }
        let mut got = want.clone();
        got[0] = 0.5;
        let beyond = tested(runner, ctx, (&want, &got), |_| 0.0)?.over > 1.0;
        hold(&format!("one wrong element of {elements} where none may be"), beyond)?;
    }
    // Sums a tenth of their deviation from a tie: 0.46 of them round the other way.
    let law = Law::of(&ctx.limits).map_err(said)?;
    let (tie, k) = (1.0 + 2f64.powi(-8), 1_000.0);
    let sum = |y: f64| Sum { y, q: 0.0, k };
    let sigma = sum(tie).sigma(law.rms);
    let y: Vec<f64> = (0..few * 1_000).map(|i| tie - sigma * (0.1 + i as f64 * 1e-9)).collect();
    let sums: Vec<Sum> = y.iter().map(|y| sum(*y)).collect();
    let far = |_: usize, _: f64| 1.0;
    let allowed = Allowed {
        sums: Some(sums),
        width: few * 1_000,
        ..Allowed::of(Dtype::Bf16, y, Shape::Once, far)
    };
    for (misrounds, red) in [(0, false), (3_700, false), (4_500, true)] {
        let other = |i: usize| if i < misrounds { 1.0 + 2f64.powi(-7) } else { 1.0 };
        let got: Vec<f64> = (0..few * 1_000).map(other).collect();
        let found = (runner.tested)(&allowed, &law, &got);
        same(&format!("{misrounds} misrounds of 8,000 near ties"), found.over > 1.0, red)?;
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
