//! A Qwen3 or Qwen3.5 checkpoint: the fields that the forward reads, and its weights as stored.
//!
//! Deliberately absent: admission of anything but plain text models in bf16 or f32, and every
//! default that Transformers would invent. Invariant: a loaded model has every tensor in shape.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{Dtype as Stored, SafeTensors};

use crate::config::{Config, Hybrid};

/// Why a checkpoint or a request was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OracleError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A JSON file is not what it must be.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A weight file is not in the safetensors format.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// A configuration that is not of a plain text model.
    #[error("config.json: {field}: {why}")]
    Config {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A tensor is missing, unknown, stored twice or of the wrong shape or dtype.
    #[error("tensor {name}: {why}")]
    Tensor {
        /// Its name in the file.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A request that the model cannot run.
    #[error("request: {0}")]
    Request(&'static str),
}

/// One stored tensor, row-major.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    data: Data,
    start: usize, // floats from a 16-byte boundary of its file
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
    Bf16(Vec<u16>),
    F32(Vec<u32>),
}

impl Tensor {
    /// A tensor of bf16 bit patterns.
    pub fn from_bf16(shape: Vec<usize>, bits: Vec<u16>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), bits.len(), "tensor: shape and data differ");
        Self { shape, data: Data::Bf16(bits), start: 0 }
    }

    /// A tensor of f32 values.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "tensor: shape and data differ");
        let data = Data::F32(values.iter().map(|x| x.to_bits()).collect());
        Self { shape, data, start: 0 }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Floats from a 16-byte boundary to where Transformers has it in an f32 run: it reads f32
    /// weights from the mapped file, and allocates what it casts at a boundary.
    pub(crate) fn start(&self) -> usize {
        match self.data {
            Data::F32(_) => self.start,
            Data::Bf16(_) => 0,
        }
    }

    /// The stored values of a range of elements, exact.
    ///
    /// # Panics
    /// If the range is outside the tensor.
    pub fn values(&self, range: Range<usize>) -> Vec<f64> {
        match &self.data {
            Data::Bf16(d) => d[range].iter().map(|&u| widen(u32::from(u) << 16)).collect(),
            Data::F32(d) => d[range].iter().map(|&u| widen(u)).collect(),
        }
    }
}

/// Equal values of one dtype, wherever they were stored.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        (&self.shape, &self.data) == (&other.shape, &other.data)
    }
}

fn widen(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// A loaded checkpoint.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    tensors: BTreeMap<String, Tensor>, // by site; no `lm_head` if it is the embedding
}

impl Model {
    /// Loads `config.json` and `model.safetensors` or the shards of `model.safetensors.index.json`.
    ///
    /// # Errors
    /// Any file that cannot be read or parsed, a configuration of any other model, a
    /// tensor that is missing, unknown or mis-shaped, and a head that contradicts the tying flag.
    pub fn load(dir: &Path) -> Result<Self, OracleError> {
        let config: Config = Config::parse(&dir.join("config.json"))?;
        let mut stored = BTreeMap::new();
        for shard in shards(dir)? {
            read_shard(&dir.join(shard), &mut stored)?;
        }
        if config.hybrid.is_some() {
            stored = text_model(stored)?;
        }
        let (embed, head) = ("model.embed_tokens.weight", "lm_head.weight");
        if config.tied {
            match (stored.contains_key(embed), stored.remove(head)) {
                (true, Some(h)) if stored[embed] != h => {
                    return Err(tensor_error(head, "differs from the embedding it is tied to"));
                }
                (false, Some(h)) => drop(stored.insert(embed.into(), h)),
                _ => {}
            }
        }
        let mut tensors = BTreeMap::new();
        for (site, name, shape) in expected(&config) {
            let tensor = stored.remove(&name).ok_or_else(|| tensor_error(&name, "is missing"))?;
            if tensor.shape != shape {
                let why = format!("shape {:?} should be {shape:?}", tensor.shape);
                return Err(tensor_error(&name, &why));
            }
            tensors.insert(site, tensor);
        }
        match stored.keys().find(|name| !name.contains("rotary_emb.inv_freq")) {
            Some(name) => Err(tensor_error(name, "is unknown")),
            None => Ok(Self { config, tensors }),
        }
    }

    /// What the forward reads of the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weight behind a site (`layers.3.q_proj`, `layers.0.conv`, `norm`, `lm_head`, ..), if it
    /// has one. `layers.0.A_log` and `layers.0.dt_bias` are the two of `layers.0.g`.
    pub fn weight(&self, site: &str) -> Option<&Tensor> {
        let own = self.tensors.get(site);
        own.or_else(|| self.tensors.get("embed_tokens").filter(|_| site == "lm_head"))
    }
}

