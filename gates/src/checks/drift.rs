//! How far logits drift from exact arithmetic over a long sequence, window by window.
//!
//! Exact arithmetic turns by the engine's own f32 tables: what an f32 angle costs at a far position
//! is the contract's, not a state's. The invariant: a window is measured against its own logits, so
//! that a drift shows where it begins.

use samebits::contract::{Dtype, Order, RotaryTables};
use samebits_fixtures::prompt_ids;
use samebits_oracle::{Ideal, RunOptions, run};
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::Context;
use crate::engine::{Setup, trace_only};
use crate::manifest::Source;
use crate::sites::Dims;

/// Positions in a window.
const WINDOW: usize = 256;
/// Rows of each forward of exact arithmetic, whose scores are held at once.
const PIECE: usize = 512;

/// The root of the mean of squares.
fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0usize, 0.0), |(n, sum), v| (n + 1, sum + v * v));
    (sum / count as f64).sqrt()
}

/// Measures the logits of a sequence against exact ones.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    positions: usize,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let (model, reference) = (ctx.load(folder.path(), dtype)?, ctx.reference(folder.path())?);
    let dims = Dims::of(reference.config());
    let ids = prompt_ids(ctx.seed, dims.vocab, positions);
    let tables = RotaryTables::new(dtype, model.shape.theta, model.shape.rotary_dim, positions);
    let pieces: Vec<usize> = ids.chunks(PIECE).map(<[u32]>::len).collect();
    let options = RunOptions {
        pieces: Some(pieces.clone()),
        rotary: Some((tables.cos.clone(), tables.sin.clone())),
        ..RunOptions::default()
    };
    let exact = run(&reference, &Ideal, &ids, &options)?.logits().values.clone();
    let expected = (positions * dims.vocab) as u64;
    Ok(Box::new(move |plant| {
        let _keep = &folder;
        let setup = Setup::new(Order::Invariant, "long sequence");
        let setup = Setup { pieces: pieces.clone(), ..setup };
        let one = std::slice::from_ref(&ids);
        let traces = trace_only(&model, &setup, one, plant, |site| site.op == "lm_head")?;
        let got = traces.sequences[0]["lm_head"].values();
        let width = WINDOW * dims.vocab;
        let window = |(got, exact): (&[f64], &[f64])| {
            let far = rms(got.iter().zip(exact).map(|(g, e)| g - e));
            far / rms(exact.iter().copied())
        };
        let curve: Vec<f64> = got.chunks(width).zip(exact.chunks(width)).map(window).collect();
        let further = |a: usize, b: usize| {
            if curve[b] > curve[a] || curve[b].is_nan() { b } else { a }
        };
        let worst = (0..curve.len()).reduce(further).expect("a sequence has a window");
        let mut first = at("lm_head", Some(worst * WINDOW));
        first.got = Some(Num(curve[worst]));
        let said: Vec<String> = curve.iter().map(|far| format!("{far:.1e}")).collect();
        first.text = format!("windows of {WINDOW} positions: {}", said.join(" "));
        Ok(Outcome {
            statistic: "logit_err_rel_rms_max",
            measured: curve[worst],
            compared: got.len() as u64,
            expected,
            first: Some(first),
            paths: vec![traces.proof],
            hits: Some(traces.hits),
            alarm: (curve[worst] == 0.0).then(|| "too good: f32 equals exact logits".to_owned()),
        })
    }))
}
