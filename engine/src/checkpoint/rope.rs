//! The rotary keys of a configuration, old and new spelling.
//!
//! The resolution is that of Transformers: a `rope_scaling` that is not empty replaces
//! `rope_parameters`; the theta inside that object wins over the one at top level; without any it
//! is 10000. What Transformers loses silently on the way is refused here: every theta that is
//! stated anywhere must be the one that takes effect.
//!
//! The invariant: the only type is "default", which rotates all of a Qwen3's `head_dim` and the
//! stated part of a hybrid's, and nothing that asks for another is passed over.

use serde_json::{Map, Value};

use super::config::{Config, Fault};
use super::fields::{Fields, mistyped, shown};
use super::hybrid::Family;
use super::json::one_line;
use crate::contract::{LARGEST_ANGLE, largest_angle};

const FACTOR: &str = "partial_rotary_factor";

/// Base of the frequencies where none is stated.
const DEFAULT_THETA: f64 = 10_000.0;

/// The part of a head that is rotated where a hybrid does not say.
const DEFAULT_FACTOR: f64 = 0.25;

/// The base, where it comes from, and the width that is rotated.
pub(super) struct Rope {
    pub theta: f64,
    pub source: &'static str,
    pub width: usize,
}

/// One of the two objects: its name, the name of its theta, its keys.
struct Dict<'a> {
    name: &'static str,
    theta: &'static str,
    object: &'a Map<String, Value>,
}

/// Resolves the rotary keys of `fields`.
///
/// # Errors
/// Another type than "default", thetas that differ, keys that only other types read.
pub(super) fn resolve(
    fields: &Fields<'_>,
    family: Family,
    head_dim: usize,
    notices: &mut Vec<String>,
) -> Result<Rope, Fault> {
    let scaling = dict(fields, "rope_scaling", "rope_scaling.rope_theta")?;
    let parameters = dict(fields, "rope_parameters", "rope_parameters.rope_theta")?;
    for dict in [&scaling, &parameters].into_iter().flatten() {
        default_type(dict, family, head_dim, notices)?;
    }
    let effective = scaling.as_ref().or(parameters.as_ref());
    let width = match family {
        Family::Qwen3 => {
            partial(fields.get(FACTOR), FACTOR, head_dim, notices)?;
            head_dim
        }
        Family::Qwen3_5 => width(fields, effective, head_dim, notices)?,
    };
    let mut stated = Vec::new();
    for dict in [&scaling, &parameters].into_iter().flatten() {
        if let Some(value) = dict.object.get("rope_theta") {
            stated.push((dict.theta, theta(dict.theta, value)?));
        }
    }
    match fields.get("rope_theta") {
        None => {}
        // The reference leaves it be where an object states a theta.
        Some(Value::Null) if !stated.is_empty() => {}
        Some(value) => stated.push(("rope_theta", theta("rope_theta", value)?)),
    }
    let effective = effective.map(|dict| dict.theta);
    let find = |key: &str| stated.iter().find(|(k, _)| *k == key);
    let found = effective.and_then(find).or_else(|| find("rope_theta"));
    let (source, value) = found.copied().unwrap_or(("default", DEFAULT_THETA));
    if let Some(&(key, other)) = stated.iter().find(|(_, theta)| *theta != value) {
        let (effective, by) = (value, source);
        return Err(Fault::Thetas { effective, by, key, stated: other });
    }
    if source == "default" {
        notices.push(format!("config.json: no rope_theta, the default {DEFAULT_THETA} applies"));
    }
    Ok(Rope { theta: value, source, width })
}

/// Refuses angles that the exact tables cannot reduce, over all positions of the model.
///
/// # Errors
/// The base, and the angle that is reached.
pub(super) fn reducible(config: &Config) -> Result<(), Fault> {
    let (theta, positions) = (config.rope_theta, config.max_position_embeddings);
    let angle = largest_angle(theta, config.rotary_dim, positions);
    if angle < LARGEST_ANGLE { Ok(()) } else { Err(Fault::Angle { theta, angle, positions }) }
}

