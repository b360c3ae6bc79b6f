//! Options that every run shares: ids, dtype, order, threads, kernels, memory.

use std::path::{Path, PathBuf};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::failure::{Failure, Need};
use crate::checkpoint::Checkpoint;
use crate::contract::{Dtype, Order};
use crate::cpu::{Cpu, CpuMem, Kernels};
use crate::model::{Budget, DEFAULT_CHUNK, Limits, Model, Plan, Shape, check_prompts};

/// Options of a run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RunArgs {
    /// Token ids of a prompt, separated by commas; repeat for a batch of equal lengths.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub ids: Vec<String>,
    /// A file of token ids, separated by commas or white space; repeat for a batch.
    #[arg(long, value_name = "FILE")]
    pub ids_file: Vec<PathBuf>,
    /// Dtype of weights and activations; the checkpoint's own unless given.
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Summation order: the contract's, or that of Transformers' eager mode, which also rounds a
    /// hybrid's F32 rates and gated norms to the run's dtype.
    #[arg(long, value_enum, default_value = "invariant")]
    pub order: Option<Order>,
    /// Threads; all cores unless given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Kernel table; the fastest this CPU can run unless given.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// Query rows whose scores exist at once.
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
    /// Most memory for weights, caches and activations, such as 2GiB.
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<String>,
}

/// Options of a run over given ids.
#[derive(Clone, Debug, clap::Args)]
pub struct ForwardArgs {
    /// What every run has.
    #[command(flatten)]
    pub run: RunArgs,
    /// Run the first N ids as one prefill and the rest one by one through the cache.
    #[arg(long, value_name = "N")]
    pub decode_from: Option<usize>,
}

impl ForwardArgs {
    /// Checks everything that does not need the model.
    ///
    /// # Errors
    /// As [`RunArgs::with_prompts`]; no prompt; a first piece that is no part of the prompt.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let mut settings = self.run.settings()?;
        let len = settings.prompts[0].len();
        if let Some(first) = self.decode_from {
            if !(1..=len).contains(&first) {
                let text =
                    format!("--decode-from {first}: a prompt of {len} ids allows 1 to {len}");
                return Err(Failure::Usage(text));
            }
            settings.plan.pieces = Plan::decode_from(first, len).pieces;
        }
        Ok(settings)
    }
}

/// A run, checked and ready.
pub struct Settings {
    /// Prompts of equal length.
    pub prompts: Vec<Vec<u32>>,
    /// Dtype asked for.
    pub dtype: Option<Dtype>,
    /// Summation order.
    pub order: Order,
    /// Kernels.
    pub kernels: &'static Kernels,
    /// How the prompts are cut up.
    pub plan: Plan,
    /// The threads.
    pub pool: ThreadPool,
    /// Tokens generated beyond the prompts, whose last rows' logits alone are kept.
    pub generated: Option<usize>,
    ram: Option<u64>,
}

impl RunArgs {
    /// Checks everything that does not need the model.
    ///
    /// # Errors
    /// A word that is no id, number, size or kernel table; a file that cannot be read.
    fn settings(&self) -> Result<Settings, Failure> {
        let prompts = self.prompts()?;
        if prompts.is_empty() {
            return Err(Failure::Usage("no prompt: give --ids or --ids-file".into()));
        }
        self.with_prompts(prompts)
    }

    /// The prompts of `--ids` and `--ids-file`.
    ///
    /// # Errors
    /// A word that is no id; a file that cannot be read.
    pub fn prompts(&self) -> Result<Vec<Vec<u32>>, Failure> {
        let mut prompts = Vec::new();
        for list in &self.ids {
            prompts.push(parse_ids(list).map_err(|e| Failure::Usage(format!("--ids: {e}")))?);
        }
        for file in &self.ids_file {
            let what = || format!("--ids-file {}", file.display());
            let text = std::fs::read_to_string(file).map_err(|e| Failure::io(what(), e))?;
            let ids = parse_ids(&text).map_err(|e| Failure::Usage(format!("{}: {e}", what())))?;
            prompts.push(ids);
        }
        Ok(prompts)
    }

    /// The same for prompts that come from elsewhere.
    ///
    /// # Errors
    /// As [`RunArgs::settings`], but for the ids.
    pub fn with_prompts(&self, prompts: Vec<Vec<u32>>) -> Result<Settings, Failure> {
        if self.chunk == Some(0) {
            return Err(Failure::Usage("--chunk 0: at least one row is needed".into()));
        }
        let plan = Plan { chunk: self.chunk, ..Plan::default() };
        let ram = self.ram.as_deref().map(parse_size).transpose();
        Ok(Settings {
            prompts,
            dtype: self.dtype,
            order: self.order.unwrap_or(Order::Invariant),
            kernels: kernels(self.isa.as_deref())?,
            plan,
            pool: pool(self.threads)?,
            generated: None,
            ram: ram.map_err(|e| Failure::Usage(format!("--ram: {e}")))?,
        })
    }
}

