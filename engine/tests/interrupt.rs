//! Ctrl-C: one line, exit code 130, nothing half-written.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use samebits_fixtures::paths;

fn start(args: &[&str], scratch: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
    command.args(args).env("TMPDIR", scratch).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// Sends SIGINT, and waits for the end.
fn interrupt(child: Child) -> Output {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill starts").success(), "it had ended before");
    child.wait_with_output().expect("it ends")
}

/// Waits until `done` answers, for a minute at most.
fn wait_for<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = done() {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it never happened");
        sleep(Duration::from_millis(10));
    }
}

fn last_line_says_so(got: &Output) {
    let stderr = String::from_utf8_lossy(&got.stderr);
    assert_eq!(got.status.code(), Some(130), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("interrupted")).collect();
    assert_eq!(lines, ["samebits: interrupted"], "{stderr}");
    assert!(stderr.ends_with("samebits: interrupted\n"), "{stderr}");
}

#[test]
fn a_generation_stops_at_once() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let args = ["generate", "--prompt", "fn main", "--stop", "2079", "--max-new"];
    let mut child = start(&[&args[..], &["4000"]].concat(), dir.path());
    let pipe = child.stdout.as_mut().expect("it is piped");
    pipe.read_exact(&mut [0; 4]).expect("text arrives as it is made");
    let got = interrupt(child);
    last_line_says_so(&got);
    let whole = start(&[&args[..], &["40"]].concat(), dir.path()).wait_with_output();
    let whole = whole.expect("it ends").stdout;
    let both = whole.len().saturating_sub(5).min(got.stdout.len());
    assert_eq!(whole[4..4 + both], got.stdout[..both], "what was printed is the text's beginning");
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0, "nothing is left");
}

/// The output is a pipe that nobody reads, so that the program waits with a filled scratch file.
#[test]
fn an_output_is_whole_or_absent() {
    let (dir, scratch) = (tempfile::tempdir(), tempfile::tempdir());
    let (dir, scratch) = (dir.expect("a folder"), scratch.expect("another one"));
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts").success());
    let (model, out) = (paths::tiny_qwen3().display().to_string(), pipe.display().to_string());
    let args = ["logits", &model, "--ids", "1,2,3", "--out", &out];
    let child = start(&args, scratch.path());
    let filled = || fs::read_dir(scratch.path()).expect("it is there").flatten().next();
    wait_for(|| filled().filter(|file| file.metadata().is_ok_and(|m| m.len() > 0)));
    last_line_says_so(&interrupt(child));
    assert!(filled().is_none(), "a scratch file is left");
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 1, "the pipe alone");
}