/// The object under `key`; `None` where it is absent, `null` or empty.
fn dict<'a>(
    fields: &Fields<'a>,
    key: &'static str,
    theta: &'static str,
) -> Result<Option<Dict<'a>>, Fault> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) if object.is_empty() => Ok(None),
        Some(Value::Object(object)) => Ok(Some(Dict { name: key, theta, object })),
        Some(other) => Err(mistyped(key, "an object or null", other)),
    }
}

/// Refuses all but the type "default" and the keys it reads.
fn default_type(
    dict: &Dict<'_>,
    family: Family,
    head_dim: usize,
    notices: &mut Vec<String>,
) -> Result<(), Fault> {
    let refuse = |key: &str, value: &Value, only: &'static str| {
        let (dict, key, found) = (dict.name, one_line(key), shown(value));
        Err(Fault::Rope { dict, key, found, only })
    };
    for key in ["rope_type", "type"] {
        if let Some(value) = dict.object.get(key).filter(|v| v.as_str() != Some("default")) {
            return refuse(key, value, "\"default\"");
        }
    }
    for (key, value) in dict.object {
        match (key.as_str(), value) {
            ("rope_type" | "type" | "rope_theta", _) | (_, Value::Null) => {}
            (FACTOR, _) if family == Family::Qwen3 => {
                partial(Some(value), FACTOR, head_dim, notices)?;
            }
            // Text has equal positions on all axes, so that any sections rotate alike.
            (FACTOR | "mrope_section" | "mrope_interleaved", _) if family == Family::Qwen3_5 => {}
            // A factor of one scales nothing.
            ("factor" | "attention_factor", Value::Number(n)) if n.as_f64() == Some(1.0) => {}
            (_, Value::Object(_)) => return refuse(key, value, "one set for all layers"),
            _ => {
                let (dict, key) = (dict.name, one_line(key));
                return Err(Fault::RopeKey { dict, key, found: shown(value) });
            }
        }
    }
    Ok(())
}

/// The width that a hybrid rotates: that part of a head, truncated. The object's factor takes
/// effect; the library writes its default beside it at top level, whatever the object says.
fn width(
    fields: &Fields<'_>,
    dict: Option<&Dict<'_>>,
    head_dim: usize,
    notices: &mut Vec<String>,
) -> Result<usize, Fault> {
    let number = |value: &Value| match value.as_f64() {
        Some(factor) => Ok(factor),
        None => Err(mistyped(FACTOR, "a number", value)),
    };
    let stated = |value: Option<&Value>| value.filter(|v| !v.is_null()).map(number).transpose();
    let outer = stated(fields.get(FACTOR))?;
    let inner = stated(dict.and_then(|dict| dict.object.get(FACTOR)))?;
    if let (Some(inner), Some(outer), Some(dict)) = (inner, outer, dict)
        && inner != outer
    {
        notices.push(format!(
            "config.json: {FACTOR} {inner} ({}) takes effect, {outer} at top level does not",
            dict.name
        ));
    }
    let factor = inner.or(outer).unwrap_or(DEFAULT_FACTOR);
    let width = (head_dim as f64 * factor) as i64;
    if width < 2 || width % 2 == 1 || width > head_dim as i64 {
        return Err(Fault::Rotary { factor, head_dim, width });
    }
    Ok(width as usize)
}

/// Qwen3 rotates whole heads whatever this key says, and so does the reference: a notice.
fn partial(
    value: Option<&Value>,
    key: &'static str,
    head_dim: usize,
    notices: &mut Vec<String>,
) -> Result<(), Fault> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Number(n)) => {
            if n.as_f64() != Some(1.0) {
                notices.push(format!(
                    "config.json: {key} {n} has no effect in qwen3: all {head_dim} dims rotate"
                ));
            }
            Ok(())
        }
        Some(other) => Err(mistyped(key, "a number", other)),
    }
}

/// A base: a positive number, finite in f32.
fn theta(key: &'static str, value: &Value) -> Result<f64, Fault> {
    let Value::Number(number) = value else {
        return Err(mistyped(key, "a number", value));
    };
    let theta = number.as_f64().unwrap_or(f64::NAN);
    if !(theta as f32 > 0.0 && (theta as f32).is_finite()) {
        let only = "a positive number that f32 can hold";
        return Err(Fault::Unsupported { key, found: shown(value), only });
    }
    Ok(theta)
}