impl Settings {
    /// Opens the checkpoint under the dtype asked for.
    ///
    /// # Errors
    /// A refused checkpoint.
    pub fn open(&self, dir: Option<&Path>) -> Result<Checkpoint, Failure> {
        Ok(Checkpoint::named(dir, self.dtype)?)
    }

    /// A backend and the model loaded on it.
    ///
    /// # Errors
    /// Prompts that do not fit the model, before a weight is read; a run that needs more memory
    /// than `--ram` or the machine gives; an unreadable checkpoint.
    pub fn load(&self, checkpoint: &Checkpoint) -> Result<(Cpu, Model<CpuMem>), Failure> {
        check_prompts(checkpoint.config().vocab_size, &self.prompts)?;
        let budget = self.budget(checkpoint);
        let available = available_memory();
        let limits = [("--ram", self.ram), ("the memory available", available)];
        for (limit, have) in limits {
            if let Some(have) = have.filter(|have| budget.total() > *have) {
                return Err(Failure::Memory { need: Need(budget), limit, have });
            }
        }
        let mut cpu = Cpu::new(self.kernels, self.order);
        let model = self.pool.install(|| Model::load(&mut cpu, checkpoint, self.order))?;
        Ok((cpu, model))
    }

    /// What the run needs.
    pub fn budget(&self, checkpoint: &Checkpoint) -> Budget {
        let len = self.prompts[0].len();
        let rows = self.plan.pieces.iter().copied().max().unwrap_or(len);
        let chunk = self.plan.chunk.unwrap_or(DEFAULT_CHUNK).min(rows);
        let batch = self.prompts.len();
        let positions = len + self.generated.unwrap_or(0);
        let logit_rows = if self.generated.is_some() { 1 } else { rows };
        let limits = Limits { batch, positions, rows, logit_rows, chunk };
        let shape = Shape::of(checkpoint.config());
        Budget::of(&shape, checkpoint.dtype(), checkpoint.tied(), limits)
    }
}

/// Ids separated by commas or white space; brackets around them are allowed.
///
/// # Errors
/// The word that is no id, and why.
pub fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|w| !w.is_empty());
    words
        .map(|word| match word.parse::<i128>() {
            Ok(id) => {
                u32::try_from(id).map_err(|_| format!("id {id} is outside 0 to {}", u32::MAX))
            }
            Err(_) => Err(format!("{word:?} is not a token id")),
        })
        .collect()
}

fn kernels(name: Option<&str>) -> Result<&'static Kernels, Failure> {
    let Some(name) = name else { return Ok(Kernels::best()) };
    Kernels::by_name(name).map_err(|names| {
        Failure::Usage(format!("--isa {name}: this CPU can run {}", names.join(", ")))
    })
}

/// What a thread takes: its stack, and some room.
const THREAD_BYTES: usize = 3 << 20;

/// The threads of a command.
///
/// # Errors
/// None asked for, or more than the system gives.
pub fn pool(threads: Option<usize>) -> Result<ThreadPool, Failure> {
    if threads == Some(0) {
        return Err(Failure::Usage("--threads 0: at least one is needed".into()));
    }
    // Where the system has no room for stacks, and for what a starting thread takes beside them,
    // the allocator says so in one line; the C library would abort.
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut room: Vec<u8> = Vec::new();
    let bytes = threads.saturating_add(1).saturating_mul(THREAD_BYTES);
    room.try_reserve_exact(bytes).map_err(|e| Failure::Threads(e.to_string()))?;
    drop(std::hint::black_box(room));
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Failure::Threads(e.to_string()))
}

/// A size in bytes: a number and one of B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB.
fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size such as 512MiB or 2GiB");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..split].parse().map_err(|_| bad())?;
    let units = ["", "B", "KB", "MB", "GB", "TB"];
    let binary = ["", "B", "KiB", "MiB", "GiB", "TiB"];
    let unit = text[split..].trim();
    let power = |units: &[&str]| units.iter().position(|u| u.eq_ignore_ascii_case(unit));
    let factor = match (power(&units), power(&binary)) {
        (Some(p), _) => 1000f64.powi(p.saturating_sub(1) as i32),
        (None, Some(p)) => 1024f64.powi(p.saturating_sub(1) as i32),
        (None, None) => return Err(bad()),
    };
    Ok((number * factor) as u64)
}

/// What the kernel calls available, where it says so.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_lists_of_u32() {
        assert_eq!(parse_ids("1, 2,\n3"), Ok(vec![1, 2, 3]));
        assert_eq!(parse_ids(" [4 5] "), Ok(vec![4, 5]));
        assert_eq!(parse_ids(""), Ok(vec![]));
        for (text, word) in
            [("1,-1", "-1"), ("4294967296", "4294967296"), ("1,x", "\"x\""), ("1.5", "1.5")]
        {
            let error = parse_ids(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, want) in
            [("0", 0), ("10", 10), ("2GiB", 2 << 30), ("1.5KiB", 1536), ("3MB", 3_000_000)]
        {
            assert_eq!(parse_size(text), Ok(want), "{text}");
        }
        for text in ["", "GiB", "-1GiB", "2 gigs", "1e3"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
