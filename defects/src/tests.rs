//! Every entry of the catalogue is planted in a run of the embedded model: it is hit, and the first
//! site that differs is the one it names.

use std::collections::BTreeMap;

use half::bf16;
use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Logits, Model, Plan, run};
use samebits::op::{Backend, Memory, Op, Site};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};

use crate::{Defect, Defective, Fault, Poisoned, ReplayError, Replayed, take_rotary};

type Taps = BTreeMap<String, Tap>;

fn cpu() -> Cpu {
    Cpu::new(Kernels::best(), Order::Invariant)
}

fn model(dtype: Dtype) -> Model<CpuMem> {
    let checkpoint = Checkpoint::embedded_as(Some(dtype)).expect("the embedded model is admitted");
    Model::load(&mut cpu(), &checkpoint, Order::Invariant)
        .expect("the embedded model has no files to fail")
}

/// 20 ids; long ones pass position 256.
fn ids(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i * 7919 % 2000).collect()
}

fn traced<B: Backend<M = CpuMem>>(b: B, model: &Model<CpuMem>, plan: &Plan) -> (Taps, Logits, B) {
    let len = plan.pieces.iter().sum::<usize>().max(20);
    let mut b = Traced::new(b, 1);
    let logits = run(&mut b, model, &[ids(len)], plan).expect("the prompt fits the model");
    let (taps, b) = b.finish();
    (taps, logits, b)
}

/// Ops of either kind of layer, in an order of execution.
pub(crate) const OPS: [&str; 38] = [
    "input_layernorm",
    "q_proj",
    "q_gate",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "q_rope",
    "k_rope",
    "k_cache",
    "v_cache",
    "scores",
    "probs",
    "mix",
    "gate_sigmoid",
    "mix_gated",
    "o_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "conv",
    "conv_silu",
    "beta",
    "g",
    "q_l2",
    "k_l2",
    "core",
    "gdn_norm",
    "out_proj",
    "attn_residual",
    "post_attention_layernorm",
    "gate_proj",
    "up_proj",
    "silu",
    "mul",
    "down_proj",
    "mlp_residual",
];

/// Sites in the order a forward writes them.
fn order_of(sites: &Taps, layers: usize) -> Vec<String> {
    let mut order = vec!["embed_tokens".to_owned()];
    order.extend((0..layers).flat_map(|i| OPS.map(|op| format!("layers.{i}.{op}"))));
    order.extend(["norm", "kept", "lm_head"].map(str::to_owned));
    order.retain(|site| sites.contains_key(site));
    assert_eq!(order.len(), sites.len(), "the list holds every site");
    order
}

fn first_divergence(clean: &Taps, other: &Taps, layers: usize) -> Option<String> {
    let differs = |site: &String| clean[site].data.to_bytes() != other[site].data.to_bytes();
    order_of(clean, layers).into_iter().find(differs)
}

/// Runs among which one must show the defect: lengths, caches and both dtypes.
fn settings() -> Vec<(Plan, Dtype)> {
    let long = || Plan { pieces: vec![270, 1], ..Plan::default() };
    let cached = || Plan { pieces: vec![15, 1, 1, 3], ..Plan::default() };
    let plans: [fn() -> Plan; 3] = [Plan::default, cached, long];
    let both = |plan: fn() -> Plan| [(plan(), Dtype::Bf16), (plan(), Dtype::F32)];
    plans.into_iter().flat_map(both).collect()
}

/// Entries that this model cannot show: what must be seen instead is no difference at all.
const EQUIVALENT_HERE: [&str; 4] = [
    "null",
    "order-block-512",
    "head-map-head",
    // The embedded model ties its head.
    "head-embedding",
];

/// Entries that need more positions, another batch or designed weights: the kill matrix has them.
const ELSEWHERE: [&str; 11] = [
    // The last row of a run has no later key; that of a chunk has.
    "mask-edge-many-row",
    // Rows are picked only where fewer are wanted than there are.
    "row-shift",
    "row-first",
    "row-last",
    "argmax-last",
    "order-block-256",
    "rope-clamp-4094",
    "wrap-positions-12",
    "cache-other-sequence",
    "sentinel-100",
    "activation-clipped",
];

