//! The parts of a model as rows of data: role, name, kind of layer, shape.
//!
//! Absent: a checkpoint's tensors, which `mapping` assigns. The invariant: a row says all that is
//! to be known of a tensor but its values.

use super::config::Config;
use super::hybrid::Family;

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
    /// `[heads * head_dim, hidden]`; in a hybrid each head's query and gate, so twice as many rows.
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
    /// `[channels, hidden]`: queries, keys, values of a gated delta net.
    InProjQkv,
    /// `[value heads * value_dim, hidden]`.
    InProjZ,
    /// `[value heads, hidden]`.
    InProjB,
    /// `[value heads, hidden]`.
    InProjA,
    /// `[channels, 1, kernel]`.
    Conv1d,
    /// `[value heads]`.
    ALog,
    /// `[value heads]`.
    DtBias,
    /// `[value_dim]`, shared by all heads.
    GatedNorm,
    /// `[hidden, value heads * value_dim]`.
    OutProj,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dim {
    Vocab,
    Hidden,
    Intermediate,
    QWidth,
    QRows,
    KvWidth,
    Head,
    Channels,
    ValueWidth,
    ValueHeads,
    ValueHead,
    One,
    Kernel,
}

impl Dim {
    fn of(self, config: &Config) -> u64 {
        let linear = || config.linear.as_ref().expect("only a hybrid has such a tensor");
        let query = config.num_attention_heads * config.head_dim;
        let dim = match self {
            Self::Vocab => config.vocab_size,
            Self::Hidden => config.hidden_size,
            Self::Intermediate => config.intermediate_size,
            Self::QWidth => query,
            Self::QRows => match config.family {
                Family::Qwen3 => query,
                Family::Qwen3_5 => 2 * query,
            },
            Self::KvWidth => config.num_key_value_heads * config.head_dim,
            Self::Head => config.head_dim,
            Self::Channels => {
                let l = linear();
                2 * l.key_heads * l.key_head_dim + l.value_heads * l.value_head_dim
            }
            Self::ValueWidth => linear().value_heads * linear().value_head_dim,
            Self::ValueHeads => linear().value_heads,
            Self::ValueHead => linear().value_head_dim,
            Self::One => 1,
            Self::Kernel => linear().conv_kernel_dim,
        };
        dim as u64
    }

    /// Keys of widths whose defaults are often taken for derived ones.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Self::QWidth | Self::QRows | Self::KvWidth | Self::Head => &["head_dim"],
            Self::Channels => &[
                "linear_num_key_heads",
                "linear_num_value_heads",
                "linear_key_head_dim",
                "linear_value_head_dim",
            ],
            Self::ValueWidth => &["linear_num_value_heads", "linear_value_head_dim"],
            Self::ValueHeads => &["linear_num_value_heads"],
            Self::ValueHead => &["linear_value_head_dim"],
            Self::Kernel => &["linear_conv_kernel_dim"],
            Self::Vocab | Self::Hidden | Self::Intermediate | Self::One => &[],
        }
    }
}

/// Layers that have a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    Every,
    Attention,
    DeltaNet,
}

/// Role, layers that have it, name after `layers.{i}.`, shape.
const LAYER: [(LayerRole, In, &str, &[Dim]); 20] = {
    use Dim::{
        Channels, Head, Hidden, Intermediate, Kernel, KvWidth, One, QRows, QWidth, ValueHead,
        ValueHeads, ValueWidth,
    };
    use In::{Attention, DeltaNet, Every};
    use LayerRole as R;
    [
        (R::InputLayernorm, Every, "input_layernorm.weight", &[Hidden]),
        (R::QProj, Attention, "self_attn.q_proj.weight", &[QRows, Hidden]),
        (R::KProj, Attention, "self_attn.k_proj.weight", &[KvWidth, Hidden]),
        (R::VProj, Attention, "self_attn.v_proj.weight", &[KvWidth, Hidden]),
        (R::OProj, Attention, "self_attn.o_proj.weight", &[Hidden, QWidth]),
        (R::QNorm, Attention, "self_attn.q_norm.weight", &[Head]),
        (R::KNorm, Attention, "self_attn.k_norm.weight", &[Head]),
        (R::InProjQkv, DeltaNet, "linear_attn.in_proj_qkv.weight", &[Channels, Hidden]),
        (R::InProjZ, DeltaNet, "linear_attn.in_proj_z.weight", &[ValueWidth, Hidden]),
        (R::InProjB, DeltaNet, "linear_attn.in_proj_b.weight", &[ValueHeads, Hidden]),
        (R::InProjA, DeltaNet, "linear_attn.in_proj_a.weight", &[ValueHeads, Hidden]),
        (R::Conv1d, DeltaNet, "linear_attn.conv1d.weight", &[Channels, One, Kernel]),
        (R::ALog, DeltaNet, "linear_attn.A_log", &[ValueHeads]),
        (R::DtBias, DeltaNet, "linear_attn.dt_bias", &[ValueHeads]),
        (R::GatedNorm, DeltaNet, "linear_attn.norm.weight", &[ValueHead]),
        (R::OutProj, DeltaNet, "linear_attn.out_proj.weight", &[Hidden, ValueWidth]),
        (R::PostAttentionLayernorm, Every, "post_attention_layernorm.weight", &[Hidden]),
        (R::GateProj, Every, "mlp.gate_proj.weight", &[Intermediate, Hidden]),
        (R::UpProj, Every, "mlp.up_proj.weight", &[Intermediate, Hidden]),
        (R::DownProj, Every, "mlp.down_proj.weight", &[Hidden, Intermediate]),
    ]
};

