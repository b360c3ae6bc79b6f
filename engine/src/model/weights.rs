//! Weights on a device: held once, handed out a layer at a time.

use std::ops::Deref;

use super::loader::Loader;
use super::shape::Shape;
use crate::checkpoint::{Checkpoint, CheckpointError, LayerRole, Role};
use crate::contract::{Dtype, Order};
use crate::op::{Backend, Fence, Mem};

/// One decoder layer's weights.
pub struct Layer<M: Mem> {
    /// Norm before the mixer.
    pub input_layernorm: M::Weight, // [hidden]
    /// Attention or a gated delta net.
    pub mixer: Mixer<M>,
    /// Norm before the MLP.
    pub post_attention_layernorm: M::Weight, // [hidden]
    /// Gate of the MLP.
    pub gate_proj: M::Weight, // [intermediate, hidden]
    /// Value of the MLP.
    pub up_proj: M::Weight, // [intermediate, hidden]
    /// Output of the MLP.
    pub down_proj: M::Weight, // [hidden, intermediate]
}

/// What mixes positions in a layer.
pub enum Mixer<M: Mem> {
    /// Attention over a cache.
    Attention(Attention<M>),
    /// A gated delta net over a state.
    DeltaNet(DeltaNet<M>),
}

/// Weights of attention.
pub struct Attention<M: Mem> {
    /// Queries; in a hybrid each head's query and gate.
    pub q_proj: M::Weight, // [heads * head_dim, hidden], in a hybrid twice as many rows
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
}

/// Weights of a gated delta net.
pub struct DeltaNet<M: Mem> {
    /// Queries, keys and values.
    pub in_proj_qkv: M::Weight, // [channels, hidden]
    /// Gates of the norm.
    pub in_proj_z: M::Weight, // [value heads * value_dim, hidden]
    /// Strengths of the write.
    pub in_proj_b: M::Weight, // [value heads, hidden]
    /// Steps of the decay.
    pub in_proj_a: M::Weight, // [value heads, hidden]
    /// Taps of each channel, the oldest first.
    pub conv1d: M::Weight, // [channels * kernel]
    /// Logarithms of the decay's rates, in f32.
    pub a_log: M::Weight, // [value heads]
    /// Biases of the decay's steps.
    pub dt_bias: M::Weight, // [value heads]
    /// The gated norm, in f32.
    pub norm: M::Weight, // [value_dim]
    /// Output.
    pub out_proj: M::Weight, // [hidden, value heads * value_dim]
}

impl<M: Mem> Layer<M> {
    /// Every weight under its role, in the order of the forward pass.
    fn roles(&self) -> Vec<(LayerRole, &M::Weight)> {
        use LayerRole as R;
        let mut all = vec![(R::InputLayernorm, &self.input_layernorm)];
        match &self.mixer {
            Mixer::Attention(w) => all.extend([
                (R::QProj, &w.q_proj),
                (R::KProj, &w.k_proj),
                (R::VProj, &w.v_proj),
                (R::QNorm, &w.q_norm),
                (R::KNorm, &w.k_norm),
                (R::OProj, &w.o_proj),
            ]),
            Mixer::DeltaNet(w) => all.extend([
                (R::InProjQkv, &w.in_proj_qkv),
                (R::InProjZ, &w.in_proj_z),
                (R::InProjB, &w.in_proj_b),
                (R::InProjA, &w.in_proj_a),
                (R::Conv1d, &w.conv1d),
                (R::ALog, &w.a_log),
                (R::DtBias, &w.dt_bias),
                (R::GatedNorm, &w.norm),
                (R::OutProj, &w.out_proj),
            ]),
        }
        all.extend([
            (R::PostAttentionLayernorm, &self.post_attention_layernorm),
            (R::GateProj, &self.gate_proj),
            (R::UpProj, &self.up_proj),
            (R::DownProj, &self.down_proj),
        ]);
        all
    }
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
    /// Loads every weight, cast to the checkpoint's run dtype, for runs in `order`.
    ///
    /// The rates and gated norms of a gated delta net are held in f32: as the file has them in the
    /// contract's order, rounded to the run's dtype first in that of Transformers.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    pub fn load<B: Backend<M = M>>(
        b: &mut B,
        from: &Checkpoint,
        order: Order,
    ) -> Result<Self, CheckpointError> {
        let (shape, dtype) = (Shape::of(from.config()), from.dtype());
        let mut loader = Loader::new(b.mem(), from, order);
        let embed_tokens = loader.weight(Role::EmbedTokens)?;
        let norm = loader.weight(Role::Norm)?;
        let lm_head = if from.tied() { None } else { Some(loader.weight(Role::LmHead)?) };
        let layers = (0..shape.layers)
            .map(|i| loader.layer(i, shape.kinds.is_full(i)))
            .collect::<Result<_, _>>()?;
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
            for (role, weight) in w.roles() {
                f(Role::Layer(i, role), weight);
            }
        }
        Ok(())
    }
}
