//! JSON that refuses what parsers forgive.
//!
//! Here: a value in which no object repeats a key, at any depth, and the one-line form of foreign
//! text. Absent: numbers beyond what `serde_json` reads. The invariant: text that came out of a
//! file reaches a message only through [`one_line`].

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses `text`; nesting is bounded (128) by the parser.
///
/// # Errors
/// The parser's sentence, which a repeated key also gives.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str::<Unique>(text).map(|u| u.0).map_err(|e| one_line(&e.to_string()))
}

/// Foreign text made safe to print: control characters escaped, at most 160 characters, and
/// an empty one shown as such.
pub(super) fn one_line(text: &str) -> String {
    const LONGEST: usize = 160;
    if text.is_empty() {
        return "\"\"".to_owned();
    }
    let mut line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == LONGEST {
            line.push_str("..");
            break;
        }
        // Bidirectional and zero-width characters reorder or hide what a terminal shows.
        if c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// A value whose objects have unique keys.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        let number = Number::from_f64(v).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let Unique(value) = map.next_value()?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` appears twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":{"b":1,"b":2}}"#, r#"[{"a":1,"\u0061":2}]"#] {
            assert!(parse(text).expect_err(text).contains("twice"), "{text}");
        }
        assert_eq!(parse(r#"{"a":{"a":1},"b":{"a":1}}"#).expect("legal")["b"]["a"], 1);
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(parse(&deep).expect_err("deep").contains("recursion"));
    }

    #[test]
    fn foreign_text_stays_on_one_line() {
        assert_eq!(one_line("a\nb\u{1b}[0m"), "a\\nb\\u{1b}[0m");
        assert_eq!(one_line(&"x".repeat(500)).len(), 162);
    }
}
