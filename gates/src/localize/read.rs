//! Traces as people have them: files of other dtypes, names, batches and fused projections, as the
//! sites of each sequence.
//!
//! Absent: values that the file does not hold (`spans` rebuilds those), and any judgement. The
//! invariants: bits change only by a conversion that is said, and every tensor of the file is a
//! site or is listed with the reason why it is none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype as Stored, SafeTensors};
use samebits::contract::Dtype;
use samebits_oracle::Config;
use thiserror::Error;

use super::names::site_of;
use crate::sites::{Bits, Dims, Sites, dtype_at, is_state, keyed, op_of, split};

/// A file of tensors, read.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The sites of each sequence.
    pub sequences: Vec<Sites>,
    /// Conversions that were made.
    pub said: Vec<String>,
    /// Tensors that are no site, and why.
    pub strange: Vec<(String, String)>,
}

/// Why a file is no trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is not safetensors.
    #[error("{}: {source}", path.display())]
    Container {
        /// Where.
        path: PathBuf,
        /// What the reader said.
        source: safetensors::SafeTensorError,
    },
    /// A tensor whose shape is that of no run.
    #[error("{name} is {got:?}, which is not {want}")]
    Shape {
        /// Which.
        name: String,
        /// Its shape.
        got: Vec<usize>,
        /// What it should be.
        want: String,
    },
    /// Two tensors for one site.
    #[error("{site} stands twice in the trace, with other values: {one} and {other}")]
    Twice {
        /// Which.
        site: String,
        /// One name.
        one: String,
        /// The other.
        other: String,
    },
}

/// A tensor of the file on its way to a site.
struct Raw {
    name: String,
    stored: Stored,
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// Reads a file. With the model's config, fused projections are split, heads told apart and shapes
/// held against the model's.
///
/// # Errors
/// A file that is no safetensors, a tensor of another shape than a run's, a site that stands twice.
pub fn read(path: &Path, config: Option<&Config>) -> Result<Trace, TraceError> {
    let owned = || path.to_path_buf();
    let bytes = std::fs::read(path).map_err(|source| TraceError::Read { path: owned(), source })?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|source| TraceError::Container { path: owned(), source })?;
    let mut trace = Trace::default();
    let mut found: BTreeMap<String, Raw> = BTreeMap::new();
    for (name, view) in file.iter() {
        let strange = |why: &str| (name.to_owned(), why.to_owned());
        let Some(site) = site_of(name, config.map(|c| c.layers)) else {
            trace.strange.push(strange("no site has this name"));
            continue;
        };
        let Some(values) = values(view.dtype(), view.data()) else {
            trace.strange.push(strange(&format!("its dtype is {:?}", view.dtype())));
            continue;
        };
        let (shape, stored) = (view.shape().to_vec(), view.dtype());
        let raw = Raw { name: name.to_owned(), stored, shape, values };
        match parts(&site, raw, config) {
            Err(why) => trace.strange.push(strange(&why)),
            Ok(parts) => {
                parts.into_iter().try_for_each(|(site, raw)| put(&mut found, site, raw))?
            }
        }
    }
    trace.strange.sort();
    let dtype = run_dtype(&found, &mut trace.said);
    let bits = converted(found, dtype, &mut trace);
    trace.sequences = sequences(bits, config)?;
    Ok(trace)
}

/// Elements of a floating tensor, exactly.
fn values(stored: Stored, data: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(data: &[u8], of: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        data.as_chunks::<N>().0.iter().map(|bytes| of(*bytes)).collect()
    }
    Some(match stored {
        Stored::BF16 => each(data, |b| bf16::from_le_bytes(b).to_f64()),
        Stored::F16 => each(data, |b| f16::from_le_bytes(b).to_f64()),
        Stored::F32 => each(data, |b| f64::from(f32::from_le_bytes(b))),
        Stored::F64 => each(data, f64::from_le_bytes),
        _ => return None,
    })
}

fn put(found: &mut BTreeMap<String, Raw>, site: String, raw: Raw) -> Result<(), TraceError> {
    if let Some(one) = found.get(&site) {
        let same = one.values.iter().zip(&raw.values).all(|(a, b)| a.to_bits() == b.to_bits());
        if !same || one.values.len() != raw.values.len() {
            return Err(TraceError::Twice { site, one: one.name.clone(), other: raw.name });
        }
        return Ok(());
    }
    found.insert(site, raw);
    Ok(())
}

