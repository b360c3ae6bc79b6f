//! The sampler on single rows: draws, distribution, ties.
//!
//! The invariant: what is compared with comes from a sampler and a softmax that are not the
//! engine's; seeds are the run's own.

use half::bf16;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::generate::{Draw, Sampler, Sampling};
use samebits::model::{Plan, run};
use samebits::op::{Backend, Layout, Op, Site};
use samebits::tensor::Tensor;
use samebits_defects::{Defect, Defective};
use samebits_fixtures::{paths, prompt_ids};
use samebits_oracle::{Arithmetic, Ideal, ops};

use super::material;
use super::reference::{Filter, ORDER, candidates, choose, p_value, uniform};
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::Context;
use crate::engine::defect;
use crate::manifest::Plant;

const OPEN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

/// Rules to draw by: each parameter alone, at its edges, and together.
fn rules(seed: u64) -> Vec<Sampling> {
    let open = Sampling { seed, ..OPEN };
    vec![
        open,
        Sampling { temperature: 0.5, ..open },
        Sampling { temperature: 3.0, ..open },
        Sampling { top_k: 1, ..open },
        Sampling { top_k: 7, ..open },
        Sampling { top_k: usize::MAX, ..open },
        Sampling { top_p: 0.6, ..open },
        Sampling { top_p: f32::MIN_POSITIVE, ..open },
        Sampling { min_p: 0.2, ..open },
        Sampling { min_p: 1.0, ..open },
        Sampling { top_k: 12, top_p: 0.5, ..open },
        Sampling { temperature: 2.0, top_k: 20, top_p: 0.8, min_p: 0.1, seed },
        // A seed of more than 32 bits.
        Sampling { seed: seed | 0xD251_1F53 << 32, ..open },
    ]
}

/// Elements of the rows that are drawn from: enough for every filter to bite.
const WIDTH: usize = 512;

/// Rows of the embedded model's logits, and rows of ties.
fn rows(ctx: &Context) -> Result<Vec<Tensor>, CheckError> {
    let mut rows = Vec::new();
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let model = ctx.load(&paths::tiny_qwen3(), dtype)?;
        let mut cpu = Cpu::new(Kernels::best(), Order::Invariant);
        let ids = prompt_ids(ctx.seed, model.shape.vocab, 4);
        let logits = run(&mut cpu, &model, &[ids], &Plan::default())?;
        rows.extend([1, 3].map(|row| logits.logits.slice(row * model.shape.vocab, WIDTH)));
    }
    rows.push(Tensor::F32((0..WIDTH).map(|i| (i % 5) as f32).collect()));
    rows.push(Tensor::Bf16(vec![bf16::from_f32(-3.0); WIDTH]));
    let mut far = vec![-1e30; WIDTH];
    far[9] = f32::NEG_INFINITY;
    far[77] = 2.0;
    rows.push(Tensor::F32(far));
    Ok(rows)
}

/// Faults of a sampler or of who calls it.
const FAULTS: [&str; 10] = [
    "temperature-ignored",
    "top-k-ignored",
    "top-p-ignored",
    "min-p-ignored",
    "filters-reordered",
    "position-off-by-one",
    "sequence-ignored",
    "position-8-bits",
    "sequence-3-bits",
    "seed-high-ignored",
];

/// What a faulty caller would ask for.
fn faulty(rules: Sampling, draw: Draw, fault: Option<&str>) -> (Sampling, Draw) {
    match fault {
        Some("temperature-ignored") => (Sampling { temperature: 1.0, ..rules }, draw),
        Some("top-k-ignored") => (Sampling { top_k: 0, ..rules }, draw),
        Some("top-p-ignored") => (Sampling { top_p: 1.0, ..rules }, draw),
        Some("min-p-ignored") => (Sampling { min_p: 0.0, ..rules }, draw),
        Some("position-off-by-one") => (rules, Draw { position: draw.position + 1, ..draw }),
        Some("sequence-ignored") => (rules, Draw { sequence: 0, ..draw }),
        Some("position-8-bits") => (rules, Draw { position: draw.position & 0xFF, ..draw }),
        Some("sequence-3-bits") => (rules, Draw { sequence: draw.sequence & 7, ..draw }),
        Some("seed-high-ignored") => {
            (Sampling { seed: rules.seed & u64::from(u32::MAX), ..rules }, draw)
        }
        _ => (rules, draw),
    }
}

