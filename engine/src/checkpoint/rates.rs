//! The decay's rates: the one weight whose values admission reads.
//!
//! A rate `exp(A_log)` that is infinite or no number makes every state a NaN, at once or as soon as
//! a step underflows: refused. A rate of zero is a head that never forgets: named. So is what a
//! bf16 run does with rates and gated norms that the file has in F32.

use half::bf16;

use super::config::Config;
use super::dtype::StorageDtype;
use super::error::{CheckpointError, Refusal};
use super::mapping::WeightMap;
use super::pages::PageIndex;
use super::roles::{LayerRole, Role};
use crate::contract::Dtype;

/// Says that F32 rates and gated norms keep their precision in a bf16 run, if there are any.
pub(super) fn precision(
    config: &Config,
    index: &PageIndex,
    map: &WeightMap,
    dtype: Dtype,
) -> Option<String> {
    let linear = (0..config.num_hidden_layers).filter(|i| !config.layer_kinds.is_full(*i));
    let roles = linear
        .flat_map(|i| [LayerRole::ALog, LayerRole::GatedNorm].map(|part| Role::Layer(i, part)));
    let wide = |role: &Role| {
        let number = map.get(*role).expect("the map is total");
        index.tensors()[number].dtype == StorageDtype::F32
    };
    let count = roles.filter(wide).count();
    (count > 0 && dtype == Dtype::Bf16).then(|| {
        format!(
            "{count} of the linear layers' A_log and norm.weight are F32: kept so in a bf16 run of \
             the invariant order, rounded in that of transformers"
        )
    })
}

/// Refuses rates that are no numbers; names those of zero.
pub(super) fn check(
    config: &Config,
    index: &PageIndex,
    map: &WeightMap,
    notices: &mut Vec<String>,
) -> Result<(), CheckpointError> {
    for layer in (0..config.num_hidden_layers).filter(|i| !config.layer_kinds.is_full(*i)) {
        let number = map.get(Role::Layer(layer, LayerRole::ALog)).expect("the map is total");
        let tensor = &index.tensors()[number];
        let mut bytes = vec![0; tensor.len as usize];
        index.read(tensor, 0, &mut bytes)?;
        let values: Vec<f32> = match tensor.dtype {
            StorageDtype::F32 => {
                bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        };
        let bad = |v: &f32| v.is_nan() || *v == f32::INFINITY;
        if let Some(head) = values.iter().position(bad) {
            let (tensor, value) = (tensor.name.clone(), values[head]);
            return Err(
                Refusal::Rate { tensor, head, value }.of(index.path(&index.tensors()[number]))
            );
        }
        let zeros = values.iter().filter(|v| **v == f32::NEG_INFINITY).count();
        if zeros > 0 {
            let of = values.len();
            notices.push(format!("{}: {zeros} of {of} heads never forget (-inf)", tensor.name));
        }
    }
    Ok(())
}
