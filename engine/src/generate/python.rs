//! Values of a template as Python has them: how they print, and their methods.
//!
//! What minijinja-contrib has of Python's methods is used where it agrees; here is the rest. The
//! invariant: where agreement is not known, as of letters beyond ASCII in `isalpha`, it is an error
//! and never a guess.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::jinja::{ITEM, SLICE};

/// An error of the template.
pub(super) fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// A tuple, which prints in parentheses.
#[derive(Debug)]
pub(super) struct Tuple(pub Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// What Python's `str` gives.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Undefined => Ok(String::new()),
        _ => repr(value),
    }
}

/// What Python's `repr` gives.
fn repr(value: &Value) -> Result<String, Error> {
    let list = |items: &Value| -> Result<Vec<String>, Error> {
        items.try_iter()?.map(|item| repr(&item)).collect()
    };
    Ok(match value.kind() {
        ValueKind::None => "None".into(),
        ValueKind::Bool | ValueKind::Number if !is_float(value) => value.to_string(),
        ValueKind::Number => float(value)?,
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => {
            let items = list(value)?;
            let comma = if items.len() == 1 { "," } else { "" };
            format!("({}{comma})", items.join(", "))
        }
        ValueKind::Seq => format!("[{}]", list(value)?.join(", ")),
        ValueKind::Map if !is_namespace(value) => {
            let pair = |key: Value| -> Result<String, Error> {
                Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?))
            };
            let pairs: Result<Vec<String>, Error> = value.try_iter()?.map(pair).collect();
            format!("{{{}}}", pairs?.join(", "))
        }
        kind => return Err(refuse(format!("it prints a value of the kind {kind}"))),
    })
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

pub(super) fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// A float as Python prints it: the shortest digits, and an exponent of two digits or more.
pub(super) fn float(value: &Value) -> Result<String, Error> {
    let number = f64::try_from(value.clone())?;
    if !number.is_finite() {
        return Err(refuse("it prints a number that is not finite"));
    }
    let shown = format!("{number:?}");
    let Some((digits, exponent)) = shown.split_once('e') else { return Ok(shown) };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ('-', rest),
        None => ('+', exponent),
    };
    Ok(format!("{digits}e{sign}{exponent:0>2}"))
}

/// A text in Python's quotes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            // Behind a letter only what cannot be printed is escaped.
            c if c > '\u{a0}' && !format!("a{c}").escape_debug().any(|e| e == '{') => out.push(c),
            c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
    out
}

/// White space of Python's texts.
fn space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's `strip`, at the ends that are asked for.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let cut = |c: char| chars.map_or_else(|| space(c), |set| set.contains(c));
    let text = if start { text.trim_start_matches(cut) } else { text };
    if end { text.trim_end_matches(cut) } else { text }
}

/// Methods of values, subscripts and slices among them.
pub(super) fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if is_namespace(value) {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    match (name, value.as_str()) {
        (ITEM, _) => item(value, from_args::<(&Value,)>(args)?.0),
        (SLICE, _) => slice(value, args),
        ("items", None) if value.kind() == ValueKind::Map => items(value),
        (_, Some(text)) => match of_text(text, name, args)? {
            Some(answer) => Ok(answer),
            None => unknown_method_callback(state, value, name, args),
        },
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// Keys and values of a dict, to go through: what prints them is Python's own.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    let pair = |key: Value| {
        let held = value.get_item(&key)?;
        Ok(Value::from_object(Tuple(vec![key, held])))
    };
    let pairs = value.try_iter()?.map(pair).collect::<Result<Vec<Value>, Error>>()?;
    Ok(Value::make_iterable(move || pairs.clone().into_iter()))
}

/// `value[key]`: undefined where there is none.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let count = match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::String => value.as_str().map_or(0, |text| text.chars().count()),
        ValueKind::Seq | ValueKind::Iterable => value.len().unwrap_or(0),
        _ => return value.get_item(key),
    };
    let Some(at) = key.as_i64().filter(|_| key.is_integer()) else {
        return if key.kind() == ValueKind::String {
            value.get_item(key)
        } else {
            Ok(Value::UNDEFINED)
        };
    };
    let at = if at < 0 { at + count as i64 } else { at };
    let Ok(at) = usize::try_from(at) else { return Ok(Value::UNDEFINED) };
    let held = match value.as_str() {
        Some(text) => text.chars().nth(at).map(|c| Value::from(c.to_string())),
        None => value.try_iter()?.nth(at),
    };
    Ok(held.unwrap_or(Value::UNDEFINED))
}

