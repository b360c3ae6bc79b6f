//! `samebits generate`: continues prompts, as text or as token ids.
//!
//! With one prompt the text streams as it is made; a batch prints each sequence when all are done.
//! The stop id is part of the ids and of their count, and renders as nothing.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use super::failure::Failure;
use super::prompts::PromptArgs;
use super::settings::RunArgs;
use crate::checkpoint::{Checkpoint, GENERATION_CONFIG};
use crate::contract::{CONTRACT, Order};
use crate::generate::{
    Finish, Request, Sampler, Sampling, Sequence, StopIds, Stream, Text, TextError, generate, room,
};
use crate::output::say;

/// Arguments of `generate`.
#[derive(Clone, Debug, clap::Args)]
pub struct GenerateArgs {
    /// Folder of the model; the embedded one unless given.
    pub model: Option<PathBuf>,
    /// What to continue.
    #[command(flatten)]
    pub prompts: PromptArgs,
    /// Most new tokens of a sequence; 128 unless given.
    #[arg(long, value_name = "N")]
    pub max_new: Option<usize>,
    /// Sample at this temperature; 0 is greedy.
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub temperature: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all.
    #[arg(long, value_name = "K", requires = "temperature")]
    pub top_k: Option<usize>,
    /// Keep the most probable tokens that reach this probability together.
    #[arg(long, value_name = "P", requires = "temperature", allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as probable as the first.
    #[arg(long, value_name = "P", requires = "temperature", allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    /// Key of the random stream.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// End at this id instead of the checkpoint's stop ids; repeatable.
    #[arg(long, value_name = "ID")]
    pub stop: Vec<u32>,
    /// Print JSON: ids, text, finish reason, timings.
    #[arg(long)]
    pub json: bool,
    /// Threads, kernels, dtype, order, memory.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Most new tokens where nothing is said.
const DEFAULT_NEW: usize = 128;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Output<'a> {
    schema: &'static str,
    contract: &'static str,
    order: &'static str,
    dtype: &'static str,
    stop_ids: &'a [u32],
    stop_source: &'static str,
    sequences: Vec<Item<'a>>,
    timings: Timings,
}

#[derive(Debug, Serialize)]
struct Item<'a> {
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    text: Option<String>,
    finish_reason: &'static str,
}

/// Wall times in seconds.
#[derive(Debug, Serialize)]
struct Timings {
    load_s: f64,
    first_token_s: f64,
    total_s: f64,
    new_tokens: usize,
}

/// Runs the command.
///
/// # Errors
/// Anything wrong with the words, the model or the output; logits that hold a NaN.
pub fn command(args: &GenerateArgs, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let checkpoint = Checkpoint::named(args.model.as_deref(), args.run.dtype)?;
    let sampler = sampler(args)?;
    let stop = StopIds::of(&checkpoint, &args.stop)?;
    let text = tokenizer(&checkpoint, args)?;
    let prompts = args.prompts.ids(&args.run, &checkpoint, text.as_ref())?;
    let mut settings = args.run.with_prompts(prompts)?;
    let request = Request {
        prompts: settings.prompts.clone(),
        max_new: args.max_new.unwrap_or(DEFAULT_NEW),
        context: checkpoint.config().max_position_embeddings,
        sampler,
        stop: stop.ids.clone(),
        chunk: settings.plan.chunk,
    };
    settings.generated = Some(room(checkpoint.config().vocab_size, &request)?);
    wishes(&checkpoint, args)?;
    notices(&checkpoint, &stop, args);
    let start = Instant::now();
    let (mut cpu, model) = settings.load(&checkpoint)?;
    let loaded = start.elapsed();
    let mut printer =
        Printer { live: !args.json && request.prompts.len() == 1, ..Printer::new(out) };
    let mut first = None;
    let sequences = settings.pool.install(|| {
        generate(&mut cpu, &model, &request, |_, id| {
            first.get_or_insert_with(|| start.elapsed());
            printer.push(text.as_ref(), id)
        })
    })?;
    let total = start.elapsed();
    printer.finish(text.as_ref())?;
    if printer.live {
        return end(out, &sequences);
    }
    let timings = Timings {
        load_s: loaded.as_secs_f64(),
        first_token_s: first.unwrap_or(total).as_secs_f64(),
        total_s: total.as_secs_f64(),
        new_tokens: sequences.iter().map(|s| s.ids.len()).sum(),
    };
    let decode = |ids: &[u32]| text.as_ref().map(|t| t.decode(ids)).transpose();
    let items = sequences.iter().zip(&request.prompts).map(|(s, prompt_ids)| {
        let (ids, finish_reason) = (&s.ids[..], s.finish.name());
        Ok(Item { prompt_ids, ids, text: decode(ids)?, finish_reason })
    });
    let sequences = items.collect::<Result<_, TextError>>()?;
    let output = Output {
        schema: "samebits.generation/1",
        contract: CONTRACT,
        order: settings.order.name(),
        dtype: model.dtype.name(),
        stop_ids: &stop.ids,
        stop_source: stop.source.name(),
        sequences,
        timings,
    };
    print(args.json, &output, out)
}

