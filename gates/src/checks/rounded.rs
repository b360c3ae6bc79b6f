//! Each op on the engine's own inputs against exact arithmetic rounded where the model rounds.
//!
//! bf16: the share of elements that differ from the rounded exact result, per site. f32: the
//! largest error in units of u times the sum of the terms' sizes, per site. The worst site is
//! reported, and a site is never pooled with another.

use samebits::contract::{Dtype, Order};
use samebits_fixtures::prompt_ids;
use samebits_oracle::ops::Out;
use samebits_oracle::{Arithmetic, Ideal, Rounded};
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::{at, in_order};
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::forced::{Forced, Past};
use crate::manifest::Source;
use crate::sites::{Dims, Sites, dtype_at, keyed, oracle_dtype};

/// What one site measures, and its worst element.
struct Measured {
    value: f64,
    worst: usize,
    want: f64,
}

/// The share of elements that are not the rounded exact result. What is f32 in every run counts as
/// rounded within `legal` units of u.
fn misrounds(forced: &Forced<'_>, site: &str, got: &[f64], legal: f64) -> Measured {
    let want = forced.site(site).values;
    assert_eq!(want.len(), got.len(), "{site}: the reference and the engine differ in shape");
    let wide = dtype_at(site, Dtype::Bf16) == Dtype::F32;
    let unit = legal * f64::from(f32::EPSILON) / 2.0;
    let differs = |i: &usize| match wide {
        true => (want[*i] - got[*i]).abs() > unit * want[*i].abs(),
        false => want[*i].to_bits() != got[*i].to_bits(),
    };
    let worst = (0..got.len()).find(differs).unwrap_or(0);
    let count = (0..got.len()).filter(|i| differs(i)).count();
    Measured { value: count as f64 / got.len() as f64, worst, want: want[worst] }
}

/// The largest error in units of u times the sum of the terms' sizes. Where the exact op has no
/// terms, the size is that of the result.
fn units(forced: &Forced<'_>, site: &str, got: &[f64]) -> Measured {
    let Out { values, mut magnitude } = forced.site(site);
    if let Some(terms) = forced.terms(site, &values) {
        magnitude = Some(terms);
    }
    assert_eq!(values.len(), got.len(), "{site}: the reference and the engine differ in shape");
    let unit = f64::from(f32::EPSILON) / 2.0;
    let mut found = Measured { value: 0.0, worst: 0, want: values[0] };
    let (heads, rows) = (forced.model.config().heads, forced.ids.len());
    for (i, (y, g)) in values.iter().zip(got).enumerate() {
        let hidden = keyed(site) && i % rows > i / rows % rows && i < heads * rows * rows;
        if hidden || y.to_bits() == g.to_bits() {
            continue;
        }
        let size = magnitude.as_ref().map_or(y.abs(), |m| m[i].max(y.abs()));
        let value = (g - y).abs() / (unit * size.max(f64::from(f32::MIN_POSITIVE)));
        if value > found.value || value.is_nan() {
            found = Measured { value, worst: i, want: *y };
        }
    }
    found
}

/// The row of an element of a site of so many elements in a run of `rows`.
fn row_of(site: &str, element: usize, [len, rows]: [usize; 2]) -> usize {
    if keyed(site) { element / rows % rows } else { element / (len / rows) }
}

/// Measures every op of a run on the run's own inputs.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    prompt: usize,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let (model, reference) = (ctx.load(folder.path(), dtype)?, ctx.reference(folder.path())?);
    let dims = Dims::of(reference.config());
    let ids = prompt_ids(ctx.seed, dims.vocab, prompt);
    let expected = dims.elements(prompt, prompt);
    let rounded = Rounded { dtype: oracle_dtype(dtype) };
    let (config, past) = (reference.config(), Past::default());
    let legal = ctx.limits.get("err-ua-f32")?.value;
    let tables = rounded.rotary(config.theta, config.rotary_dim, prompt);
    Ok(Box::new(move |plant| {
        let keep = folder.path();
        let setup = Setup::new(Order::Invariant, "engine");
        let traces = trace(&model, &setup, std::slice::from_ref(&ids), plant)?;
        let sites: &Sites = &traces.sequences[0];
        let values = sites.iter().map(|(name, bits)| (name.clone(), bits.values())).collect();
        let arithmetic: &dyn Arithmetic = if dtype == Dtype::Bf16 { &rounded } else { &Ideal };
        let forced = Forced {
            arithmetic,
            model: &reference,
            values: &values,
            ids: &ids,
            tables: &tables,
            past: &past,
        };
        let statistic = if dtype == Dtype::Bf16 { "misround_rate_max" } else { "err_ua_max" };
        let mut outcome = Outcome {
            statistic,
            measured: -1.0,
            compared: 0,
            expected,
            first: None,
            paths: vec![traces.proof],
            hits: Some(traces.hits),
            alarm: None,
        };
        for name in in_order(sites) {
            let got = &forced.values[name];
            let found = match dtype {
                Dtype::Bf16 => misrounds(&forced, name, got, legal),
                Dtype::F32 => units(&forced, name, got),
            };
            outcome.compared += got.len() as u64;
            if found.value > outcome.measured || found.value.is_nan() {
                outcome.measured = found.value;
                let row = row_of(name, found.worst, [got.len(), prompt]);
                let mut first = at(name, Some(row));
                first.element = Some((found.worst % (got.len() / prompt)) as u64);
                first.want = Some(Num(found.want));
                first.got = Some(Num(got[found.worst]));
                first.text = format!("worst site, {statistic} {}", found.value);
                outcome.first = Some(first);
            }
        }
        if dtype == Dtype::Bf16 && outcome.measured == 0.0 {
            let what = keep.display();
            outcome.alarm =
                Some(format!("too good: no op of {what} rounds unlike exact arithmetic"));
        }
        Ok(outcome)
    }))
}
