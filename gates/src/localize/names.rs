//! Names that other engines give to the tensors of a run, as sites.
//!
//! Here: modules of Transformers, with `.output` or `.input` behind them where a hook saw both, and
//! `hidden_states.N`. Absent: shapes. The invariant: a name that could be two sites is none.

use crate::sites::rank;

/// Projections that hold several sites.
pub const FUSED: [&str; 2] = ["qkv_proj", "gate_up_proj"];

/// The site that a tensor's name stands for; a layer's fused projections keep their own op. `layers`
/// is how many the model has: without it the last of the hidden states cannot be told.
pub fn site_of(name: &str, layers: Option<usize>) -> Option<String> {
    let name = ["model.", "language_model.", "model."]
        .iter()
        .fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
    if name == "logits" {
        return Some("lm_head".to_owned());
    }
    if let Some(state) = name.strip_prefix("hidden_states.") {
        return hidden_state(state.parse().ok()?, layers?);
    }
    let (module, input) = match name.strip_suffix(".input") {
        Some(module) => (module, true),
        None => (name.strip_suffix(".output").unwrap_or(name), false),
    };
    let Some((layer, inner)) = layer_of(module) else {
        return (!input && rank(module).is_some()).then(|| module.to_owned());
    };
    let site = match (inner, input) {
        ("input_layernorm" | "", true) => return Some(stream_before(layer)),
        ("post_attention_layernorm", true) => "attn_residual",
        ("mlp.down_proj", true) => "mul",
        ("self_attn.o_proj", true) => "mix",
        (_, true) => return None,
        ("", false) => "mlp_residual",
        ("self_attn", _) => "o_proj",
        ("linear_attn", _) => "out_proj",
        ("mlp", _) => "down_proj",
        ("mlp.act_fn", _) => "silu",
        ("linear_attn.norm", _) => "gdn_norm",
        (inner, _) => {
            let of = ["self_attn.", "linear_attn.", "mlp."];
            of.iter().find_map(|part| inner.strip_prefix(part)).unwrap_or(inner)
        }
    };
    let full = format!("layers.{layer}.{site}");
    (rank(&full).is_some() || FUSED.contains(&site)).then_some(full)
}

/// Layer and module within it of `layers.3` or `layers.3.mlp`.
fn layer_of(module: &str) -> Option<(usize, &str)> {
    let rest = module.strip_prefix("layers.")?;
    let (layer, inner) = rest.split_once('.').unwrap_or((rest, ""));
    Some((layer.parse().ok()?, inner))
}

/// The residual stream that a layer reads.
pub fn stream_before(layer: usize) -> String {
    match layer {
        0 => "embed_tokens".to_owned(),
        _ => format!("layers.{}.mlp_residual", layer - 1),
    }
}

/// Transformers' list: what each layer reads, and at the end the output of the final norm.
fn hidden_state(n: usize, layers: usize) -> Option<String> {
    match n {
        _ if n > layers => None,
        _ if n == layers => Some("norm".to_owned()),
        _ => Some(stream_before(n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_sites_and_what_is_none_stays_strange() {
        for (name, want) in [
            ("layers.3.q_proj", Some("layers.3.q_proj")),
            ("model.layers.3.self_attn.q_proj", Some("layers.3.q_proj")),
            ("model.layers.3.self_attn.q_proj.output", Some("layers.3.q_proj")),
            ("model.language_model.layers.0.linear_attn.norm", Some("layers.0.gdn_norm")),
            ("model.layers.1.self_attn.qkv_proj", Some("layers.1.qkv_proj")),
            ("model.layers.2", Some("layers.2.mlp_residual")),
            ("model.layers.2.input", Some("layers.1.mlp_residual")),
            ("model.layers.0.input_layernorm.input", Some("embed_tokens")),
            ("model.layers.0.mlp.down_proj.input", Some("layers.0.mul")),
            ("model.layers.0.self_attn.q_proj.input", None),
            ("model.norm", Some("norm")),
            ("logits", Some("lm_head")),
            ("hidden_states.0", Some("embed_tokens")),
            ("hidden_states.2", Some("layers.1.mlp_residual")),
            ("hidden_states.4", Some("norm")),
            ("hidden_states.5", None),
            ("layers.x.q_proj", None),
            ("position_ids", None),
        ] {
            assert_eq!(site_of(name, Some(4)).as_deref(), want, "{name}");
        }
        assert_eq!(site_of("hidden_states.2", None), None);
    }
}