/// Positions and sequences drawn for: the first ones, and those around what a counter of few bits
/// holds.
const POSITIONS: [u32; 20] =
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255, 256, 257, 4095, 4096, 65_535, 65_536, 65_537];
const SEQUENCES: [u32; 5] = [0, 1, 8, 16, 256];

/// Every draw against the reference's sampler, and every list of candidates.
pub fn draws<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let (rows, rules) = (rows(ctx)?, rules(ctx.seed));
    let expected =
        (rows.len() * rules.len()) as u64 * (POSITIONS.len() * SEQUENCES.len() + 1) as u64;
    Ok(Box::new(move |plant| {
        let fault = material(plant, &FAULTS)?;
        let reordered = [Filter::TopP, Filter::MinP, Filter::TopK];
        let mut found = Comparison::default();
        for (r, row) in rows.iter().enumerate() {
            let values = row.to_f32();
            for rules in &rules {
                let want = candidates(rules, &values, ORDER);
                let other = candidates(rules, &values, reordered);
                let own = faulty(*rules, Draw { sequence: 0, position: 0 }, fault).0;
                let got = own.candidates(row).unwrap_or_default();
                let got: Vec<_> = got.iter().map(|c| (c.id, f64::from(c.weight))).collect();
                let got = if fault == Some("filters-reordered") { &other } else { &got };
                let text = format!("row {r}, {rules:?}: {} kept, want {}", got.len(), want.len());
                found.digest("candidates", None, *got == want, &text);
                let draws = SEQUENCES.iter().flat_map(|s| POSITIONS.map(|p| (*s, p)));
                for (sequence, position) in draws {
                    let draw = Draw { sequence, position };
                    let random = uniform(rules.seed, draw.sequence, draw.position);
                    let id = choose(&want, random);
                    let (own, asked) = faulty(*rules, draw, fault);
                    let got = match fault {
                        Some("filters-reordered") => Some(choose(&other, random)),
                        _ => own.pick(row, asked).ok(),
                    };
                    let text = format!("row {r}, {rules:?}, {draw:?}: {got:?}, want {id}");
                    found.digest("draw", Some(draw.position as usize), got == Some(id), &text);
                }
            }
        }
        let outcome = Outcome::bitwise(found, expected);
        Ok(Outcome { statistic: "draws_differing", ..outcome })
    }))
}

/// Elements of the rows whose distribution is tested, and draws of each.
const TESTED: usize = 64;
const DRAWS: u32 = 10_000;
/// Where -log10 of a p-value ends.
const LEAST: f64 = 1e-300;

/// Probabilities by the reference's exact softmax over what the filters leave.
fn exact(rules: &Sampling, row: &[f32]) -> Vec<(u32, f64)> {
    let kept = candidates(rules, row, ORDER);
    let logit = |id: &u32| f64::from(row[*id as usize]) / f64::from(rules.temperature);
    let scores: Vec<f64> = kept.iter().map(|(id, _)| logit(id)).collect();
    let keys = scores.len();
    let op = ops::Softmax { scores: &scores, rows: 1, keys, first: keys - 1 };
    let probabilities = Ideal.softmax(&op).values;
    kept.iter().map(|(id, _)| *id).zip(probabilities).collect()
}

