//! Logits and greedy ids against what Transformers computed.
//!
//! Transformers' prefill takes the chunk form of the delta rule, whose f32 sums are in another
//! order. Where rounding to bf16 hides that, logits are compared exactly; elsewhere by the distance
//! that Transformers itself keeps from float64.

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order, RotaryTables};
use samebits::cpu::{Cpu, Kernels};
use samebits::generate::{GenerateError, Request, Sampler, generate};
use samebits::model::{Model, Plan};
use samebits_fixtures::{golden, paths};

use super::common::{differing, distance, ids, stored, traced};

/// Largest error of Transformers' bf16 logits against float64, over the largest logit.
const BF16_ERROR: f64 = 4.0e-2;
/// The same in f32, of which four times are allowed.
const F32_ERROR: f64 = 2.7e-6;

#[test]
fn short_prompts_and_their_steps_are_bit_equal() {
    for (name, prompts) in [("qwen3_5", &[1, 7][..]), ("qwen3_5_f32log", &[7])] {
        let (tensors, dir) = (stored(name, "bf16"), paths::narrow(name));
        for n in prompts {
            let key = |part: &str| format!("L{n}/{part}");
            let prompt = ids(&tensors, &key("input_ids"));
            let all = [prompt.clone(), ids(&tensors, &key("decode_ids"))].concat();
            let (got, _) = traced(&dir, Dtype::Bf16, &prompt, &Plan::default());
            let count = differing(&got.logits, 0, &tensors[&key("logits")]);
            let (got, _) = traced(&dir, Dtype::Bf16, &all, &Plan::decode_from(*n, all.len()));
            let first = n * got.shape[2];
            let steps = differing(&got.logits, first, &tensors[&key("decode/logits")]);
            println!("{name} prompt {n}: {count} logits differ, {steps} of the steps");
            assert_eq!((count, steps), (0, 0), "{name} prompt {n}");
        }
    }
}

#[test]
fn a_prefill_of_33_is_bit_equal() {
    let tensors = stored("qwen3_5", "bf16");
    let prompt = ids(&tensors, "L33/input_ids");
    let (got, _) = traced(&paths::narrow("qwen3_5"), Dtype::Bf16, &prompt, &Plan::default());
    assert_eq!(differing(&got.logits, 0, &tensors["L33/logits"]), 0);
}

#[test]
fn longer_runs_stay_within_transformers_own_error() {
    let dir = paths::narrow("qwen3_5");
    let (tensors, exact) = (stored("qwen3_5", "bf16"), stored("qwen3_5", "oracle"));
    for n in [33, 70] {
        let key = |part: &str| format!("L{n}/{part}");
        let prompt = ids(&tensors, &key("input_ids"));
        let all = [prompt.clone(), ids(&tensors, &key("decode_ids"))].concat();
        let (got, _) = traced(&dir, Dtype::Bf16, &all, &Plan::decode_from(n, all.len()));
        for (part, first) in [("logits", 0), ("decode/logits", n * got.shape[2])] {
            let flips = differing(&got.logits, first, &tensors[&key(part)]);
            let from_golden = distance(&got.logits, first, &tensors[&key(part)]);
            let from_exact = distance(&got.logits, first, &exact[&key(part)]);
            println!(
                "prompt {n} {part}: {flips} of {} differ, {from_golden:.2e}; f64 {from_exact:.2e}",
                tensors[&key(part)].widened().len()
            );
            assert!(from_golden <= BF16_ERROR && from_exact <= BF16_ERROR, "{n} {part}");
        }
    }
    for name in golden::NARROW_HYBRID {
        let tensors = stored(name, "bf16");
        let all = ids(&tensors, "chunked/ids");
        let plan = Plan { pieces: vec![33, 7], ..Plan::default() };
        let (got, _) = traced(&paths::narrow(name), Dtype::Bf16, &all, &plan);
        let (first, want) = (33 * got.shape[2], &tensors["chunked/logits_33_39"]);
        let flips = differing(&got.logits, first, want);
        let far = distance(&got.logits, first, want);
        println!("{name} 33 + 7: {flips} differ, {far:.2e}");
        assert!(far <= BF16_ERROR, "{name}");
    }
}

#[test]
fn f32_stays_within_four_times_transformers_own_error() {
    let tables = golden::tensors(&paths::golden("tiny-h.rotary.safetensors")).expect("committed");
    let half = tables["rotary.cos"].shape[1];
    let (cos, sin) = (tables["rotary.cos"].f32s(), tables["rotary.sin"].f32s());
    let rotary = Some(RotaryTables { half, cos, sin });
    let exact = stored("qwen3_5", "oracle");
    let tensors = stored("qwen3_5", "fp32");
    for n in [1, 7, 33, 70] {
        let key = |part: &str| format!("L{n}/{part}");
        let prompt = ids(&tensors, &key("input_ids"));
        let all = [prompt, ids(&tensors, &key("decode_ids"))].concat();
        let plan = Plan { rotary: rotary.clone(), ..Plan::decode_from(n, all.len()) };
        let (got, _) = traced(&paths::narrow("qwen3_5"), Dtype::F32, &all, &plan);
        for (part, first) in [("logits", 0), ("decode/logits", n * got.shape[2])] {
            let far = distance(&got.logits, first, &exact[&key(part)]);
            println!("f32 prompt {n} {part}: {far:.2e} from float64");
            assert!(far <= 4.0 * F32_ERROR, "{n} {part}: {far:e}");
        }
    }
}

#[test]
fn greedy_ids_of_the_embedded_hybrid_are_those_of_transformers() {
    for order in [Order::Invariant, Order::Transformers] {
        let checkpoint = Checkpoint::embedded_named("tiny-qwen3.5", None).expect("it is embedded");
        let checkpoint = checkpoint.expect("it is admitted");
        let mut cpu = Cpu::new(Kernels::best(), order);
        let model = Model::load(&mut cpu, &checkpoint, order).expect("it is readable");
        for run in golden::greedy_hybrid().expect("committed").runs {
            let (sampler, stop) = (Sampler::Greedy, Vec::new());
            let (prompts, max_new) = (vec![run.ids.clone()], run.greedy.len());
            let request = Request { prompts, max_new, context: 4096, sampler, stop, chunk: None };
            let got = generate(&mut cpu, &model, &request, |_, _| Ok::<_, GenerateError>(()));
            let got = got.expect("it fits");
            assert_eq!(got[0].ids, run.greedy, "{} {order:?}", run.prompt);
        }
    }
}
