//! The kill matrix as Markdown: a line a class, and the scores.
//!
//! The invariant: what was missed, what could not be reached and what is equivalent is named, never
//! only counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::num::Num;

use super::{Cell, Matrix, MatrixRow, Outcome, Score};

/// The name of a class of faults.
fn class_name(class: u32) -> &'static str {
    match class {
        1 => "epsilon of a norm",
        2 => "where a norm rounds",
        3 => "a norm's weight, twice or missing",
        4 => "rotary pairs",
        5 => "rotary tables of few bits",
        6 => "rotary base, scaling, width",
        7 => "rotary table ends or is another's",
        8 => "position off by one in decode",
        9 => "rotation misses a consumer",
        10 => "key head of a query head",
        12 => "causal mask",
        13 => "mask value",
        14 => "softmax without its maximum",
        15 => "softmax in bf16",
        16 => "scale of scores",
        17 => "query and key norms",
        18 => "stale cache rows",
        19 => "cache slots",
        20 => "gate and up swapped",
        21 => "activation",
        22 => "a rounding too few or too many",
        24 => "residual from elsewhere",
        25 => "another weight",
        26 => "another logits row",
        27 => "argmax and sampler",
        29 => "gated delta rule",
        30 => "recurrent state not carried",
        31 => "convolution state",
        32 => "mean for sum, l2 norm",
        33 => "recurrent state in bf16",
        34 => "short accumulators, gains",
        35 => "order by batch",
        36 => "order by process",
        37 => "races",
        39 => "index overflow",
        40 => "hidden reads and heap growth",
        _ => "other",
    }
}

/// How far the best tolerance gate was beyond its limit.
fn reach(row: &MatrixRow) -> f64 {
    let red = row.tolerance.by.iter().filter_map(|gate| match row.cells.get(gate) {
        Some(Cell::Measured { margin, .. }) => Some(margin.0),
        _ => None,
    });
    red.fold(0.0, f64::max)
}

fn named<'a>(rows: impl Iterator<Item = &'a MatrixRow>) -> String {
    rows.map(|row| row.id.as_str()).collect::<Vec<_>>().join(", ")
}

/// The matrix as one table: a line a class.
pub fn kill_table(matrix: &Matrix) -> String {
    let mut text = String::from(
        "| class | defects | caught | by tolerance | weakest that tolerance caught | \
         tolerance cannot |\n|---|--:|--:|--:|---|---|\n",
    );
    let mut classes: BTreeMap<u32, Vec<&MatrixRow>> = BTreeMap::new();
    for row in matrix.faults() {
        classes.entry(row.class).or_default().push(row);
    }
    for (class, rows) in classes {
        let equivalent = rows.iter().filter(|row| row.all.fate == Outcome::Equivalent).count();
        let caught = |row: &&&MatrixRow| row.tolerance.fate == Outcome::Caught;
        let all = rows.iter().filter(|row| row.all.fate == Outcome::Caught).count();
        let tolerance = rows.iter().filter(caught).count();
        let weakest = rows.iter().filter(caught).min_by(|a, b| reach(a).total_cmp(&reach(b)));
        let weakest = weakest.map_or_else(String::new, |row| {
            let times = crate::figures(Num(reach(row)), Num(1.0)).0;
            format!("{} ({times} times the limit)", row.strength)
        });
        let missed = rows
            .iter()
            .copied()
            .filter(|row| matches!(row.tolerance.fate, Outcome::Missed | Outcome::NotReached));
        let (n, name, missed) = (rows.len() - equivalent, class_name(class), named(missed));
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "| {class} {name} | {n} | {all} | {tolerance} | {weakest} | {missed} |");
    }
    text + "\n" + &scores(matrix)
}

fn scores(matrix: &Matrix) -> String {
    let share = |s: &Score| {
        let percent = |n: u64| 100.0 * n as f64 / s.of.max(1) as f64;
        format!(
            "{} of {} ({:.1} %) by a designated gate, {} ({:.1} %) by any",
            s.designated,
            s.of,
            percent(s.designated),
            s.any,
            percent(s.any)
        )
    };
    let is = |fate: Outcome| named(matrix.faults().filter(|row| row.all.fate == fate));
    let list = |names: String| if names.is_empty() { "none".to_owned() } else { names };
    let beyond = matrix.faults().filter(|row| row.beyond_tolerance).count();
    let (run, minutes) = (&matrix.run, matrix.wall_s.0 / 60.0);
    let lines = [
        format!(
            "Measured on {} at commit {}, {} gates, {minutes:.1} minutes.",
            run.start.date(),
            run.commit,
            matrix.gates.len()
        ),
        format!("All gates: {}.", share(&matrix.all)),
        format!(
            "Without bitwise, invariance, determinism and hash gates, and without the {beyond} \
             defects that no tolerance can see: {}; held-out third of the classes: {}; the \
             others: {}.",
            share(&matrix.tolerance),
            share(&matrix.held_out),
            share(&matrix.designed)
        ),
        format!(
            "Legal variants: {}, false alarms {}. Equivalent, and again of equal bits at every \
             gate: {}. Not reached: {}. Unviable: {}.",
            matrix.legal,
            matrix.false_alarms.len(),
            list(is(Outcome::Equivalent)),
            list(is(Outcome::NotReached)),
            list(is(Outcome::Unviable))
        ),
        format!("Gates that are nowhere the only one: {}.", list(matrix.never_alone().join(", "))),
    ];
    lines.join("\n\n") + "\n"
}
