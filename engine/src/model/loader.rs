//! From a checkpoint to a device, in pieces of a few megabytes.

use half::bf16;

use super::weights::{Attention, DeltaNet, Layer, Mixer};
use crate::checkpoint::{Checkpoint, CheckpointError, LayerRole, Role, StorageDtype, TensorInfo};
use crate::contract::{Dtype, Element, Order};
use crate::op::{Mem, Memory};
use crate::tensor::Tensor;

const PIECE_BYTES: usize = 4 << 20;

/// Moves tensors, and counts their bytes.
pub struct Loader<'a, M: Mem> {
    mem: &'a mut dyn Memory<M>,
    from: &'a Checkpoint,
    order: Order,
    /// Bytes read so far.
    pub bytes: u64,
}

/// How a weight is held.
#[derive(Clone, Copy)]
struct Held {
    /// What its values are rounded to.
    values: Dtype,
    /// What it is stored in.
    store: Dtype,
    /// Whether it is a matrix of packed panels; any other shape is one vector.
    matrix: bool,
}

impl<'a, M: Mem> Loader<'a, M> {
    /// Loads from `from` for runs in `order`.
    pub fn new(mem: &'a mut dyn Memory<M>, from: &'a Checkpoint, order: Order) -> Self {
        Self { mem, from, order, bytes: 0 }
    }

    /// The weights of layer `i`.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    pub fn layer(&mut self, i: usize, attention: bool) -> Result<Layer<M>, CheckpointError> {
        use LayerRole as R;
        let mut weight = |role| self.weight(Role::Layer(i, role));
        Ok(Layer {
            input_layernorm: weight(R::InputLayernorm)?,
            mixer: if attention {
                Mixer::Attention(Attention {
                    q_proj: weight(R::QProj)?,
                    k_proj: weight(R::KProj)?,
                    v_proj: weight(R::VProj)?,
                    q_norm: weight(R::QNorm)?,
                    k_norm: weight(R::KNorm)?,
                    o_proj: weight(R::OProj)?,
                })
            } else {
                Mixer::DeltaNet(DeltaNet {
                    in_proj_qkv: weight(R::InProjQkv)?,
                    in_proj_z: weight(R::InProjZ)?,
                    in_proj_b: weight(R::InProjB)?,
                    in_proj_a: weight(R::InProjA)?,
                    conv1d: weight(R::Conv1d)?,
                    a_log: weight(R::ALog)?,
                    dt_bias: weight(R::DtBias)?,
                    norm: weight(R::GatedNorm)?,
                    out_proj: weight(R::OutProj)?,
                })
            },
            post_attention_layernorm: weight(R::PostAttentionLayernorm)?,
            gate_proj: weight(R::GateProj)?,
            up_proj: weight(R::UpProj)?,
            down_proj: weight(R::DownProj)?,
        })
    }

    /// The rule for each role.
    fn held(&self, role: Role, tensor: &TensorInfo) -> Held {
        let (run, matrix) = (self.from.dtype(), tensor.shape.len() == 2);
        match role {
            Role::Layer(_, LayerRole::ALog | LayerRole::GatedNorm) => {
                let values = match self.order {
                    Order::Invariant => Dtype::F32,
                    Order::Transformers => run,
                };
                Held { values, store: Dtype::F32, matrix }
            }
            _ => Held { values: run, store: run, matrix },
        }
    }

    /// One weight.
    ///
    /// # Errors
    /// What the checkpoint's files answered.
    pub fn weight(&mut self, role: Role) -> Result<M::Weight, CheckpointError> {
        let tensor = self.from.tensor(role);
        let held = self.held(role, tensor);
        let (n, k) = match (held.matrix, &tensor.shape[..]) {
            (true, &[n, k]) => (n as usize, Some(k as usize)),
            (_, shape) => (shape.iter().product::<u64>() as usize, None),
        };
        let mut weight = self.mem.alloc_weight(n, k, held.store);
        if (tensor.dtype, held.values) == (StorageDtype::F32, Dtype::F32) {
            self.mem.note_place(&mut weight, tensor.offset / 4);
        }
        let row_bytes = tensor.len as usize / n;
        let piece = (PIECE_BYTES / row_bytes).clamp(1, n);
        let mut bytes = vec![0; piece * row_bytes];
        for first in (0..n).step_by(piece) {
            let bytes = &mut bytes[..piece.min(n - first) * row_bytes];
            self.from.read(tensor, (first * row_bytes) as u64, bytes)?;
            self.bytes += bytes.len() as u64;
            let rounded = cast(tensor, bytes, held.values);
            let stored = match (&rounded, held.store) {
                (Tensor::Bf16(_), Dtype::F32) => Tensor::F32(rounded.to_f32()),
                _ => rounded,
            };
            self.mem.write_weight(&mut weight, first, &stored);
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
