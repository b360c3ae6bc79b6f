//! How far the states of gated delta nets drift from exact arithmetic over a long sequence.
//!
//! The engine runs a sequence in pieces. Exact arithmetic runs each layer's delta rule on the
//! engine's own inputs with a state of its own, and after every piece the two states are compared:
//! an error that compounds shows as a window that is further off than the first ones.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Kept, Limits, Model, State, Step, feed, forward};
use samebits::op::Backend;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective};
use samebits_fixtures::prompt_ids;
use samebits_oracle::{Arithmetic, Ideal, ops};
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::Context;
use crate::engine::defect;
use crate::manifest::Source;
use crate::sites::Dims;

/// Positions in a piece, after which states are compared.
const PIECE: usize = 256;

/// Sites of a layer that its delta rule reads.
const INPUTS: [&str; 5] = ["conv_silu", "beta", "g", "q_l2", "k_l2"];

/// One layer's rule in exact arithmetic, with its state.
struct Exact {
    layer: usize,
    heads: ops::DeltaHeads,
    state: Vec<f64>,
}

impl Exact {
    fn new(layer: usize, dims: &Dims) -> Self {
        let delta = dims.delta;
        let heads = ops::DeltaHeads {
            key_heads: delta.key,
            value_heads: delta.value,
            key_dim: delta.key_dim,
            value_dim: delta.value_dim,
        };
        Self { layer, heads, state: vec![0.0; heads.state()] }
    }

    /// Moves the state past the rows that the engine's taps hold.
    fn advance(&mut self, taps: &std::collections::BTreeMap<String, Tap>) {
        let input = |op: &str| -> Vec<f64> {
            let tap = &taps[&format!("layers.{}.{op}", self.layer)];
            tap.data.to_f32().into_iter().map(f64::from).collect()
        };
        let [qkv, beta, g, q, k] = INPUTS.map(input);
        let (channels, values) = (self.heads.channels(), self.heads.values());
        let rows = qkv.chunks_exact(channels).flat_map(|row| &row[channels - values..]);
        let (v, state, heads): (Vec<f64>, _, _) =
            (rows.copied().collect(), &self.state, self.heads);
        let (q, k, v, beta, g) = (&q, &k, &v, &beta, &g);
        self.state = Ideal.delta_rule(&ops::DeltaRule { q, k, v, beta, g, heads, state }).state;
    }

    /// The largest difference over the largest element, and where it is.
    fn distance(&self, got: &[f32]) -> (f64, usize) {
        let largest = self.state.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let mut worst = (-1.0, 0);
        for (i, (want, got)) in self.state.iter().zip(got).enumerate() {
            let far = (want - f64::from(*got)).abs() / largest;
            if far > worst.0 || far.is_nan() {
                worst = (far, i);
            }
        }
        worst
    }
}

/// Distances of all layers' states after each piece, `[piece][layer]`, and the hits of a fault.
fn distances(
    model: &Model<CpuMem>,
    ids: &[u32],
    fault: &Defect,
) -> Result<(Vec<Vec<Far>>, u64), CheckError> {
    let dims = Dims::of_shape(&model.shape);
    let mut b = Defective::new(Cpu::new(Kernels::best(), Order::Invariant), fault);
    let limits =
        Limits { batch: 1, positions: ids.len(), rows: PIECE, logit_rows: 1, chunk: PIECE / 2 };
    let mut state = State::new(&mut b, model, limits, None);
    let linear = (0..dims.layers).filter(|i| !model.shape.kinds.is_full(*i));
    let mut exact: Vec<Exact> = linear.map(|layer| Exact::new(layer, &dims)).collect();
    let mut all = Vec::new();
    for ids in ids.chunks(PIECE) {
        let mut traced = Traced::only(b, 1, |site| INPUTS.contains(&site.op));
        feed(&mut traced, &mut state, &[ids], Kept::Last);
        forward(&mut traced, model, &mut state, Step { rows: ids.len(), kept: 1 })?;
        let (taps, inner) = traced.finish();
        b = inner;
        let mut piece = Vec::new();
        for rule in &mut exact {
            rule.advance(&taps);
            let s = &state.carried[rule.layer].gdn().s;
            let got = b.mem().read(s, 0, rule.state.len()).to_f32();
            let (far, element) = rule.distance(&got);
            let (layer, want, got) = (rule.layer, rule.state[element], got[element]);
            piece.push(Far { layer, far, element, want, got: f64::from(got) });
        }
        all.push(piece);
    }
    Ok((all, b.hits()))
}

/// How far one layer's state is off, and its worst element.
#[derive(Clone, Copy)]
struct Far {
    layer: usize,
    far: f64,
    element: usize,
    want: f64,
    got: f64,
}

/// Measures how far the states of a sequence get from exact ones.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    positions: usize,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), dtype)?;
    let dims = Dims::of_shape(&model.shape);
    let ids = prompt_ids(ctx.seed, dims.vocab, positions);
    let expected = positions.div_ceil(PIECE) as u64 * dims.delta_states();
    Ok(Box::new(move |plant| {
        let _keep = &folder;
        let fault = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
        // A planted fault shows long before the end.
        let ids = if plant.is_some() { &ids[..positions / 4] } else { &ids[..] };
        let (pieces, hits) = distances(&model, ids, fault)?;
        let worst = |piece: &[Far]| {
            let further = |a: &Far, b: &Far| if b.far > a.far || b.far.is_nan() { *b } else { *a };
            piece.iter().copied().reduce(|a, b| further(&a, &b)).expect("a hybrid has such layers")
        };
        let by_piece: Vec<Far> = pieces.iter().map(|piece| worst(piece)).collect();
        let most = worst(&by_piece);
        let curve: Vec<String> = by_piece.iter().map(|far| format!("{:.1e}", far.far)).collect();
        let mut first = at(&format!("layers.{}.state", most.layer), None);
        first.element = Some(most.element as u64);
        (first.want, first.got) = (Some(Num(most.want)), Some(Num(most.got)));
        first.text = format!("after each {PIECE} positions: {}", curve.join(" "));
        let exactly = pieces.iter().flatten().all(|far| far.far == 0.0);
        Ok(Outcome {
            statistic: "state_err_rel_max",
            measured: most.far,
            compared: pieces.len() as u64 * dims.delta_states(),
            expected,
            first: Some(first),
            paths: Vec::new(),
            hits: Some(hits),
            alarm: exactly.then(|| "too good: f32 states equal exact ones".to_owned()),
        })
    }))
}
