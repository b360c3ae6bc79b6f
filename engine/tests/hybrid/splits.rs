//! No bit depends on how a prompt is cut up, on threads, kernels or batch: states included.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::op::{CONV_STATE, STATE};
use samebits::trace::Traced;
use samebits_fixtures::{HybridSpec, prompt_ids};

use super::common::{loaded, synthetic};

/// Hashes of the logits and of every state after a run cut into `pieces`.
fn fingerprint(
    cpu: Cpu,
    model: &Model<CpuMem>,
    prompts: &[Vec<u32>],
    pieces: &[usize],
) -> Vec<String> {
    let plan = Plan { pieces: pieces.to_vec(), ..Plan::default() };
    let mut traced = Traced::only(cpu, prompts.len(), |site| matches!(site.op, CONV_STATE | STATE));
    let logits = run(&mut traced, model, prompts, &plan).expect("it fits");
    let states = traced.finish().0.into_values().map(|tap| tap.data.sha256());
    std::iter::once(logits.logits.sha256()).chain(states).collect()
}

/// Ways to cut `len` rows up: whole, all but one, one by one, in two, in odd pieces.
fn cuts(len: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![len], vec![1; len]];
    let every = len <= 5;
    let places = [1, 2, 3, 4, 5, 31, 62, 63, 64, 65, 100, 127, 128, len - 1];
    let places = (1..len).filter(|at| every || places.contains(at));
    all.extend(places.map(|at| vec![at, len - at]));
    if len > 5 {
        all.push(vec![2, 3, len - 5]);
    }
    all
}

#[test]
fn every_split_gives_the_same_bits() {
    let dir = synthetic(|_| {});
    let mut compared = 0;
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let (_, whole) = loaded(dir.path(), dtype, Kernels::best(), Order::Invariant);
        for len in [1, 2, 3, 4, 5, 63, 64, 65, 127, 129] {
            let prompts = [prompt_ids(len as u64, whole.shape.vocab, len)];
            let cpu = Cpu::new(Kernels::best(), Order::Invariant);
            let want = fingerprint(cpu, &whole, &prompts, &[len]);
            assert_eq!(want.len(), 1 + 2 * 3, "logits and the states of three layers");
            for (at, kernels) in Kernels::supported().into_iter().enumerate() {
                let (_, model) = loaded(dir.path(), dtype, kernels, Order::Invariant);
                for (cut, pieces) in cuts(len).iter().enumerate() {
                    let threads = 1 + (at + cut) % 4;
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    let cpu = Cpu::new(kernels, Order::Invariant);
                    let go = || fingerprint(cpu, &model, &prompts, pieces);
                    let got = pool.expect("threads start").install(go);
                    let name = kernels.name;
                    assert_eq!(got, want, "{len} {dtype:?} {name} {threads} threads {pieces:?}");
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} runs, all of the same bits as a whole prefill");
}

#[test]
fn every_thread_count_gives_the_same_bits() {
    let dir = synthetic(|_| {});
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let (_, model) = loaded(dir.path(), dtype, Kernels::best(), Order::Invariant);
        let prompts = [prompt_ids(9, model.shape.vocab, 65)];
        let all = (1..=4).map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let cpu = Cpu::new(Kernels::best(), Order::Invariant);
            pool.expect("threads start")
                .install(|| fingerprint(cpu, &model, &prompts, &[60, 1, 1, 1, 1, 1]))
        });
        let all: Vec<_> = all.collect();
        assert!(all.iter().all(|one| *one == all[0]), "{dtype:?}");
    }
}

#[test]
fn other_shapes_hold_it_too() {
    type Edit = (&'static str, fn(&mut HybridSpec));
    let edits: [Edit; 8] = [
        ("one tap", |s| s.kernel = 1),
        ("two taps", |s| s.kernel = 2),
        ("seven taps", |s| s.kernel = 7),
        ("as many key heads", |s| s.key_heads = 4),
        ("odd widths", |s| (s.key_dim, s.value_dim) = (5, 3)),
        ("wide heads", |s| (s.key_dim, s.value_dim) = (24, 72)),
        ("every second full", |s| s.interval = 2),
        ("a whole head rotates", |s| s.partial = 1.0),
    ];
    for (why, edit) in edits {
        let dir = synthetic(edit);
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let mut want = None;
            for kernels in Kernels::supported() {
                let (_, model) = loaded(dir.path(), dtype, kernels, Order::Invariant);
                let prompts = [prompt_ids(3, model.shape.vocab, 11)];
                for pieces in [vec![11], vec![1; 11], vec![2, 9], vec![10, 1], vec![3, 3, 5]] {
                    let cpu = Cpu::new(kernels, Order::Invariant);
                    let got = fingerprint(cpu, &model, &prompts, &pieces);
                    let want = want.get_or_insert_with(|| got.clone());
                    assert_eq!(got, *want, "{why} {dtype:?} {} {pieces:?}", kernels.name);
                }
            }
        }
    }
}

#[test]
fn a_batch_gives_the_bits_of_its_sequences() {
    let dir = synthetic(|_| {});
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let (mut cpu, model) = loaded(dir.path(), dtype, Kernels::best(), Order::Invariant);
        let prompts: Vec<_> = (0..4).map(|s| prompt_ids(s, model.shape.vocab, 21)).collect();
        for plan in [Plan::default(), Plan::decode_from(13, 21), Plan::decode_from(1, 21)] {
            let batch = run(&mut cpu, &model, &prompts, &plan).expect("it fits").logits;
            let each = batch.len() / prompts.len();
            for (i, prompt) in prompts.iter().enumerate() {
                let one = run(&mut cpu, &model, std::slice::from_ref(prompt), &plan);
                let one = one.expect("it fits").logits;
                let same = batch.slice(i * each, each).sha256() == one.sha256();
                assert!(same, "{dtype:?} sequence {i} {:?}", plan.pieces);
            }
        }
    }
}

#[test]
fn a_run_begins_anew_whatever_lies_in_its_buffers() {
    use samebits::model::{Kept, Limits, State, Step, feed, forward};
    let dir = synthetic(|_| {});
    let (mut cpu, model) = loaded(dir.path(), Dtype::Bf16, Kernels::best(), Order::Invariant);
    let limits = Limits { batch: 1, positions: 9, rows: 9, logit_rows: 9, chunk: 9 };
    let mut state = State::new(&mut cpu, &model, limits, None);
    let ids = prompt_ids(5, model.shape.vocab, 9);
    let mut once = || {
        state.reset();
        feed(&mut cpu, &mut state, &[&ids], Kept::All);
        forward(&mut cpu, &model, &mut state, Step { rows: 9, kept: 9 }).expect("it is resident");
        state.logits_row(&mut cpu, 8).sha256()
    };
    assert_eq!(once(), once(), "the first run's states reach into the second");
}
