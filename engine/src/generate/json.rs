//! Python's `json.dumps`, the filter `tojson` of a template.
//!
//! The invariant: what `json.dumps` refuses is refused, and order is that of insertion unless keys
//! are to be sorted.

use minijinja::Error;
use minijinja::value::{Kwargs, Value, ValueKind};

use super::python::{float, is_float, refuse};

/// How it is written.
struct Style {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
}

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn dumps(value: &Value, options: Kwargs) -> Result<String, Error> {
    let flag = |name: &str| Ok::<bool, Error>(options.get::<Option<bool>>(name)?.unwrap_or(false));
    let indent = match options.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        None => None,
        Some(width) => Some(match (width.as_str(), width.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) if width.is_positive() => " ".repeat(width as usize),
            (None, Some(_)) => String::new(),
            (None, None) => return Err(refuse("tojson: indent is no width and no text")),
        }),
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (mut comma, mut colon) = (comma.to_owned(), ": ".to_owned());
    if let Some(both) = options.get::<Option<Value>>("separators")?.filter(|v| !v.is_none()) {
        let both: Vec<Value> = both.try_iter()?.collect();
        let [first, second] = &both[..] else {
            return Err(refuse("tojson: separators are two texts"));
        };
        let own = |v: &Value| v.as_str().map(String::from);
        (comma, colon) = own(first).zip(own(second)).ok_or_else(|| refuse("tojson: separators"))?;
    }
    let style =
        Style { ascii: flag("ensure_ascii")?, sorted: flag("sort_keys")?, indent, comma, colon };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if is_float(value) => out.push_str(&float(value)?),
            ValueKind::Number => out.push_str(&value.to_string()),
            ValueKind::String => self.quote(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.all(['[', ']'], items, depth, out)?;
            }
            ValueKind::Map => {
                let entry = |key: Value| Ok((Some(self.key(&key)?), value.get_item(&key)?));
                let mut items = value.try_iter()?.map(entry).collect::<Result<Vec<_>, Error>>()?;
                if self.sorted {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.all(['{', '}'], items, depth, out)?;
            }
            kind => return Err(refuse(format!("tojson: {kind} is not JSON"))),
        }
        Ok(())
    }

    /// A key; others than texts are taken only where their order does not matter.
    fn key(&self, key: &Value) -> Result<String, Error> {
        match key.kind() {
            ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
            ValueKind::Number if key.is_integer() && !self.sorted => Ok(key.to_string()),
            kind => Err(refuse(format!("tojson: a key that is a {kind}"))),
        }
    }

    fn all(
        &self,
        ends: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push(ends[0]);
        let empty = items.is_empty();
        for (i, (key, value)) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            line(depth + 1, out);
            if let Some(key) = key {
                self.quote(&key, out);
                out.push_str(&self.colon);
            }
            self.write(&value, depth + 1, out)?;
        }
        if !empty {
            line(depth, out);
        }
        out.push(ends[1]);
        Ok(())
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
