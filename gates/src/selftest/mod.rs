//! Faults of the gates themselves: each one planted must turn a self-test red.
//!
//! | what | where |
//! |---|---|
//! | the runner as a value whose functions can be replaced | [`Runner`] |
//! | self-tests of a runner, each with the sentence it holds up | [`scenarios`] |
//! | runners with one fault, by the names of the catalogue | [`plant`] |
//!
//! Absent on purpose: any switch in the functions under test; a fault replaces one of them whole.
//! The invariants: the real runner passes every self-test, and a fault is caught only by the
//! self-test that its entry in the catalogue names.

mod faults;
mod material;
mod scenarios;
mod seams;

pub use faults::plant;
pub use scenarios::{Scenario, scenarios};
pub use seams::{Fresh, Looped, Publish, Referred, Runner, Scored, Tapped, Tested};

use std::panic::{AssertUnwindSafe, catch_unwind};

use samebits_defects::RunnerFault;

use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::manifest::Plant;

/// The control's plant: the first self-test says that all is well, whatever it sees.
const DEAF: &str = "deaf-self-test";

/// What a self-test says of a runner; one that dies is red.
pub fn verdict(scenario: &Scenario, runner: &Runner, ctx: &Context) -> Result<(), String> {
    let said = catch_unwind(AssertUnwindSafe(|| (scenario.run)(runner, ctx)));
    said.unwrap_or_else(|_| Err("the self-test died".to_owned()))
}

/// The self-test that a fault's entry names.
fn named(fault: &RunnerFault) -> Option<&'static Scenario> {
    scenarios().iter().find(|scenario| scenario.name == fault.scenario)
}

/// The runner with this fault.
fn faulty(fault: &RunnerFault) -> Option<Runner> {
    let mut runner = Runner::real();
    plant(&fault.id)?(&mut runner);
    Some(runner)
}

/// What is wrong with the runner, or with a self-test that did not see a fault; `deaf` self-tests
/// see none.
pub fn findings(ctx: &Context, deaf: &dyn Fn(&Scenario) -> bool) -> Comparison {
    let mut found = Comparison::default();
    let hear = |scenario: &Scenario, runner: &Runner| {
        if deaf(scenario) { Ok(()) } else { verdict(scenario, runner, ctx) }
    };
    for scenario in scenarios() {
        let said = hear(scenario, &Runner::real());
        let text = said.as_ref().err().map(|why| format!("{}: {why}", scenario.name));
        found.digest("runner", None, said.is_ok(), &text.unwrap_or_default());
    }
    for fault in RunnerFault::all() {
        let caught = match (named(fault), faulty(fault)) {
            (Some(scenario), Some(runner)) => hear(scenario, &runner).is_err(),
            _ => false,
        };
        let text = format!("{} is not noticed by {}", fault.id, fault.scenario);
        found.digest("runner", None, caught, &text);
    }
    found
}

/// Counts faults that no self-test noticed, and self-tests that are red on the real runner.
pub fn prepare<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let expected = (scenarios().len() + RunnerFault::all().len()) as u64;
    Ok(Box::new(move |plant| {
        let deaf = match plant {
            None => false,
            Some(Plant::Material(what)) if what == DEAF => true,
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let first = scenarios()[0].name;
        let found = findings(ctx, &|scenario| deaf && scenario.name == first);
        Ok(Outcome { statistic: "runner_faults_alive", ..Outcome::bitwise(found, expected) })
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_catalogue_names_what_can_be_planted_and_a_self_test_for_each() {
        let named: Vec<&str> = RunnerFault::all().iter().map(|fault| fault.id.as_str()).collect();
        let ids: BTreeSet<&str> = named.iter().copied().collect();
        assert_eq!(ids.len(), named.len(), "an id is there twice");
        assert_eq!(ids, faults::names().collect(), "the catalogue and what can be planted differ");
        let catchers: BTreeSet<&str> =
            RunnerFault::all().iter().map(|fault| fault.scenario.as_str()).collect();
        let all: BTreeSet<&str> = scenarios().iter().map(|scenario| scenario.name).collect();
        assert_eq!(catchers, all, "a self-test that no fault needs, or one that is not there");
        let classes: BTreeSet<&str> =
            RunnerFault::all().iter().map(|fault| fault.class.as_str()).collect();
        assert!(classes.len() > 17, "{classes:?}");
        assert!(RunnerFault::all().iter().all(|fault| fault.why.ends_with('.')));
    }
}
