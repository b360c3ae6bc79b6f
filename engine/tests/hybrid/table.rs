//! The admitted rows of the table of hybrids as users' disks hold them: what they compute.

use std::collections::BTreeMap;

use samebits::checkpoint::Checkpoint;
use samebits::contract::Order;
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Model, Plan, run};
use samebits_fixtures::hostile::{Case, Verdict, hybrid_cases};
use samebits_fixtures::prompt_ids;

/// The hash of a case's logits in its own dtype, and whether all are finite.
fn logits(case: &Case) -> (String, bool) {
    let dir = tempfile::tempdir().expect("a scratch folder");
    (case.build)(dir.path()).expect("the case can be built");
    let checkpoint = Checkpoint::open(&dir.path().join(case.model)).expect("it is admitted");
    let mut cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let model = Model::load(&mut cpu, &checkpoint, Order::Invariant).expect("it is readable");
    let prompt = prompt_ids(11, model.shape.vocab, 9);
    let logits = run(&mut cpu, &model, &[prompt], &Plan::default()).expect("it fits").logits;
    let finite = (0..logits.len()).all(|i| logits.get(i).is_finite());
    (logits.sha256(), finite)
}

#[test]
fn admitted_cases_are_finite_and_equal_where_the_table_says_so() {
    let all = hybrid_cases();
    let admitted = all.iter().filter(|case| !matches!(case.verdict, Verdict::Refuse { .. }));
    let ran: BTreeMap<&str, (String, bool)> =
        admitted.clone().map(|case| (case.id, logits(case))).collect();
    let mut wrong = Vec::new();
    for case in admitted {
        if !ran[case.id].1 {
            wrong.push(format!("{}: not finite", case.id));
        }
        match case.verdict {
            Verdict::AcceptEqualTo(other) if ran[case.id].0 != ran[other].0 => {
                wrong.push(format!("{}: not the logits of {other}", case.id));
            }
            // What is only accepted is another model: the table would not hold it twice.
            Verdict::Accept if case.id != "H00" && ran[case.id].0 == ran["H00"].0 => {
                wrong.push(format!("{}: the control's logits", case.id));
            }
            _ => {}
        }
    }
    println!("{} cases admitted", ran.len());
    assert!(ran.len() >= 60, "the table has shrunk to {}", ran.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
