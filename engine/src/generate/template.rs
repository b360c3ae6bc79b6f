//! The environment of a chat template: Jinja as Transformers sets it up.
//!
//! Here: filters and tests where minijinja's are not Jinja's. The invariant: a filter that only
//! minijinja has, or has otherwise, is taken away, so that its use is an error.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::jinja::{GE, GT, IN, LE, LT, TUPLE};
use super::json::dumps;
use super::python::{Tuple, item, items, method, refuse, strip, text, title};

/// Filters that Jinja does not have, or that give something else there.
const STRANGE_FILTERS: [&str; 14] = [
    "bool",
    "chain",
    "e",
    "escape",
    "format",
    "lines",
    "pprint",
    "round",
    "slice",
    "batch",
    "split",
    "urlencode",
    "zip",
    "groupby",
];

/// Tests of the same kind.
const STRANGE_TESTS: [&str; 6] =
    ["containing", "endingwith", "escaped", "int", "safe", "startingwith"];

/// Jinja as Transformers sets it up: blocks trimmed, loop controls, Python's methods and `str`.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, _, value| {
        let printed = text(value)?;
        out.write_str(&printed).map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    STRANGE_FILTERS.iter().for_each(|name| environment.remove_filter(name));
    STRANGE_TESTS.iter().for_each(|name| environment.remove_test(name));
    environment.remove_global("debug");
    functions(&mut environment);
    filters(&mut environment);
    tests(&mut environment);
    environment
}

fn functions(environment: &mut Environment<'_>) {
    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(refuse(text))
    });
    environment.add_function("strftime_now", |format: &str| -> Result<String, Error> {
        let now = jiff::Zoned::now();
        jiff::fmt::strtime::format(format, &now).map_err(|e| refuse(format!("strftime_now: {e}")))
    });
    let compared = |holds: fn(Ordering) -> bool| {
        move |left: &Value, right: &Value| Ok::<_, Error>(holds(order(left, right)?))
    };
    environment.add_function(LT, compared(Ordering::is_lt));
    environment.add_function(LE, compared(Ordering::is_le));
    environment.add_function(GT, compared(Ordering::is_gt));
    environment.add_function(GE, compared(Ordering::is_ge));
    environment.add_function(IN, contains);
    environment.add_function(TUPLE, |items: Rest<Value>| Value::from_object(Tuple(items.0)));
}

/// The order of two numbers or two texts; Python has none of what is unlike.
fn order(left: &Value, right: &Value) -> Result<Ordering, Error> {
    let number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    let texts = left.as_str().is_some() && right.as_str().is_some();
    if texts || (number(left) && number(right)) {
        return Ok(left.cmp(right));
    }
    Err(refuse(format!("{} and {} are compared", left.kind(), right.kind())))
}

/// Python's `in`.
fn contains(item: &Value, all: &Value) -> Result<bool, Error> {
    match (all.kind(), all.as_str()) {
        (ValueKind::Undefined, _) => Ok(false),
        (_, Some(all)) => {
            item.as_str().map(|part| all.contains(part)).ok_or_else(|| refuse("no text in a text"))
        }
        (ValueKind::Map | ValueKind::Seq | ValueKind::Iterable, _) => {
            Ok(all.try_iter()?.any(|one| one == *item))
        }
        (kind, _) => Err(refuse(format!("in a {kind}"))),
    }
}

fn filters(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", dumps);
    environment.add_filter("string", text_of);
    environment.add_filter("upper", |value: &Value| Ok::<_, Error>(text(value)?.to_uppercase()));
    environment.add_filter("lower", |value: &Value| Ok::<_, Error>(text(value)?.to_lowercase()));
    environment.add_filter("trim", |value: &Value, chars: Option<&str>| {
        Ok::<_, Error>(strip(&text(value)?, chars, true, true).to_owned())
    });
    environment.add_filter("title", |value: &Value| {
        let divides = |c: char| c.is_whitespace() || "-({[<".contains(c);
        Ok::<_, Error>(title(&ascii(value)?, divides))
    });
    environment
        .add_filter("capitalize", |value: &Value| Ok::<_, Error>(title(&ascii(value)?, |_| false)));
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => items(value),
        kind => Err(refuse(format!("items of a {kind}"))),
    });
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("first", |values: &Value| end(values, 0));
    environment.add_filter("last", |values: &Value| end(values, -1));
}

fn text_of(value: &Value) -> Result<String, Error> {
    text(value)
}

fn ascii(value: &Value) -> Result<String, Error> {
    let own = text(value)?;
    if own.is_ascii() { Ok(own) } else { Err(refuse("a title of a text beyond ASCII")) }
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<i64>) -> Result<String, Error> {
    let (own, old, new) = (text(value)?, text(old)?, text(new)?);
    Ok(match count.and_then(|n| usize::try_from(n).ok()) {
        Some(count) => own.replacen(&old, &new, count),
        None => own.replace(&old, &new),
    })
}

fn join(values: &Value, between: Option<&Value>, options: Kwargs) -> Result<String, Error> {
    let named: Option<Value> = options.get("d")?;
    let attribute: Option<String> = options.get("attribute")?;
    options.assert_all_used()?;
    let between = match between.or(named.as_ref()) {
        Some(between) => text(between)?,
        None => String::new(),
    };
    let one = |value: Value| match &attribute {
        None => text(&value),
        Some(name) if !name.contains('.') => text(&value.get_attr(name)?),
        Some(name) => Err(refuse(format!("join: the attribute {name}"))),
    };
    let all: Result<Vec<String>, Error> = values.try_iter()?.map(one).collect();
    Ok(all?.join(&between))
}

/// The first or last of a list or text; of a dict its keys are asked.
fn end(values: &Value, at: i64) -> Result<Value, Error> {
    match values.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        ValueKind::Map => item(&values.try_iter()?.collect(), &Value::from(at)),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::String => item(values, &Value::from(at)),
        kind => Err(refuse(format!("the end of a {kind}"))),
    }
}

/// Python's `len`.
fn length(value: &Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().chars().count()),
        kind => value.len().ok_or_else(|| refuse(format!("the length of a {kind}"))),
    }
}

/// Pairs of a dict, by key, upper and lower case alike.
fn dictsort(value: &Value, options: Kwargs) -> Result<Value, Error> {
    options.assert_all_used()?;
    let mut keys = Vec::new();
    for key in value.try_iter()? {
        let folded = key.as_str().ok_or_else(|| refuse("dictsort of keys that are no texts"))?;
        keys.push((folded.to_lowercase(), key));
    }
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    let pair = |(_, key): (String, Value)| {
        let held = value.get_item(&key)?;
        Ok(Value::from_object(Tuple(vec![key, held])))
    };
    keys.into_iter().map(pair).collect::<Result<Vec<Value>, Error>>().map(Value::from)
}

fn tests(environment: &mut Environment<'_>) {
    let held = |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    };
    environment.add_test("sequence", held);
    environment.add_test("iterable", move |value: &Value| {
        held(value) || value.kind() == ValueKind::Iterable
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("lower", |value: &Value| {
        let own = ascii(value)?;
        Ok::<_, Error>(own.chars().any(char::is_lowercase) && !own.chars().any(char::is_uppercase))
    });
    environment.add_test("upper", |value: &Value| {
        let own = ascii(value)?;
        Ok::<_, Error>(own.chars().any(char::is_uppercase) && !own.chars().any(char::is_lowercase))
    });
}
