//! Each op of one trace on the trace's own inputs, against what legal sums may do.
//!
//! This is what tells an engine of another legal order of summation, whose bits differ everywhere,
//! from one with a fault. Absent: traces with positions in a cache before their first row. The
//! invariant: an op one of whose inputs the trace does not hold is not judged, and is listed.

use std::collections::BTreeMap;

use samebits::contract::Dtype;
use samebits_oracle::{Arithmetic, Config, Dtype as OracleDtype, Model, Rounded};
use thiserror::Error;

use super::names::stream_before;
use super::{Spot, inputs, words};
use crate::compare::in_order;
use crate::forced::{Forced, Past};
use crate::law::{Law, Setting};
use crate::limits::{LimitError, Limits};
use crate::sites::{Bits, Dims, Sites, dtype_at, op_of, oracle_dtype, split};

/// An op on its own inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Its site.
    pub site: String,
    /// Its worst statistic over the limit; above 1 no legal order does this.
    pub over: f64,
    /// What that statistic is.
    pub text: String,
    /// The element with the largest error.
    pub worst: Spot,
}

/// A trace's ops, judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Ops that could be judged, in the order of execution.
    pub ops: Vec<Judged>,
    /// Sites whose inputs the trace does not hold.
    pub blind: Vec<String>,
    /// Sites that no law judges, and why.
    pub unjudged: Vec<(String, String)>,
}

impl Verdict {
    /// The first op beyond its limit.
    pub fn departs(&self) -> Option<&Judged> {
        self.ops.iter().find(|op| op.over.is_nan() || op.over > 1.0)
    }

    /// The verdict on one site.
    pub fn of(&self, site: &str) -> Option<&Judged> {
        self.ops.iter().find(|op| op.site == site)
    }
}

