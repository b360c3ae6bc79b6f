//! Weights on a device: loaded once, held once, handed out a layer at a time.

use std::ops::Deref;

use half::bf16;

use crate::checkpoint::{
    Checkpoint, CheckpointError, Config, LayerRole, Role, StorageDtype, TensorInfo,
};
use crate::contract::{Dtype, Element};
use crate::op::{Backend, Fence, Heads, Mem, Memory};
use crate::tensor::Tensor;

/// What a forward pass needs to know of a config.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated MLP.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Epsilon of every norm, in f32.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub theta: f64,
}

impl Shape {
    /// The shape a config declares.
    pub fn of(config: &Config) -> Self {
        Self {
            vocab: config.vocab_size,
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            eps: config.rms_norm_eps_f32,
            theta: config.rope_theta,
        }
    }

    /// Head geometry for a batch.
    pub fn heads(&self, batch: usize) -> Heads {
        Heads { batch, query: self.heads, kv: self.kv_heads, dim: self.head_dim }
    }
}

/// One decoder layer's weights.
pub struct Layer<M: Mem> {
    /// Norm before attention.
    pub input_layernorm: M::Weight, // [hidden]
    /// Queries.
    pub q_proj: M::Weight, // [heads * head_dim, hidden]
    /// Keys.
    pub k_proj: M::Weight, // [kv_heads * head_dim, hidden]
    /// Values.
    pub v_proj: M::Weight, // [kv_heads * head_dim, hidden]
    /// Norm of each query head.
    pub q_norm: M::Weight, // [head_dim]
    /// Norm of each key head.
    pub k_norm: M::Weight, // [head_dim]
    /// Output of attention.
    pub o_proj: M::Weight, // [hidden, heads * head_dim]
    /// Norm before the MLP.
    pub post_attention_layernorm: M::Weight, // [hidden]
    /// Gate of the MLP.
    pub gate_proj: M::Weight, // [intermediate, hidden]
    /// Value of the MLP.
    pub up_proj: M::Weight, // [intermediate, hidden]
    /// Output of the MLP.
    pub down_proj: M::Weight, // [hidden, intermediate]
}

/// Where layers come from. A source that streams refills a slot only behind the fence of its
/// last use.
pub trait Layers<M: Mem>: Send + Sync {
    /// The weights of layer `i`.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    fn get(&self, i: usize) -> Result<&Layer<M>, CheckpointError>;
    /// The work that used layer `i` lies before `fence`.
    fn release(&self, i: usize, fence: Fence);
}

/// A layer in use.
pub struct LayerGuard<'a, M: Mem> {
    layers: &'a dyn Layers<M>,
    layer: &'a Layer<M>,
    index: usize,
}

impl<M: Mem> LayerGuard<'_, M> {
    /// Ends the use of the layer: everything that read it lies before `fence`.
    pub fn release(self, fence: Fence) {
        self.layers.release(self.index, fence);
    }
}

impl<M: Mem> Deref for LayerGuard<'_, M> {
    type Target = Layer<M>;

    fn deref(&self) -> &Layer<M> {
        self.layer
    }
}

/// All layers in memory.
struct Resident<M: Mem>(Vec<Layer<M>>);

impl<M: Mem> Layers<M> for Resident<M>
where
    Layer<M>: Send + Sync,
{
    fn get(&self, i: usize) -> Result<&Layer<M>, CheckpointError> {
        Ok(&self.0[i])
    }

    fn release(&self, _i: usize, _fence: Fence) {}
}

/// A checkpoint on a device.
pub struct Model<M: Mem> {
    /// The shape of the model.
    pub shape: Shape,
    /// The dtype of all weights and activations.
    pub dtype: Dtype,
    /// Token embeddings.
    pub embed_tokens: M::Weight, // [vocab, hidden]
    /// The final norm.
    pub norm: M::Weight, // [hidden]
    lm_head: Option<M::Weight>, // [vocab, hidden]; none where the embedding serves
    layers: Box<dyn Layers<M>>,
    /// Bytes read from the checkpoint.
    pub bytes_read: u64,
}

impl<M: Mem> Model<M>
where
    M: 'static,
    Layer<M>: Send + Sync,
{
    /// Loads every weight, cast to the checkpoint's run dtype.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    pub fn load<B: Backend<M = M>>(b: &mut B, from: &Checkpoint) -> Result<Self, CheckpointError> {
        let (shape, dtype) = (Shape::of(from.config()), from.dtype());
        let mut loader = Loader { mem: b.mem(), from, dtype, bytes: 0 };
        let embed_tokens = loader.weight(Role::EmbedTokens)?;
        let norm = loader.weight(Role::Norm)?;
        let lm_head = if from.tied() { None } else { Some(loader.weight(Role::LmHead)?) };
        let layers = (0..shape.layers).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        let bytes_read = loader.bytes;
        let layers = Box::new(Resident(layers));
        Ok(Self { shape, dtype, embed_tokens, norm, lm_head, layers, bytes_read })
    }
}

