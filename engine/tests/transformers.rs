//! The engine against what Transformers computed: logits of whole models, bit for bit.

use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order, RotaryTables};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::tensor::Tensor;
use samebits_fixtures::golden::{self, Tensors};
use samebits_fixtures::paths;

/// Logits of one sequence in Transformers' order, the same from every kernel table.
fn logits(dir: &Path, dtype: Dtype, ids: &[u32], plan: &Plan) -> Tensor {
    let checkpoint = Checkpoint::open_as(dir, Some(dtype)).expect("fixtures are admitted");
    let on = |kernels| {
        let mut cpu = Cpu::new(kernels, Order::Transformers);
        let model =
            Model::load(&mut cpu, &checkpoint, Order::Transformers).expect("fixtures are readable");
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
