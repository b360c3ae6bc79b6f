//! Generation: Transformers' ids, and everything that must not change them.

use std::collections::BTreeMap;
use std::path::Path;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::generate::{
    Chat, Finish, GenerateError, Message, Request, Sampler, Sampling, Sequence, StopIds,
    StopSource, Stream, Text, generate,
};
use samebits::model::{Model, RunError};
use samebits_fixtures::{Spec, golden, paths, prompt_ids, synthetic};

struct Engine {
    cpu: Cpu,
    model: Model<CpuMem>,
}

impl Engine {
    fn new(checkpoint: &Checkpoint, order: Order) -> Self {
        let mut cpu = Cpu::new(Kernels::best(), order);
        let model = Model::load(&mut cpu, checkpoint, order).expect("it is readable");
        Self { cpu, model }
    }

    fn embedded(order: Order) -> Self {
        Self::new(&Checkpoint::embedded().expect("it is admitted"), order)
    }

    fn generate(&mut self, request: &Request) -> Result<Vec<Sequence>, GenerateError> {
        generate(&mut self.cpu, &self.model, request, |_, _| Ok::<_, GenerateError>(()))
    }

    fn ids(&mut self, request: &Request) -> Vec<Vec<u32>> {
        self.generate(request).expect("it fits").into_iter().map(|s| s.ids).collect()
    }
}

fn request(prompts: Vec<Vec<u32>>, max_new: usize) -> Request {
    let (sampler, stop) = (Sampler::Greedy, Vec::new());
    Request { prompts, max_new, context: 4096, sampler, stop, chunk: None }
}

fn sampled(seed: u64) -> Sampler {
    let sampling = Sampling { temperature: 0.9, top_k: 50, top_p: 0.95, min_p: 0.01, seed };
    Sampler::new(sampling).expect("in range")
}

#[test]
fn greedy_ids_are_those_of_transformers() {
    let mut engine = Engine::embedded(Order::Transformers);
    for run in golden::greedy().expect("the file is committed").runs {
        let got = engine.ids(&request(vec![run.ids.clone()], run.greedy.len()));
        assert_eq!(got, [run.greedy], "{}", run.prompt);
    }
    for name in golden::NARROW {
        let file = paths::golden(&format!("{name}.bf16.safetensors"));
        let tensors = golden::tensors(&file).expect("the file is committed");
        let ids = |key: &str| -> Vec<u32> {
            tensors[key].i64s().into_iter().map(|id| id as u32).collect()
        };
        let checkpoint = Checkpoint::open_as(&paths::narrow(name), Some(Dtype::Bf16));
        let mut engine = Engine::new(&checkpoint.expect("it is admitted"), Order::Transformers);
        for n in [7, 33] {
            let want = ids(&format!("L{n}/greedy_ids"));
            let got = engine.ids(&request(vec![ids(&format!("L{n}/input_ids"))], want.len()));
            assert_eq!(got, [want], "{name} {n}");
        }
    }
}

#[test]
fn batch_resume_and_threads_change_nothing() {
    let prompts: Vec<Vec<u32>> = (0..8).map(|seed| prompt_ids(seed, 2043, 17)).collect();
    let mut engine = Engine::embedded(Order::Invariant);
    for sampler in [Sampler::Greedy, sampled(7)] {
        let whole = Request { sampler, ..request(prompts.clone(), 64) };
        let batch = engine.ids(&whole);
        // A sequence's number is part of its stream, so that singles take the first one's.
        let first = Request { prompts: vec![prompts[0].clone()], ..whole.clone() };
        assert_eq!(engine.ids(&first)[0], batch[0]);
        if sampler == Sampler::Greedy {
            for (prompt, want) in prompts.iter().zip(&batch) {
                let single = Request { prompts: vec![prompt.clone()], ..whole.clone() };
                assert_eq!(&engine.ids(&single)[0], want);
            }
        }
        let head = engine.ids(&Request { max_new: 20, ..whole.clone() });
        let resumed = prompts.iter().zip(&head).map(|(p, h)| [&p[..], h].concat()).collect();
        let tail = engine.ids(&Request { prompts: resumed, max_new: 44, ..whole.clone() });
        for (i, want) in batch.iter().enumerate() {
            assert_eq!(&[&head[i][..], &tail[i]].concat(), want, "{sampler:?} {i}");
        }
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let got = pool.expect("threads").install(|| engine.ids(&whole));
            assert_eq!(got, batch, "{threads} threads");
        }
    }
    let other = Request { sampler: sampled(8), ..request(prompts.clone(), 64) };
    let same = Request { sampler: sampled(7), ..request(prompts, 64) };
    assert_ne!(engine.ids(&other), engine.ids(&same), "another seed, another text");
}

