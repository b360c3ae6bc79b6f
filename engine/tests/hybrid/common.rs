//! Running fixtures, and comparing with what is stored.

use std::collections::BTreeMap;
use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Logits, Model, Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_fixtures::golden::{self, Tensors};
use samebits_fixtures::{HybridSpec, paths, synthetic_hybrid};

pub type Taps = BTreeMap<String, Tap>;

/// A backend with its model.
pub fn loaded(
    dir: &Path,
    dtype: Dtype,
    kernels: &'static Kernels,
    order: Order,
) -> (Cpu, Model<CpuMem>) {
    let checkpoint = Checkpoint::open_as(dir, Some(dtype)).expect("fixtures are admitted");
    let mut cpu = Cpu::new(kernels, order);
    let model = Model::load(&mut cpu, &checkpoint, order).expect("fixtures are readable");
    (cpu, model)
}

/// Logits and taps of one sequence in Transformers' order, the same from every kernel table.
pub fn traced(dir: &Path, dtype: Dtype, ids: &[u32], plan: &Plan) -> (Logits, Taps) {
    let on = |kernels| {
        let (cpu, model) = loaded(dir, dtype, kernels, Order::Transformers);
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

/// Ids stored under `key`.
pub fn ids(tensors: &Tensors, key: &str) -> Vec<u32> {
    tensors[key].i64s().into_iter().map(|id| id as u32).collect()
}

/// Bits of a stored tensor, in its own width.
pub fn bits(want: &golden::Tensor) -> Vec<u32> {
    match want.dtype {
        golden::Dtype::Bf16 => want.bf16_bits().into_iter().map(u32::from).collect(),
        _ => want.f32s().into_iter().map(f32::to_bits).collect(),
    }
}

/// Elements of `got` from element `first` on that differ from the stored tensor.
pub fn differing(got: &Tensor, first: usize, want: &golden::Tensor) -> usize {
    let want = bits(want);
    assert!(first + want.len() <= got.len(), "rows are missing");
    want.iter().enumerate().filter(|(i, want)| got.bits(first + i) != **want).count()
}

/// The largest difference from the stored tensor, over its largest element.
pub fn distance(got: &Tensor, first: usize, want: &golden::Tensor) -> f64 {
    let want = want.widened();
    let largest = want.iter().fold(0.0f64, |m, w| m.max(w.abs()));
    let differ = |(i, w): (usize, &f64)| (f64::from(got.get(first + i)) - w).abs();
    want.iter().enumerate().map(differ).fold(0.0, f64::max) / largest
}

/// The stored tensors of a narrow hybrid in `mode`.
pub fn stored(name: &str, mode: &str) -> Tensors {
    golden::tensors(&paths::golden(&format!("{name}.{mode}.safetensors"))).expect("committed")
}

/// A synthetic hybrid in a scratch folder.
pub fn synthetic(edit: impl FnOnce(&mut HybridSpec)) -> tempfile::TempDir {
    let mut spec = HybridSpec::named("tiny-h").expect("it is a named spec");
    edit(&mut spec);
    let dir = tempfile::tempdir().expect("a scratch folder");
    synthetic_hybrid(&spec, 1, dir.path()).expect("it can be written");
    dir
}
