//! Which tensor plays which part.
//!
//! Here: the assignment of a checkpoint's tensors to the parts of a model, and what may stand
//! beside them. Every tensor is used exactly once, every part is filled, nothing is invented.
//! Absent: the parts themselves (`roles`), and whether embedding and head are one, which `head`
//! decides.
//!
//! The invariant: a [`WeightMap`] is total, and every tensor in it has the shape the configuration
//! gives its role.

use std::collections::BTreeMap;

use super::config::Config;
use super::error::{CheckpointError, Refusal};
use super::folder::Folder;
use super::hybrid::Family;
use super::json::one_line;
use super::pages::{PageIndex, TensorInfo};
use super::roles::Role;
use super::roles::{PLAIN, layer_parts};

/// How the tensors of a checkpoint differ from those of its configuration. Lists name the first
/// few; `of` counts what the configuration needs, embedding and head aside.
#[derive(Debug, thiserror::Error)]
pub(super) enum MappingError {
    #[error("weights must be BF16 or F32, found {0}")]
    Foreign(String),
    #[error("no part of a {family} of {layers} layers: {first}")]
    Unknown { family: &'static str, layers: usize, first: String },
    /// `kind` of layer has `parts`, but the file holds `first`.
    #[error("layer {layer} is {kind}, made of {parts} tensors; the file holds {first}")]
    Kind { layer: usize, kind: &'static str, parts: &'static str, first: String },
    #[error("one part, two tensors: {one} and {other}")]
    Twice { one: String, other: String },
    #[error("missing tensors ({count} of {of}): {first}")]
    Missing { count: usize, of: usize, first: String },
    #[error("tensor {tensor} has shape {found:?}, config.json gives {want:?}{hint}{more}")]
    Shape { tensor: String, found: Vec<u64>, want: Vec<u64>, hint: String, more: String },
}

/// Which tensor plays which part; numbers are those of [`PageIndex::tensors`].
#[derive(Debug)]
pub(super) struct WeightMap {
    /// Norm and layers are total; embedding and head are as the file has them.
    parts: BTreeMap<Role, usize>,
    /// Of the text model's tensors, for messages.
    prefix: &'static str,
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
        let refuse = |error| Err(Refusal::Mapping(error).of(folder.path()));
        let foreign = foreign_dtypes(index, Some(config.family));
        if !foreign.is_empty() {
            return refuse(MappingError::Foreign(foreign));
        }
        let layers = config.num_hidden_layers;
        let mut map = Self { parts: BTreeMap::new(), prefix: PLAIN };
        let (mut unknown, mut misplaced) = (Vec::new(), Vec::new());
        for (i, tensor) in index.tensors().iter().enumerate() {
            let Some((role, prefix)) = Role::of(&tensor.name, config.family) else {
                if !ignorable(tensor, config.family) {
                    unknown.push(tensor);
                }
                continue;
            };
            match role {
                Role::Layer(layer, _) if layer >= layers => unknown.push(tensor),
                Role::Layer(layer, part) if !part.is_in(config.layer_kinds.is_full(layer)) => {
                    misplaced.push((layer, tensor));
                }
                _ => {
                    if role != Role::LmHead {
                        map.prefix = prefix;
                    }
                    if let Some(before) = map.parts.insert(role, i) {
                        let one = one_line(&index.tensors()[before].name);
                        return refuse(MappingError::Twice { one, other: one_line(&tensor.name) });
                    }
                }
            }
        }
        if let Some(&one) = unknown.first() {
            let first = few(unknown.len(), unknown.iter().map(|t| one_line(&t.name)));
            let family = config.family.name();
            let error = MappingError::Unknown { family, layers, first };
            return Err(Refusal::Mapping(error).of(index.path(one)));
        }
        if let Some(&(layer, _)) = misplaced.first() {
            let (kind, parts) = match config.layer_kinds.is_full(layer) {
                true => ("full_attention", "self_attn."),
                false => ("linear_attention", "linear_attn."),
            };
            let names = misplaced.iter().map(|(_, t)| one_line(&t.name));
            let first = few(misplaced.len(), names);
            return refuse(MappingError::Kind { layer, kind, parts, first });
        }
        map.complete(config).map_err(|e| Refusal::Mapping(e).of(folder.path()))?;
        map.shapes(config, index)?;
        Ok(map)
    }

