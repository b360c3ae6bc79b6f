//! The report as JUnit XML, for the displays of CI systems.
//!
//! One suite a report, one case a gate. A gate that could not be measured is a skipped case with
//! its reason, and the suite counts it as skipped.

use crate::num::Num;
use crate::report::Report;
use crate::row::{Row, Status};
use crate::table::{divergence_line, summary};

/// The XML document, UTF-8.
pub fn junit(report: &Report) -> String {
    let totals = report.totals;
    let counts = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"{}",
        totals.gates,
        totals.fail,
        totals.error,
        totals.unmeasurable,
        time(report.wall_s),
    );
    let cases: String = report.rows.iter().map(case).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites name=\"samebits\" {counts}>\n\
         <testsuite name=\"gates\" {counts} timestamp=\"{start}\">\n\
         <properties>\n\
         <property name=\"commit\" value=\"{commit}\"/>\n\
         <property name=\"dirty\" value=\"{dirty}\"/>\n\
         <property name=\"cpu\" value=\"{cpu}\"/>\n\
         </properties>\n\
         {cases}\
         <system-out>{summary}</system-out>\n\
         </testsuite>\n\
         </testsuites>\n",
        start = report.start,
        commit = escaped(&report.commit),
        dirty = report.dirty,
        cpu = escaped(&report.host.cpu),
        summary = escaped(&summary(report)),
    )
}

fn case(row: &Row) -> String {
    let head = format!(
        "<testcase classname=\"{}\" name=\"{}\" assertions=\"{}\"{}",
        row.kind,
        escaped(&row.id),
        row.n_compared,
        time(row.wall_s),
    );
    let element = match row.status {
        Status::Pass => return format!("{head}/>\n"),
        Status::Fail => "failure",
        Status::Error => "error",
        Status::Unmeasurable => "skipped",
    };
    let numbers = format!("{}: measured {}, limit {}", row.statistic, row.measured, row.limit);
    let at = row.first_divergence.as_ref().map(divergence_line).unwrap_or_default();
    let body = format!("{numbers}\n{at}\nrepeat: {}", row.repeat);
    let message = escaped(&row.reason);
    let body = escaped(&body);
    format!("{head}>\n<{element} message=\"{message}\">{body}</{element}>\n</testcase>\n")
}

/// The attribute in seconds; absent where there is no finite time, since XML has no NaN here.
fn time(wall_s: Num) -> String {
    if wall_s.is_finite() { format!(" time=\"{:.3}\"", wall_s.0) } else { String::new() }
}

/// Text for an attribute or an element. Characters that XML 1.0 cannot hold become U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' => out.push_str(&format!("&#{};", u32::from(c))),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}