/// The tensors of a hybrid's text model under plain names; what stands beside it is dropped.
fn text_model(stored: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, OracleError> {
    let mut text = BTreeMap::new();
    for (name, tensor) in stored {
        if name.starts_with("mtp.") || name.starts_with("model.visual.") {
            continue;
        }
        let rest = name.strip_prefix("model.language_model.");
        let plain = rest.map_or(name.clone(), |rest| format!("model.{rest}"));
        if text.insert(plain, tensor).is_some() {
            return Err(tensor_error(&name, "is stored under both prefixes"));
        }
    }
    Ok(text)
}

/// Site, name within its layer in the file, and shape.
type Row = (&'static str, &'static str, Vec<usize>);

/// Site, name in the file and shape of every tensor.
fn expected(c: &Config) -> Vec<(String, String, Vec<usize>)> {
    let (h, i) = (c.hidden, c.intermediate);
    let around: [Row; 5] = [
        ("input_layernorm", "input_layernorm.weight", vec![h]),
        ("post_attention_layernorm", "post_attention_layernorm.weight", vec![h]),
        ("gate_proj", "mlp.gate_proj.weight", vec![i, h]),
        ("up_proj", "mlp.up_proj.weight", vec![i, h]),
        ("down_proj", "mlp.down_proj.weight", vec![h, i]),
    ];
    let mut all = vec![
        ("embed_tokens".into(), "model.embed_tokens.weight".into(), vec![c.vocab, h]),
        ("norm".into(), "model.norm.weight".into(), vec![h]),
    ];
    if !c.tied {
        all.push(("lm_head".into(), "lm_head.weight".into(), vec![c.vocab, h]));
    }
    for l in 0..c.layers {
        let linear = c.hybrid.as_ref().filter(|hybrid| hybrid.linear[l]);
        let inner = linear.map_or_else(|| attention(c), |hybrid| delta_net(h, hybrid));
        all.extend(around.iter().chain(&inner).map(|(site, name, shape)| {
            (format!("layers.{l}.{site}"), format!("model.layers.{l}.{name}"), shape.clone())
        }));
    }
    all
}

/// A hybrid's q_proj holds, head by head, a query and a gate.
fn attention(c: &Config) -> Vec<Row> {
    let (h, q, kv) = (c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let queries = if c.hybrid.is_some() { 2 * q } else { q };
    vec![
        ("q_proj", "self_attn.q_proj.weight", vec![queries, h]),
        ("k_proj", "self_attn.k_proj.weight", vec![kv, h]),
        ("v_proj", "self_attn.v_proj.weight", vec![kv, h]),
        ("q_norm", "self_attn.q_norm.weight", vec![c.head_dim]),
        ("k_norm", "self_attn.k_norm.weight", vec![c.head_dim]),
        ("o_proj", "self_attn.o_proj.weight", vec![h, q]),
    ]
}

fn delta_net(h: usize, hybrid: &Hybrid) -> Vec<Row> {
    let (heads, channels) = (hybrid.heads, hybrid.heads.channels());
    let values = heads.value_heads;
    vec![
        ("in_proj_qkv", "linear_attn.in_proj_qkv.weight", vec![channels, h]),
        ("in_proj_z", "linear_attn.in_proj_z.weight", vec![heads.values(), h]),
        ("in_proj_b", "linear_attn.in_proj_b.weight", vec![values, h]),
        ("in_proj_a", "linear_attn.in_proj_a.weight", vec![values, h]),
        ("conv", "linear_attn.conv1d.weight", vec![channels, 1, hybrid.kernel]),
        ("A_log", "linear_attn.A_log", vec![values]),
        ("dt_bias", "linear_attn.dt_bias", vec![values]),
        ("gdn_norm", "linear_attn.norm.weight", vec![heads.value_dim]),
        ("out_proj", "linear_attn.out_proj.weight", vec![h, heads.values()]),
    ]
}

fn shards(dir: &Path) -> Result<BTreeSet<String>, OracleError> {
    if dir.join("model.safetensors").exists() {
        return Ok(BTreeSet::from(["model.safetensors".to_owned()]));
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = dir.join("model.safetensors.index.json");
    let index: Index = serde_json::from_slice(&read(&path)?)
        .map_err(|source| OracleError::Json { path, source })?;
    Ok(index.weight_map.into_values().collect())
}

fn read_shard(path: &Path, into: &mut BTreeMap<String, Tensor>) -> Result<(), OracleError> {
    let bytes = read(path)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|source| OracleError::Safetensors { path: path.to_owned(), source })?;
    for (name, view) in file.iter() {
        let (halves, _) = view.data().as_chunks::<2>();
        let (words, _) = view.data().as_chunks::<4>();
        let data = match view.dtype() {
            Stored::BF16 => Data::Bf16(halves.iter().map(|b| u16::from_le_bytes(*b)).collect()),
            Stored::F32 => Data::F32(words.iter().map(|b| u32::from_le_bytes(*b)).collect()),
            other => return Err(tensor_error(name, &format!("dtype {other:?}"))),
        };
        // Maps begin at a page, so that an offset in the file tells what an address is short of.
        let start = (view.data().as_ptr().addr() - bytes.as_ptr().addr()) / 4 % 4;
        let tensor = Tensor { shape: view.shape().to_vec(), data, start };
        if into.insert(name.to_owned(), tensor).is_some() {
            return Err(tensor_error(name, "is stored twice"));
        }
    }
    Ok(())
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, OracleError> {
    fs::read(path).map_err(|source| OracleError::Read { path: path.to_owned(), source })
}

fn tensor_error(name: &str, why: &str) -> OracleError {
    OracleError::Tensor { name: name.to_owned(), why: why.to_owned() }
}