/// The sampler that the words ask for: greedy without a temperature.
fn sampler(args: &GenerateArgs) -> Result<Sampler, Failure> {
    let Some(temperature) = args.temperature else { return Ok(Sampler::Greedy) };
    Ok(Sampler::new(Sampling {
        temperature,
        top_k: args.top_k.unwrap_or(0),
        top_p: args.top_p.unwrap_or(1.0),
        min_p: args.min_p.unwrap_or(0.0),
        seed: args.seed,
    })?)
}

/// The tokenizer; ids alone can do without one.
fn tokenizer(checkpoint: &Checkpoint, args: &GenerateArgs) -> Result<Option<Text>, Failure> {
    match Text::of(checkpoint) {
        Ok(text) => Ok(Some(text)),
        Err(TextError::Missing(_)) if !args.prompts.needs_text() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Says on stderr where stop ids come from, and what else is decided where.
fn notices(checkpoint: &Checkpoint, stop: &StopIds, args: &GenerateArgs) {
    let source = stop.source.name();
    if stop.ids.is_empty() {
        say(format!("no stop id in {source}: generation ends at its length"));
    } else {
        say(format!("stop ids {:?} from {source}", stop.ids));
    }
    checkpoint.notices().iter().for_each(say);
    if args.temperature.is_none() {
        say("greedy; give --temperature to sample");
    }
}

/// Names what generation_config.json asks for and is not done; in Transformers' order a refusal.
fn wishes(checkpoint: &Checkpoint, args: &GenerateArgs) -> Result<(), Failure> {
    let Some(config) = checkpoint.generation_config()? else { return Ok(()) };
    let decisions = [
        (args.temperature.is_some(), &["do_sample", "temperature"][..]),
        (args.top_k.is_some(), &["top_k"]),
        (args.top_p.is_some(), &["top_p"]),
        (args.min_p.is_some(), &["min_p"]),
        (args.max_new.is_some(), &["max_new_tokens", "max_length"]),
    ];
    let decided = decisions.iter().filter(|(given, _)| *given).flat_map(|(_, keys)| *keys);
    let decided: Vec<&str> = decided.copied().collect();
    let wishes = config.unfollowed(&decided, args.temperature.map(|t| t > 0.0)).join(", ");
    if wishes.is_empty() {
        return Ok(());
    }
    if args.run.order == Some(Order::Transformers) {
        return Err(Failure::Wishes(wishes));
    }
    say(format!("{GENERATION_CONFIG} asks for what is not done: {wishes}"));
    Ok(())
}

/// Prints a single sequence's text as it arrives.
struct Printer<'a> {
    out: &'a mut (dyn Write + Send),
    live: bool,
    stream: Stream,
    silent: Vec<u32>,
}

impl<'a> Printer<'a> {
    fn new(out: &'a mut (dyn Write + Send)) -> Self {
        Self { out, live: false, stream: Stream::default(), silent: Vec::new() }
    }

    fn push(&mut self, text: Option<&Text>, id: u32) -> Result<(), Failure> {
        if text.is_some_and(|t| !t.knows(id)) {
            self.silent.push(id);
        }
        if !self.live {
            return Ok(());
        }
        let piece = match text {
            Some(text) => self.stream.push(text, id)?,
            None => format!("{id} "),
        };
        self.write(&piece)
    }

    fn finish(&mut self, text: Option<&Text>) -> Result<(), Failure> {
        if !self.silent.is_empty() {
            say(format!("ids the tokenizer does not know: {:?}", self.silent));
        }
        match text {
            Some(text) if self.live => {
                let rest = self.stream.finish(text)?;
                self.write(&rest)
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, piece: &str) -> Result<(), Failure> {
        let wrote = self.out.write_all(piece.as_bytes()).and_then(|()| self.out.flush());
        wrote.map_err(|e| Failure::io("stdout", e))
    }
}

/// Ends streamed text with a line feed, and says on stderr why it ended.
fn end(out: &mut dyn Write, sequences: &[Sequence]) -> Result<(), Failure> {
    writeln!(out).map_err(|e| Failure::io("stdout", e))?;
    for Sequence { ids, finish } in sequences {
        let why = match finish {
            Finish::Stop => "a stop id",
            Finish::Length => "length",
        };
        say(format!("{} new tokens, ended by {why}", ids.len()));
    }
    Ok(())
}

/// Prints JSON, or each sequence's text on its own lines.
fn print(json: bool, output: &Output<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let text = if json {
        serde_json::to_string_pretty(output).expect("outputs are plain data") + "\n"
    } else {
        let line = |item: &Item<'_>| match &item.text {
            Some(text) => format!("{text}\n"),
            None => item.ids.iter().map(|id| format!("{id} ")).collect::<String>() + "\n",
        };
        output.sequences.iter().map(line).collect()
    };
    out.write_all(text.as_bytes()).map_err(|e| Failure::io("stdout", e))
}
