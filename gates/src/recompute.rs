//! What makes a limit again: each limit names it, and it must be there.
//!
//! Absent: making it; that takes minutes, and is what the named gate or command does. The
//! invariant: what is named can be run: a command that the `gates` binary would parse, a gate that
//! is held to this limit or to none, a test with its file, or a script of the project.

use clap::Parser;

use crate::commands::Cli;
use crate::context::data;
use crate::limits::{Limit, Limits};
use crate::manifest::Gate;

/// Where scripts of the project lie, from its root.
const SCRIPTS: &str = "fixtures/python/";
/// Where tests lie that hold a constant to what it is derived from.
const TESTS: &str = "gates/tests/";

/// Limits that name nothing that recomputes them, each with what is wrong.
pub fn unmade(limits: &Limits, gates: &[Gate]) -> Vec<String> {
    let wrong =
        |(name, limit): (&str, &Limit)| Some(format!("limit {name}: {}", why(name, limit, gates)?));
    limits.iter().filter_map(wrong).collect()
}

/// What is wrong with what a limit names.
fn why(name: &str, limit: &Limit, gates: &[Gate]) -> Option<String> {
    let named = limit.recompute.trim();
    let words: Vec<&str> = named.split_whitespace().collect();
    match words.as_slice() {
        [] => Some("does not say what recomputes it".to_owned()),
        ["gates", ..] => {
            Cli::try_parse_from(words).is_err().then(|| format!("{named}: no command"))
        }
        [file, test] if file.starts_with(TESTS) => {
            let text = std::fs::read_to_string(data("..").join(file)).unwrap_or_default();
            let there = text.contains(&format!("#[test]\nfn {test}()"));
            (!there).then(|| format!("{named}: no such test"))
        }
        [script, ..] if script.starts_with(SCRIPTS) => {
            let there = data("..").join(script).is_file();
            (!there).then(|| format!("{script}: no such script"))
        }
        [id] => match gates.iter().find(|gate| gate.id == *id) {
            None => Some(format!("{id}: no such gate")),
            Some(gate) => match &gate.limit {
                Some(other) if other != name => Some(format!("{id} is held to {other}")),
                _ => None,
            },
        },
        _ => Some(format!("{named}: neither a gate, nor a command, nor a script")),
    }
}
