//! A small plain checkpoint, written and loaded.
//!
//! Deliberately absent: anything that a test would check. Invariant: it loads as it is.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use samebits_oracle::Model;
use serde_json::{Value, json};

pub type Stored = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub fn config() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "rope_theta": 1000, "tie_word_embeddings": false
    })
}

/// bf16 tensors of the configuration above, from a counter.
pub fn tensors() -> Stored {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![40, 16]),
        ("model.norm.weight".to_owned(), vec![16]),
        ("lm_head.weight".to_owned(), vec![40, 16]),
    ];
    for l in 0..2 {
        let of = |name: &str, shape: &[usize]| {
            (format!("model.layers.{l}.{name}.weight"), shape.to_vec())
        };
        all.extend([
            of("input_layernorm", &[16]),
            of("self_attn.q_proj", &[32, 16]),
            of("self_attn.k_proj", &[16, 16]),
            of("self_attn.v_proj", &[16, 16]),
            of("self_attn.o_proj", &[16, 32]),
            of("self_attn.q_norm", &[8]),
            of("self_attn.k_norm", &[8]),
            of("post_attention_layernorm", &[16]),
            of("mlp.gate_proj", &[24, 16]),
            of("mlp.up_proj", &[24, 16]),
            of("mlp.down_proj", &[16, 24]),
        ]);
    }
    let mut numbers = numbers();
    let data = |shape: &[usize], numbers: &mut dyn FnMut() -> f64| {
        let n: usize = shape.iter().product();
        (0..n).flat_map(|_| (((numbers() as f32).to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    all.into_iter().map(|(n, s)| (n, (s.clone(), data(&s, &mut numbers)))).collect()
}

pub fn numbers() -> impl FnMut() -> f64 {
    let mut state = 7u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f64 / 2f64.powi(23) - 1.0
    }
}

pub fn write(path: &Path, tensors: &Stored) {
    let views = tensors.iter().map(|(n, (shape, data))| {
        let view = TensorView::new(safetensors::Dtype::BF16, shape.clone(), data);
        (n.clone(), view.expect("the data fill the shape"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a scratch folder can be written");
}

pub fn load(config: &Value, tensors: &Stored) -> Result<Model, String> {
    let dir = tempfile::tempdir().expect("a scratch folder");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("writable");
    write(&dir.path().join("model.safetensors"), tensors);
    Model::load(dir.path()).map_err(|e| e.to_string())
}
