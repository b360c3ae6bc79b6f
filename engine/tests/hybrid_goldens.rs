//! The hybrid against what Transformers computed in bf16: sites and logits, bit for bit.
//!
//! Transformers' prefill takes the chunk form of the delta rule, whose f32 sums are in another
//! order; what lies before it is compared exactly, and what comes after wherever the rounding to
//! bf16 hides the difference, with every exception counted.

use std::collections::BTreeMap;
use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Logits, Model, Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_fixtures::golden::{self, Tensors};
use samebits_fixtures::paths;

type Taps = BTreeMap<String, Tap>;

/// Logits and taps of one sequence in Transformers' order, the same from every kernel table.
fn traced(dir: &Path, dtype: Dtype, ids: &[u32], plan: &Plan) -> (Logits, Taps) {
    let checkpoint = Checkpoint::open_as(dir, Some(dtype)).expect("fixtures are admitted");
    let on = |kernels| {
        let mut cpu = Cpu::new(kernels, Order::Transformers);
        let model =
            Model::load(&mut cpu, &checkpoint, Order::Transformers).expect("fixtures are readable");
        let mut traced = Traced::new(cpu, 1);
        let logits = run(&mut traced, &model, &[ids.to_vec()], plan).expect("fixture prompts fit");
        (logits, traced.finish().0)
    };
    let scalar = on(Kernels::supported()[0]);
    for kernels in &Kernels::supported()[1..] {
        let (logits, taps) = on(kernels);
        assert_eq!(logits.logits.sha256(), scalar.0.logits.sha256(), "{}", kernels.name);
        for (site, tap) in taps {
            assert_eq!(tap.data.sha256(), scalar.1[&site].data.sha256(), "{} {site}", kernels.name);
        }
    }
    scalar
}

fn ids(tensors: &Tensors, key: &str) -> Vec<u32> {
    tensors[key].i64s().into_iter().map(|id| id as u32).collect()
}

/// Elements of `got` from element `first` on that differ from the stored tensor.
fn differing(got: &Tensor, first: usize, want: &golden::Tensor) -> usize {
    let want: Vec<u32> = match want.dtype {
        golden::Dtype::Bf16 => want.bf16_bits().into_iter().map(u32::from).collect(),
        _ => want.f32s().into_iter().map(f32::to_bits).collect(),
    };
    assert!(first + want.len() <= got.len(), "rows are missing");
    want.iter().enumerate().filter(|(i, want)| got.bits(first + i) != **want).count()
}

fn bf16_goldens(name: &str) -> Tensors {
    golden::tensors(&paths::golden(&format!("{name}.bf16.safetensors"))).expect("committed")
}

#[test]
fn logits_of_short_prompts_and_their_steps() {
    for (name, prompts) in [("qwen3_5", &[1, 7][..]), ("qwen3_5_f32log", &[7])] {
        let (tensors, dir) = (bf16_goldens(name), paths::narrow(name));
        for n in prompts {
            let key = |part: &str| format!("L{n}/{part}");
            let prompt = ids(&tensors, &key("input_ids"));
            let all = [prompt.clone(), ids(&tensors, &key("decode_ids"))].concat();
            let (got, _) = traced(&dir, Dtype::Bf16, &prompt, &Plan::default());
            let count = differing(&got.logits, 0, &tensors[&key("logits")]);
            println!("{name} prompt {n}: {count} of {} logits differ", got.logits.len());
            let plan = Plan::decode_from(*n, all.len());
            let (got, _) = traced(&dir, Dtype::Bf16, &all, &plan);
            let first = n * got.shape[2];
            let steps = differing(&got.logits, first, &tensors[&key("decode/logits")]);
            println!("{name} prompt {n}: {steps} logits of its steps differ");
            assert_eq!((count, steps), (0, 0), "{name} prompt {n}");
        }
    }
}
