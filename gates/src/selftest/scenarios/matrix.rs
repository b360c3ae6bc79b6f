//! The kill matrix on columns and measurements whose scores fit on paper.

use std::collections::BTreeMap;
use std::panic::resume_unwind;

use samebits_defects::Defect;
use samebits_reports::{Cell, Score};

use crate::checks::{CheckError, Measure, Outcome};
use crate::context::Context;
use crate::kill::Column;
use crate::manifest::Plant;
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, clean, facts, gate, planted, said, same};

/// A fault of the catalogue under another name and class, for residual gates.
fn fault(id: &str, class: u32) -> Result<Defect, String> {
    let like = Defect::find("gain-10").map_err(said)?.clone();
    let gates = vec!["residual".to_owned()];
    Ok(Defect { id: id.to_owned(), class, gates, beyond_tolerance: false, ..like })
}

/// A column of a gate that is green on the clean engine.
fn column(gate: &str, kind: &str, tolerant: bool, cells: &[(&str, Cell)]) -> Column {
    let (gate, kind) = (gate.to_owned(), kind.to_owned());
    let cells = cells.iter().map(|(id, cell)| ((*id).to_owned(), cell.clone())).collect();
    Column { gate, kind, tolerant, green: true, cells }
}

pub(super) fn denominator(runner: &Runner, _ctx: &Context) -> Verdict {
    let (red, green) =
        (Cell::measured(true, "s", 5.0, None), Cell::measured(false, "s", 0.5, None));
    let all = |tolerance: &Cell, bits: &Cell| (tolerance.clone(), bits.clone());
    let (absent, broken) = (Cell::not_reached(), Cell::unviable());
    let mut defects = vec![
        fault("caught", 1)?,
        fault("lives", 1)?,
        fault("by-bits", 3)?,
        fault("not-there", 1)?,
        fault("equivalent", 1)?,
        fault("cannot-run", 1)?,
    ];
    defects[4].gates.clear();
    defects.push(Defect::find("legal-forward").map_err(said)?.clone());
    let said_of = [
        all(&red, &red),
        all(&green, &green),
        all(&green, &red),
        all(&absent, &absent),
        all(&green, &green),
        all(&broken, &broken),
        all(&red, &red),
    ];
    let ids: Vec<&str> = defects.iter().map(|d| d.id.as_str()).collect();
    let cells = |pick: fn(&(Cell, Cell)) -> Cell| -> Vec<(&str, Cell)> {
        ids.iter().zip(&said_of).map(|(id, both)| (*id, pick(both))).collect()
    };
    let columns = vec![
        column("residual/a", "residual", true, &cells(|both| both.0.clone())),
        column("bitwise/a", "bitwise", false, &cells(|both| both.1.clone())),
    ];
    let defects: Vec<&Defect> = defects.iter().collect();
    let matrix = (runner.matrix)(&defects, &columns, (facts(), 1));
    let score = |designated, any, of| Score {
        designated,
        any,
        of,
        equivalent: 1,
        not_reached: 1,
        unviable: 1,
    };
    same("all gates", matrix.all, score(1, 2, 4))?;
    same("tolerance gates", matrix.tolerance, score(1, 1, 4))?;
    let held = Score { of: 1, ..Score::default() };
    same("classes held out", matrix.held_out, held)?;
    same("classes designed with", matrix.designed, Score { of: 3, ..matrix.tolerance })?;
    same("alive or absent", matrix.red(), vec!["lives", "by-bits", "not-there", "cannot-run"])?;
    same("false alarms", matrix.false_alarms.len(), 1)?;
    same("rows", matrix.rows.len(), 7)?;
    same("the exit code", matrix.exit_code(), 1)
}

/// What becomes of a clean measurement.
type Change = fn(Outcome) -> Outcome;

/// What a check says of the clean engine and of each fault.
fn answer(sound: bool, plant: Option<&Plant>) -> Result<Outcome, CheckError> {
    match plant.map(Plant::id) {
        None if sound => Ok(clean()),
        None => Ok(planted(9.0, "mix")),
        Some("caught") => Ok(planted(9.0, "mix")),
        Some("nan") => Ok(planted(f64::NAN, "mix")),
        Some("not-there") => Ok(Outcome { hits: Some(0), ..planted(9.0, "mix") }),
        Some("cannot-run") => Err(CheckError::missing("it", "here")),
        // Unwinds without the message of a panic, which nobody is to read.
        Some("dies") => resume_unwind(Box::new("died")),
        Some(_) => Ok(planted(1.0, "mix")),
    }
}

pub(super) fn baseline(runner: &Runner, _ctx: &Context) -> Verdict {
    let gate = gate("residual/prefill/f32")?;
    let limit = 2.0;
    let ids = ["caught", "nan", "lives", "not-there", "cannot-run", "dies"];
    let defects = ids.iter().map(|id| fault(id, 1)).collect::<Result<Vec<_>, _>>()?;
    let defects: Vec<&Defect> = defects.iter().collect();
    let ask = |sound: Change, green| {
        let mut measure: Measure<'_> = Box::new(move |plant| {
            let said = answer(green, plant)?;
            Ok(if plant.is_none() { sound(said) } else { said })
        });
        (runner.column)(&gate, limit, &mut measure, &defects).map_err(said)
    };
    let column = ask(|clean| clean, true)?;
    same("a gate that passes is green", column.green, true)?;
    let got: BTreeMap<&str, (bool, bool, bool)> = column
        .cells
        .iter()
        .map(|(id, cell)| (id.as_str(), (cell.red(), cell.reached(), cell.is_unviable())))
        .collect();
    let want = BTreeMap::from([
        ("caught", (true, true, false)),
        ("nan", (true, true, false)),
        ("lives", (false, true, false)),
        ("not-there", (false, false, false)),
        ("cannot-run", (false, false, true)),
        ("dies", (true, true, false)),
    ]);
    same("what a green gate says", got, want)?;
    let reds: [(&str, bool, Change); 5] = [
        ("a red baseline", false, |clean| clean),
        ("a NaN", true, |clean| Outcome { measured: f64::NAN, ..clean }),
        ("no work", true, |clean| Outcome { compared: 0, expected: 0, ..clean }),
        ("a row left out", true, |clean| Outcome { compared: 9, ..clean }),
        ("an alarm", true, |clean| Outcome { alarm: Some("too good".to_owned()), ..clean }),
    ];
    for (why, green, change) in reds {
        let column = ask(change, green)?;
        same(&format!("{why} is green"), column.green, false)?;
        same(&format!("{why} kills"), column.cells.len(), 0)?;
    }
    let column = ask(|clean| Outcome { measured: 9.0, ..clean }, true)?;
    let red = column.gate.clone();
    let matrix = (runner.matrix)(&defects, &[column], (facts(), 1));
    same("gates red without a fault", matrix.red_baseline.clone(), vec![red])?;
    same("the exit code", matrix.exit_code(), 3)
}