    /// Number of the tensor that plays `role`, if one does.
    pub fn get(&self, role: Role) -> Option<usize> {
        self.parts.get(&role).copied()
    }

    /// What the tensor of `role` is called in a checkpoint that spells names as this one does.
    pub fn name(&self, role: Role) -> String {
        role.named(self.prefix)
    }

    /// Lets `role` be played by the tensor `number`.
    pub fn set(&mut self, role: Role, number: usize) {
        self.parts.insert(role, number);
    }

    /// Refuses a missing norm or layer tensor. The count is arithmetic and names are sought until
    /// a few are found, since the number of layers is only a claim.
    fn complete(&self, config: &Config) -> Result<(), MappingError> {
        let needed = |role: &Role| !matches!(role, Role::EmbedTokens | Role::LmHead);
        let (of, held) = (layer_parts(config) + 1, self.parts.keys().filter(|r| needed(r)).count());
        if held == of {
            return Ok(());
        }
        let missing = Role::all(config).filter(|r| needed(r) && !self.parts.contains_key(r));
        let first = few(of - held, missing.map(|role| role.named(self.prefix)));
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
        let error = MappingError::Shape {
            tensor: one_line(&first.name),
            found: first.shape.clone(),
            want: role.shape(config),
            hint: hint(role, config),
            more: match wrong.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            },
        };
        Err(Refusal::Mapping(error).of(index.path(first)))
    }
}

/// Widths of the role that the configuration leaves to their defaults.
fn hint(role: Role, config: &Config) -> String {
    let asks = |key: &str| role.row().1.iter().any(|dim| dim.keys().contains(&key));
    let absent = config.defaulted.iter().filter(|(key, _)| asks(key));
    let words = absent.map(|(key, default)| {
        format!(" ({key} is absent there, so the default {default} of {})", config.family.name())
    });
    words.collect()
}

/// Prefixes of what stands beside a hybrid's text model: layers that predict further, pictures.
const BYSTANDERS: [&str; 2] = ["mtp.", "model.visual."];

/// Buffers that old files carry and no model reads.
pub(super) fn obsolete(tensor: &TensorInfo) -> bool {
    tensor.name.contains("rotary_emb.inv_freq")
}

/// What may stand in the file without a part.
fn ignorable(tensor: &TensorInfo, family: Family) -> bool {
    let beside = |prefix: &&str| tensor.name.starts_with(*prefix);
    obsolete(tensor) || (family == Family::Qwen3_5 && BYSTANDERS.iter().any(beside))
}

/// One sentence for each kind of bystander.
pub(super) fn bystanders(config: &Config, index: &PageIndex) -> Vec<String> {
    if config.family == Family::Qwen3 {
        return Vec::new();
    }
    let count = |prefix: &str| {
        let bytes = |t: &&TensorInfo| t.name.starts_with(prefix);
        index.tensors().iter().filter(bytes).count()
    };
    let counted = BYSTANDERS.iter().map(|prefix| (prefix, count(prefix)));
    let held = counted.filter(|(_, count)| *count > 0);
    held.map(|(prefix, n)| format!("{prefix}*: {n} ignored, no part of the text model")).collect()
}

/// Dtypes that are not computed with, each with its count and first tensor; empty if none is held.
pub(super) fn foreign_dtypes(index: &PageIndex, family: Option<Family>) -> String {
    let skipped = |t: &TensorInfo| ignorable(t, family.unwrap_or(Family::Qwen3));
    let mut held: BTreeMap<&str, (usize, &TensorInfo)> = BTreeMap::new();
    for tensor in index.tensors().iter().filter(|t| !t.dtype.is_native() && !skipped(t)) {
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
