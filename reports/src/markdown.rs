//! Markdown made from a report, for the blocks of the README.
//!
//! Every number comes from the report, rounded for people.

use crate::kind::Kind;
use crate::num::figures;
use crate::report::Report;
use crate::row::{Row, Status};
use crate::table::grouped;

/// One line a kind of gate: gates, passes, comparisons, the worst value, what the kind proves.
pub fn gates_table(report: &Report) -> String {
    let mut text =
        "| kind | gates | passed | comparisons | worst measured / limit | what it proves |\n\
                    |---|--:|--:|--:|---|---|\n"
            .to_owned();
    for &kind in Kind::ALL {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.kind == kind).collect();
        if rows.is_empty() {
            continue;
        }
        let compared = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.n_compared));
        text += &format!(
            "| {kind} | {} | {} | {} | {} | {} |\n",
            rows.len(),
            passes(&rows),
            grouped(compared),
            worst(&rows),
            cell(kind.proves()),
        );
    }
    text
}

/// One line: date, commit, machine.
pub fn host_line(report: &Report) -> String {
    let host = &report.host;
    let isa = if host.isa.is_empty() { "no vector extension known" } else { &host.isa.join(" ") };
    let gpu = match (&host.gpu, &host.driver) {
        (None, _) => "no GPU".to_owned(),
        (Some(gpu), None) => format!("GPU {gpu}"),
        (Some(gpu), Some(driver)) => format!("GPU {gpu}, driver {driver}"),
    };
    format!(
        "Measured on {} at commit {}{}: {}, {} cores, {}; {}.\n",
        report.start.date(),
        cell(&report.commit),
        if report.dirty { " with local changes" } else { "" },
        cell(&host.cpu),
        host.cores,
        cell(isa),
        cell(&gpu),
    )
}

/// Passes, and every other status that occurs: what was not measured is loud.
fn passes(rows: &[&Row]) -> String {
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    let mut text = count(Status::Pass).to_string();
    let others = [
        (Status::Fail, "failed"),
        (Status::Error, "errors"),
        (Status::Unmeasurable, "unmeasurable"),
    ];
    for (status, name) in others {
        if count(status) > 0 {
            text += &format!(", {} {name}", count(status));
        }
    }
    text
}

/// The measured row closest to its limit or furthest beyond it, as a share of the limit.
fn worst(rows: &[&Row]) -> String {
    let measured = rows.iter().filter(|row| matches!(row.status, Status::Pass | Status::Fail));
    match measured.max_by(|a, b| share(a).total_cmp(&share(b))) {
        Some(row) => {
            let (measured, limit) = figures(row.measured, row.limit);
            format!("{measured} / {limit} {}", cell(&row.statistic))
        }
        None => "none measured".to_owned(),
    }
}

/// 0 of limit 0 is within it; anything of limit 0 is infinitely beyond, and so is a NaN.
fn share(row: &Row) -> f64 {
    let share = row.measured.0 / row.limit.0;
    match row.measured.0 {
        0.0 => 0.0,
        _ if share.is_nan() => f64::INFINITY,
        _ => share,
    }
}

/// Text that stays within its cell.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' => out.push_str("\\|"),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            _ if c.is_control() => out.push(' '),
            _ => out.push(c),
        }
    }
    out
}
