//! Typed access to the keys of a configuration object.
//!
//! Here: one method per type, each with the rule for an absent key. A key that is present has the
//! stated type or is refused; `null` is a value like any other, and only the `_or_null` methods
//! take it. The invariant: every key that is asked for is noted, so that the rest can be named.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::config::Fault;
use super::json::one_line;

/// Largest dimension or count, so that no product of two overflows 64 bits.
pub(super) const LARGEST: u64 = i32::MAX as u64;

/// An object whose keys are taken one by one.
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    asked: RefCell<BTreeSet<&'static str>>,
    defaulted: RefCell<Vec<(&'static str, usize)>>,
}

impl<'a> Fields<'a> {
    pub fn new(object: &'a Map<String, Value>) -> Self {
        Self { object, asked: RefCell::default(), defaulted: RefCell::default() }
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(key);
        self.object.get(key)
    }

    /// Keys that nobody asked for.
    pub fn rest(&self) -> Vec<&'a str> {
        let asked = self.asked.borrow();
        self.object.keys().map(String::as_str).filter(|key| !asked.contains(key)).collect()
    }

    /// Counts that were asked for and absent, with their defaults.
    pub fn defaulted(&self) -> Vec<(&'static str, usize)> {
        self.defaulted.borrow().clone()
    }

    /// A dimension or count: an integer from 1 to [`LARGEST`].
    pub fn count(&self, key: &'static str, default: usize) -> Result<usize, Fault> {
        match self.get(key) {
            None => {
                self.defaulted.borrow_mut().push((key, default));
                Ok(default)
            }
            Some(value) => count(key, value),
        }
    }

    /// A count that may be `null`: absent is `default`, `null` is `None`.
    pub fn count_or_null(&self, key: &'static str, default: usize) -> Result<Option<usize>, Fault> {
        match self.get(key) {
            Some(Value::Null) => Ok(None),
            _ => self.count(key, default).map(Some),
        }
    }

    /// Any integer of 64 bits.
    pub fn integer(&self, key: &'static str, default: i64) -> Result<i64, Fault> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_i64().ok_or_else(|| mistyped(key, "an integer", value)),
        }
    }

    /// A token id or `null`: both absent and `null` are `None`.
    pub fn id_or_null(&self, key: &'static str) -> Result<Option<u32>, Fault> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => id(key, value).map(Some),
        }
    }

    /// A boolean.
    pub fn boolean(&self, key: &'static str, default: bool) -> Result<bool, Fault> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| mistyped(key, "true or false", value)),
        }
    }

    /// A float: an integer literal is refused, as the reference does.
    pub fn float(&self, key: &'static str, default: f64) -> Result<f64, Fault> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Number(n)) if n.is_f64() => Ok(n.as_f64().expect("it is an f64")),
            Some(value) => Err(mistyped(key, "a float (with a point or exponent)", value)),
        }
    }

    /// A string, or `None` if absent.
    pub fn string(&self, key: &'static str) -> Result<Option<&'a str>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_str() {
                Some(text) => Ok(Some(text)),
                None => Err(mistyped(key, "a string", value)),
            },
        }
    }

    /// Refuses `key` unless it is absent, `null`, or of the kind that `is` accepts.
    pub fn idle(
        &self,
        key: &'static str,
        want: &'static str,
        is: fn(&Value) -> bool,
    ) -> Result<(), Fault> {
        match self.get(key) {
            Some(value) if !is(value) => Err(mistyped(key, want, value)),
            _ => Ok(()),
        }
    }
}

/// A dimension or count under `key`.
fn count(key: &'static str, value: &Value) -> Result<usize, Fault> {
    if !value.is_i64() && !value.is_u64() {
        return Err(mistyped(key, "an integer", value));
    }
    match value.as_u64() {
        Some(n) if (1..=LARGEST).contains(&n) => Ok(n as usize),
        _ => Err(Fault::Range { key, low: 1, high: LARGEST, found: shown(value) }),
    }
}

/// A token id under `key`.
pub(super) fn id(key: &'static str, value: &Value) -> Result<u32, Fault> {
    if !value.is_i64() && !value.is_u64() {
        return Err(mistyped(key, "an integer", value));
    }
    let high = u64::from(u32::MAX);
    let narrow = value.as_u64().and_then(|n| u32::try_from(n).ok());
    narrow.ok_or_else(|| Fault::Range { key, low: 0, high, found: shown(value) })
}

/// The error for a value of another type.
pub(super) fn mistyped(key: &'static str, want: &'static str, found: &Value) -> Fault {
    Fault::Type { key, want, found: shown(found) }
}

/// A value in a message.
pub(super) fn shown(value: &Value) -> String {
    let mut line = one_line(&value.to_string());
    if let Some((at, _)) = line.char_indices().nth(60) {
        line.truncate(at);
        line.push_str("..");
    }
    line
}
