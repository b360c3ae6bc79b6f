//! The machine and the checkout a run is measured on.
//!
//! What cannot be found out is `Unknown` or `unknown`, and an unknown commit counts as dirty.
//! Asking a GPU is absent: who runs on one names it. Results and prose are no sources: a commit
//! that accepts results leaves the sources as they were.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::hash::hash_files;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Model of the CPU, or `Unknown`.
    pub cpu: String,
    /// The vector extensions it has, of those that matter to the kernels.
    pub isa: Vec<String>,
    /// Cores this process may use; 0 if unknown.
    pub cores: u64,
    /// Model of the GPU the run used; none if it used none.
    pub gpu: Option<String>,
    /// Version of its driver.
    pub driver: Option<String>,
}

impl Host {
    /// This machine, without a GPU.
    pub fn capture() -> Host {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Host {
            cpu: cpu_model(&info).unwrap_or("Unknown").to_owned(),
            isa: isa().into_iter().map(str::to_owned).collect(),
            cores: thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
            gpu: None,
            driver: None,
        }
    }
}

/// The state of a working tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkout {
    /// Commit hash, or `unknown`.
    pub commit: String,
    /// Whether the sources differ from the commit, untracked files included, or may.
    pub dirty: bool,
    /// Hash of all tracked sources as they are on disk, or `unknown`.
    pub code: String,
}

/// What `git` is to leave out where it is asked for sources.
const SOURCES: [&str; 5] =
    [".", ":(exclude)results", ":(exclude)**/*.md", ":(exclude)*.md", ":(exclude)LICENSE"];

impl Checkout {
    /// Asks `git` about the working tree that holds `dir`.
    pub fn capture(dir: &Path) -> Checkout {
        match git(dir, &["rev-parse", "--verify", "HEAD"]) {
            Some(commit) => Checkout {
                commit: commit.trim().to_owned(),
                dirty: about_sources(dir, &["status", "--porcelain"])
                    .is_none_or(|text| !text.is_empty()),
                code: code(dir).unwrap_or_else(|| "unknown".to_owned()),
            },
            None => {
                Checkout { commit: "unknown".to_owned(), dirty: true, code: "unknown".to_owned() }
            }
        }
    }
}

/// The hash of the sources of the working tree that holds `dir`; none without `git` or a file.
fn code(dir: &Path) -> Option<String> {
    let root = root(dir)?;
    let list = about_sources(dir, &["ls-files", "-z"])?;
    let names: Vec<String> = list.split_terminator('\0').map(str::to_owned).collect();
    hash_files(&root, &names).ok()
}

/// The top of the working tree that holds `dir`.
fn root(dir: &Path) -> Option<PathBuf> {
    git(dir, &["rev-parse", "--show-toplevel"]).map(|text| PathBuf::from(text.trim_end()))
}

/// What `git` says of the sources alone, from the top of the tree.
fn about_sources(dir: &Path, args: &[&str]) -> Option<String> {
    let args: Vec<&str> = args.iter().copied().chain(["--"]).chain(SOURCES).collect();
    git(&root(dir)?, &args)
}

/// Commits since `commit`; none if it is not known here.
pub fn commits_since(dir: &Path, commit: &str) -> Option<u64> {
    let range = format!("{}..HEAD", plain(commit)?);
    git(dir, &["rev-list", "--count", &range])?.trim().parse().ok()
}

/// A commit that is nothing but digits, so that it cannot be taken for an option.
fn plain(commit: &str) -> Option<&str> {
    let plain = !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then_some(commit)
}

/// Sources of the working tree of `dir` that differ from `commit`, from the tree's root; none if
/// the commit is not known here. Files that are not tracked are absent.
pub fn changed_since(dir: &Path, commit: &str) -> Option<Vec<String>> {
    let text = about_sources(dir, &["diff", "--name-only", "--no-renames", plain(commit)?])?;
    Some(text.lines().map(str::to_owned).collect())
}

fn git(dir: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(dir).args(args).output().ok()?;
    if output.status.success() { String::from_utf8(output.stdout).ok() } else { None }
}

/// The first `model name` of `/proc/cpuinfo`.
fn cpu_model(info: &str) -> Option<&str> {
    let pairs = info.lines().filter_map(|line| line.split_once(':'));
    let mut models = pairs.filter(|(key, _)| key.trim() == "model name");
    models.next().map(|(_, model)| model.trim()).filter(|model| !model.is_empty())
}

#[cfg(target_arch = "x86_64")]
fn isa() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),+) => {
            [$(($name, std::is_x86_feature_detected!($name))),+]
        };
    }
    let all = present!(
        "sse4.2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16"
    );
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
fn isa() -> Vec<&'static str> {
    vec!["neon"] // Part of the base instruction set.
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn isa() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first_of_many(
        "processor\t: 0\nmodel name\t: A: B (TM)\nmodel name\t: C\n",
        Some("A: B (TM)")
    )]
    #[case::other_key("model\t\t: 17\nvendor_id : X\n", None)]
    #[case::no_value("model name\t:\n", None)]
    #[case::no_file("", None)]
    fn cpu_models(#[case] info: &str, #[case] want: Option<&str>) {
        assert_eq!(cpu_model(info), want);
    }
}