/// The sites that a tensor holds: several where projections are fused, rows of q, k, v or of gate,
/// up one after another.
fn parts(site: &str, raw: Raw, config: Option<&Config>) -> Result<Vec<(String, Raw)>, String> {
    let Some((layer, op)) = split(site) else { return Ok(vec![(site.to_owned(), raw)]) };
    let Some(config) = config else {
        let fused = super::names::FUSED.contains(&op);
        return if fused {
            Err("only --model says where it is split".to_owned())
        } else {
            Ok(vec![(site.to_owned(), raw)])
        };
    };
    let (d, n) = (Dims::of(config), raw.shape.last().copied().unwrap_or(0));
    let own = |op: &str| format!("layers.{layer}.{op}");
    if layer >= d.layers {
        return Err(format!("the model has {} layers", d.layers));
    }
    let kind = Dims { layers: 1, linear_layers: usize::from(config.is_linear(layer)), ..d };
    let fused: Vec<(&str, usize)> = match op {
        "qkv_proj" => ["q_proj", "k_proj", "v_proj"].map(|op| (op, kind.width(op, 0))).to_vec(),
        "gate_up_proj" => ["gate_proj", "up_proj"].map(|op| (op, kind.width(op, 0))).to_vec(),
        // What o_proj reads in a gated layer is the gated mix.
        "mix" if d.gated && raw.name.ends_with(".input") => {
            return Ok(vec![(own("mix_gated"), raw)]);
        }
        _ if kind.layers_with(op) == 0 => return Err("its layer has no such op".to_owned()),
        _ => return Ok(vec![(site.to_owned(), raw)]),
    };
    let whole: usize = fused.iter().map(|(_, width)| width).sum();
    if whole == 0 || n != whole || fused.iter().any(|(_, width)| *width == 0) {
        return Err(format!("{n} columns, where the model's layer has {whole}"));
    }
    let mut from = 0;
    let mut cut = |(op, width): &(&str, usize)| {
        let columns = from..from + width;
        from += width;
        let rows = raw.values.chunks_exact(whole);
        let values = rows.flat_map(|row| &row[columns.clone()]).copied().collect();
        let mut shape = raw.shape.clone();
        *shape.last_mut().expect("a fused tensor has columns") = *width;
        (own(op), Raw { name: raw.name.clone(), stored: raw.stored, shape, values })
    };
    Ok(fused.iter().map(&mut cut).collect())
}

fn fits(raw: &Raw) -> bool {
    raw.values.iter().all(|v| v.is_nan() || bf16::from_f64(*v).to_f64() == *v)
}

/// The dtype of the run: bf16 where most tensors hold nothing else, whatever they are stored in.
fn run_dtype(found: &BTreeMap<String, Raw>, said: &mut Vec<String>) -> Dtype {
    let of_run = |site: &&String| dtype_at(site, Dtype::Bf16) == Dtype::Bf16 && !is_state(site);
    let own: Vec<&Raw> = found.keys().filter(of_run).map(|site| &found[site]).collect();
    let narrow = own.iter().filter(|raw| raw.stored == Stored::BF16 || fits(raw)).count();
    let dtype = if 2 * narrow > own.len() { Dtype::Bf16 } else { Dtype::F32 };
    let mut stored: Vec<String> = own.iter().map(|raw| format!("{:?}", raw.stored)).collect();
    stored.sort();
    stored.dedup();
    let name = if dtype == Dtype::Bf16 { "BF16" } else { "F32" };
    if stored.iter().any(|stored| stored != name) {
        let how = if dtype == Dtype::Bf16 { "values of bf16" } else { "read as f32" };
        said.push(format!("stored in {}: {how}", stored.join(", ")));
    }
    dtype
}

/// Every tensor in the dtype of its site.
fn converted(
    found: BTreeMap<String, Raw>,
    dtype: Dtype,
    trace: &mut Trace,
) -> BTreeMap<String, Bits> {
    let mut all = BTreeMap::new();
    for (site, raw) in found {
        let own = dtype_at(&site, dtype);
        if own == Dtype::Bf16 && !fits(&raw) {
            let why = "it holds values that bf16 cannot, in a run of bf16".to_owned();
            trace.strange.push((raw.name, why));
            continue;
        }
        let inexact = |v: &&f64| !v.is_nan() && f64::from(**v as f32) != **v;
        let rounded = raw.values.iter().filter(inexact).count();
        if rounded > 0 {
            trace.said.push(format!("{}: {rounded} elements rounded to f32", raw.name));
        }
        let bit = |v: &f64| match own {
            Dtype::Bf16 if v.is_nan() => 0x7FC0,
            Dtype::Bf16 => u32::from(bf16::from_f64(*v).to_bits()),
            Dtype::F32 if v.is_nan() => 0x7FC0_0000,
            Dtype::F32 => (*v as f32).to_bits(),
        };
        let bits = raw.values.iter().map(bit).collect();
        all.insert(site, Bits { dtype: own, shape: raw.shape, bits });
    }
    all
}

