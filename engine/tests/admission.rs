//! The table of checkpoints as users' disks hold them, through admission.
//!
//! Here: every case's verdict, exit code, one line, and notices. Absent: logits, which other tests
//! compare. The invariant: all failures of the table are reported, not only the first.

use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits_fixtures::hostile::{Case, Verdict, cases, hybrid_cases};

/// What admission does wrong for `case`; `None` if nothing.
fn fault(case: &Case, scratch: &Path) -> Option<String> {
    let dir = scratch.join(case.id);
    std::fs::create_dir(&dir).expect("a fresh folder");
    (case.build)(&dir).expect("the case can be built");
    match (case.verdict, Checkpoint::open(&dir.join(case.model))) {
        (Verdict::Accept | Verdict::AcceptEqualTo(_), Ok(checkpoint)) => {
            let said = checkpoint.notices().join("\n");
            let unsaid = case.notices.iter().find(|notice| !said.contains(**notice))?;
            Some(format!("no notice mentions {unsaid:?}:\n{said}"))
        }
        (Verdict::Refuse { mentions }, Err(error)) => {
            let line = error.to_string();
            if error.exit_code() != 4 {
                return Some(format!("exit code {}: {line}", error.exit_code()));
            }
            if line.chars().any(char::is_control) || line.ends_with('.') {
                return Some(format!("not one plain line: {line:?}"));
            }
            let unsaid = mentions.iter().find(|mention| !line.contains(**mention))?;
            Some(format!("does not mention {unsaid:?}: {line}"))
        }
        (Verdict::Refuse { .. }, Ok(_)) => Some("admitted, but must be refused".to_owned()),
        (_, Err(error)) => Some(format!("refused, but must be admitted: {error}")),
    }
}

#[test]
fn every_case_gets_its_verdict() {
    check(&cases());
}

#[test]
fn every_hybrid_case_gets_its_verdict() {
    check(&hybrid_cases());
}

fn check(all: &[Case]) {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    assert!(all.len() >= 30, "the table has shrunk to {} cases", all.len());
    let faults: Vec<String> = all
        .iter()
        .filter_map(|case| fault(case, scratch.path()).map(|f| format!("{}: {f}", case.id)))
        .collect();
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), all.len(), faults.join("\n"));
}