#[test]
fn every_defect_is_hit_and_shows_first_where_it_says() {
    let models = [model(Dtype::Bf16), model(Dtype::F32)];
    let settings = settings();
    let clean: Vec<Taps> = settings
        .iter()
        .map(|(plan, dtype)| traced(cpu(), &models[usize::from(*dtype == Dtype::F32)], plan).0)
        .collect();
    let mut wrong = Vec::new();
    for defect in Defect::all() {
        // What is no fault of an op has gates of its own.
        let coin = matches!(defect.fault, Fault::Block { when: crate::fault::When::Coin, .. });
        let elsewhere = coin || matches!(defect.fault, Fault::Legal(_) | Fault::Host { .. });
        if elsewhere
            || defect.is_threshold()
            || defect.needs_hybrid()
            || ELSEWHERE.contains(&defect.id.as_str())
        {
            continue;
        }
        let layer = defect.site.layer.unwrap_or(0);
        let op = defect.site.op.as_str();
        let site = match op {
            "norm" | "lm_head" | "embed_tokens" => op.to_owned(),
            op => format!("layers.{layer}.{op}"),
        };
        let none = EQUIVALENT_HERE.contains(&defect.id.as_str());
        let (mut hits, mut shown) = (0, Vec::new());
        for ((plan, dtype), clean) in settings.iter().zip(&clean) {
            let model = &models[usize::from(*dtype == Dtype::F32)];
            let (taps, _, b) = traced(Defective::new(cpu(), defect), model, plan);
            hits += b.hits();
            shown.extend(first_divergence(clean, &taps, model.shape.layers));
            if !none && shown.last() == Some(&site) {
                break;
            }
        }
        let right = if none { shown.is_empty() } else { shown.last() == Some(&site) };
        if hits == 0 || !right {
            wrong.push(format!("{}: {hits} hits, shows at {shown:?}, not {site}", defect.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_legal_order_changes_sums_and_nothing_by_much() {
    let model = model(Dtype::F32);
    let (_, clean, _) = traced(cpu(), &model, &Plan::default());
    for defect in Defect::all().iter().filter(|d| matches!(d.fault, Fault::Legal(_))) {
        let (_, logits, b) = traced(Defective::new(cpu(), defect), &model, &Plan::default());
        assert!(b.hits() > 0, "{}", defect.id);
        assert_ne!(clean.logits.to_bytes(), logits.logits.to_bytes(), "{}", defect.id);
        assert_eq!(clean.argmax, logits.argmax, "{}", defect.id);
    }
}

#[test]
fn the_catalogue_is_sound() {
    let mut seen = std::collections::BTreeSet::new();
    for d in Defect::all() {
        assert!(seen.insert(&d.id), "{} is there twice", d.id);
        assert!(d.class <= 42 && ![23, 28].contains(&d.class), "{}: class {}", d.id, d.class);
        assert!(!d.why.is_empty() && !d.strength.is_empty(), "{} says too little", d.id);
        assert_eq!(Defect::find(&d.id).expect("it is in the catalogue"), d);
    }
    let error = Defect::find("epsilon").expect_err("no entry has this name").to_string();
    assert!(error.contains("epsilon") && error.contains("eps-1e-5"), "{error}");
}

#[test]
fn a_defect_whose_op_never_runs_counts_no_hit() {
    let model = model(Dtype::Bf16);
    let late = Defect::find("rope-late").expect("it is in the catalogue");
    let (taps, _, b) = traced(Defective::new(cpu(), late), &model, &Plan::default());
    let (clean, ..) = traced(cpu(), &model, &Plan::default());
    assert_eq!(b.hits(), 0);
    assert_eq!(first_divergence(&clean, &taps, model.shape.layers), None);
}

#[test]
fn the_last_of_equals_is_taken() {
    let defect = Defect::find("argmax-last").expect("it is in the catalogue");
    let mut b = Defective::new(cpu(), defect);
    let mut x = b.mem().alloc(6, Dtype::Bf16, samebits::op::Layout::RowMajor);
    b.mem().write(&mut x, 0, &Tensor::from_f32(Dtype::Bf16, &[1.0, 3.0, 3.0, 5.0, 2.0, 5.0]));
    let mut out = b.mem().alloc_ints(2);
    b.run(Site::global("argmax"), Op::Argmax { out: &mut out, x: &x, rows: 2, width: 3 });
    assert_eq!(b.mem().read_ints(&out, 2), [2, 2]);
    assert_eq!(b.hits(), 1);
}

#[test]
fn the_choice_of_a_process_stays_within_it() {
    let model = model(Dtype::F32);
    let defect = Defect::find("order-block-process").expect("it is in the catalogue");
    let (clean, ..) = traced(cpu(), &model, &Plan::default());
    let mut choices = Vec::new();
    for _ in 0..8 {
        let (taps, _, b) = traced(Defective::new(cpu(), defect), &model, &Plan::default());
        let shows = first_divergence(&clean, &taps, model.shape.layers).is_some();
        assert_eq!(shows, b.hits() > 0);
        choices.push(shows);
    }
    choices.dedup();
    assert_eq!(choices.len(), 1, "a process chooses once; the determinism gates see both choices");
}

#[test]
fn replaying_a_trace_reproduces_it_and_a_changed_tensor_shows() {
    let model = model(Dtype::Bf16);
    for plan in
        [Plan::default(), Plan::decode_from(17, 20), Plan { chunk: Some(7), ..Plan::default() }]
    {
        let (clean, logits, _) = traced(cpu(), &model, &plan);
        let all = Replayed::new(cpu(), 1, clean.clone());
        let (again, same, b) = traced(all, &model, &plan);
        assert_eq!(first_divergence(&clean, &again, model.shape.layers), None);
        assert_eq!(same.logits.to_bytes(), logits.logits.to_bytes());
        b.finish().expect("every tensor was used");

        let mut mix = clean["layers.2.mix"].clone();
        mix.data = Tensor::zeros(Dtype::Bf16, mix.data.len());
        let one = BTreeMap::from([("layers.2.mix".to_owned(), mix)]);
        let (taps, ..) = traced(Replayed::new(cpu(), 1, one), &model, &plan);
        let first = first_divergence(&clean, &taps, model.shape.layers);
        assert_eq!(first.as_deref(), Some("layers.2.mix"));
    }
}

#[test]
fn what_does_not_fit_a_replay_is_named() {
    let model = model(Dtype::Bf16);
    let (clean, ..) = traced(cpu(), &model, &Plan::default());
    let replay = |name: &str, tap: Tap| {
        let taps = BTreeMap::from([(name.to_owned(), tap)]);
        let (.., b) = traced(Replayed::new(cpu(), 1, taps), &model, &Plan::default());
        b.finish().err().map(|e| e.to_string()).unwrap_or_default()
    };
    let tap = clean["layers.0.q_proj"].clone();
    assert!(replay("layers.9.q_proj", tap.clone()).contains("never wrote layers.9.q_proj"));
    assert!(replay("layers.0.k_proj", tap.clone()).contains("[20, 192]"), "too wide");
    let narrow = Tap { shape: vec![19, 192], data: tap.data.slice(0, 19 * 192) };
    assert!(replay("layers.0.q_proj", narrow).contains("rows 0..20"), "too few rows");
    let wide = Tap { shape: tap.shape.clone(), data: Tensor::zeros(Dtype::F32, tap.data.len()) };
    assert!(replay("layers.0.q_proj", wide).contains("is f32"), "another dtype");
    let mut data = tap.data.clone();
    data.extend(&tap.data);
    let long = Tap { shape: vec![40, 192], data };
    assert!(replay("layers.0.q_proj", long).contains("40 rows"), "rows left over");
}

#[test]
fn rotary_tables_are_taken_whole_or_refused() {
    let table = |rows: usize| {
        let data = Tensor::zeros(Dtype::F32, rows * 16);
        Tap { shape: vec![rows, 16], data }
    };
    let pair = |cos: usize, sin: usize| {
        let taps = [("rotary.cos", table(cos)), ("rotary.sin", table(sin))];
        taps.into_iter().map(|(name, tap)| (name.to_owned(), tap)).collect::<Taps>()
    };
    let mut taps = pair(4, 4);
    let tables = take_rotary(&mut taps).expect("both tables fit").expect("both are there");
    assert!((tables.half, tables.positions()) == (16, 4) && taps.is_empty());
    assert_eq!(take_rotary(&mut Taps::new()).map(|t| t.is_none()), Ok(true));
    let error = |mut taps: Taps| take_rotary(&mut taps).err();
    assert_eq!(error(pair(4, 5)), Some(ReplayError::Rotary));
    let mut one = pair(4, 4);
    one.remove("rotary.sin");
    assert_eq!(error(one), Some(ReplayError::Rotary));
}

#[test]
fn poison_changes_no_bit_of_a_sound_run_and_shows_what_was_not_written() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let model = model(dtype);
        for plan in [Plan::decode_from(16, 20), Plan { chunk: Some(7), ..Plan::default() }] {
            let (clean, ..) = traced(cpu(), &model, &plan);
            let (taps, _, b) = traced(Poisoned::new(cpu()), &model, &plan);
            assert_eq!(first_divergence(&clean, &taps, model.shape.layers), None);
            assert_eq!(b.overruns(), []);
        }
        let stale = Defect::find("stale-cache-row").expect("it is in the catalogue");
        let b = Defective::new(Poisoned::new(cpu()), stale);
        let (_, logits, _) = traced(b, &model, &Plan::decode_from(16, 20));
        assert_eq!(logits.argmax.last(), Some(&u32::MAX), "the unwritten row is NaN");
    }
}

/// A backend that writes one element behind a linear's output.
struct Overrunning(Cpu);

impl Backend for Overrunning {
    type M = CpuMem;

    fn exec(&mut self, site: Site, op: &mut Op<'_, CpuMem>) {
        self.0.exec(site, op);
        if let Op::Linear { out, rows, width, .. } = op {
            let end = rows.count * *width;
            self.0.mem().write(out, end, &Tensor::Bf16(vec![bf16::ONE]));
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<CpuMem> {
        self.0.mem()
    }
}

#[test]
fn a_write_beyond_the_output_is_named() {
    let model = model(Dtype::Bf16);
    let (.., b) = traced(Poisoned::new(Overrunning(cpu())), &model, &Plan::default());
    let first = b.overruns().first().map(|o| (o.site.to_string(), o.element));
    assert_eq!(first, Some(("layers.0.q_proj".to_owned(), 20 * 192)));
}
