//! Which tensor plays which part.
//!
//! Here: the parts of a Qwen3 as rows of data (role, name, shape) and the assignment of a
//! checkpoint's tensors to them. Every tensor is used exactly once, every part is filled, nothing
//! is invented. Absent: whether embedding and head are one, which `head` decides.
//!
//! The invariant: a [`WeightMap`] is total, and every tensor in it has the shape the configuration
//! gives its role.

use std::collections::BTreeMap;

use super::config::Config;
use super::error::{CheckpointError, Refusal};
use super::folder::Folder;
use super::json::one_line;
use super::pages::{PageIndex, TensorInfo};

/// The part a tensor plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// One row per token id, `[vocab, hidden]`.
    EmbedTokens,
    /// A tensor of the layer of that number.
    Layer(usize, LayerRole),
    /// The norm after the last layer, `[hidden]`.
    Norm,
    /// The output head, `[vocab, hidden]`.
    LmHead,
}

/// The part a tensor plays in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerRole {
    /// `[hidden]`.
    InputLayernorm,
    /// `[heads * head_dim, hidden]`.
    QProj,
    /// `[kv_heads * head_dim, hidden]`.
    KProj,
    /// `[kv_heads * head_dim, hidden]`.
    VProj,
    /// `[hidden, heads * head_dim]`.
    OProj,
    /// `[head_dim]`, shared by all heads.
    QNorm,
    /// `[head_dim]`, shared by all heads.
    KNorm,
    /// `[hidden]`.
    PostAttentionLayernorm,
    /// `[intermediate, hidden]`.
    GateProj,
    /// `[intermediate, hidden]`.
    UpProj,
    /// `[hidden, intermediate]`.
    DownProj,
}

/// A dimension of a weight.
#[derive(Clone, Copy, Debug)]
enum Dim {
    Vocab,
    Hidden,
    Intermediate,
    QWidth,
    KvWidth,
    Head,
}

impl Dim {
    fn of(self, config: &Config) -> u64 {
        let dim = match self {
            Self::Vocab => config.vocab_size,
            Self::Hidden => config.hidden_size,
            Self::Intermediate => config.intermediate_size,
            Self::QWidth => config.num_attention_heads * config.head_dim,
            Self::KvWidth => config.num_key_value_heads * config.head_dim,
            Self::Head => config.head_dim,
        };
        dim as u64
    }
}

/// Role, name after `model.layers.{i}.`, shape.
const LAYER: [(LayerRole, &str, &[Dim]); 11] = {
    use Dim::{Head, Hidden, Intermediate, KvWidth, QWidth};
    [
        (LayerRole::InputLayernorm, "input_layernorm.weight", &[Hidden]),
        (LayerRole::QProj, "self_attn.q_proj.weight", &[QWidth, Hidden]),
        (LayerRole::KProj, "self_attn.k_proj.weight", &[KvWidth, Hidden]),
        (LayerRole::VProj, "self_attn.v_proj.weight", &[KvWidth, Hidden]),
        (LayerRole::OProj, "self_attn.o_proj.weight", &[Hidden, QWidth]),
        (LayerRole::QNorm, "self_attn.q_norm.weight", &[Head]),
        (LayerRole::KNorm, "self_attn.k_norm.weight", &[Head]),
        (LayerRole::PostAttentionLayernorm, "post_attention_layernorm.weight", &[Hidden]),
        (LayerRole::GateProj, "mlp.gate_proj.weight", &[Intermediate, Hidden]),
        (LayerRole::UpProj, "mlp.up_proj.weight", &[Intermediate, Hidden]),
        (LayerRole::DownProj, "mlp.down_proj.weight", &[Hidden, Intermediate]),
    ]
};

/// Role, name, shape.
const WHOLE: [(Role, &str, &[Dim]); 3] = [
    (Role::EmbedTokens, "model.embed_tokens.weight", &[Dim::Vocab, Dim::Hidden]),
    (Role::Norm, "model.norm.weight", &[Dim::Hidden]),
    (Role::LmHead, "lm_head.weight", &[Dim::Vocab, Dim::Hidden]),
];

