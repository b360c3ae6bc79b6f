//! Which rows may pass, and what becomes of the others.

use rstest::rstest;
use samebits_reports::{Fault, Kind, Num, Row, Status};

use crate::{good, path};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn control(row: &mut Row, change: impl FnOnce(&mut samebits_reports::Control)) {
    change(row.control.as_mut().expect("a good row has a control"));
}

/// Each case breaks one thing of a good row and still claims PASS.
#[rstest]
#[case::nothing_expected(Fault::ZeroWork, |r: &mut Row| (r.n_compared, r.n_expected) = (0, 0))]
#[case::nothing_compared(Fault::ZeroWork, |r: &mut Row| r.n_compared = 0)]
#[case::compared_unasked(Fault::ZeroWork, |r: &mut Row| r.n_expected = 0)]
#[case::one_missing(Fault::WrongWork, |r: &mut Row| r.n_compared -= 1)]
#[case::one_too_many(Fault::WrongWork, |r: &mut Row| r.n_compared += 1)]
#[case::measured_nan(Fault::NonFinite, |r: &mut Row| r.measured = Num(NAN))]
#[case::measured_inf(Fault::NonFinite, |r: &mut Row| r.measured = Num(INF))]
#[case::measured_minus_inf(Fault::NonFinite, |r: &mut Row| r.measured = Num(-INF))]
#[case::limit_nan(Fault::BadLimit, |r: &mut Row| r.limit = Num(NAN))]
#[case::limit_inf(Fault::BadLimit, |r: &mut Row| r.limit = Num(INF))]
#[case::limit_negative(Fault::BadLimit, |r: &mut Row| {
    (r.measured, r.limit) = (Num(-2.0), Num(-1.0));
})]
#[case::no_control(Fault::NoControl, |r: &mut Row| r.control = None)]
#[case::green_control(Fault::UnarmedControl, |r: &mut Row| control(r, |c| c.red = false))]
#[case::red_within_limit(Fault::UnarmedControl, |r: &mut Row| {
    control(r, |c| c.measured = Num(0.0));
})]
#[case::unnamed_statistic(Fault::NoStatistic, |r: &mut Row| r.statistic = " ".to_owned())]
#[case::unrepeatable(Fault::NoRepeat, |r: &mut Row| r.repeat.clear())]
#[case::no_paths(Fault::SamePath, |r: &mut Row| r.kind = Kind::Invariance)]
#[case::one_path(Fault::SamePath, |r: &mut Row| {
    (r.kind, r.paths) = (Kind::Invariance, vec![path("a", 1)]);
})]
#[case::compared_with_itself(Fault::SamePath, |r: &mut Row| {
    (r.kind, r.paths) = (Kind::Invariance, vec![path("a", 1), path("b", 1)]);
})]
#[case::excused(Fault::PassWithReason, |r: &mut Row| r.reason = "flaky".to_owned())]
#[case::over(Fault::OverLimit, |r: &mut Row| r.measured = Num(1e-300))]
fn a_broken_pass_is_an_error(#[case] fault: Fault, #[case] breaks: fn(&mut Row)) {
    let mut row = good("g");
    assert_eq!((row.status, row.fault()), (Status::Pass, None), "the unbroken row passes");
    breaks(&mut row);
    assert_eq!(row.fault(), Some(fault));
    let row = row.checked();
    assert_eq!(row.status, Status::Error);
    assert!(row.reason.starts_with(&fault.to_string()), "{}", row.reason);
    assert_eq!(row.clone().checked(), row, "checking twice changes nothing");
}

/// Reasons are told apart, so that a reader knows which rule was broken.
#[test]
fn reasons_are_distinct() {
    let all = [
        Fault::ZeroWork,
        Fault::WrongWork,
        Fault::NonFinite,
        Fault::BadLimit,
        Fault::NoControl,
        Fault::UnarmedControl,
        Fault::NoStatistic,
        Fault::NoRepeat,
        Fault::SamePath,
        Fault::PassWithReason,
        Fault::OverLimit,
        Fault::NoReason,
    ];
    let texts: std::collections::BTreeSet<String> = all.iter().map(Fault::to_string).collect();
    assert_eq!(texts.len(), all.len());
}

#[rstest]
#[case::on_the_limit(3.0, 3.0, Status::Pass, "")]
#[case::within(2.5, 3.0, Status::Pass, "")]
#[case::just_over(3.0000000000000004, 3.0, Status::Fail, "over the limit")]
#[case::nan(NAN, 3.0, Status::Error, "non-finite statistic")]
#[case::inf(INF, 3.0, Status::Error, "non-finite statistic")]
#[case::nan_limit(0.0, NAN, Status::Error, "bad limit: NaN, infinite or negative")]
fn judged(#[case] measured: f64, #[case] limit: f64, #[case] want: Status, #[case] why: &str) {
    let mut row = good("g");
    (row.measured, row.limit) = (Num(measured), Num(limit));
    control(&mut row, |c| c.measured = Num(100.0));
    let row = row.judged();
    assert_eq!((row.status, row.reason.as_str()), (want, why));
    assert_eq!(row.margin, Num(limit - measured));
}

#[rstest]
#[case::nan_control(|r: &mut Row| control(r, |c| c.measured = Num(NAN)))]
#[case::control_of_another_statistic(|r: &mut Row| control(r, |c| {
    (c.statistic, c.measured) = ("files_refused".to_owned(), Num(0.0));
}))]
#[case::paths_that_differ(|r: &mut Row| {
    (r.kind, r.paths) = (Kind::Invariance, vec![path("a", 1), path("b", 2)]);
})]
fn still_a_pass(#[case] change: fn(&mut Row)) {
    let mut row = good("g");
    change(&mut row);
    assert_eq!(row.judged().status, Status::Pass);
}

#[test]
fn a_new_row_is_an_error_and_silence_never_pays() {
    let new = Row::new("g", Kind::Order, 1, "gates run g").checked();
    assert_eq!((new.status, new.reason.as_str()), (Status::Error, "did not report"));
    assert_eq!(new.clone().judged().status, Status::Error, "judging nothing is no pass");
    assert_eq!(new.clone().unmeasurable("no GPU").status, Status::Unmeasurable);
    let silent = new.clone().unmeasurable(" ");
    assert_eq!(silent.status, Status::Error);
    assert_eq!(silent.reason, Fault::NoReason.to_string());
    assert_eq!(new.error("broke").reason, "broke");
}
