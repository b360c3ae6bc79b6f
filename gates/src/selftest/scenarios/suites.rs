//! Gates and limits as files.

use std::fs;

use samebits::contract::Dtype;

use crate::context::{Context, data};
use crate::limits::Limit;
use crate::manifest::{Gate, ManifestError};
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, gate, hold, said, same, scratch};

pub(super) fn manifests(runner: &Runner, _ctx: &Context) -> Verdict {
    let name = "canary+null-defect.json";
    let good = fs::read_to_string(data("manifest").join(name)).map_err(said)?;
    let folder_of = |file: &str, text: &str| {
        let folder = scratch()?;
        fs::write(folder.path().join(file), text).map_err(said)?;
        Ok::<_, String>(folder)
    };
    for (why, file, text, want) in [
        ("sound", name, good.clone(), ""),
        ("another name", "canary+other.json", good.clone(), "belongs in"),
        ("unknown field", name, good.replacen('{', "{ \"tolerance\": 1,", 1), "unknown field"),
        ("unknown bird", name, good.replace("null_defect", "parrot"), "unknown variant"),
        (
            "another kind",
            name,
            good.replace("\"kind\": \"canary\"", "\"kind\": \"order\""),
            "must begin with",
        ),
        ("half a file", name, good[..good.len() / 2].to_owned(), "EOF"),
    ] {
        let folder = folder_of(file, &text)?;
        let said = (runner.gates)(folder.path()).map_or_else(said, |_| String::new());
        let right = said.contains(want) && want.is_empty() == said.is_empty();
        hold(&format!("{why}: {said:?}"), right)?;
    }
    let mut mute: serde_json::Value = serde_json::from_str(&good).map_err(said)?;
    mute["why"] = " ".into();
    let folder = folder_of(name, &mute.to_string())?;
    let refused = matches!((runner.gates)(folder.path()), Err(ManifestError::NoWhy { .. }));
    hold("a gate without a reason is taken", refused)?;
    let empty = scratch()?;
    let refused = matches!((runner.gates)(empty.path()), Err(ManifestError::Empty { .. }));
    hold("a suite of no gate is taken", refused)
}

pub(super) fn limits(runner: &Runner, _ctx: &Context) -> Verdict {
    let folder = scratch()?;
    let path = folder.path().join("limits.json");
    for (value, provenance, good) in [
        ("1.5", "measured", true),
        ("-1", "measured", false),
        ("1e999", "measured", false),
        ("null", "measured", false),
        ("1.5", " ", false),
    ] {
        let text = format!(
            "{{\"a\":{{\"value\":{value},\"statistic\":\"s\",\"dtype\":\"f32\",\
             \"provenance\":\"{provenance}\"}}}}"
        );
        fs::write(&path, text).map_err(said)?;
        same(&format!("{value} {provenance:?}"), (runner.limits)(&path).is_ok(), good)?;
    }
    Ok(())
}

pub(super) fn listed(runner: &Runner, _ctx: &Context) -> Verdict {
    let gates = vec![gate("canary/null-defect")?, gate("kill/runner")?];
    let must = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let [bird, kill, more] = ["canary/null-defect", "kill/runner", "order/bf16"];
    for (why, must, sound) in [
        ("the gates that must exist", must(&[bird, kill]), true),
        ("in another order", must(&[kill, bird]), true),
        ("one that is gone", must(&[bird, kill, more]), false),
        ("one that nobody knows", must(&[bird]), false),
    ] {
        let said = (runner.listed)(&gates, &must);
        hold(&format!("{why}: {said:?}"), said.is_ok() == sound)?;
    }
    Ok(())
}

pub(super) fn fitting(runner: &Runner, ctx: &Context) -> Verdict {
    let limit = ctx.limits.get("drift-f32").map_err(said)?;
    let any = ctx.limits.get("sampling-p-value").map_err(said)?;
    let (f32, bf16) = (Some(Dtype::F32), Some(Dtype::Bf16));
    let (own, other) = (&*limit.statistic, "elements_differing");
    for (why, limit, dtype, statistic, sound) in [
        ("its own", limit, f32, own, true),
        ("another dtype", limit, bf16, own, false),
        ("no dtype", limit, None, own, false),
        ("another statistic", limit, f32, other, false),
        ("any dtype", any, bf16, &*any.statistic, true),
        ("none where any will do", any, None, &*any.statistic, true),
    ] {
        let said = (runner.fits)(limit, "a", dtype, statistic);
        hold(&format!("{why}: {said:?}"), said.is_ok() == sound)?;
    }
    Ok(())
}

pub(super) fn recomputed(runner: &Runner, ctx: &Context) -> Verdict {
    let gates = Gate::project().map_err(said)?;
    let like = ctx.limits.get("drift-f32").map_err(said)?;
    for (named, sound) in [
        ("residual/hybrid-drift/f32", true),
        ("gates calibrate --check", true),
        ("fixtures/python/speed_floor.py", true),
        ("gates/tests/limits.rs one_rounding_errs_as_the_law_says", true),
        ("gates/tests/limits.rs no_such_test", false),
        ("", false),
        ("residual/no-such-gate/f32", false),
        ("residual/ideal-tied/f32", false),
        ("gates no-such-command", false),
        ("fixtures/python/no_such_script.py", false),
        ("by hand, in May", false),
    ] {
        let limit = Limit { recompute: named.to_owned(), ..like.clone() };
        let only = ctx.limits.without(|_, _| true).with("drift-f32", limit);
        let found = (runner.recomputed)(&only, &gates);
        hold(&format!("{named:?}: {found:?}"), found.is_empty() == sound)?;
    }
    same("limits that nothing recomputes", (runner.recomputed)(&ctx.limits, &gates), Vec::new())
}
