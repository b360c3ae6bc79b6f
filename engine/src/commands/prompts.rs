//! The prompts of `generate`: texts, conversations, token ids.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::settings::RunArgs;
use crate::checkpoint::Checkpoint;
use crate::generate::{Chat, Conversation, Message, Text};

/// Options that say what to continue.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PromptArgs {
    /// The text to continue; repeat for a batch of equal lengths in tokens.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// A file with the text to continue, - for the standard input; repeat for a batch.
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,
    /// Put each prompt through the checkpoint's chat template, as the user's message.
    #[arg(long)]
    pub chat: bool,
    /// What the system says before each prompt.
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// A conversation in JSON: a list of messages, or an object with `messages` and `tools`;
    /// - for the standard input; repeat for a batch.
    #[arg(long, value_name = "FILE", requires = "chat")]
    pub messages: Vec<PathBuf>,
    /// Give the chat template an argument, such as `enable_thinking=false`; repeatable.
    #[arg(long, value_name = "NAME=VALUE", requires = "chat")]
    pub template_arg: Vec<String>,
}

impl PromptArgs {
    /// Whether any prompt needs a tokenizer.
    pub fn needs_text(&self) -> bool {
        !(self.prompt.is_empty() && self.prompt_file.is_empty() && self.messages.is_empty())
    }

    /// All prompts as ids: texts, then files, then conversations, then lists of ids.
    ///
    /// # Errors
    /// A file that cannot be read, a conversation that cannot be rendered, no prompt.
    pub fn ids(
        &self,
        run: &RunArgs,
        checkpoint: &Checkpoint,
        text: Option<&Text>,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let mut texts = self.prompt.clone();
        for file in &self.prompt_file {
            texts.push(read(file, "--prompt-file")?);
        }
        if let Some(at) = texts.iter().position(String::is_empty) {
            return Err(Failure::Usage(format!("prompt {at} is empty: it has no text")));
        }
        if self.chat {
            if !run.ids.is_empty() || !run.ids_file.is_empty() {
                let text = "--chat: a template needs text, not token ids";
                return Err(Failure::Usage(text.into()));
            }
            texts = self.rendered(checkpoint, texts)?;
        }
        let mut prompts = Vec::new();
        for (at, prompt) in texts.iter().enumerate() {
            let text = text.expect("text prompts need a tokenizer");
            let ids = if self.chat { text.encode_rendered(prompt)? } else { text.encode(prompt)? };
            if ids.is_empty() {
                return Err(Failure::Usage(format!("prompt {at} is empty: it has no tokens")));
            }
            prompts.push(ids);
        }
        prompts.extend(run.prompts()?);
        if prompts.is_empty() {
            return Err(Failure::Usage("no prompt: give --prompt, --prompt-file or --ids".into()));
        }
        Ok(prompts)
    }

    /// Each text, and each conversation, through the template.
    fn rendered(
        &self,
        checkpoint: &Checkpoint,
        texts: Vec<String>,
    ) -> Result<Vec<String>, Failure> {
        if self.system.is_some() && !self.messages.is_empty() {
            let text = "--system goes with prompts: a file of messages says it itself";
            return Err(Failure::Usage(text.into()));
        }
        let chat = Chat::of(checkpoint)?;
        let mut conversations: Vec<Conversation> = Vec::new();
        for content in texts {
            let says = |role: &str, content| Message { role: role.into(), content };
            let system = self.system.clone().map(|content| says("system", content));
            let all: Vec<Message> = system.into_iter().chain([says("user", content)]).collect();
            conversations.push(all[..].into());
        }
        for file in &self.messages {
            conversations.push(Conversation::parse(&read(file, "--messages")?)?);
        }
        let render = |mut conversation: Conversation| {
            for argument in &self.template_arg {
                conversation.argument(argument)?;
            }
            Ok(chat.render(&conversation)?)
        };
        conversations.into_iter().map(render).collect()
    }
}

/// A text file; `-` is the standard input.
fn read(file: &Path, option: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)),
    };
    read.map_err(|e| Failure::io(format!("{option} {}", file.display()), e))?;
    Ok(text)
}