/// Role, name, shape. The head stands outside the text model's prefix.
const WHOLE: [(Role, &str, &[Dim]); 3] = [
    (Role::EmbedTokens, "embed_tokens.weight", &[Dim::Vocab, Dim::Hidden]),
    (Role::Norm, "norm.weight", &[Dim::Hidden]),
    (Role::LmHead, "lm_head.weight", &[Dim::Vocab, Dim::Hidden]),
];

/// The prefix of a text model's tensors.
pub(super) const PLAIN: &str = "model.";
/// The same within a composite model.
const NESTED: &str = "model.language_model.";
/// The same of a text model that was saved without its head.
const BARE: &str = "";

impl LayerRole {
    /// The parts of a layer that is attention or not, in the order of the forward pass.
    pub fn all(attention: bool) -> impl Iterator<Item = Self> {
        LAYER.iter().map(|row| row.0).filter(move |role| role.is_in(attention))
    }

    /// Every part of any layer.
    pub fn every() -> impl Iterator<Item = Self> {
        LAYER.iter().map(|row| row.0)
    }

    /// Whether a layer that is attention or not has this part.
    pub fn is_in(self, attention: bool) -> bool {
        match LAYER[self as usize].1 {
            In::Every => true,
            In::Attention => attention,
            In::DeltaNet => !attention,
        }
    }

    /// The name after `layers.{i}.`.
    pub fn suffix(self) -> &'static str {
        LAYER[self as usize].2
    }
}

impl Role {
    /// All parts of a model, in the order of the forward pass.
    pub fn all(config: &Config) -> impl Iterator<Item = Self> {
        let layer = |i| {
            let parts = LayerRole::all(config.layer_kinds.is_full(i));
            parts.map(move |role| Self::Layer(i, role))
        };
        let inner = (0..config.num_hidden_layers).flat_map(layer);
        [Self::EmbedTokens].into_iter().chain(inner).chain([Self::Norm, Self::LmHead])
    }

    /// The name of its tensor under the plain prefix.
    pub fn tensor_name(self) -> String {
        self.named(PLAIN)
    }

    /// The name of its tensor under `prefix`.
    pub(super) fn named(self, prefix: &str) -> String {
        match self {
            Self::Layer(i, role) => format!("{prefix}layers.{i}.{}", role.suffix()),
            Self::LmHead => self.row().0.to_owned(),
            _ => format!("{prefix}{}", self.row().0),
        }
    }

    /// The role of the tensor of that name in a model of `family`, and its prefix.
    pub(super) fn of(name: &str, family: Family) -> Option<(Self, &'static str)> {
        if name == Self::LmHead.row().0 {
            return Some((Self::LmHead, PLAIN));
        }
        // Longest first: each is the start of the one before, or of all.
        let prefixes: &[&'static str] = match family {
            Family::Qwen3 => &[PLAIN, BARE],
            Family::Qwen3_5 => &[NESTED, PLAIN, BARE],
        };
        let strip = |prefix: &&'static str| Some((*prefix, name.strip_prefix(*prefix)?));
        let (prefix, rest) = prefixes.iter().find_map(strip)?;
        let whole = WHOLE.iter().filter(|row| row.0 != Self::LmHead);
        if let Some(&(role, ..)) = whole.clone().find(|row| row.1 == rest) {
            return Some((role, prefix));
        }
        let (number, suffix) = rest.strip_prefix("layers.")?.split_once('.')?;
        let layer: usize = number.parse().ok()?;
        // One spelling per layer: no "+1", no "01".
        let canonical = layer.to_string() == number;
        let row = LAYER.iter().find(|row| row.2 == suffix).filter(|_| canonical)?;
        let known = family == Family::Qwen3_5 || row.1 != In::DeltaNet;
        known.then_some((Self::Layer(layer, row.0), prefix))
    }

    /// Name (within the layer, without a prefix) and shape.
    pub(super) fn row(self) -> (&'static str, &'static [Dim]) {
        match self {
            Self::Layer(_, role) => (LAYER[role as usize].2, LAYER[role as usize].3),
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

/// Parts of all layers together, by arithmetic: the number of layers is only a claim.
pub(super) fn layer_parts(config: &Config) -> usize {
    let full = config.layer_kinds.count_full(config.num_hidden_layers);
    let linear = config.num_hidden_layers - full;
    full * LayerRole::all(true).count() + linear * LayerRole::all(false).count()
}