/// Whether a site is one vector a row, in every engine.
fn plain(site: &str) -> bool {
    let op = op_of(site);
    let stream = ["embed_tokens", "input_layernorm", "attn_residual", "mlp_residual"];
    stream.contains(&op) || ["q_proj", "gate_proj", "down_proj", "o_proj", "out_proj"].contains(&op)
}

/// Takes the batch apart. Sequences are counted where a site has one vector a row.
fn sequences(
    bits: BTreeMap<String, Bits>,
    config: Option<&Config>,
) -> Result<Vec<Sites>, TraceError> {
    let tells = |(site, b): (&String, &Bits)| match b.shape[..] {
        [rows, _] if plain(site) => Some((1, rows)),
        [batch, rows, _] if plain(site) => Some((batch, rows)),
        _ => None,
    };
    let outside = |(site, b): (&String, &Bits)| match b.shape[..] {
        [batch, rows, _] if matches!(site.as_str(), "norm" | "lm_head") => Some((batch, rows)),
        _ => None,
    };
    let counted = bits.iter().find_map(tells).or_else(|| bits.iter().find_map(outside));
    let (batch, rows) = counted.unwrap_or((1, 0));
    let dims = config.map(Dims::of);
    let mut all = vec![Sites::new(); batch.max(1)];
    for (site, tensor) in bits {
        let shape = shape_of(&site, &tensor.shape, (batch, rows), dims.as_ref())?;
        let n: usize = shape.iter().product();
        let table = site.starts_with("rotary.");
        for (i, sites) in all.iter_mut().enumerate() {
            let from = if table { 0 } else { i * n };
            let bits = tensor.bits[from..from + n].to_vec();
            let (dtype, shape) = (tensor.dtype, shape.clone());
            sites.insert(site.clone(), Bits { dtype, shape, bits });
        }
    }
    Ok(all)
}

/// The shape of one sequence of a site. `norm` and `lm_head` may hold the last rows only.
fn shape_of(
    site: &str,
    got: &[usize],
    (batch, rows): (usize, usize),
    dims: Option<&Dims>,
) -> Result<Vec<usize>, TraceError> {
    let refused =
        |want: String| Err(TraceError::Shape { name: site.to_owned(), got: got.to_vec(), want });
    if site.starts_with("rotary.") {
        return Ok(got.to_vec());
    }
    let kept = matches!(site, "norm" | "lm_head");
    let one: &[usize] = match got {
        [] => return refused("a tensor of rows".to_owned()),
        [width] if kept => return shape_of(site, &[1, *width], (1, rows), dims),
        [first, rest @ ..] if *first == batch && batched(site, got, (batch, rows), dims) => rest,
        _ if batch > 1 => return refused(format!("a batch of {batch}")),
        _ => got,
    };
    if keyed(site) {
        return if one.len() == 3 { Ok(one.to_vec()) } else { refused("heads, rows, keys".into()) };
    }
    if !kept && rows > 0 && one[0] != rows {
        return refused(format!("{rows} rows, as others of the trace"));
    }
    let Some(dims) = dims else { return Ok(one.to_vec()) };
    let width = dims.width(op_of(site), 0);
    let wide: usize = one[1..].iter().product();
    if width != wide {
        return refused(format!("[{}, {width}], as the model's", one[0]));
    }
    Ok(dims.shape(op_of(site), one[0], one[0]))
}

/// Whether the first dimension is that of sequences.
fn batched(site: &str, got: &[usize], (batch, rows): (usize, usize), dims: Option<&Dims>) -> bool {
    let [first, second, rest @ ..] = got else { return false };
    if keyed(site) {
        return got.len() == 4;
    }
    if rest.is_empty() || *first != batch {
        return false;
    }
    let width = dims.map(|dims| dims.width(op_of(site), 0));
    match width {
        // [rows, heads, width] of one sequence and [1, rows, heads x width] are told by the model.
        Some(width) if rest.iter().product::<usize>() == width => true,
        Some(_) => false,
        None => matches!(site, "norm" | "lm_head") || rows == 0 || *second == rows,
    }
}
