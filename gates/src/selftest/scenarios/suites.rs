//! Gates and limits as files.

use std::fs;

use crate::context::{Context, data};
use crate::manifest::ManifestError;
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, hold, said, same, scratch};

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