impl LayerRole {
    /// The parts of a layer, in the order of the forward pass.
    pub const ALL: [Self; 11] = {
        let mut all = [Self::InputLayernorm; 11];
        let mut i = 0;
        while i < LAYER.len() {
            all[i] = LAYER[i].0;
            i += 1;
        }
        all
    };

    /// The name after `model.layers.{i}.`.
    pub fn suffix(self) -> &'static str {
        LAYER[self as usize].1
    }
}

impl Role {
    /// All parts of a model of `layers` layers, in the order of the forward pass.
    pub fn all(layers: usize) -> impl Iterator<Item = Self> {
        let layer = |i| LayerRole::ALL.into_iter().map(move |role| Self::Layer(i, role));
        let inner = (0..layers).flat_map(layer);
        [Self::EmbedTokens].into_iter().chain(inner).chain([Self::Norm, Self::LmHead])
    }

    /// The name of its tensor.
    pub fn tensor_name(self) -> String {
        match self {
            Self::Layer(i, role) => format!("model.layers.{i}.{}", role.suffix()),
            _ => self.row().0.to_owned(),
        }
    }

    /// The role of the tensor of that name.
    fn of(name: &str) -> Option<Self> {
        if let Some(&(role, ..)) = WHOLE.iter().find(|row| row.1 == name) {
            return Some(role);
        }
        let (number, suffix) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer: usize = number.parse().ok()?;
        // One spelling per layer: no "+1", no "01".
        let canonical = layer.to_string() == number;
        let row = LAYER.iter().find(|row| row.1 == suffix).filter(|_| canonical)?;
        Some(Self::Layer(layer, row.0))
    }

    /// Name (within the layer) and shape.
    fn row(self) -> (&'static str, &'static [Dim]) {
        match self {
            Self::Layer(_, role) => (LAYER[role as usize].1, LAYER[role as usize].2),
            _ => {
                let row = WHOLE.iter().find(|row| row.0 == self);
                let &(_, name, shape) = row.expect("every role outside a layer has a row");
                (name, shape)
            }
        }
    }

    /// The shape the configuration gives it.
    pub fn shape(self, config: &Config) -> Vec<u64> {
        self.row().1.iter().map(|dim| dim.of(config)).collect()
    }
}

/// How the tensors of a checkpoint differ from those of its configuration. Lists name the first
/// few; `of` counts what the configuration needs, embedding and head aside.
#[derive(Debug, thiserror::Error)]
pub(super) enum MappingError {
    #[error("weights must be BF16 or F32, found {0}")]
    Foreign(String),
    #[error("no part of a qwen3 of {layers} layers: {first}")]
    Unknown { layers: usize, first: String },
    #[error("missing tensors ({count} of {of}): {first}")]
    Missing { count: usize, of: usize, first: String },
    #[error("tensor {tensor} has shape {found:?}, config.json gives {want:?}{hint}{more}")]
    Shape { tensor: String, found: Vec<u64>, want: Vec<u64>, hint: &'static str, more: String },
}

/// Which tensor plays which part; numbers are those of [`PageIndex::tensors`].
#[derive(Debug)]
pub(super) struct WeightMap {
    /// Norm and layers are total; embedding and head are as the file has them.
    parts: BTreeMap<Role, usize>,
}

impl WeightMap {
    /// Assigns the tensors of `index`.
    ///
    /// # Errors
    /// Foreign dtypes, unknown names, missing parts, wrong shapes, in this order.
    pub fn assign(
        config: &Config,
        folder: &Folder,
        index: &PageIndex,
    ) -> Result<Self, CheckpointError> {
        let foreign = foreign_dtypes(index);
        if !foreign.is_empty() {
            return Err(Refusal::Mapping(MappingError::Foreign(foreign)).of(folder.path()));
        }
        let layers = config.num_hidden_layers;
        let mut parts = BTreeMap::new();
        let mut unknown = Vec::new();
        for (i, tensor) in index.tensors().iter().enumerate() {
            match Role::of(&tensor.name) {
                Some(Role::Layer(layer, _)) if layer >= layers => unknown.push(tensor),
                // Names are unique, so no part is filled twice.
                Some(role) => drop(parts.insert(role, i)),
                None if ignorable(tensor) => {}
                None => unknown.push(tensor),
            }
        }
        if let Some(&one) = unknown.first() {
            let first = few(unknown.len(), unknown.iter().map(|t| one_line(&t.name)));
            return Err(
                Refusal::Mapping(MappingError::Unknown { layers, first }).of(index.path(one))
            );
        }
        let map = Self { parts };
        map.complete(layers).map_err(|e| Refusal::Mapping(e).of(folder.path()))?;
        map.shapes(config, index)?;
        Ok(map)
    }

