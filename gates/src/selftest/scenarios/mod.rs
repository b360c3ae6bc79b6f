//! Self-tests of a runner: what must hold of its functions, whoever wrote them.
//!
//! The invariant: a self-test asks the runner it is given for everything that could be wrong, and
//! knows the right answers itself, from paper or from Transformers.

mod devices;
mod inputs;
mod judgement;
mod matrix;
mod numbers;
mod reference;
mod reports;
mod suites;

use super::Runner;
use super::material::Verdict;
use crate::context::Context;

/// A self-test.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What holds of a sound runner.
    pub holds: &'static str,
    /// Asks a runner.
    pub run: fn(&Runner, &Context) -> Verdict,
}

/// All self-tests.
pub fn scenarios() -> &'static [Scenario] {
    &ALL
}

/// A table row: the self-test is the function of its name.
macro_rules! table {
    ($($file:ident::$name:ident $holds:literal;)+) => {
        static ALL: [Scenario; [$(stringify!($name)),+].len()] = [
            $(Scenario { name: stringify!($name), holds: $holds, run: $file::$name },)+
        ];
    };
}

table! {
    numbers::bits "NaN, infinity, sign of zero, shape and absence are differences";
    numbers::zeros "a tensor of zeros differs from one that holds values, element by element";
    numbers::residuals "an error is counted in the reference's unit, and a NaN is beyond all";
    numbers::counts "the surprise of a count is the exact tail of its law";
    numbers::sizes "a limit is the same for eight elements and for a million";
    numbers::processes "every hash and every id of two answers is compared";
    judgement::reasons "a gate passes only for a reason, and errs for the right one";
    judgement::controls "a fault counts as caught by the gate's own statistic and limit alone";
    judgement::paths "two sides that did the same were not compared";
    judgement::bounds "a limit that limits nothing is refused";
    judgement::once "a gate is measured once clean and once planted, and one that dies is an error";
    judgement::skips "what was not measured is no pass";
    suites::manifests "a gate that promises what no code reads, or a suite of none, is refused";
    suites::limits "a limit that is negative or of unknown origin is refused";
    suites::listed "a gate that is deleted, and one that nobody knows, are missed";
    suites::fitting "a limit judges its own statistic and dtype alone";
    suites::recomputed "a limit names what recomputes it, and that is there";
    inputs::seeds "everything drawn follows the seed, and the seed is said";
    inputs::variety "what is drawn varies: ids, and the weights of every tensor";
    devices::taps "a tap holds what its op wrote, at every layer and forward";
    devices::flipped "one flipped bit is seen where it is, and no fault is no difference";
    devices::children "a process that dies, or answers something else, has said nothing";
    devices::poison "memory that nothing has written reads as NaN";
    devices::hook "every call of a device's memory is counted as what it is";
    devices::steps "a loop is looked at after each step, not before the first";
    devices::heap "a heap that is not counted, or grows in the last step, is red";
    reference::paper "exact arithmetic gives what a pencil gives";
    reference::rounding "what is stored is rounded, once and to even, and nothing else is";
    reference::transformers "the reference's bits are those that Transformers recorded";
    reference::goldens "a golden is what Transformers made at the version that is answered for";
    reports::rows "rows are whole, asked for, of this run, and written once";
    reports::verdicts "totals count what happened, and the exit code says it";
    reports::edited "a report whose sums do not follow from its rows is refused";
    reports::fresh "a report of another tree, or of a part of this one, is refused";
    reports::figures "figures for people hide no failure";
    matrix::denominator "what lives, and what was never reached, counts in a score";
    matrix::baseline "a gate that is red without a fault kills nothing";
}
