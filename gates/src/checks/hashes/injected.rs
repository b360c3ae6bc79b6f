//! Hybrids against hashes of what Transformers computed, with what its delta rules read injected.
//!
//! Transformers computes a prompt's delta rule in chunks, whose last bits are a library's own. Its
//! results replace the engine's once the engine's have been looked at, so that every other site can
//! be compared bit for bit. Decays may be two units off. The invariant: of the delta rule itself
//! only a few elements may part, and how many is said.

use std::collections::BTreeMap;

use half::bf16;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective, Replayed};
use samebits_fixtures::golden::{self, HashRun, Tensors};
use samebits_fixtures::paths;

use super::super::{CheckError, Measure, Outcome, bitwise};
use super::forward;
use crate::compare::{Comparison, compare_within};
use crate::context::Context;
use crate::engine::{Setup, defect, rotary_sites, sequence};
use crate::manifest::Plant;
use crate::sites::{Bits, Dims, Sites, op_of};

/// Units in the last place by which `g` may be off.
const DECAY_ULPS: u64 = 2;

/// One run of a file of hashes, and Transformers' raw values of it.
struct Recorded {
    run: HashRun,
    raw: Tensors,
    linear: Vec<usize>,
}

impl Recorded {
    /// Rows of all forwards of a tensor that was kept whole.
    fn raw(&self, site: &str) -> Result<Bits, CheckError> {
        let part =
            |which| bitwise::recorded(&self.raw, &format!("{}/{which}/{site}", self.run.prompt));
        let mut bits = part("prefill")?;
        if !self.run.decode.is_empty() {
            let more = part("decode")?;
            bits.shape[0] += more.shape[0];
            bits.bits.extend(more.bits);
        }
        Ok(bits)
    }

    /// What delta rules read, as taps that replace the engine's.
    fn cores(&self) -> Result<BTreeMap<String, Tap>, CheckError> {
        let tap = |layer: &usize| {
            let site = format!("layers.{layer}.core");
            let bits = self.raw(&site)?;
            let values = bits.bits.iter().map(|b| bf16::from_bits(*b as u16)).collect();
            let (rows, len) = (bits.shape[0], bits.bits.len());
            Ok((site, Tap { shape: vec![rows, len / rows], data: Tensor::Bf16(values) }))
        };
        self.linear.iter().map(tap).collect()
    }
}

/// The engine's own sites of a run, each on Transformers' results of the delta rules before it.
fn sites(
    model: &Model<CpuMem>,
    recorded: &Recorded,
    plant: Option<&Plant>,
) -> Result<(Sites, u64), CheckError> {
    let fault = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
    let (prompt, len) = (recorded.run.prompt, recorded.run.ids.len());
    let traced =
        Traced::new(Defective::new(Cpu::new(Kernels::best(), Order::Transformers), fault), 1);
    let mut b = Replayed::new(traced, 1, recorded.cores()?);
    run(&mut b, model, std::slice::from_ref(&recorded.run.ids), &Plan::decode_from(prompt, len))?;
    let (taps, defective) = b.finish()?.finish();
    let mut sites = sequence(&taps, model, [1, 0, len]);
    sites.extend(rotary_sites(model, &Setup::new(Order::Transformers, ""), len));
    Ok((sites, defective.hits()))
}

/// Compares one run of a file of hashes of a hybrid.
pub fn prepare<'c>(
    ctx: &'c Context,
    file: &str,
    prompt: usize,
    cached: bool,
) -> Result<Measure<'c>, CheckError> {
    let mut golden = golden::hybrid_hashes(file)?;
    let at = golden.runs.iter().position(|run| run.prompt == prompt);
    let at = at.ok_or_else(|| CheckError::missing(format!("a prompt of {prompt}"), file))?;
    let mut run = golden.runs.swap_remove(at);
    if !cached {
        run.decode.clear();
        run.ids.truncate(prompt);
    }
    let raw = golden.raw.as_ref().ok_or_else(|| CheckError::missing("raw", file))?;
    let raw = golden::tensors(&paths::golden(raw))?;
    let folder = ctx.synthetic_hybrid(&golden.spec, golden.seed)?;
    for (name, want) in &golden.checkpoint {
        let path = folder.path().join(name);
        if samebits_reports::hash_file(&path).as_ref().ok() != Some(want) {
            return Err(CheckError::missing(format!("{name} of sha256 {want}"), path.display()));
        }
    }
    let dims = Dims::of_hybrid_spec(&golden.spec);
    let model = ctx.load_for(folder.path(), Dtype::Bf16, Order::Transformers)?;
    let linear = (0..dims.layers).filter(|i| golden.spec.is_linear(*i)).collect();
    let recorded = Recorded { run, raw, linear };
    // Hashes of all sites but decays and results of the rule, of which the elements count.
    let most = ctx.limits.get("delta-rules-parted")?.value;
    let judged = dims.sites() - 2 * dims.linear_layers as u64;
    let steps = recorded.run.decode.len();
    let decays = (prompt + steps) * dims.linear_layers * dims.delta.value;
    let expected = judged * (1 + steps as u64) + 2 + decays as u64;
    Ok(Box::new(move |plant| {
        let _keep = &folder;
        let (got, hits) = sites(&model, &recorded, plant)?;
        let mut found = Comparison::default();
        let hashed = |sites: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let judged = |site: &String| !matches!(op_of(site), "g" | "core");
            sites.iter().filter(|(s, _)| judged(s)).map(|(s, h)| (s.clone(), h.clone())).collect()
        };
        forward(&mut found, &hashed(&recorded.run.sites), &got, 0..prompt);
        for (i, step) in recorded.run.decode.iter().enumerate() {
            let mut one = Comparison::default();
            forward(&mut one, &hashed(&step.sites), &got, prompt + i..prompt + i + 1);
            found.then(one.labelled(&format!("cached step {i}:")));
        }
        let (mut parted, mut all) = (0, 0);
        for layer in &recorded.linear {
            let site = |op: &str| format!("layers.{layer}.{op}");
            let g = recorded.raw(&site("g"))?;
            found.then(compare_within(&site("g"), &g, got.get(&site("g")), DECAY_ULPS));
            let core = recorded.raw(&site("core"))?;
            let own = &got[&site("core")].bits;
            parted += core.bits.iter().zip(own).filter(|(a, b)| a != b).count();
            all += own.len();
        }
        let mut outcome = Outcome::bitwise(found, expected).with_hits(hits);
        outcome.statistic = "hashes_differing";
        if plant.is_none() && parted as f64 > most * all as f64 {
            outcome.alarm = Some(format!("the delta rules part in {parted} of {all} elements"));
        }
        if outcome.first.is_none() {
            let mut first = crate::compare::at("layers.0.core", None);
            first.text = format!("the delta rules part in {parted} of {all} elements");
            outcome.first = Some(first);
        }
        Ok(outcome)
    }))
}
