//! What self-tests are made of: a few tensors, measurements, rows, and words for what is wrong.

use std::fmt::{Debug, Display};

use samebits::contract::Dtype;
use samebits_reports::{CodeSize, Control, Hashes, Host, Kind, Num, Row, Run, Stamp};
use tempfile::TempDir;

use crate::checks::Outcome;
use crate::compare::{Comparison, at};
use crate::context::data;
use crate::limits::Limits;
use crate::manifest::Gate;
use crate::sites::{Bits, Sites};

/// Nothing, or what is wrong.
pub type Verdict = Result<(), String>;

/// Holds two values equal.
pub fn same<T: PartialEq + Debug>(what: &str, got: T, want: T) -> Verdict {
    if got == want { Ok(()) } else { Err(format!("{what}: {got:?}, want {want:?}")) }
}

/// Holds a fact.
pub fn hold(what: &str, fact: bool) -> Verdict {
    if fact { Ok(()) } else { Err(what.to_owned()) }
}

/// The words of an error.
pub fn said(error: impl Display) -> String {
    error.to_string()
}

/// An empty folder.
pub fn scratch() -> Result<TempDir, String> {
    tempfile::tempdir().map_err(said)
}

/// A gate of the project.
pub fn gate(id: &str) -> Result<Gate, String> {
    Gate::load(&data("manifest").join(format!("{}.json", id.replace('/', "+")))).map_err(said)
}

/// A bf16 tensor.
pub fn site(shape: &[usize], bits: &[u32]) -> Bits {
    Bits { dtype: Dtype::Bf16, shape: shape.to_vec(), bits: bits.to_vec() }
}

/// Tensors by name.
pub fn sites(all: &[(&str, Bits)]) -> Sites {
    all.iter().map(|(name, bits)| ((*name).to_owned(), bits.clone())).collect()
}

/// A measurement of ten elements that acted at `op`.
pub fn planted(measured: f64, op: &str) -> Outcome {
    let found = Comparison { compared: 10, first: Some(at(op, Some(1))), ..Comparison::default() };
    Outcome { measured, hits: Some(3), ..Outcome::bitwise(found, 10) }
}

/// A measurement of ten elements that found nothing.
pub fn clean() -> Outcome {
    Outcome { first: None, hits: Some(0), ..planted(Limits::none(), "") }
}

/// A row that nobody has judged.
pub fn blank(gate: &Gate) -> Row {
    Row::new(&gate.id, gate.kind, 1, "gates run")
}

/// A row that passes.
pub fn good(id: &str) -> Row {
    let mut row = Row::new(id, Kind::Bitwise, 7, &format!("gates run {id} --seed 7"));
    row.statistic = "ulps_max".to_owned();
    (row.measured, row.limit) = (Num(0.0), Num(0.0));
    (row.n_compared, row.n_expected) = (12, 12);
    row.control = Some(Control {
        id: "one-bit".to_owned(),
        red: true,
        statistic: "ulps_max".to_owned(),
        measured: Num(1.0),
    });
    row.judged().made_by(&facts())
}

/// A row that fails.
pub fn bad(id: &str) -> Row {
    Row { measured: Num(1.0), ..good(id) }.judged()
}

/// What is known of a run that begins now.
pub fn facts() -> Run {
    Run {
        commit: "0123abcd".to_owned(),
        dirty: false,
        start: Stamp::now(),
        host: Host { cpu: "a".to_owned(), isa: Vec::new(), cores: 1, gpu: None, driver: None },
        hashes: Hashes {
            fixtures: "f".to_owned(),
            limits: "l".to_owned(),
            manifests: "m".to_owned(),
            code: "c".to_owned(),
        },
        code_sizes: Vec::<CodeSize>::new(),
    }
}
