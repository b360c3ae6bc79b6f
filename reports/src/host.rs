//! The machine and the checkout a run is measured on.
//!
//! What cannot be found out is `Unknown` or `unknown`, and an unknown commit counts as dirty.
//! Asking a GPU is absent: who runs on one names it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

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
    /// Whether the tree differs from the commit, untracked files included, or may.
    pub dirty: bool,
}

impl Checkout {
    /// Asks `git` about the working tree that holds `dir`.
    pub fn capture(dir: &Path) -> Checkout {
        match git(dir, &["rev-parse", "--verify", "HEAD"]) {
            Some(commit) => Checkout {
                commit: commit.trim().to_owned(),
                dirty: git(dir, &["status", "--porcelain"]).is_none_or(|text| !text.is_empty()),
            },
            None => Checkout { commit: "unknown".to_owned(), dirty: true },
        }
    }
}

/// Files of the working tree of `dir` that differ from `commit`, from the tree's root; none if the
/// commit is not known here. Files that are not tracked are absent.
pub fn changed_since(dir: &Path, commit: &str) -> Option<Vec<String>> {
    let plain = !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_hexdigit());
    let text = git(dir, &["diff", "--name-only", "--no-renames", plain.then_some(commit)?, "--"])?;
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
