//! Every fault beyond a threshold is planted in runs that are as large as that: it is hit, it shows
//! first where it says, and in runs within the threshold it changes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::Order;
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{DEFAULT_CHUNK, Kept, Limits, Model, State, Step, feed, forward};
use samebits::trace::{Tap, Traced};
use samebits_fixtures::{HybridSpec, Spec, synthetic, synthetic_hybrid};

use crate::tests::OPS;
use crate::{Defect, Defective};

type Taps = BTreeMap<String, Tap>;

/// A run that passes thresholds.
struct Run {
    why: &'static str,
    model: Model<CpuMem>,
    batch: usize,
    past: usize,
    pieces: Vec<usize>,
    requests: usize,
}

fn cpu() -> Cpu {
    Cpu::new(Kernels::best(), Order::Invariant)
}

fn loaded(draw: impl FnOnce(&Path)) -> Model<CpuMem> {
    let folder = tempfile::tempdir().expect("a folder for a small checkpoint");
    draw(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).expect("what was drawn is admitted");
    Model::load(&mut cpu(), &checkpoint, Order::Invariant).expect("its files are there")
}

/// A dense model: the fields of `other` in place of a small shape's.
fn dense(other: &str) -> Model<CpuMem> {
    let small = r#""name": "beyond", "hidden": 20, "layers": 1, "heads": 2, "kv_heads": 1,
        "head_dim": 8, "intermediate": 24, "vocab": 40, "theta": 1e4, "eps": 1e-6, "tied": false,
        "dtype": "bf16", "max_positions": 131072"#;
    let spec: Spec = merged(small, other);
    loaded(|folder| synthetic(&spec, 1, folder).expect("the shape can be drawn"))
}

fn hybrid() -> Model<CpuMem> {
    let shape = r#""name": "beyond", "hidden": 20, "layers": 2, "interval": 2, "heads": 2,
        "kv_heads": 1, "head_dim": 8, "partial": 0.5, "key_heads": 9, "value_heads": 18,
        "key_dim": 4, "value_dim": 4, "kernel": 4, "intermediate": 24, "vocab": 40, "theta": 1e4,
        "eps": 1e-6, "tied": false, "dtype": "bf16", "log_dtype": "f32", "form": "flat",
        "prefix": "model", "bystanders": false, "max_positions": 8192"#;
    let spec: HybridSpec = merged(shape, "");
    loaded(|folder| synthetic_hybrid(&spec, 1, folder).expect("the shape can be drawn"))
}

fn merged<T: serde::de::DeserializeOwned>(fields: &str, other: &str) -> T {
    let parse = |text: &str| -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_str(&format!("{{{text}}}")).expect("fields of a shape")
    };
    let mut all = parse(fields);
    all.extend(parse(other));
    serde_json::from_value(all.into()).expect("a shape")
}

