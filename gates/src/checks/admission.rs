//! Admission: checkpoints as users' disks hold them, and every weight against another reader.

use std::collections::HashMap;
use std::path::Path;

use samebits::checkpoint::{Checkpoint, CheckpointError, LayerRole, Role};
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::op::Backend;
use samebits::tensor::Tensor;
use samebits_fixtures::hostile::{self, Case, Verdict};
use samebits_fixtures::prompt_ids;

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at, compare_within};
use crate::context::Context;
use crate::manifest::{Plant, Source};
use crate::sites::{Bits, Dims, oracle_dtype};

/// Ids of the prompt that an admitted checkpoint must run.
const PROMPT: usize = 9;
/// The exit code of a refusal.
const REFUSED: u8 = 4;

/// What became of a case: the logits of an admitted checkpoint and its notices, or the refusal.
type Answer = Result<(Tensor, Vec<String>), CheckpointError>;

fn try_case(case: &Case, seed: u64) -> Result<Answer, CheckError> {
    let folder = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
    (case.build)(folder.path())?;
    open(&folder.path().join(case.model), seed)
}

fn open(folder: &Path, seed: u64) -> Result<Answer, CheckError> {
    let checkpoint = match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let model = match Model::load(&mut cpu, &checkpoint, Order::Invariant) {
        Ok(model) => model,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let ids = prompt_ids(seed, model.shape.vocab, PROMPT);
    let logits = run(&mut cpu, &model, &[ids], &Plan::default())?.logits;
    Ok(Ok((logits, checkpoint.notices().to_vec())))
}

/// What is wrong with an answer, if anything.
fn wrong(
    verdict: &Verdict,
    notices: &[&str],
    got: &Answer,
    equal: Option<&Tensor>,
) -> Option<String> {
    match (verdict, got) {
        (Verdict::Refuse { mentions }, Err(refusal)) => {
            let line = refusal.to_string();
            let absent = mentions.iter().find(|word| !line.contains(**word));
            match absent {
                _ if refusal.exit_code() != REFUSED => {
                    Some(format!("exit code {} with {line:?}", refusal.exit_code()))
                }
                _ if line.lines().count() != 1 => Some(format!("more than one line: {line:?}")),
                Some(word) => Some(format!("{line:?} does not mention {word:?}")),
                None => None,
            }
        }
        (Verdict::Refuse { .. }, Ok(_)) => Some("admitted, but must be refused".to_owned()),
        (_, Err(refusal)) => Some(format!("refused, but must be admitted: {refusal}")),
        (_, Ok((logits, said))) => {
            let finite = (0..logits.len()).all(|i| logits.get(i).is_finite());
            let unsaid = notices.iter().find(|n| !said.iter().any(|s| s.contains(**n)));
            if !finite {
                Some("a logit is not finite".to_owned())
            } else if equal.is_some_and(|other| other.to_bytes() != logits.to_bytes()) {
                Some("the logits are not those of its equal".to_owned())
            } else {
                unsaid.map(|notice| format!("no notice says {notice:?}, only {said:?}"))
            }
        }
    }
}

/// Tries every case of the table of dense models or of hybrids.
pub fn hostile<'c>(ctx: &'c Context, hybrids: bool) -> Result<Measure<'c>, CheckError> {
    let cases = if hybrids { hostile::hybrid_cases() } else { hostile::cases() };
    Ok(Box::new(move |plant| {
        let mut verdicts: Vec<Verdict> = cases.iter().map(|case| case.verdict).collect();
        if let Some(plant) = plant {
            invert(&mut verdicts, plant)?;
        }
        let mut logits: HashMap<&str, Tensor> = HashMap::new();
        let mut found = Comparison::default();
        // The planted fault is in the first verdict; the others would only be tried again.
        let tried = if plant.is_some() { 1 } else { cases.len() };
        for (case, verdict) in cases.iter().zip(&verdicts).take(tried) {
            let got = try_case(case, ctx.seed)?;
            let equal = match verdict {
                Verdict::AcceptEqualTo(id) => Some(
                    logits.get(id).ok_or_else(|| CheckError::missing(id, "the cases before"))?,
                ),
                _ => None,
            };
            let wrong = wrong(verdict, case.notices, &got, equal);
            let text =
                format!("{} ({}): {}", case.id, case.why, wrong.as_deref().unwrap_or("right"));
            found.digest("admission", None, wrong.is_none(), &text);
            if let Ok((tensor, _)) = got {
                logits.insert(case.id, tensor);
            }
        }
        let outcome = Outcome::bitwise(found, cases.len() as u64);
        Ok(Outcome { statistic: "verdicts_wrong", ..outcome })
    }))
}

