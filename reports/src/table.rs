//! The table and the summary a terminal shows.
//!
//! Colours are absent. Columns align by characters, so that no text is cut within one; control
//! characters are shown as escapes, since a reason may hold any text.

use crate::kind::Kind;
use crate::num::figures;
use crate::report::Report;
use crate::row::{Divergence, Row, Status};

/// One line a row, columns aligned, then what is wrong with each row that is not PASS.
pub fn table(report: &Report) -> String {
    let mut lines = vec![
        ["status", "gate", "statistic", "measured", "limit", "compared", "wall s"]
            .map(str::to_owned),
    ];
    lines.extend(report.rows.iter().map(cells));
    let widths: Vec<usize> = (0..7)
        .map(|column| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (index, cells) in lines.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            let numeric = column >= 3;
            line += &if numeric { format!("{gap}{cell}  ") } else { format!("{cell}{gap}  ") };
        }
        text += line.trim_end();
        text.push('\n');
        if let Some(row) = index.checked_sub(1).map(|row| &report.rows[row]) {
            text += &findings(row);
        }
    }
    text
}

/// One line: gates by status, comparisons, time.
pub fn summary(report: &Report) -> String {
    let totals = report.totals;
    format!(
        "{} gates: {} passed, {} failed, {} errors, {} unmeasurable; {} of {} comparisons; {:.1} s",
        totals.gates,
        totals.pass,
        totals.fail,
        totals.error,
        totals.unmeasurable,
        grouped(totals.n_compared),
        grouped(totals.n_expected),
        report.wall_s.0,
    )
}

/// A few lines at the end of a run: the summary, gates by kind, what is red, what was not measured.
pub fn closing(report: &Report) -> String {
    let of = |status| report.rows.iter().filter(move |row| row.status == status);
    let mut text = format!("{}\n{}\n", summary(report), by_kind(report));
    let red = of(Status::Fail).map(|row| {
        let (measured, limit) = figures(row.measured, row.limit);
        format!("{} ({} {measured}, limit {limit})", row.id, row.statistic)
    });
    let broken = of(Status::Error).map(|row| format!("{} ({})", row.id, row.reason));
    let unmeasured = of(Status::Unmeasurable).map(|row| format!("{} ({})", row.id, row.reason));
    for (what, all) in [
        ("failed", red.collect::<Vec<_>>()),
        ("errors", broken.collect()),
        ("not measured", unmeasured.collect()),
    ] {
        if !all.is_empty() {
            text += &format!("{what}: {}\n", visible(&listed(&all)));
        }
    }
    text
}

/// `bitwise 86 of 87 passed, tidy 2`: only what is not whole says of how many.
fn by_kind(report: &Report) -> String {
    let mut kinds = Vec::new();
    for &kind in Kind::ALL {
        let rows = report.rows.iter().filter(|row| row.kind == kind);
        let (all, passed) = rows.fold((0, 0), |(all, passed), row| {
            (all + 1, passed + u64::from(row.status == Status::Pass))
        });
        match all {
            0 => {}
            _ if all == passed => kinds.push(format!("{kind} {all}")),
            _ => kinds.push(format!("{kind} {passed} of {all}")),
        }
    }
    format!("passed by kind: {}", kinds.join(", "))
}

/// The first few, and how many more there are.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = all.len().saturating_sub(SHOWN);
    let shown = all[..all.len() - more].join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}

/// The name of a status in every output.
pub(crate) fn status_name(status: Status) -> &'static str {
    match status {
        Status::Pass => "PASS",
        Status::Fail => "FAIL",
        Status::Unmeasurable => "UNMEASURABLE",
        Status::Error => "ERROR",
    }
}

/// What a divergence says, in one line.
pub fn divergence_line(at: &Divergence) -> String {
    let mut line = format!("first at {}", at.op);
    let places = [("layer", at.layer), ("position", at.position), ("element", at.element)];
    for (name, place) in places {
        if let Some(place) = place {
            line += &format!(", {name} {place}");
        }
    }
    for (name, value) in [("want", at.want), ("got", at.got)] {
        if let Some(value) = value {
            line += &format!(", {name} {value}");
        }
    }
    if let Some(ulps) = at.ulps {
        line += &format!(", {ulps} ulps apart");
    }
    if !at.text.is_empty() {
        line += &format!(": {}", at.text);
    }
    line
}

/// `1,234,567`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn cells(row: &Row) -> [String; 7] {
    let (measured, limit) = figures(row.measured, row.limit);
    [
        status_name(row.status).to_owned(),
        visible(&row.id),
        visible(&row.statistic),
        measured,
        limit,
        format!("{}/{}", grouped(row.n_compared), grouped(row.n_expected)),
        format!("{:.2}", row.wall_s.0),
    ]
}

fn findings(row: &Row) -> String {
    if row.status == Status::Pass {
        return String::new();
    }
    let mut text = format!("    {}\n", visible(&row.reason));
    if let Some(at) = &row.first_divergence {
        text += &format!("    {}\n", visible(&divergence_line(at)));
    }
    text + &format!("    repeat: {}\n", visible(&row.repeat))
}

/// Control characters as escapes, all else as it is.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
