//! The checkpoint's chat template, rendered as Transformers renders it.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use serde::Serialize;
use serde_json::{Map, Value as Json};
use thiserror::Error;

use crate::checkpoint::{Checkpoint, CheckpointError};

/// Why a conversation cannot be rendered.
#[derive(Debug, Error)]
pub enum ChatError {
    /// A file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no template.
    #[error("{0} has no chat template: leave out --chat")]
    Missing(String),
    /// A file is not what it should be.
    #[error("tokenizer_config.json: {0}")]
    Malformed(String),
    /// The template's own error.
    #[error("chat template: {0}")]
    Template(String),
}

/// One message of a conversation.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A chat template with the special tokens it may name.
pub struct Chat {
    template: String,
    tokens: Map<String, Json>,
}

const TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

impl Chat {
    /// The template of a checkpoint: chat_template.jinja, else that of tokenizer_config.json.
    ///
    /// # Errors
    /// No template, or files that cannot be read or understood.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, ChatError> {
        let malformed = |e: serde_json::Error| ChatError::Malformed(e.to_string());
        let config = match checkpoint.side_file("tokenizer_config.json")? {
            Some(bytes) => {
                serde_json::from_slice::<Map<String, Json>>(&bytes).map_err(malformed)?
            }
            None => Map::new(),
        };
        let template = match checkpoint.side_file("chat_template.jinja")? {
            Some(bytes) => String::from_utf8(bytes).ok(),
            None => config.get("chat_template").and_then(default_template),
        };
        let missing = || ChatError::Missing(checkpoint.dir().display().to_string());
        let tokens = TOKENS.iter().filter_map(|name| {
            let token = config.get(*name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some(((*name).to_string(), Json::from(text)))
        });
        Ok(Self { template: template.ok_or_else(missing)?, tokens: tokens.collect() })
    }

    /// The conversation as a prompt that asks for an answer.
    ///
    /// # Errors
    /// What the template answered.
    pub fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let fail = |e: Error| ChatError::Template(format!("{e:#}").replace('\n', " "));
        let mut environment = environment();
        environment.add_template("chat", &self.template).map_err(fail)?;
        let mut context = self.tokens.clone();
        let messages = serde_json::to_value(messages).expect("messages are plain data");
        context.insert("messages".into(), messages);
        context.insert("add_generation_prompt".into(), Json::from(true));
        let template = environment.get_template("chat").map_err(fail)?;
        template.render(Value::from_serialize(&context)).map_err(fail)
    }
}

/// A template, or the one called `default` of a list of named ones.
fn default_template(config: &Json) -> Option<String> {
    if let Some(text) = config.as_str() {
        return Some(text.to_string());
    }
    let named = config.as_array()?.iter().find(|t| t["name"] == "default")?;
    named["template"].as_str().map(String::from)
}

/// Jinja as Transformers sets it up: blocks trimmed, loop controls, Python's string methods.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(python_method);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment
}

/// Python's `json.dumps(value, ensure_ascii=False)`, with an optional indent.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let fail = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(fail)?;
    let text = match indent {
        Some(width) => {
            let spaces = " ".repeat(width);
            let format = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            let mut bytes = Vec::new();
            let mut out = serde_json::Serializer::with_formatter(&mut bytes, format);
            json.serialize(&mut out).map_err(fail)?;
            String::from_utf8(bytes).expect("JSON is UTF-8")
        }
        None => {
            let mut bytes = Vec::new();
            let mut out = serde_json::Serializer::with_formatter(&mut bytes, PythonSpacing);
            json.serialize(&mut out).map_err(fail)?;
            String::from_utf8(bytes).expect("JSON is UTF-8")
        }
    };
    Ok(Value::from_safe_string(text))
}

/// Python's separators: a space after each comma and colon.
struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        out: &mut W,
    ) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// The methods of Python's strings and dicts that published templates call.
fn python_method(
    _state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let unknown = || Error::new(ErrorKind::UnknownMethod, format!("no method {method}"));
    let argument = |i: usize| args.get(i).and_then(Value::as_str);
    if value.kind() == ValueKind::Map && method == "items" {
        let pair = |key: Value| Ok(Value::from(vec![key.clone(), value.get_item(&key)?]));
        let pairs: Result<Vec<Value>, Error> = value.try_iter()?.map(pair).collect();
        return pairs.map(Value::from);
    }
    let text = value.as_str().ok_or_else(unknown)?;
    let set: Vec<char> = argument(0).unwrap_or(" \t\n\r\x0b\x0c").chars().collect();
    Ok(match (method, argument(0), argument(1)) {
        ("startswith", Some(prefix), _) => text.starts_with(prefix).into(),
        ("endswith", Some(suffix), _) => text.ends_with(suffix).into(),
        ("strip", ..) => text.trim_matches(&set[..]).into(),
        ("lstrip", ..) => text.trim_start_matches(&set[..]).into(),
        ("rstrip", ..) => text.trim_end_matches(&set[..]).into(),
        ("split", Some(by), _) => text.split(by).map(Value::from).collect::<Vec<_>>().into(),
        ("split", None, _) => text.split_whitespace().map(Value::from).collect::<Vec<_>>().into(),
        ("replace", Some(from), Some(to)) => text.replace(from, to).into(),
        ("upper", ..) => text.to_uppercase().into(),
        ("lower", ..) => text.to_lowercase().into(),
        ("title", ..) => title(text).into(),
        _ => return Err(unknown()),
    })
}

/// Python's `str.title` on words divided by anything that is no letter.
fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str) -> Result<String, ChatError> {
        let chat = Chat { template: template.into(), tokens: Map::new() };
        chat.render(&[Message { role: "user".into(), content: " hi ".into() }])
    }

    #[test]
    fn renders_as_jinja_in_python_does() {
        for (template, want) in [
            (
                "{% for m in messages %}\n{{ m.role }}:{{ m['content'].strip() }}\n{% endfor %}",
                "user:hi\n",
            ),
            ("  {% if add_generation_prompt %}\nx{% endif %}\n", "x"),
            ("{{ messages | tojson }}", r#"[{"content": " hi ", "role": "user"}]"#),
            ("{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}", "b"),
            ("{{ missing }}|{{ missing is defined }}", "|False"),
            (
                "{% set ns = namespace(n=1) %}\
                 {% for m in messages[::-1] %}{% set ns.n = 2 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
        ] {
            assert_eq!(render(template).expect(template), want, "{template}");
        }
        let error = render("{{ raise_exception('no such role') }}").expect_err("it raises");
        assert!(error.to_string().contains("no such role"), "{error}");
    }
}
