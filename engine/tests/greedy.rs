//! Sixty-four greedy ids against Transformers: narrow, trained and one published shape.
//!
//! The invariant: a checkpoint has the hashes of the one that Transformers ran.

use std::fs;
use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::generate::{GenerateError, Request, Sampler, generate};
use samebits::model::{self, Model, Plan};
use samebits_fixtures::golden::{self, GreedyModel, LongGreedy};
use samebits_fixtures::{Spec, paths, prompt_ids, synthetic};

/// Ids after each prompt.
const NEW: usize = 64;
const PUBLISHED: &str = "qwen3-0.6b";

fn stored() -> LongGreedy {
    golden::long_greedy().expect("the file is committed")
}

/// Compares all runs of a model and says how many ids were equal.
fn check(folder: &Path, want: &GreedyModel) {
    for (file, hash) in &want.checkpoint {
        let bytes = fs::read(folder.join(file)).expect("the checkpoint is there");
        assert_eq!(&golden::sha256(&bytes), hash, "{}: {file} is another file", want.model);
    }
    let checkpoint = Checkpoint::open_as(folder, Some(Dtype::Bf16)).expect("it is admitted");
    let (order, vocab) = (Order::Transformers, checkpoint.config().vocab_size);
    let mut cpu = Cpu::new(Kernels::best(), order);
    let model = Model::load(&mut cpu, &checkpoint, order).expect("it is readable");
    for run in &want.runs {
        assert_eq!(run.ids, prompt_ids(run.ids_seed, vocab, run.ids.len()), "{}", want.model);
        assert_eq!(run.greedy.len(), NEW, "{}", want.model);
        let (sampler, stop, prompts) = (Sampler::Greedy, Vec::new(), vec![run.ids.clone()]);
        let request = Request { prompts, max_new: NEW, context: 4096, sampler, stop, chunk: None };
        let got = generate(&mut cpu, &model, &request, |_, _| Ok::<_, GenerateError>(()));
        let got = got.expect("it fits").remove(0).ids;
        let at = (0..NEW).find(|i| got.get(*i) != Some(&run.greedy[*i]));
        let place = format!("{} after {} ids, from choice {at:?}", want.model, run.ids.len());
        assert_eq!(got, run.greedy, "{place}; least margin {} at {}", run.margin, run.choice);
        if let Some(want) = &run.logits {
            let fed = [&run.ids[..], &run.greedy[..NEW - 1]].concat();
            let plan = Plan::decode_from(run.ids.len(), fed.len());
            let rows = model::run(&mut cpu, &model, &[fed], &plan).expect("it fits").logits;
            let rows = rows.slice((run.ids.len() - 1) * vocab, NEW * vocab);
            assert_eq!(&rows.sha256(), want, "{place}: the ids agree, the logits do not");
        }
        println!("{}, {} + {NEW} ids: least margin {}", want.model, run.ids.len(), run.margin);
    }
}

#[test]
fn narrow_and_trained_models() {
    let models: Vec<_> = stored().models.into_iter().filter(|m| m.model != PUBLISHED).collect();
    assert_eq!(models.len(), 6, "both families: two or more narrow ones, and a trained one");
    for want in &models {
        let folder = match want.model.as_str() {
            "tiny-qwen3" => paths::tiny_qwen3(),
            "tiny-qwen3.5" => paths::tiny_qwen3_5(),
            narrow => paths::narrow(narrow),
        };
        check(&folder, want);
    }
}

#[test]
#[ignore = "writes and runs a checkpoint of 1.2 GB for about a minute; --ignored runs it"]
fn a_published_shape() {
    let found = stored().models.into_iter().find(|m| m.model == PUBLISHED);
    let want = found.expect("it is among them");
    let dir = tempfile::tempdir().expect("a scratch folder");
    let spec = Spec::named(PUBLISHED).expect("it is a named spec");
    let seed = want.seed.expect("it was built with one");
    synthetic(&spec, seed, dir.path()).expect("it can be written");
    check(dir.path(), &want);
}
