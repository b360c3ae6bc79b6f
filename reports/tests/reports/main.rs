//! Tests of the reports: every rule that fails closed, every output, every refusal.
//!
//! One binary; each module is one part of the crate. Cases are built from one good row.

mod files;
mod merge;
mod numbers;
mod output;
mod readme;
mod row;

use std::time::{Duration, UNIX_EPOCH};

use samebits_reports::{
    CodeSize, Control, Expected, Hashes, Host, Kind, Num, PathProof, Row, Run, Stamp,
};

/// A row that passes; each case breaks one thing of it.
fn good(id: &str) -> Row {
    let mut row = Row::new(id, Kind::Bitwise, 7, &format!("gates run {id} --seed 7"));
    row.statistic = "ulps_max".to_owned();
    (row.measured, row.limit) = (Num(0.0), Num(0.0));
    (row.n_compared, row.n_expected) = (1234, 1234);
    row.wall_s = Num(0.25);
    row.control = Some(Control {
        id: "one-bit".to_owned(),
        red: true,
        statistic: "ulps_max".to_owned(),
        measured: Num(1.0),
    });
    row.judged().made_by(&run_at(stamp(0)))
}

fn path(label: &str, threads: u64) -> PathProof {
    PathProof {
        label: label.to_owned(),
        kernels: "scalar".to_owned(),
        rows_per_call: vec![16, 1, 1],
        cached_positions: 33,
        chunk: None,
        threads,
        bytes_read: 4096,
        order: "invariant".to_owned(),
        dtype: "bf16".to_owned(),
    }
}

fn stamp(seconds: u64) -> Stamp {
    Stamp::from(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn run_at(start: Stamp) -> Run {
    Run {
        commit: "0123abcd".to_owned(),
        dirty: false,
        start,
        host: Host {
            cpu: "Test CPU <1>".to_owned(),
            isa: vec!["avx2".to_owned(), "fma".to_owned()],
            cores: 2,
            gpu: None,
            driver: None,
        },
        hashes: Hashes {
            fixtures: "f0".to_owned(),
            limits: "11".to_owned(),
            code: "c".to_owned(),
            manifests: "aa".to_owned(),
        },
        code_sizes: vec![CodeSize { part: "engine".to_owned(), lines: 10, budget: Some(7000) }],
    }
}

fn expected(ids: &[&str]) -> Vec<Expected> {
    let gate = |id: &&str| Expected {
        id: (*id).to_owned(),
        kind: Kind::Bitwise,
        seed: 7,
        repeat: format!("gates run {id} --seed 7"),
    };
    ids.iter().map(gate).collect()
}
