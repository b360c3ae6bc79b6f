//! Every entry of the catalogue that needs a hybrid is planted in runs of the embedded one: it is
//! hit, and the first site that differs is the one it names.

use std::collections::BTreeMap;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::op::Backend;
use samebits::trace::{Tap, Traced};

use super::{Carried, Delta, HybridFault};
use crate::tests::OPS;
use crate::{Defect, Defective, Fault, Pattern, Poisoned};

type Taps = BTreeMap<String, Tap>;

fn cpu() -> Cpu {
    Cpu::new(Kernels::best(), Order::Invariant)
}

fn model(dtype: Dtype) -> Model<CpuMem> {
    let checkpoint = Checkpoint::embedded_named("tiny-qwen3.5", Some(dtype));
    let checkpoint = checkpoint.expect("it is embedded").expect("it is admitted");
    Model::load(&mut cpu(), &checkpoint, Order::Invariant).expect("it has no files to fail")
}

/// One forward's rows, `batch` sequences of 70 ids.
fn traced<B: Backend<M = CpuMem>>(
    b: B,
    model: &Model<CpuMem>,
    (batch, pieces): (usize, &[usize]),
) -> (Taps, B) {
    let rows: usize = pieces.iter().sum();
    let id = |s: usize, i: usize| ((s * 131 + i) * 7919 % 2000) as u32;
    let prompts: Vec<Vec<u32>> =
        (0..batch).map(|s| (0..rows).map(|i| id(s, i)).collect()).collect();
    let plan = Plan { pieces: pieces.to_vec(), ..Plan::default() };
    let mut b = Traced::new(b, batch);
    run(&mut b, model, &prompts, &plan).expect("the prompt fits the model");
    b.finish()
}

/// The op, with its layer, that differs first.
fn first_divergence(clean: &Taps, other: &Taps, layers: usize) -> Option<(usize, &'static str)> {
    let sites = (0..layers).flat_map(|layer| OPS.map(|op| (layer, op)));
    sites.into_iter().find(|(layer, op)| {
        let site = format!("layers.{layer}.{op}");
        clean.get(&site).map(|t| t.data.to_bytes()) != other.get(&site).map(|t| t.data.to_bytes())
    })
}

/// Runs among which one must show the defect.
const RUNS: [(usize, &[usize]); 5] =
    [(1, &[20]), (1, &[15, 1, 1, 3]), (1, &[2, 1, 17]), (1, &[70]), (2, &[9, 1, 1])];

#[test]
fn every_defect_of_hybrids_is_hit_and_shows_first_where_it_says() {
    let mut wrong = Vec::new();
    let models = [Dtype::Bf16, Dtype::F32].map(model);
    let clean = models.each_ref().map(|model| RUNS.map(|run| traced(cpu(), model, run).0));
    for defect in Defect::all().iter().filter(|d| d.needs_hybrid() && !d.is_threshold()) {
        let (mut hits, mut shown) = (0, Vec::new());
        for (model, clean) in models.iter().zip(&clean) {
            for (run, clean) in RUNS.iter().zip(clean) {
                let kept =
                    Fault::Hybrid { form: HybridFault::Carried(Carried::Kept) } == defect.fault;
                // What an earlier request left is NaN in poisoned memory.
                let (taps, b) = if kept {
                    let b = Defective::new(Poisoned::new(cpu()), defect);
                    let (taps, b) = traced(b, model, *run);
                    (taps, b.hits())
                } else {
                    let (taps, b) = traced(Defective::new(cpu(), defect), model, *run);
                    (taps, b.hits())
                };
                hits += b;
                shown.extend(first_divergence(clean, &taps, model.shape.layers));
            }
        }
        let right = |(layer, op): &(usize, &str)| {
            *op == defect.site.op && defect.site.layer.is_none_or(|of| of == *layer)
        };
        if hits == 0 || shown.is_empty() || !shown.iter().all(right) {
            wrong.push(format!("{}: {hits} hits, shows at {shown:?}", defect.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_hosts_own_rule_has_the_engines_bits() {
    let right = Defect {
        id: "right".to_owned(),
        class: 0,
        strength: "none".to_owned(),
        site: Pattern { layer: None, op: "core".to_owned() },
        fault: Fault::Hybrid { form: HybridFault::Delta { how: Delta::Right, heads: None } },
        reach: crate::Reach::All,
        beyond: None,
        why: "the host's rule, without a fault".to_owned(),
        gates: Vec::new(),
        beyond_tolerance: false,
    };
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let model = model(dtype);
        for run in RUNS {
            let (clean, _) = traced(cpu(), &model, run);
            let (taps, b) = traced(Defective::new(cpu(), &right), &model, run);
            assert!(b.hits() > 0);
            assert_eq!(first_divergence(&clean, &taps, model.shape.layers), None, "{dtype:?}");
            let state = |taps: &Taps| taps["layers.0.state"].data.to_bytes();
            assert_eq!(state(&clean), state(&taps), "{dtype:?}: the state");
        }
    }
}
