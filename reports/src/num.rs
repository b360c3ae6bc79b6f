//! A number of a report.
//!
//! JSON has no NaN and no infinity, and a writer that turns them into `null` hides a failure.
//! They are the strings "NaN", "inf" and "-inf" here; every finite value is the shortest decimal
//! that reads back to the same bits. Two numbers are equal when their bits are, NaNs being one.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An `f64` that survives JSON. Displayed as the shortest text that reads back to the same bits.
#[derive(Clone, Copy, Debug)]
pub struct Num(pub f64);

impl Num {
    /// Neither NaN nor infinite.
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }
}

impl PartialEq for Num {
    fn eq(&self, other: &Num) -> bool {
        self.0.to_bits() == other.0.to_bits() || (self.0.is_nan() && other.0.is_nan())
    }
}

impl Eq for Num {}

impl From<f64> for Num {
    fn from(value: f64) -> Num {
        Num(value)
    }
}

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        let plain = size == 0.0 || (1e-4..1e15).contains(&size) || !self.0.is_finite();
        let text = if plain { format!("{}", self.0) } else { format!("{:e}", self.0) };
        f.pad(&text)
    }
}

impl Num {
    /// Rounded to so many significant digits, for people.
    pub fn rounded(self, digits: usize) -> Num {
        if self.0 == 0.0 || !self.is_finite() {
            return self;
        }
        let text = format!("{:.*e}", digits.saturating_sub(1), self.0);
        Num(text.parse().expect("a number that was printed is one"))
    }
}

/// A measurement and its limit for people: four significant digits, or as many more as it takes to
/// tell the two apart, so that what is beyond a limit never looks as if it were on it.
pub fn figures(measured: Num, limit: Num) -> (String, String) {
    let shown = |digits| (measured.rounded(digits), limit.rounded(digits));
    let apart = |(a, b): &(Num, Num)| a != b || measured == limit;
    let (a, b) = (DIGITS..DOUBLE).map(shown).find(apart).unwrap_or((measured, limit));
    (a.to_string(), b.to_string())
}

/// Digits that people read.
const DIGITS: usize = 4;
/// Digits that tell any two numbers apart.
const DOUBLE: usize = 17;

impl Serialize for Num {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { to.serialize_f64(self.0) } else { to.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Num {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Num, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl de::Visitor<'_> for Reader {
    type Value = Num;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Num, E> {
        Ok(Num(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Num, E> {
        Ok(Num(value as f64))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Num, E> {
        Ok(Num(value as f64))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Num, E> {
        match text {
            "NaN" => Ok(Num(f64::NAN)),
            "inf" => Ok(Num(f64::INFINITY)),
            "-inf" => Ok(Num(f64::NEG_INFINITY)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}