/// Counts of many draws against the reference's softmax, by an exact test.
pub fn distribution<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let open = Sampling { seed: ctx.seed, ..OPEN };
    let rules = [
        Sampling { top_k: 6, ..open },
        Sampling { temperature: 2.0, top_k: 12, ..open },
        Sampling { temperature: 0.7, top_k: 16, top_p: 0.9, ..open },
        Sampling { temperature: 1.5, top_k: 24, min_p: 0.1, ..open },
    ];
    let rows = rows(ctx)?;
    let rows: Vec<Tensor> = rows.iter().take(4).map(|row| row.slice(0, TESTED)).collect();
    let expected = (rows.len() * rules.len()) as u64;
    Ok(Box::new(move |plant| {
        let fault = material(plant, &FAULTS)?;
        let mut found = Comparison::default();
        let mut least = 1.0f64;
        for (r, row) in rows.iter().enumerate() {
            let values = row.to_f32();
            for rules in &rules {
                let want = exact(rules, &values);
                // The last count is of tokens that no draw may choose.
                let mut counts = vec![0; want.len() + 1];
                for position in 0..DRAWS {
                    let draw = Draw { sequence: r as u32, position };
                    let (own, draw) = faulty(*rules, draw, fault);
                    let id = own.pick(row, draw).ok();
                    let known = want.iter().position(|(known, _)| Some(*known) == id);
                    counts[known.unwrap_or(want.len())] += 1;
                }
                let laws: Vec<f64> = want.iter().map(|(_, p)| *p).chain([0.0]).collect();
                let p = p_value(&laws, &counts);
                found.compared += 1;
                if p < least {
                    least = p;
                    let text = format!("row {r}, {rules:?}: p = {p:e}, counts {counts:?}");
                    found.first = Some(samebits_reports::Divergence { text, ..at("draw", None) });
                }
            }
        }
        let measured = -least.max(LEAST).log10();
        let outcome = Outcome::bitwise(found, expected);
        let first = if plant.is_some() { outcome.first.clone() } else { None };
        Ok(Outcome { statistic: "p_value_neg_log10", measured, first, ..outcome })
    }))
}

/// Rows with their choice: the lowest id among the largest; none where a row holds a NaN.
fn tied() -> Vec<(Vec<f32>, Option<u32>)> {
    let mut two = vec![-1.0; 512];
    two[5] = 4.0;
    two[256] = 4.0;
    let mut zeros = vec![-0.0; 40];
    zeros[20] = 0.0;
    let mut nan = vec![1.0; 70];
    nan[69] = f32::NAN;
    let mut last = vec![f32::NEG_INFINITY; 300];
    last[299] = -7.0;
    vec![
        (vec![0.0, 1.0, 1.0], Some(1)),
        (two, Some(5)),
        (vec![0.25; 100], Some(0)),
        (zeros, Some(0)),
        (last, Some(299)),
        (nan, None),
    ]
}

/// The argmax op's choice on one table, with a planted fault in the op.
fn argmax(kernels: &'static Kernels, row: &Tensor, fault: &Defect) -> Result<u32, CheckError> {
    let mut b = Defective::new(Cpu::new(kernels, Order::Invariant), fault);
    let mut x = b.mem().alloc(row.len(), row.dtype(), Layout::RowMajor);
    b.mem().write(&mut x, 0, row);
    let mut out = b.mem().alloc_ints(1);
    let op = Op::Argmax { out: &mut out, x: &x, rows: 1, width: row.len() };
    b.run(Site::global("argmax"), op);
    Ok(b.mem().read_ints(&out, 1)[0])
}

/// Ties and NaN: the greedy choice of every table, and temperature 0 whatever else is asked.
pub fn ties<'c>() -> Result<Measure<'c>, CheckError> {
    let rows = tied();
    let zero = Sampling { temperature: 0.0, top_k: 1, top_p: 0.1, min_p: 0.5, seed: 1 };
    let tables = Kernels::supported();
    let expected = (rows.len() * tables.len() * 2) as u64 + rows.len() as u64 + 1;
    Ok(Box::new(move |plant: Option<&Plant>| {
        let fault = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
        let mut found = Comparison::default();
        for (r, (row, want)) in rows.iter().enumerate() {
            for kernels in &tables {
                for dtype in [Dtype::Bf16, Dtype::F32] {
                    let got = argmax(kernels, &Tensor::from_f32(dtype, row), fault)?;
                    let got = (got != u32::MAX).then_some(got);
                    let text = format!("row {r} on {}: {got:?}, want {want:?}", kernels.name);
                    found.digest("argmax", None, got == *want, &text);
                }
            }
            // Where one token alone is kept, a draw is the same choice.
            let one = Sampling { top_k: 1, ..OPEN };
            let got = one.pick(&Tensor::F32(row.clone()), Draw { sequence: 0, position: 0 }).ok();
            let text = format!("row {r} drawn from its first: {got:?}, want {want:?}");
            found.digest("draw", None, got == *want, &text);
        }
        let greedy = Sampler::new(zero) == Ok(Sampler::Greedy);
        found.digest("draw", None, greedy, "temperature 0 is greedy");
        let outcome = Outcome::bitwise(found, expected);
        Ok(Outcome { statistic: "choices_differing", ..outcome })
    }))
}
