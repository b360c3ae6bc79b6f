//! What refusing a hostile header costs.
//!
//! One test alone in its process, since it reads the process's peak memory.

use std::fs::{self, File};
use std::io::Write;

use samebits::checkpoint::Checkpoint;
use samebits_fixtures::{Spec, synthetic};

/// Peak resident memory of this process in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a Linux process");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it has a peak");
    let number = line.split_whitespace().nth(1).expect("a number follows");
    number.parse::<u64>().expect("it is one") * 1024
}

#[test]
fn refusing_a_hostile_header_allocates_nothing_large() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    synthetic(&Spec::named("tiny-d").expect("a known spec"), 1, dir.path()).expect("it builds");
    let path = dir.path().join("model.safetensors");
    let sparse = 64 << 30;
    let wraps = entry("[4294967296,4294967296,4]", "[0,0]");
    let huge = entry("[1152921504606846976]", "[0,2305843009213693952]");
    let exact = |text: &str| text.len() as u64;
    let cases: [(&str, u64, &str, u64, &str); 7] = [
        ("2^64 - 1", u64::MAX, "{}", 100, "18446744073709551615"),
        ("2^63", 1 << 63, "{}", 100, "9223372036854775808"),
        ("5000 in 70", 5000, "{}", 70, "5000"),
        ("63 GiB of a sparse file", 63 << 30, "{}", sparse, "at most 1073741824"),
        ("zeros up to the cap", 1 << 30, "{\"a\":{", sparse, "tensor a"),
        ("a huge tensor", exact(&huge), &huge, sparse, "truncated"),
        ("a product that wraps", exact(&wraps), &wraps, 107, "overflows"),
    ];
    let before = peak_bytes();
    for (why, length, text, bytes, mentions) in cases {
        let mut file = File::create(&path).expect("a file");
        file.write_all(&[&length.to_le_bytes()[..], text.as_bytes()].concat()).expect("written");
        file.set_len(bytes.max(8 + text.len() as u64)).expect("sparse files are possible here");
        let error = Checkpoint::open(dir.path()).expect_err(why);
        assert_eq!(error.exit_code(), 4, "{why}: {error}");
        assert!(error.to_string().contains(mentions), "{why}: {error}");
    }
    let grown = peak_bytes() - before;
    assert!(grown < 8 << 20, "refusing took {grown} bytes");
}

fn entry(shape: &str, range: &str) -> String {
    format!("{{\"a\":{{\"dtype\":\"BF16\",\"shape\":{shape},\"data_offsets\":{range}}}}}")
}