impl<M: Mem> Model<M> {
    /// The output head: the embedding's own weight where they are tied.
    pub fn lm_head(&self) -> &M::Weight {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// Layer `i`, until the guard is released.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    pub fn layer(&self, i: usize) -> Result<LayerGuard<'_, M>, CheckpointError> {
        let layers: &dyn Layers<M> = &*self.layers;
        Ok(LayerGuard { layers, layer: layers.get(i)?, index: i })
    }

    /// Every weight under its tensor role, for hashing.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    pub fn for_each_weight(
        &self,
        mut f: impl FnMut(Role, &M::Weight),
    ) -> Result<(), CheckpointError> {
        f(Role::EmbedTokens, &self.embed_tokens);
        f(Role::Norm, &self.norm);
        f(Role::LmHead, self.lm_head());
        for i in 0..self.shape.layers {
            let w = self.layer(i)?;
            for (role, weight) in [
                (LayerRole::InputLayernorm, &w.input_layernorm),
                (LayerRole::QProj, &w.q_proj),
                (LayerRole::KProj, &w.k_proj),
                (LayerRole::VProj, &w.v_proj),
                (LayerRole::QNorm, &w.q_norm),
                (LayerRole::KNorm, &w.k_norm),
                (LayerRole::OProj, &w.o_proj),
                (LayerRole::PostAttentionLayernorm, &w.post_attention_layernorm),
                (LayerRole::GateProj, &w.gate_proj),
                (LayerRole::UpProj, &w.up_proj),
                (LayerRole::DownProj, &w.down_proj),
            ] {
                f(Role::Layer(i, role), weight);
            }
        }
        Ok(())
    }
}

/// Moves tensors from a checkpoint to a device in pieces of a few megabytes.
struct Loader<'a, M: Mem> {
    mem: &'a mut dyn Memory<M>,
    from: &'a Checkpoint,
    dtype: Dtype,
    bytes: u64,
}

const PIECE_BYTES: usize = 4 << 20;

impl<M: Mem> Loader<'_, M> {
    fn layer(&mut self, i: usize) -> Result<Layer<M>, CheckpointError> {
        let mut weight = |role| self.weight(Role::Layer(i, role));
        Ok(Layer {
            input_layernorm: weight(LayerRole::InputLayernorm)?,
            q_proj: weight(LayerRole::QProj)?,
            k_proj: weight(LayerRole::KProj)?,
            v_proj: weight(LayerRole::VProj)?,
            q_norm: weight(LayerRole::QNorm)?,
            k_norm: weight(LayerRole::KNorm)?,
            o_proj: weight(LayerRole::OProj)?,
            post_attention_layernorm: weight(LayerRole::PostAttentionLayernorm)?,
            gate_proj: weight(LayerRole::GateProj)?,
            up_proj: weight(LayerRole::UpProj)?,
            down_proj: weight(LayerRole::DownProj)?,
        })
    }

    fn weight(&mut self, role: Role) -> Result<M::Weight, CheckpointError> {
        let tensor = self.from.tensor(role);
        let n = tensor.shape[0] as usize;
        let k = tensor.shape.get(1).map(|k| *k as usize);
        let mut weight = self.mem.alloc_weight(n, k, self.dtype);
        let row_bytes = tensor.len as usize / n;
        let piece = (PIECE_BYTES / row_bytes).clamp(1, n);
        let mut bytes = vec![0; piece * row_bytes];
        for first in (0..n).step_by(piece) {
            let bytes = &mut bytes[..piece.min(n - first) * row_bytes];
            self.from.read(tensor, (first * row_bytes) as u64, bytes)?;
            self.bytes += bytes.len() as u64;
            self.mem.write_weight(&mut weight, first, &cast(tensor, bytes, self.dtype));
        }
        Ok(weight)
    }
}

/// Bytes of a tensor as elements of `dtype`.
fn cast(tensor: &TensorInfo, bytes: &[u8], dtype: Dtype) -> Tensor {
    let halves = || bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b));
    let words = || bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    match (tensor.dtype, dtype) {
        (StorageDtype::Bf16, Dtype::Bf16) => Tensor::Bf16(halves().collect()),
        (StorageDtype::Bf16, Dtype::F32) => Tensor::F32(halves().map(Element::widen).collect()),
        (StorageDtype::F32, Dtype::Bf16) => Tensor::Bf16(words().map(bf16::nearest).collect()),
        (StorageDtype::F32, Dtype::F32) => Tensor::F32(words().collect()),
        (other, _) => unreachable!("admission lets no {other:?} weight pass"),
    }
}