/// Says the opposite of the control checkpoint, which comes first.
fn invert(verdicts: &mut [Verdict], plant: &Plant) -> Result<(), CheckError> {
    match plant {
        Plant::Material(what) if what == "inverted-verdict" => {
            verdicts[0] = Verdict::Refuse { mentions: &[] };
            Ok(())
        }
        _ => Err(CheckError::NoPlace { id: plant.id().to_owned() }),
    }
}

/// The reference's name of a weight.
fn name(role: Role) -> String {
    let (layer, op) = match role {
        Role::EmbedTokens => return "embed_tokens".to_owned(),
        Role::Norm => return "norm".to_owned(),
        Role::LmHead => return "lm_head".to_owned(),
        Role::Layer(layer, op) => (layer, op),
    };
    let op = match op {
        LayerRole::InputLayernorm => "input_layernorm",
        LayerRole::QProj => "q_proj",
        LayerRole::KProj => "k_proj",
        LayerRole::VProj => "v_proj",
        LayerRole::OProj => "o_proj",
        LayerRole::QNorm => "q_norm",
        LayerRole::KNorm => "k_norm",
        LayerRole::PostAttentionLayernorm => "post_attention_layernorm",
        LayerRole::InProjQkv => "in_proj_qkv",
        LayerRole::InProjZ => "in_proj_z",
        LayerRole::InProjB => "in_proj_b",
        LayerRole::InProjA => "in_proj_a",
        LayerRole::Conv1d => "conv",
        LayerRole::ALog => "A_log",
        LayerRole::DtBias => "dt_bias",
        LayerRole::GatedNorm => "gdn_norm",
        LayerRole::OutProj => "out_proj",
        LayerRole::GateProj => "gate_proj",
        LayerRole::UpProj => "up_proj",
        LayerRole::DownProj => "down_proj",
    };
    format!("layers.{layer}.{op}")
}

/// The value that a weight has in a run, and the dtype it is held in: rates and gated norms are
/// f32, and rounded first where Transformers rounds them.
fn held(role: Role, dtype: Dtype, order: Order) -> (impl Fn(&f64) -> f32, Dtype) {
    let wide = matches!(role, Role::Layer(_, LayerRole::ALog | LayerRole::GatedNorm));
    let rounds = if wide && order == Order::Invariant { Dtype::F32 } else { dtype };
    let round = move |v: &f64| oracle_dtype(rounds).round(*v) as f32;
    (round, if wide { Dtype::F32 } else { dtype })
}

/// Compares every weight on the device with the reference's own reading of the files.
pub fn weights<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    order: Order,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load_for(folder.path(), dtype, order)?;
    let reference = ctx.reference(folder.path())?;
    let expected = Dims::of(reference.config()).weights();
    Ok(Box::new(move |plant| {
        let flip = match plant {
            None => false,
            Some(Plant::Material(what)) if what == "flipped-weight-bit" => true,
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let mut cpu = Cpu::new(Kernels::best(), Order::Invariant);
        let (mut found, mut absent) = (Comparison::default(), None);
        model.for_each_weight(|role, weight| {
            let name = name(role);
            let (n, k) = cpu.mem().weight_shape(weight);
            let read = cpu.mem().read_weight(weight, 0, n);
            let Some(want) = reference.weight(&name) else {
                absent = Some(name);
                return;
            };
            // Rounded by the reference, so that the conversion below is exact.
            let (round, held) = held(role, dtype, order);
            let want: Vec<f32> = want.values(0..want.count()).iter().map(round).collect();
            let want = Tensor::from_f32(held, &want);
            let bits = |t: &Tensor| (0..t.len()).map(|i| t.bits(i)).collect::<Vec<u32>>();
            let mut got = bits(&read);
            if flip && role == Role::Norm {
                got[0] ^= 1;
            }
            let site = |dtype, bits| Bits { dtype, shape: vec![n, k], bits };
            let (want, got) = (site(held, bits(&want)), site(read.dtype(), got));
            found.then(compare_within(&name, &want, Some(&got), 0));
        })?;
        if let Some(name) = absent {
            found.differing += 1;
            found.first.get_or_insert_with(|| at(&name, None));
        }
        Ok(Outcome::bitwise(found, expected))
    }))
}
