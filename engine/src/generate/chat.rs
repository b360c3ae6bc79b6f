//! The checkpoint's chat template, rendered as Transformers renders it.
//!
//! Here: which template is taken, and what it is given. Absent: the template language (`jinja`,
//! `template`, `python`, `json`). The invariant: a prompt has Transformers' bytes, or there is
//! none.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};
use serde::Serialize;
use thiserror::Error;

use super::jinja::translate;
use super::template::environment;
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
    /// The conversation is not what it should be.
    #[error("{0}")]
    Conversation(String),
    /// The template's own error, or what is not rendered as Transformers does.
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

/// What a template is given. Dicts keep the order in which they were written.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Value,
    tools: Value,
    documents: Value,
    arguments: Vec<(String, Value)>,
}

impl From<&[Message]> for Conversation {
    fn from(messages: &[Message]) -> Self {
        let messages = Value::from_serialize(messages);
        Self { messages, tools: none(), documents: none(), arguments: Vec::new() }
    }
}

/// What Transformers gives a template where there are no tools or documents.
fn none() -> Value {
    Value::from(())
}

impl Conversation {
    /// A list of messages, or an object with `messages` and perhaps `tools` and `documents`.
    ///
    /// # Errors
    /// Text that is no JSON, or something else.
    pub fn parse(json: &str) -> Result<Self, ChatError> {
        let refuse = |what: String| ChatError::Conversation(what);
        let all: Value = serde_json::from_str(json).map_err(|e| refuse(e.to_string()))?;
        let mut found = Self::from(&[][..]);
        if all.kind() == ValueKind::Map {
            for key in all.try_iter().into_iter().flatten() {
                let value = all.get_item(&key).unwrap_or_default();
                match key.as_str() {
                    Some("messages") => found.messages = value,
                    Some("tools") => found.tools = value,
                    Some("documents") => found.documents = value,
                    _ => return Err(refuse(format!("the key {key} is not known"))),
                }
            }
        } else {
            found.messages = all;
        }
        let dicts = |list: &Value| {
            let is_dict = |v: Value| v.kind() == ValueKind::Map;
            list.kind() == ValueKind::Seq
                && list.try_iter().is_ok_and(|mut items| items.all(is_dict))
        };
        if !dicts(&found.messages) || found.messages.len() == Some(0) {
            return Err(refuse("messages are no list of objects".into()));
        }
        for (name, list) in [("tools", &found.tools), ("documents", &found.documents)] {
            if !list.is_none() && !dicts(list) {
                return Err(refuse(format!("{name} are no list of objects")));
            }
        }
        Ok(found)
    }

    /// Gives the template an argument, written as `name=value`; the value is JSON or else a text.
    ///
    /// # Errors
    /// Another form, or a value that Python would read as no text.
    pub fn argument(&mut self, written: &str) -> Result<(), ChatError> {
        let bad = |why| ChatError::Conversation(format!("{written:?} {why}"));
        let (name, value) = written.split_once('=').ok_or_else(|| bad("is not name=value"))?;
        let known = ["messages", "tools", "documents"].contains(&name);
        if name.is_empty() || known {
            return Err(bad("cannot be an argument: --messages gives those"));
        }
        if ["True", "False", "None"].contains(&value) {
            return Err(bad("is Python: write true, false or null"));
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        self.arguments.push((name.to_owned(), value));
        Ok(())
    }
}

/// A chat template with the special tokens it may name.
pub struct Chat {
    /// Of conversations without tools, and of those with.
    templates: [String; 2],
    tokens: Vec<(String, Value)>,
}

const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Chat {
    /// The template of a checkpoint: chat_template.jinja, else that of tokenizer_config.json.
    ///
    /// # Errors
    /// No template, or files that cannot be read or understood.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, ChatError> {
        let malformed = |e: serde_json::Error| ChatError::Malformed(e.to_string());
        let config = match checkpoint.side_text("tokenizer_config.json")? {
            Some(text) => serde_json::from_str::<serde_json::Value>(&text).map_err(malformed)?,
            None => serde_json::Value::Null,
        };
        let stated = config.get("chat_template").filter(|t| !t.is_null());
        let named = |name: &str| match stated.and_then(serde_json::Value::as_array) {
            Some(list) => list.iter().find(|t| t["name"] == name)?["template"].as_str(),
            None => stated?.as_str().filter(|_| name == "default"),
        };
        let file = checkpoint.side_text("chat_template.jinja")?;
        let with_tools = checkpoint.side_text("additional_chat_templates/tool_use.jinja")?;
        let (default, with_tools) = match file {
            Some(text) => (Some(text), with_tools),
            None => (named("default").map(String::from), named("tool_use").map(String::from)),
        };
        let missing = || ChatError::Missing(checkpoint.dir().display().to_string());
        let default = default.ok_or_else(missing)?;
        let with_tools = with_tools.unwrap_or_else(|| default.clone());
        let tokens = TOKENS.iter().filter_map(|name| {
            let token = config.get(*name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some(((*name).to_string(), Value::from(text)))
        });
        Ok(Self { templates: [default, with_tools], tokens: tokens.collect() })
    }

    /// The conversation as a prompt that asks for an answer.
    ///
    /// # Errors
    /// What the template answered.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let fail = |e: Error| ChatError::Template(one_line(&e.to_string()));
        let template = &self.templates[usize::from(!conversation.tools.is_none())];
        let source = translate(template).map_err(ChatError::Template)?;
        let mut environment = environment();
        environment.add_template("chat", &source).map_err(fail)?;
        let Conversation { messages, tools, documents, arguments } = conversation;
        let given = [("messages", messages), ("tools", tools), ("documents", documents)];
        let context = self.tokens.iter().cloned();
        let context = context.chain(given.map(|(name, value)| (name.to_owned(), value.clone())));
        let context = context.chain([("add_generation_prompt".into(), Value::from(true))]);
        let context: Value = context.chain(arguments.iter().cloned()).collect();
        environment.get_template("chat").and_then(|t| t.render(context)).map_err(fail)
    }

    /// A template by itself, with the texts of special tokens.
    pub fn from_text(template: &str, tokens: &[(&str, &str)]) -> Self {
        let token = |(name, text): &(&str, &str)| ((*name).to_owned(), Value::from(*text));
        let templates = [template.to_owned(), template.to_owned()];
        Self { templates, tokens: tokens.iter().map(token).collect() }
    }
}

/// An error of several lines in one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
