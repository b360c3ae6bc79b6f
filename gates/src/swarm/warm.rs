//! Runs behind a cache that was filled with drawn keys and values: each op against the contract on
//! the run's own inputs.
//!
//! Only dense models: a gated delta net has no positions to fill. The invariant: ids, weights,
//! tables and the drawn cache are the reference's own, so that ops equal one by one are a run equal
//! as a whole.

use std::collections::BTreeMap;

use samebits::cpu::Cpu;
use samebits::model::{Kept, Limits, State, Step, feed, forward};
use samebits::tensor::Tensor;
use samebits::trace::Traced;
use samebits_defects::{Defect, Defective};
use samebits_oracle::ops::{Heads, Linear, Mix, RmsNorm, Rope, Scores, Softmax, Tables};
use samebits_oracle::{Arithmetic, Bits as Contract, Model};

use super::Case;
use super::judge::{Built, Verdict, arithmetic, largest};
use crate::checks::CheckError;
use crate::compare::{Comparison, compare};
use crate::decor::Counted;
use crate::engine::{Setup, defect, pool};
use crate::forced::Past;
use crate::manifest::Plant;
use crate::probe::fill;
use crate::sites::{Bits, Sites, op_of, rank, split};

/// What a run left.
struct Ran {
    sequences: Vec<Sites>,
    argmax: Vec<Vec<u32>>,
    past: Vec<Past>,
    verdict: Verdict,
}

fn run(
    case: &Case,
    built: &Built,
    ids: &[Vec<u32>],
    plant: Option<&Plant>,
) -> Result<Ran, CheckError> {
    let fault = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
    let (counted, counts) = Counted::new(Cpu::new(case.kernels(), case.order));
    let (rows, batch) = (case.rows(), case.batch);
    let mut b = Traced::new(Defective::new(counted, fault), batch);
    let most = case.pieces.iter().copied().max().unwrap_or(1);
    let (positions, chunk) = (case.past + rows, case.chunk.min(most));
    let limits = Limits { batch, positions, rows: most, logit_rows: most, chunk };
    let mut state = State::new(&mut b, &built.model, limits, None);
    let filled = (batch, case.past);
    let past = fill(&mut b, &mut state, (built.dims, case.dtype), filled, case.seed);
    let mut argmax = vec![Vec::new(); batch];
    for piece in &case.pieces {
        let at = state.len - case.past;
        let fed: Vec<&[u32]> = ids.iter().map(|ids| &ids[at..at + piece]).collect();
        feed(&mut b, &mut state, &fed, Kept::All);
        forward(&mut b, &built.model, &mut state, Step { rows: *piece, kept: piece * batch })?;
        let found = samebits::op::Backend::mem(&mut b).read_ints(&state.argmax, piece * batch);
        for (all, new) in argmax.iter_mut().zip(found.chunks(*piece)) {
            all.extend_from_slice(new);
        }
    }
    let (taps, defective) = b.finish();
    let keys = case.past + rows;
    let one = |i: usize| {
        let shaped = |(name, tap): (&String, _)| {
            let mut bits = Bits::of_tap(tap);
            let each = bits.bits.len() / batch;
            bits.bits = bits.bits[i * each..][..each].to_vec();
            (name.clone(), bits.reshaped(&built.dims.shape(op_of(name), rows, keys)))
        };
        taps.iter().filter(|(name, _)| rank(name).is_some()).map(shaped).collect()
    };
    let sequences = (0..batch).map(one).collect();
    let counts = counts.lock().expect("the run is over");
    let backend = (case.kernels().name, case.order);
    let proof = counts.proof("swarm", backend, case.dtype, built.model.bytes_read);
    let verdict = Verdict { paths: vec![proof], hits: defective.hits(), ..Verdict::default() };
    Ok(Ran { sequences, argmax, past, verdict })
}

/// The ops of one sequence, each on the values that the run gave it.
struct Ops<'a> {
    arith: Contract,
    model: &'a Model,
    values: &'a BTreeMap<String, Vec<f64>>,
    ids: &'a [u32],
    tables: &'a Tables,
    past: &'a Past,
}

