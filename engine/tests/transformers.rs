//! The engine against what Transformers computed: logits of whole models, bit for bit.

use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order, RotaryTables};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::Traced;
use samebits_fixtures::golden::{self, HashGolden, Tensors};
use samebits_fixtures::{paths, synthetic};

/// Logits of one sequence in Transformers' order, the same from every kernel table.
fn logits(dir: &Path, dtype: Dtype, ids: &[u32], plan: &Plan) -> Tensor {
    let checkpoint = Checkpoint::open_as(dir, Some(dtype)).expect("fixtures are admitted");
    let on = |kernels| {
        let mut cpu = Cpu::new(kernels, Order::Transformers);
        let model = Model::load(&mut cpu, &checkpoint).expect("fixtures are readable");
        run(&mut cpu, &model, &[ids.to_vec()], plan).expect("fixture prompts fit").logits
    };
    let scalar = on(Kernels::supported()[0]);
    for kernels in &Kernels::supported()[1..] {
        assert_eq!(on(kernels).sha256(), scalar.sha256(), "{}", kernels.name);
    }
    scalar
}

fn ids(tensors: &Tensors, key: &str) -> Vec<u32> {
    tensors[key].i64s().into_iter().map(|id| id as u32).collect()
}

/// Elements that differ between `got` from row `first` on and the stored tensor.
fn differing(got: &Tensor, first: usize, want: &golden::Tensor) -> usize {
    let width = want.shape[want.shape.len() - 1];
    let want: Vec<u32> = match want.dtype {
        golden::Dtype::Bf16 => want.bf16_bits().into_iter().map(u32::from).collect(),
        _ => want.f32s().into_iter().map(f32::to_bits).collect(),
    };
    assert_eq!(got.len(), first * width + want.len(), "rows are missing");
    want.iter().enumerate().filter(|(i, want)| got.bits(first * width + i) != **want).count()
}

#[test]
fn narrow_models_uncached_and_cached() {
    for name in golden::NARROW {
        let tensors = golden::tensors(&paths::golden(&format!("{name}.bf16.safetensors")))
            .expect("the file is committed");
        for n in [1, 7, 33] {
            let key = |part: &str| format!("L{n}/{part}");
            let prompt = ids(&tensors, &key("input_ids"));
            let all = [prompt.clone(), ids(&tensors, &key("decode_ids"))].concat();
            let run =
                |ids: &[u32], plan: &Plan| logits(&paths::narrow(name), Dtype::Bf16, ids, plan);
            let got = run(&prompt, &Plan::default());
            assert_eq!(differing(&got, 0, &tensors[&key("logits")]), 0, "{name} prompt {n}");
            let got = run(&all, &Plan::decode_from(n, all.len()));
            assert_eq!(differing(&got, n, &tensors[&key("decode/logits")]), 0, "{name} steps {n}");
        }
    }
}

#[test]
fn narrow_models_in_f32_with_torch_tables() {
    let tables = golden::tensors(&paths::golden("narrow.rotary.safetensors")).expect("committed");
    let half = tables["rotary.cos"].shape[1];
    let (cos, sin) = (tables["rotary.cos"].f32s(), tables["rotary.sin"].f32s());
    let plan = Plan { rotary: Some(RotaryTables { half, cos, sin }), ..Plan::default() };
    for name in golden::NARROW {
        let tensors = golden::tensors(&paths::golden(&format!("{name}.fp32.safetensors")))
            .expect("the file is committed");
        let prompt = ids(&tensors, "L33/input_ids");
        let dir = paths::narrow(name);
        let got = logits(&dir, Dtype::F32, &prompt, &plan);
        assert_eq!(differing(&got, 0, &tensors["L33/logits"]), 0, "{name}");
    }
}

/// Runs a file of hashes; returns every disagreement and the number of comparisons.
fn hashed(file: &HashGolden, order: Order, decode: bool) -> (Vec<String>, usize) {
    let dir = tempfile::tempdir().expect("a scratch folder");
    synthetic(&file.spec, file.seed, dir.path()).expect("the checkpoint is written");
    let dtype = if file.run_dtype == "f32" { Dtype::F32 } else { Dtype::Bf16 };
    let checkpoint = Checkpoint::open_as(dir.path(), Some(dtype)).expect("it is admitted");
    let rotary = file.rotary.as_ref().map(|name| {
        let t = golden::tensors(&paths::golden(name)).expect("the tables are committed");
        let half = t["rotary.cos"].shape[1];
        RotaryTables { half, cos: t["rotary.cos"].f32s(), sin: t["rotary.sin"].f32s() }
    });
    let mut bad = Vec::new();
    let mut compared = 0;
    let mut check = |what: String, got: String, want: &str| {
        compared += 1;
        if got != want {
            bad.push(what);
        }
    };
    let mut cpu = Cpu::new(Kernels::best(), order);
    let model = Model::load(&mut cpu, &checkpoint).expect("it is readable");
    for run_ in &file.runs {
        let n = run_.prompt;
        let plan = Plan { rotary: rotary.clone(), ..Plan::default() };
        let mut traced = Traced::new(Cpu::new(Kernels::best(), order), 1);
        let got = run(&mut traced, &model, &[run_.ids[..n].to_vec()], &plan).expect("it fits");
        let (taps, _) = traced.finish();
        for (site, want) in run_.sites.iter().filter(|(s, _)| !s.starts_with("rotary")) {
            check(format!("{n} {site}"), taps[site].data.sha256(), want);
        }
        let vocab = got.shape[2];
        for (row, want) in run_.logits_rows.iter().enumerate() {
            let got = got.logits.slice(row * vocab, vocab).sha256();
            check(format!("{n} logits row {row}"), got, want);
        }
        if decode && !run_.decode.is_empty() {
            let plan = Plan { rotary: plan.rotary, ..Plan::decode_from(n, run_.ids.len()) };
            let got = run(&mut cpu, &model, &[run_.ids.clone()], &plan).expect("it fits");
            for (step, want) in run_.decode.iter().enumerate() {
                let got = got.logits.slice((n + step) * vocab, vocab).sha256();
                check(format!("{n} step {step}"), got, &want.logits);
            }
        }
    }
    (bad, compared)
}

#[test]
fn wide_models_show_the_block_rules() {
    for file in ["wide.bf16.json", "wide.f32.json", "qwen3-0.6b.bf16.json"] {
        let file = golden::hashes(file).expect("the file is committed");
        let start = std::time::Instant::now();
        let (bad, compared) = hashed(&file, Order::Transformers, true);
        println!("{}: {compared} compared, {:?}", file.spec.name, start.elapsed());
        assert!(compared > 100 && bad.is_empty(), "{} {}: {bad:?}", file.spec.name, bad.len());
    }
}