    /// Number of the tensor that plays `role`, if one does.
    pub fn get(&self, role: Role) -> Option<usize> {
        self.parts.get(&role).copied()
    }

    /// Lets `role` be played by the tensor `number`.
    pub fn set(&mut self, role: Role, number: usize) {
        self.parts.insert(role, number);
    }

    /// Refuses a missing norm or layer tensor. The count is arithmetic and names are sought until
    /// a few are found, since the number of layers is only a claim.
    fn complete(&self, layers: usize) -> Result<(), MappingError> {
        let needed = |role: &Role| !matches!(role, Role::EmbedTokens | Role::LmHead);
        let (of, held) =
            (layers * LAYER.len() + 1, self.parts.keys().filter(|r| needed(r)).count());
        if held == of {
            return Ok(());
        }
        let missing = Role::all(layers).filter(|r| needed(r) && !self.parts.contains_key(r));
        let first = few(of - held, missing.map(Role::tensor_name));
        Err(MappingError::Missing { count: of - held, of, first })
    }

    /// Refuses a tensor of another shape than its role has.
    fn shapes(&self, config: &Config, index: &PageIndex) -> Result<(), CheckpointError> {
        let tensor = |number: usize| &index.tensors()[number];
        let wrong: Vec<(Role, &TensorInfo)> = self
            .parts
            .iter()
            .map(|(&role, &number)| (role, tensor(number)))
            .filter(|(role, tensor)| tensor.shape != role.shape(config))
            .collect();
        let Some(&(role, first)) = wrong.first() else {
            return Ok(());
        };
        let by_head =
            role.row().1.iter().any(|d| matches!(d, Dim::QWidth | Dim::KvWidth | Dim::Head));
        let error = MappingError::Shape {
            tensor: one_line(&first.name),
            found: first.shape.clone(),
            want: role.shape(config),
            hint: match by_head && config.head_dim_defaulted {
                true => " (head_dim is absent there, so the default 128 of qwen3)",
                false => "",
            },
            more: match wrong.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            },
        };
        Err(Refusal::Mapping(error).of(index.path(first)))
    }
}

/// Buffers that old files carry and no model reads.
pub(super) fn ignorable(tensor: &TensorInfo) -> bool {
    tensor.name.contains("rotary_emb.inv_freq")
}

/// Dtypes that are not computed with, each with its count and first tensor; empty if none is held.
pub(super) fn foreign_dtypes(index: &PageIndex) -> String {
    let mut held: BTreeMap<&str, (usize, &TensorInfo)> = BTreeMap::new();
    for tensor in index.tensors().iter().filter(|t| !t.dtype.is_native() && !ignorable(t)) {
        held.entry(tensor.dtype.name()).or_insert((0, tensor)).0 += 1;
    }
    let line = |(dtype, (count, tensor)): (&&str, &(usize, &TensorInfo))| {
        format!(
            "{dtype} in {count} of {} tensors ({})",
            index.tensors().len(),
            one_line(&tensor.name)
        )
    };
    held.iter().map(line).collect::<Vec<_>>().join(", ")
}

/// The first few of `count` names.
fn few(count: usize, names: impl Iterator<Item = String>) -> String {
    const FEW: usize = 6;
    let mut line = names.take(FEW).collect::<Vec<_>>().join(", ");
    if count > FEW {
        line.push_str(&format!(" and {} more", count - FEW));
    }
    line
}