#[test]
fn generation_ends_at_stop_ids_length_and_context() {
    let mut engine = Engine::embedded(Order::Invariant);
    let prompt = prompt_ids(1, 2043, 8);
    let free = engine.ids(&request(vec![prompt.clone()], 12))[0].clone();
    let at = free.iter().position(|id| *id == free[4]).expect("it is there");
    let stopped = Request { stop: vec![free[4]], ..request(vec![prompt.clone()], 12) };
    let got = engine.generate(&stopped).expect("it fits").remove(0);
    assert_eq!((got.ids, got.finish), (free[..=at].to_vec(), Finish::Stop));
    let never = Request { stop: prompt.clone(), ..request(vec![prompt.clone()], 1) };
    assert_eq!(engine.ids(&never)[0].len(), 1, "ids of the prompt stop nothing");
    for (context, want) in [(20, 12), (9, 1), (8, 0)] {
        let limited = Request { context, ..request(vec![prompt.clone()], 12) };
        let got = engine.generate(&limited).expect("it fits").remove(0);
        assert_eq!((got.ids, got.finish), (free[..want].to_vec(), Finish::Length), "{context}");
    }
    let beyond = Request { context: 7, ..request(vec![prompt.clone()], 12) };
    assert!(matches!(engine.generate(&beyond), Err(GenerateError::Context { len: 8, context: 7 })));
    let none = engine.generate(&request(vec![prompt], 0)).expect("it fits").remove(0);
    assert_eq!((none.ids.len(), none.finish), (0, Finish::Length));
    for prompts in [vec![], vec![vec![]], vec![vec![1], vec![]], vec![vec![1], vec![1, 2]]] {
        let error = engine.generate(&request(prompts, 3)).expect_err("it is refused");
        assert!(matches!(error, GenerateError::Run(RunError::Empty(_) | RunError::Lengths { .. })));
    }
}

/// A TINY-D folder with some of its JSON files replaced.
fn folder(files: &BTreeMap<&str, &str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let spec = Spec::named("tiny-d").expect("it is there");
    synthetic(&spec, 1, dir.path()).expect("it is written");
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).expect("it is written");
    }
    dir
}

fn config_with_eos(dir: &Path) {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).expect("it is there");
    std::fs::write(path, text.replacen('{', "{\"eos_token_id\": 258,", 1)).expect("it is written");
}

#[test]
fn stop_ids_come_from_the_right_file() {
    let none = BTreeMap::new();
    let list = BTreeMap::from([("generation_config.json", r#"{"eos_token_id": [258, 256]}"#)]);
    let empty = BTreeMap::from([("generation_config.json", r#"{"do_sample": true}"#)]);
    let broken = BTreeMap::from([("generation_config.json", "{")]);
    for (why, files, in_config, flags, want) in [
        ("config only", &none, true, vec![], Some((vec![258], StopSource::Config))),
        ("list", &list, false, vec![], Some((vec![258, 256], StopSource::GenerationConfig))),
        ("disagree", &list, true, vec![], Some((vec![258, 256], StopSource::GenerationConfig))),
        ("file without ids", &empty, true, vec![], Some((vec![], StopSource::GenerationConfig))),
        ("neither", &none, false, vec![], Some((vec![], StopSource::Config))),
        ("command line", &list, true, vec![9], Some((vec![9], StopSource::CommandLine))),
        ("malformed", &broken, true, vec![], None),
    ] {
        let dir = folder(files);
        if in_config {
            config_with_eos(dir.path());
        }
        let checkpoint = Checkpoint::open(dir.path()).expect("it is admitted");
        let got = StopIds::of(&checkpoint, &flags).ok().map(|stop| (stop.ids, stop.source));
        assert_eq!(got, want, "{why}");
    }
}

/// Bytes as tokens: id = byte, and a few added tokens.
const TINY_T: &str = include_str!("tiny_t.json");

#[test]
fn characters_are_never_broken() {
    let dir = folder(&BTreeMap::from([("tokenizer.json", TINY_T)]));
    let checkpoint = Checkpoint::open(dir.path()).expect("it is admitted");
    let text = Text::of(&checkpoint).expect("it is readable");
    for (why, ids, want) in [
        ("an emoji", vec![240, 159, 152, 128], "\u{1F600}"),
        ("cut short", vec![240, 159], "\u{FFFD}"),
        ("truly invalid", vec![240, 159, 65], "\u{FFFD}A"),
        ("overlong", vec![0xC0, 0x80], "\u{FFFD}\u{FFFD}"),
        ("specials and strangers render as nothing", vec![65, 257, 300, 66], "AB"),
        ("not special", vec![259, 65, 260], "<think>A</think>"),
    ] {
        assert_eq!(text.decode(&ids).expect("it decodes"), want, "{why}: as a list");
        let mut stream = Stream::default();
        let mut pieces = Vec::new();
        for id in &ids {
            pieces.push(stream.push(&text, *id).expect("it decodes"));
        }
        let early = pieces.iter().any(|p| p.ends_with('\u{FFFD}'));
        assert!(!early, "{why}: {pieces:?} was emitted early");
        pieces.push(stream.finish(&text).expect("it decodes"));
        assert_eq!(pieces.concat(), want, "{why}: as a stream");
    }
    assert!(text.knows(260) && !text.knows(300));
    assert_eq!(text.encode("A<|im_start|>").expect("it encodes"), [65, 257]);
    assert!(text.encode("").expect("it encodes").is_empty());
}

#[test]
fn the_embedded_template_is_chatml() {
    let checkpoint = Checkpoint::embedded().expect("it is admitted");
    let chat = Chat::of(&checkpoint).expect("it has one");
    let messages = [Message { role: "user".into(), content: "Hi\nthere".into() }];
    let want = "<|im_start|>user\nHi\nthere<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(chat.render(&messages[..].into()).expect("it renders"), want);
}
