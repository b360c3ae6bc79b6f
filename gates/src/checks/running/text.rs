//! Text in and out against what Transformers made of it: ids, renderings, streams, conversations.
//!
//! The invariant: the expectations name the SHA-256 of the files they were made with, and other
//! files are refused, so that nothing is compared with another tokenizer's answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use samebits::checkpoint::Checkpoint;
use samebits::generate::{Chat, Message, Stream, Text};
use samebits_fixtures::{Spec, golden, paths, provenance, synthetic};
use serde::Deserialize;

use super::material;
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::manifest::Tokenizer;

/// What Transformers made of texts with one tokenizer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    #[serde(rename = "transformers")]
    _transformers: String,
    #[serde(rename = "tokenizers")]
    _tokenizers: String,
    sha256: BTreeMap<String, String>,
    texts: Vec<TextCase>,
    chats: Vec<ChatCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextCase {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatCase {
    messages: Vec<Turn>,
    rendered: String,
    ids: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    role: String,
    content: String,
}

impl Tokenizer {
    fn folder(self) -> PathBuf {
        match self {
            Self::Embedded => paths::tiny_qwen3(),
            Self::Qwen3 => paths::fetched("qwen3"),
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Embedded => "text.tiny-qwen3.json",
            Self::Qwen3 => "text.qwen3.json",
        }
    }
}

/// Why the published tokenizer cannot be compared with, if it is not there.
pub fn missing_files() -> Option<String> {
    let folder = Tokenizer::Qwen3.folder();
    let there =
        ["tokenizer.json", "tokenizer_config.json"].iter().all(|f| folder.join(f).is_file());
    (!there).then(|| {
        "the published Qwen3 tokenizer is not here: run fixtures/python/real_tokenizers.sh".into()
    })
}

/// Text and chat template of a folder, which need not hold weights: it gets a small checkpoint.
fn open(folder: &Path) -> Result<(Text, Chat), CheckError> {
    let keep = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
    synthetic(&Spec::named("tiny-d")?, 1, keep.path())?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let from = folder.join(name);
        std::fs::copy(&from, keep.path().join(name)).map_err(CheckError::io(&from))?;
    }
    let checkpoint = Checkpoint::open(keep.path())?;
    Ok((Text::of(&checkpoint)?, Chat::of(&checkpoint)?))
}

fn expected(tokenizer: Tokenizer) -> Result<Expected, CheckError> {
    let path = paths::golden(tokenizer.file());
    let bytes = provenance::bytes(&path)?;
    let expected: Expected = serde_json::from_slice(&bytes).map_err(CheckError::json(&path))?;
    for (name, want) in &expected.sha256 {
        let file = tokenizer.folder().join(name);
        let bytes = std::fs::read(&file).map_err(CheckError::io(&file))?;
        if golden::sha256(&bytes) != *want {
            return Err(CheckError::missing(format!("{name} of SHA-256 {want}"), file.display()));
        }
    }
    Ok(expected)
}

/// The text of ids that arrive one by one.
fn streamed(text: &Text, ids: &[u32]) -> Result<String, CheckError> {
    let mut stream = Stream::default();
    let mut all = String::new();
    for id in ids {
        all += &stream.push(text, *id)?;
    }
    Ok(all + &stream.finish(text)?)
}

const SPACE: &str = "space-added";

/// Compares ids, renderings, streams and conversations.
pub fn prepare<'c>(_ctx: &'c Context, tokenizer: Tokenizer) -> Result<Measure<'c>, CheckError> {
    let want = expected(tokenizer)?;
    let (text, chat) = open(&tokenizer.folder())?;
    let due = (3 * want.texts.len() + 2 * want.chats.len()) as u64;
    Ok(Box::new(move |plant| {
        let space = if material(plant, &[SPACE])?.is_some() { " " } else { "" };
        let mut found = Comparison::default();
        for case in &want.texts {
            let ids = text.encode(&format!("{space}{}", case.text))?;
            let said = format!("{:?}: {ids:?}, want {:?}", case.text, case.ids);
            found.digest("encode", None, ids == case.ids, &said);
            let decoded = text.decode(&case.ids)?;
            let said = format!("{:?}: {decoded:?}, want {:?}", case.ids, case.decoded);
            found.digest("decode", None, decoded == case.decoded, &said);
            let stream = streamed(&text, &case.ids)?;
            let said = format!("{:?}: streamed {stream:?}, want {:?}", case.ids, case.decoded);
            found.digest("stream", None, stream == case.decoded, &said);
        }
        for case in &want.chats {
            let turn = |t: &Turn| Message { role: t.role.clone(), content: t.content.clone() };
            let messages: Vec<Message> = case.messages.iter().map(turn).collect();
            let rendered = chat.render(&messages[..].into())?;
            let said = format!("{rendered:?}, want {:?}", case.rendered);
            found.digest("chat", None, rendered == case.rendered, &said);
            let ids = text.encode(&format!("{space}{rendered}"))?;
            let said = format!("{rendered:?}: {ids:?}, want {:?}", case.ids);
            found.digest("encode", None, ids == case.ids, &said);
        }
        let outcome = Outcome::bitwise(found, due);
        Ok(Outcome { statistic: "answers_differing", ..outcome })
    }))
}