/// Runs, the cheap ones first.
fn runs() -> Vec<Run> {
    let run = |why, model, pieces: &[usize]| {
        let pieces = pieces.to_vec();
        Run { why, model, batch: 1, past: 0, pieces, requests: 1 }
    };
    let steps = [&[3][..], &[1; 20]].concat();
    let short = [&[1, 1, 1, 8][..], &[1; 10]].concat();
    let wide = r#""hidden": 65, "head_dim": 26, "intermediate": 129, "vocab": 193"#;
    let long =
        r#""heads": 26, "kv_heads": 13, "head_dim": 48, "intermediate": 3200, "vocab": 8320"#;
    vec![
        run("columns", dense(wide), &[6]),
        Run { requests: 3, ..run("requests", dense(r#""layers": 2"#), &[6, 1]) },
        run("layers, forwards, steps", dense(r#""layers": 26"#), &steps),
        run("terms, heads, ids of 12 bits", dense(long), &[9, 1]),
        // Another order of sums hides behind the rounding of bf16.
        run("terms in f32", dense(r#""intermediate": 3200, "dtype": "f32""#), &[9]),
        Run { batch: 17, ..run("what hybrids carry", hybrid(), &short) },
        Run { past: 8190, ..run("positions, keys", dense(""), &[2, 1, 2]) },
        Run { past: 65_534, ..run("positions of 16 bits", dense(""), &[2, 1, 2]) },
        Run { batch: 17, ..run("sequences, rows, chunks, bytes", dense(""), &[260, 1]) },
        run("ids of 16 bits, bytes", dense(r#""vocab": 131200"#), &[70]),
    ]
}

/// Taps of each request of a run, and ops at which the fault acted.
fn traced(run: &Run, defect: &Defect) -> (Vec<Taps>, u64) {
    let (batch, rows) = (run.batch, run.pieces.iter().sum::<usize>());
    let most = run.pieces.iter().copied().max().expect("a run has pieces");
    let (positions, chunk) = (run.past + rows, DEFAULT_CHUNK.min(most));
    let limits = Limits { batch, positions, rows: most, logit_rows: most, chunk };
    let mut b = Defective::new(cpu(), defect);
    let mut state = State::new(&mut b, &run.model, limits, None);
    let vocab = run.model.shape.vocab;
    let id = |s: usize, i: usize| ((s * 131 + i) * 7919 % vocab) as u32;
    let ids: Vec<Vec<u32>> =
        (0..batch).map(|s| (0..rows).map(|i| id(s, i + 17)).collect()).collect();
    let mut all = Vec::new();
    for _ in 0..run.requests {
        state.reset();
        state.len = run.past;
        let mut traced = Traced::new(b, batch);
        for piece in &run.pieces {
            let at = state.len - run.past;
            let fed: Vec<&[u32]> = ids.iter().map(|ids| &ids[at..at + piece]).collect();
            feed(&mut traced, &mut state, &fed, Kept::All);
            let step = Step { rows: *piece, kept: piece * batch };
            forward(&mut traced, &run.model, &mut state, step).expect("weights are resident");
        }
        let (taps, inner) = traced.finish();
        all.push(taps);
        b = inner;
    }
    (all, b.hits())
}

/// The site that differs first, in the order of execution.
fn first_divergence(clean: &[Taps], other: &[Taps], layers: usize) -> Option<String> {
    let within = (0..layers).flat_map(|layer| OPS.map(|op| format!("layers.{layer}.{op}")));
    let mut sites = vec!["embed_tokens".to_owned()];
    sites.extend(within);
    sites.extend(["norm", "lm_head"].map(str::to_owned));
    let bits = |taps: &Taps, site: &String| taps.get(site).map(|tap| tap.data.to_bytes());
    let differs =
        |site: &String| clean.iter().zip(other).any(|(a, b)| bits(a, site) != bits(b, site));
    sites.into_iter().find(differs)
}

/// Whether a defect may show first at a site.
fn says(defect: &Defect, site: &str) -> bool {
    match site.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, op)) => {
            let named = defect.site.layer.is_none_or(|of| of.to_string() == layer);
            op == defect.site.op && named
        }
        None => site == defect.site.op,
    }
}

#[test]
fn every_threshold_is_passed_and_its_fault_shows_first_where_it_says() {
    let mut left: Vec<&Defect> = Defect::all().iter().filter(|d| d.is_threshold()).collect();
    assert!(left.len() >= 40, "a class of at least forty");
    let mut wrong = Vec::new();
    let null = Defect::find("null").expect("it is in the catalogue");
    for run in runs() {
        let (clean, _) = traced(&run, null);
        left.retain(|defect| {
            let (taps, hits) = traced(&run, defect);
            let shown = first_divergence(&clean, &taps, run.model.shape.layers);
            match (hits, shown) {
                (_, None) => return true,
                (1.., Some(site)) if says(defect, &site) => {}
                (hits, shown) => {
                    wrong.push(format!("{}: {hits} hits, {}, {shown:?}", defect.id, run.why));
                }
            }
            false
        });
    }
    wrong.extend(left.iter().map(|defect| format!("{} changes no run", defect.id)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn thresholds_are_of_many_quantities_and_a_third_is_held_out() {
    let all: Vec<&Defect> = Defect::all().iter().filter(|d| d.is_threshold()).collect();
    let quantities: std::collections::BTreeSet<_> =
        all.iter().filter_map(|d| Some(d.beyond?.quantity)).collect();
    assert!(quantities.len() >= 12, "{quantities:?}");
    let held = all.iter().filter(|d| d.held_out()).count();
    assert!((all.len() / 4..=all.len() / 2).contains(&held), "{held} of {}", all.len());
}
