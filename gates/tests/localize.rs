//! The localiser by statistics: on a trace's own inputs a legal order of summation is within every
//! limit though its bits differ everywhere, and a fault is named whatever came before it.

use samebits::contract::{Dtype, Order};
use samebits_fixtures::prompt_ids;
use samebits_gates::context::{Context, data};
use samebits_gates::engine::{Setup, trace};
use samebits_gates::localize::forced::{ForcedError, Verdict, judge, sentences};
use samebits_gates::localize::gate::{GateError, follow};
use samebits_gates::localize::{LocalizeError, localize};
use samebits_gates::manifest::{Gate, Plant, Source};
use samebits_gates::sites::{Sites, op_of};

const PROMPT: usize = 24;

struct Bench {
    ctx: Context,
    ids: Vec<u32>,
}

impl Bench {
    fn new() -> Self {
        let ctx = Context::new(1, None, "gates".into()).expect("the project's own limits");
        let folder = ctx.folder(&Source::Embedded).expect("the embedded model");
        let model = ctx.load(folder.path(), Dtype::Bf16).expect("it is admitted");
        let ids = prompt_ids(1, model.shape.vocab, PROMPT);
        Self { ctx, ids }
    }

    fn trace(&self, dtype: Dtype, defect: &str) -> Sites {
        let folder = self.ctx.folder(&Source::Embedded).expect("the embedded model");
        let model = self.ctx.load(folder.path(), dtype).expect("it is admitted");
        let setup = Setup::new(Order::Invariant, "engine");
        let plant = Plant::Defect(defect.to_owned());
        let ids = std::slice::from_ref(&self.ids);
        let mut traces = trace(&model, &setup, ids, Some(&plant)).expect("the prompt fits");
        traces.sequences.remove(0)
    }

    fn judged(&self, sites: &Sites, ids: Option<&[u32]>) -> Result<Verdict, ForcedError> {
        let folder = self.ctx.folder(&Source::Embedded).expect("the embedded model");
        let reference = self.ctx.reference(folder.path()).expect("the reference reads it");
        judge(sites, &reference, ids, &self.ctx.limits)
    }
}

#[test]
fn statistics_tell_a_fault_from_a_legal_order() {
    let bench = Bench::new();
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let clean = bench.trace(dtype, "null");
        let want = bench.judged(&clean, Some(&bench.ids)).expect("it fits");
        assert!(want.departs().is_none() && want.blind.is_empty(), "{want:?}");
        for defect in ["legal-reversed", "legal-lanes-16-unfused", "legal-shuffled-2"] {
            let got = bench.trace(dtype, defect);
            let first = localize(&clean, &got).expect("other sums, other bits").site;
            let verdict = bench.judged(&got, Some(&bench.ids)).expect("it fits");
            assert!(verdict.departs().is_none(), "{dtype:?} {defect}: {:?}", verdict.departs());
            let said = sentences(&want, &verdict, &first);
            assert!(said.contains("another legal order") && said.contains("no op"), "{said}");
        }
        for (defect, site) in [
            ("activation-gelu", "layers.0.silu"),
            ("residual-normed", "layers.1.attn_residual"),
            ("scale-times-1.01", "layers.0.scores"),
            ("weight-zero-row", "layers.1.gate_proj"),
            ("norm-skipped-k", "layers.0.k_norm"),
        ] {
            let verdict = bench.judged(&bench.trace(dtype, defect), None).expect("it fits");
            let named = verdict.departs().map(|op| op.site.as_str());
            assert_eq!(named, Some(site), "{dtype:?} {defect}");
            assert_eq!(verdict.blind, ["embed_tokens"], "without ids nothing tells it");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_what_is_missing_is_listed() {
    let bench = Bench::new();
    let mut sites = bench.trace(Dtype::Bf16, "null");
    assert!(matches!(bench.judged(&sites, Some(&[1])), Err(ForcedError::Ids { ids: 1, .. })));
    sites.remove("layers.1.q_norm");
    let verdict = bench.judged(&sites, None).expect("it fits");
    assert_eq!(verdict.blind, ["embed_tokens", "layers.1.q_rope"]);
    let mut deep = sites.clone();
    deep.insert("layers.99.q_proj".to_owned(), sites["layers.0.q_proj"].clone());
    assert!(matches!(bench.judged(&deep, None), Err(ForcedError::Shape { .. })));
    sites.retain(|name, _| op_of(name) == "scores");
    assert!(matches!(bench.judged(&sites, None), Err(ForcedError::Rows)));
}

#[test]
fn a_red_gate_leads_to_its_op_and_a_green_one_is_refused() {
    let bench = Bench::new();
    let gates = Gate::all(&data("manifest")).expect("the project's own gates");
    let gate = |id: &str| gates.iter().find(|gate| gate.id == id).expect("it is one of ours");
    let plant = |id: &str| Plant::Defect(id.to_owned());
    for (id, defect, want) in [
        ("bitwise/contract/embedded/bf16-invariant", "rope-late", "layers.0.q_rope"),
        ("bitwise/contract/embedded/f32-transformers", "head-map-layer", "layers.1.scores"),
        ("invariance/cached/bf16", "stale-cache-values", "layers.1.v_cache"),
        ("residual/prefill/bf16", "gain-14", "first at mix, layer 0"),
    ] {
        let said = follow(&bench.ctx, gate(id), Some(&plant(defect))).expect("it is red");
        assert!(said.contains(want), "{id} {defect}: {said}");
    }
    let green = follow(&bench.ctx, gate("residual/prefill/bf16"), None);
    assert!(matches!(green, Err(GateError::Green(_))));
    let flip = follow(
        &bench.ctx,
        gate("bitwise/contract/embedded/bf16-invariant"),
        Some(&plant("flip-bit-low")),
    );
    assert!(flip.expect("it is red").contains("1 ulps"));
    let same = bench.trace(Dtype::Bf16, "null");
    assert!(matches!(localize(&same, &same), Err(LocalizeError::Equal(_))));
}