/// `value[start:stop:step]`: a list, or a text of a text.
fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (start, stop, step) = from_args::<(Option<i64>, Option<i64>, Option<i64>)>(args)?;
    let held: Vec<Value> = match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::String => {
            value.as_str().unwrap_or_default().chars().map(|c| Value::from(c.to_string())).collect()
        }
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        kind => return Err(refuse(format!("a slice of a {kind}"))),
    };
    let (count, step) = (held.len() as i64, step.unwrap_or(1));
    if step == 0 {
        return Err(refuse("a slice of step 0"));
    }
    let (low, high) = if step > 0 { (0, count) } else { (-1, count - 1) };
    let bound = |at: Option<i64>, open: i64| match at {
        None => open,
        Some(at) => (if at < 0 { at + count } else { at }).clamp(low, high),
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, stop) = (bound(start, first), bound(stop, last));
    let mut kept = Vec::new();
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        kept.push(held[at as usize].clone());
        at += step;
    }
    if value.kind() == ValueKind::String {
        return Ok(Value::from(kept.iter().filter_map(Value::as_str).collect::<String>()));
    }
    Ok(match value.downcast_object_ref::<Tuple>() {
        Some(_) => Value::from_object(Tuple(kept)),
        None => Value::from(kept),
    })
}

/// Methods of a text; `None` for those that minijinja-contrib has as Python has them.
fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let place =
        |at: Option<usize>| Value::from(at.map_or(-1, |at| text[..at].chars().count() as i64));
    Ok(Some(match name {
        "find" => place(text.find(from_args::<(&str,)>(args)?.0)),
        "rfind" => place(text.rfind(from_args::<(&str,)>(args)?.0)),
        "count" => Value::from(text.matches(from_args::<(&str,)>(args)?.0).count()),
        "strip" => strip(text, from_args::<(Option<&str>,)>(args)?.0, true, true).into(),
        "lstrip" => strip(text, from_args::<(Option<&str>,)>(args)?.0, true, false).into(),
        "rstrip" => strip(text, from_args::<(Option<&str>,)>(args)?.0, false, true).into(),
        "removeprefix" => text.strip_prefix(from_args::<(&str,)>(args)?.0).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(from_args::<(&str,)>(args)?.0).unwrap_or(text).into(),
        "split" | "rsplit" => split(text, name == "rsplit", args)?,
        "splitlines" => {
            from_args::<()>(args)?;
            lines(text)
        }
        "join" => joined(text, from_args::<(&Value,)>(args)?.0)?.into(),
        "title" | "capitalize" | "isalpha" | "isalnum" | "isdigit" | "isnumeric" | "isdecimal"
        | "islower" | "isupper" | "isspace" => {
            from_args::<()>(args)?;
            if !text.is_ascii() {
                return Err(refuse(format!("{name} of a text beyond ASCII")));
            }
            of_ascii(text, name)
        }
        _ => return Ok(None),
    }))
}

/// Methods that ask what a character is.
fn of_ascii(text: &str, name: &str) -> Value {
    let all = |is: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(is));
    let (lower, upper) =
        (text.chars().any(|c| c.is_lowercase()), text.chars().any(|c| c.is_uppercase()));
    match name {
        "title" => title(text, |c| !c.is_alphabetic()).into(),
        "capitalize" => title(text, |_| false).into(),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(space),
        "islower" => Value::from(lower && !upper),
        "isupper" => Value::from(upper && !lower),
        _ => all(|c| c.is_ascii_digit()),
    }
}

/// The first letter and each behind one that divides in upper case, the others in lower case.
pub(super) fn title(text: &str, divides: impl Fn(char) -> bool) -> String {
    let mut first = true;
    let turn = |c: char| {
        let turned = if first { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        first = divides(c);
        turned
    };
    text.chars().map(turn).collect()
}

/// Python's `split` and `rsplit`.
fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (by, most) = from_args::<(Option<&str>, Option<i64>)>(args)?;
    let most =
        most.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let parts: Vec<&str> = match by {
        Some("") => return Err(refuse("split by an empty text")),
        Some(by) if from_right => {
            let mut parts: Vec<&str> = text.rsplitn(most, by).collect();
            parts.reverse();
            parts
        }
        Some(by) => text.splitn(most, by).collect(),
        None if most == usize::MAX => text.split(space).filter(|part| !part.is_empty()).collect(),
        None => return Err(refuse("split at white space a few times")),
    };
    Ok(parts.into_iter().map(Value::from).collect::<Vec<_>>().into())
}

/// Python's `splitlines`.
fn lines(text: &str) -> Value {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    if text.is_empty() {
        return Value::from(Vec::<Value>::new());
    }
    let text = text.replace("\r\n", "\n");
    text.strip_suffix(ends).unwrap_or(&text).split(ends).map(Value::from).collect::<Vec<_>>().into()
}

/// Python's `join`, which takes texts only.
fn joined(between: &str, values: &Value) -> Result<String, Error> {
    let own =
        |value: Value| value.as_str().map(String::from).ok_or_else(|| refuse("join of no text"));
    Ok(values.try_iter()?.map(own).collect::<Result<Vec<String>, Error>>()?.join(between))
}