impl Ops<'_> {
    fn weight(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("the reference has a weight for every op");
        weight.values(0..weight.count()).into_iter().map(|x| self.arith.round(x)).collect()
    }

    fn cached(&self, past: &[Vec<f64>], layer: usize, new: &[f64]) -> Vec<f64> {
        [&past[layer], new].concat()
    }

    fn linear(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let k = self.model.weight(site).map_or(1, |weight| weight.shape[1]);
        let weight = self.weight(site);
        let op = Linear { x, weight: &weight, k, true_rows: self.ids.len() };
        self.arith.linear(&op).values
    }

    fn norm(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let (weight, eps) = (self.weight(site), self.model.config().eps);
        self.arith.rms_norm(&RmsNorm { x, weight: &weight, eps }).values
    }

    /// What a site must hold.
    fn site(&self, site: &str) -> Vec<f64> {
        let (c, a, rows, first) =
            (self.model.config(), &self.arith, self.ids.len(), self.past.len);
        let dims = Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let stream = |layer: usize| match layer {
            0 => &self.values["embed_tokens"],
            _ => &self.values[&format!("layers.{}.mlp_residual", layer - 1)],
        };
        let Some((layer, op)) = split(site) else {
            return match site {
                "norm" => self.norm(site, stream(c.layers)),
                "lm_head" => self.linear(site, &self.values["norm"]),
                _ => {
                    let table = self.model.weight(site).expect("every model has an embedding");
                    a.embed(table, self.ids).values
                }
            };
        };
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        let rope = |x: &[f64], heads: usize| {
            let op = Rope { x, tables: self.tables, heads, head_dim: c.head_dim, first };
            a.rope(&op).values
        };
        match op {
            "input_layernorm" => self.norm(site, stream(layer)),
            "post_attention_layernorm" => self.norm(site, x("attn_residual")),
            "q_norm" => self.norm(site, x("q_proj")),
            "k_norm" => self.norm(site, x("k_proj")),
            "q_rope" => rope(x("q_norm"), c.heads),
            "k_rope" => rope(x("k_norm"), c.kv_heads),
            "k_cache" => x("k_rope").to_vec(),
            "v_cache" => x("v_proj").to_vec(),
            "scores" => {
                let k = self.cached(&self.past.keys, layer, x("k_cache"));
                a.scores(&Scores { q: x("q_rope"), k: &k, dims, first, true_rows: rows }).values
            }
            "probs" => {
                let keys = first + rows;
                a.softmax(&Softmax { scores: x("scores"), rows, keys, first }).values
            }
            "mix" => {
                let v = self.cached(&self.past.values, layer, x("v_cache"));
                a.mix(&Mix { probs: x("probs"), v: &v, dims, first, true_rows: rows }).values
            }
            "silu" => a.silu(x("gate_proj")).values,
            "mul" => a.mul(x("silu"), x("up_proj")).values,
            "attn_residual" => a.add(stream(layer), x("o_proj")).values,
            "mlp_residual" => a.add(x("attn_residual"), x("down_proj")).values,
            "o_proj" => self.linear(site, x("mix")),
            "down_proj" => self.linear(site, x("mul")),
            "gate_proj" | "up_proj" => self.linear(site, x("post_attention_layernorm")),
            _ => self.linear(site, x("input_layernorm")),
        }
    }
}

/// Runs a case and compares every op.
pub(super) fn judge(
    case: &Case,
    built: &Built,
    plant: Option<&Plant>,
) -> Result<Verdict, CheckError> {
    let (ids, rows) = (case.ids(), case.rows());
    let ran = pool(case.threads).install(|| run(case, built, &ids, plant))?;
    let (arith, config) = (arithmetic(case), built.reference.config());
    let keys = case.past + rows;
    let tables = arith.rotary(config.theta, config.rotary_dim, keys);
    let forwards = Setup { pieces: case.pieces.clone(), ..Setup::new(case.order, "") };
    let mut verdict = ran.verdict;
    for (i, sites) in ran.sequences.iter().enumerate() {
        let values = sites.iter().map(|(name, bits)| (name.clone(), bits.values())).collect();
        let ops = Ops {
            arith,
            model: &built.reference,
            values: &values,
            ids: &ids[i],
            tables: &tables,
            past: &ran.past[i],
        };
        let own = |(name, got): (&String, &Bits)| {
            let want: Vec<f32> = ops.site(name).iter().map(|x| *x as f32).collect();
            let want = Tensor::from_f32(case.dtype, &want);
            let bits = (0..want.len()).map(|at| want.bits(at)).collect();
            (name.clone(), Bits { dtype: case.dtype, shape: got.shape.clone(), bits })
        };
        let want: Sites = sites.iter().map(own).collect();
        let mut one: Comparison = compare(&want, sites, &forwards.forwards(rows));
        for (row, logits) in values["lm_head"].chunks(built.dims.vocab).enumerate() {
            let (right, got) = (largest(logits), ran.argmax[i][row]);
            let text = format!("id {got}, want {right}");
            one.digest("argmax", Some(row), right == got, &text);
        }
        verdict.found.then(one.labelled(&format!("sequence {i}, {} keys before:", case.past)));
    }
    verdict.due = case.batch as u64 * (built.dims.elements(rows, keys) + rows as u64);
    Ok(verdict)
}