/// Why a trace cannot be judged with a model.
#[derive(Debug, Error)]
pub enum ForcedError {
    /// No site says how many rows there are.
    #[error("the trace holds no site of the model's residual stream: its rows cannot be counted")]
    Rows,
    /// A tensor of another size than the model's.
    #[error("{site} is {got:?} in the trace, {want:?} in a run of the model")]
    Shape {
        /// Where.
        site: String,
        /// In the trace.
        got: Vec<usize>,
        /// By the model.
        want: Vec<usize>,
    },
    /// Ids of another number than the rows.
    #[error("{ids} ids for {rows} rows")]
    Ids {
        /// Ids given.
        ids: usize,
        /// Rows of the trace.
        rows: usize,
    },
    /// A constant of the law that is not there.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Rows of a trace, and whether its sites fit the model.
fn rows(sites: &Sites, dims: &Dims) -> Result<usize, ForcedError> {
    let stream = ["embed_tokens", "input_layernorm", "attn_residual", "mlp_residual"];
    let counted = in_order(sites).into_iter().filter(|name| stream.contains(&op_of(name)));
    let counted = counted.map(|name| sites[name].bits.len() / dims.hidden).next();
    let rows = counted.ok_or(ForcedError::Rows)?;
    for name in in_order(sites) {
        let (got, want) = (&sites[name], dims.shape(op_of(name), rows, rows));
        let layer = split(name).map_or(0, |(layer, _)| layer);
        let none = layer >= dims.layers || dims.width(op_of(name), rows) == 0;
        if none || got.bits.len() != want.iter().product::<usize>() {
            let (site, got) = (name.clone(), got.shape.clone());
            return Err(ForcedError::Shape { site, got, want });
        }
    }
    Ok(rows)
}

/// Judges every op of one sequence's trace that starts at position 0. Without ids, the embedding
/// is not judged.
///
/// # Errors
/// A trace that does not fit the model, and an op that has no limit.
pub fn judge(
    sites: &Sites,
    model: &Model,
    ids: Option<&[u32]>,
    limits: &Limits,
) -> Result<Verdict, ForcedError> {
    let dims = Dims::of(model.config());
    let mut sites = sites.clone();
    sites.retain(|name, _| !name.starts_with("rotary."));
    let rows = rows(&sites, &dims)?;
    let of_run = |(name, bits): (&String, &Bits)| {
        (dtype_at(name, Dtype::Bf16) == Dtype::Bf16).then_some(bits.dtype)
    };
    let dtype = sites.iter().find_map(of_run).ok_or(ForcedError::Rows)?;
    if let Some(ids) = ids.filter(|ids| ids.len() != rows) {
        return Err(ForcedError::Ids { ids: ids.len(), rows });
    }
    let law = Law::of(limits)?;
    let setting = Setting { dtype, dims, past: 0, rows };
    let wide = Rounded { dtype: OracleDtype::F32 };
    let tables = wide.rotary(model.config().theta, dims.rotary_dim, rows);
    let values: BTreeMap<String, Vec<f64>> =
        sites.iter().map(|(name, bits)| (name.clone(), bits.values())).collect();
    let (past, none) = (Past::default(), vec![0; rows]);
    let exact = Forced {
        rounded: Rounded { dtype: oracle_dtype(dtype) },
        model,
        values: &values,
        ids: ids.unwrap_or(&none),
        tables: &tables,
        past: &past,
    };
    let mut verdict = Verdict::default();
    for name in in_order(&sites) {
        let held = needed(name, model.config()).iter().all(|input| values.contains_key(input));
        if !held || (name == "embed_tokens" && ids.is_none()) {
            verdict.blind.push(name.clone());
            continue;
        }
        match law.judge(&exact, setting, name, &values[name]) {
            Err(why) => verdict.unjudged.push((name.clone(), why)),
            Ok(found) => {
                let shape = dims.shape(op_of(name), rows, rows);
                let worst = Spot::of(name, &shape, found.worst);
                let (over, text) = (found.over, found.text);
                verdict.ops.push(Judged { site: name.clone(), over, text, worst });
            }
        }
    }
    Ok(verdict)
}

/// The sites that an op of a model reads, whatever a trace holds.
fn needed(site: &str, config: &Config) -> Vec<String> {
    let (layer, op) = split(site).unwrap_or((0, site));
    let own = |op: &str| format!("layers.{layer}.{op}");
    match op {
        "norm" => vec![stream_before(config.layers)],
        "o_proj" if config.hybrid.is_some() => vec![own("mix_gated")],
        "attn_residual" if config.is_linear(layer) => vec![stream_before(layer), own("out_proj")],
        _ => inputs(site, &Sites::new()),
    }
}

/// What two verdicts say together: of the first difference, and of the first op beyond its limit.
pub fn sentences(want: &Verdict, got: &Verdict, first: &str) -> String {
    let mut text = match got.of(first) {
        Some(op) if op.over <= 1.0 => format!(
            "on its own inputs {first} is within its limits ({}): another legal order of \
             summation may do this\n",
            op.text
        ),
        Some(op) => format!("on its own inputs {first} is beyond its limits: {}\n", op.text),
        None => format!("{first} cannot be judged on its own inputs: the trace lacks them\n"),
    };
    text += &match got.departs() {
        None => "no op that could be judged is beyond its limits on its own inputs\n".to_owned(),
        Some(op) => {
            let right = want.of(&op.site).is_none_or(|own| own.over <= 1.0);
            let side = if right { "" } else { "; so is the reference's own, on its inputs" };
            let worst = words(&op.worst);
            let how = if op.site == first {
                "the op itself departs".to_owned()
            } else {
                format!("its inputs already differ from the reference's, since {first}")
            };
            format!(
                "first op beyond its limits on its own inputs: {} ({:.1} times: {}), worst at \
                 {worst}{side}\n{how}\n",
                op.site, op.over, op.text
            )
        }
    };
    if !got.blind.is_empty() {
        text += &format!("not judged for lack of inputs: {}\n", got.blind.join(", "));
    }
    for (site, why) in &got.unjudged {
        text += &format!("not judged: {site}: {why}\n");
    }
    text
}
