//! Numbers and times survive text with all their bits.

use rstest::rstest;
use samebits_reports::{Num, Stamp};

use crate::stamp;

#[rstest]
#[case::zero(0.0, "0.0", "0")]
#[case::minus_zero(-0.0, "-0.0", "-0")]
#[case::third(1.0 / 3.0, "0.3333333333333333", "0.3333333333333333")]
#[case::tenth(0.1, "0.1", "0.1")]
#[case::sum(0.1 + 0.2, "0.30000000000000004", "0.30000000000000004")]
#[case::least(5e-324, "5e-324", "5e-324")]
#[case::greatest(f64::MAX, "1.7976931348623157e+308", "1.7976931348623157e308")]
#[case::small(1e-5, "0.00001", "1e-5")]
#[case::nan(f64::NAN, "\"NaN\"", "NaN")]
#[case::inf(f64::INFINITY, "\"inf\"", "inf")]
#[case::minus_inf(f64::NEG_INFINITY, "\"-inf\"", "-inf")]
fn texts(#[case] value: f64, #[case] json: &str, #[case] shown: &str) {
    let written = serde_json::to_string(&Num(value)).expect("a number is written");
    assert_eq!(written, json);
    assert_eq!(Num(value).to_string(), shown);
    let read: Num = serde_json::from_str(&written).expect("a written number is read");
    assert_eq!(read, Num(value));
    let shown: f64 = shown.parse().expect("a shown number is a number");
    assert_eq!(Num(shown), Num(value));
}

/// Bit patterns of every exponent, spread by a multiplicative generator with a fixed seed.
#[test]
fn random_bits_come_back() {
    let mut bits = 1u64;
    for _ in 0..100_000 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = f64::from_bits(bits);
        let json = serde_json::to_string(&Num(value)).expect("a number is written");
        let read: Num = serde_json::from_str(&json).expect("a written number is read");
        assert_eq!(read, Num(value), "{bits:#x} as {json}");
        let shown: f64 = Num(value).to_string().parse().expect("a shown number is a number");
        assert_eq!(Num(shown), Num(value), "{bits:#x} as {}", Num(value));
    }
}

#[rstest]
#[case::null("null")]
#[case::infinity("\"Infinity\"")]
#[case::digits("\"1.0\"")]
#[case::bare_nan("NaN")]
#[case::beyond("1e999")]
#[case::bool("true")]
fn no_number(#[case] json: &str) {
    assert!(serde_json::from_str::<Num>(json).is_err(), "{json} is read as a number");
}

#[test]
fn zeros_differ_and_nans_do_not() {
    assert_ne!(Num(0.0), Num(-0.0));
    assert_eq!(Num(f64::NAN), Num(-f64::NAN));
    assert_ne!(Num(f64::NAN), Num(f64::INFINITY));
}

#[rstest]
#[case::epoch(0, "1970-01-01T00:00:00.000Z")]
#[case::leap_day(951_782_400, "2000-02-29T00:00:00.000Z")]
#[case::after_leap(951_868_800, "2000-03-01T00:00:00.000Z")]
#[case::last_second(1_767_225_599, "2025-12-31T23:59:59.000Z")]
#[case::no_leap_century(4_107_542_400, "2100-03-01T00:00:00.000Z")]
#[case::end(253_402_300_799, "9999-12-31T23:59:59.000Z")]
fn dates(#[case] seconds: u64, #[case] want: &str) {
    assert_eq!(stamp(seconds).as_str(), want);
    let read: Stamp = serde_json::from_str(&format!("{want:?}")).expect("a stamp is read");
    assert_eq!(read, stamp(seconds));
    assert_eq!(read.date(), &want[..10]);
}

#[rstest]
#[case::no_such_day("2025-02-29T00:00:00.000Z")]
#[case::month_13("2025-13-01T00:00:00.000Z")]
#[case::hour_24("2025-01-01T24:00:00.000Z")]
#[case::no_milliseconds("2025-01-01T00:00:00Z")]
#[case::offset("2025-01-01T00:00:00.000+01:00")]
#[case::before_1970("1969-12-31T23:59:59.000Z")]
#[case::signed("2025-01-01T00:00:+1.000Z")]
#[case::not_ascii("2025-01-01T00:00:0é.00Z")]
#[case::empty("")]
fn no_date(#[case] text: &str) {
    let json = serde_json::to_string(text).expect("a string is written");
    assert!(serde_json::from_str::<Stamp>(&json).is_err(), "{text:?} is read as a time");
}

#[test]
fn later_is_greater() {
    assert!(stamp(999_999_999) < stamp(1_000_000_000));
    assert_eq!(stamp(90).since(&stamp(30)).as_secs(), 60);
    assert_eq!(stamp(30).since(&stamp(90)).as_secs(), 0);
}
