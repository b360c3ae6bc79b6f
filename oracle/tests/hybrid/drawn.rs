//! The models of the hashed goldens, drawn again from their rule, and the hashes.
//!
//! A value is a function of (seed 1, tensor name, index): a sum of four 16-bit fields of
//! SplitMix64, scaled; q and k share most of theirs. Deliberately absent: anything that a test
//! would check. Invariant: one wrong bit of a weight changes every hash that follows it.

use std::path::Path;

use safetensors::tensor::TensorView;
use samebits_oracle::bits::round_bf16;
use samebits_oracle::{Array, Dtype, Model};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Makes a sum of four fields have a standard deviation of 1.
const UNIT: f32 = 1.732_050_8 / 65_536.0;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// How the values of a tensor are drawn.
#[derive(Clone, Copy)]
enum Role {
    Bell { centre: f32, std: f32 },
    Linear(f32),
    Kin { keys: usize, gain: f32, own: f32 }, // `keys` rows of q, as many of k, then v
    LogRate,
}

const OFFSET: Role = Role::Bell { centre: 0.0, std: 0.1 };

/// A checkpoint to draw.
pub struct Drawn<'a> {
    spec: &'a Value,
}

impl<'a> Drawn<'a> {
    /// The one that a hashed golden states.
    pub fn new(golden: &'a Value) -> Self {
        assert_eq!(golden["seed"], 1);
        Self { spec: &golden["spec"] }
    }

    fn n(&self, field: &str) -> usize {
        self.spec[field].as_u64().expect("a whole number") as usize
    }

    /// Writes and loads it.
    pub fn model(&self) -> Model {
        let dir = tempfile::tempdir().expect("a scratch folder");
        std::fs::write(dir.path().join("config.json"), self.config().to_string())
            .expect("writable");
        self.write(&dir.path().join("model.safetensors"));
        Model::load(dir.path()).expect("a model")
    }

    fn is_hybrid(&self) -> bool {
        !self.spec["interval"].is_null()
    }

    fn config(&self) -> Value {
        let s = self.spec;
        if !self.is_hybrid() {
            return json!({
                "model_type": "qwen3", "vocab_size": s["vocab"], "hidden_size": s["hidden"],
                "intermediate_size": s["intermediate"], "num_hidden_layers": s["layers"],
                "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"],
                "head_dim": s["head_dim"], "rms_norm_eps": s["eps"], "rope_theta": s["theta"],
                "tie_word_embeddings": s["tied"],
            });
        }
        json!({"model_type": "qwen3_5", "text_config": {
            "vocab_size": s["vocab"], "hidden_size": s["hidden"],
            "intermediate_size": s["intermediate"], "num_hidden_layers": s["layers"],
            "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"],
            "head_dim": s["head_dim"], "full_attention_interval": s["interval"],
            "linear_num_key_heads": s["key_heads"], "linear_num_value_heads": s["value_heads"],
            "linear_key_head_dim": s["key_dim"], "linear_value_head_dim": s["value_dim"],
            "linear_conv_kernel_dim": s["kernel"], "rms_norm_eps": s["eps"],
            "rope_parameters": {
                "partial_rotary_factor": s["partial"], "rope_theta": s["theta"],
            },
        }})
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>, Role)> {
        if self.is_hybrid() { self.hybrid_tensors() } else { self.dense_tensors() }
    }

    fn dense_tensors(&self) -> Vec<(String, Vec<usize>, Role)> {
        let (h, i, d) = (self.n("hidden"), self.n("intermediate"), self.n("head_dim"));
        let (v, q, kv) = (self.n("vocab"), self.n("heads") * d, self.n("kv_heads") * d);
        let norm = Role::Bell { centre: 1.0, std: 0.1 };
        let (plain, sharp) = (Role::Linear(1.5), Role::Linear(3.0));
        let layer = [
            ("input_layernorm", vec![h], norm),
            ("self_attn.q_proj", vec![q, h], sharp),
            ("self_attn.k_proj", vec![kv, h], sharp),
            ("self_attn.v_proj", vec![kv, h], plain),
            ("self_attn.o_proj", vec![h, q], plain),
            ("self_attn.q_norm", vec![d], norm),
            ("self_attn.k_norm", vec![d], norm),
            ("post_attention_layernorm", vec![h], norm),
            ("mlp.gate_proj", vec![i, h], plain),
            ("mlp.up_proj", vec![i, h], plain),
            ("mlp.down_proj", vec![h, i], plain),
        ];
        let embedding = Role::Bell { centre: 0.0, std: 0.5 };
        let mut all = vec![
            ("model.embed_tokens.weight".into(), vec![v, h], embedding),
            ("model.norm.weight".into(), vec![h], norm),
        ];
        for l in 0..self.n("layers") {
            let named = |(name, shape, role): &(&str, Vec<usize>, Role)| {
                (format!("model.layers.{l}.{name}.weight"), shape.clone(), *role)
            };
            all.extend(layer.iter().map(named));
        }
        if self.spec["tied"] == false {
            all.push(("lm_head.weight".into(), vec![v, h], plain));
        }
        all
    }

    fn hybrid_tensors(&self) -> Vec<(String, Vec<usize>, Role)> {
        let (h, i, d) = (self.n("hidden"), self.n("intermediate"), self.n("head_dim"));
        let (q, kv) = (self.n("heads") * d, self.n("kv_heads") * d);
        let keys = self.n("key_heads") * self.n("key_dim");
        let (nv, dv, kernel) = (self.n("value_heads"), self.n("value_dim"), self.n("kernel"));
        let channels = 2 * keys + nv * dv;
        let (plain, sharp, root) = (Role::Linear(1.0), Role::Linear(2.0), (kernel as f32).sqrt());
        let mut all = vec![
            (
                "embed_tokens.weight".into(),
                vec![self.n("vocab"), h],
                Role::Bell { centre: 0.0, std: 0.5 },
            ),
            ("norm.weight".into(), vec![h], OFFSET),
        ];
        for l in 0..self.n("layers") {
            let mut layer = vec![
                ("input_layernorm.weight", vec![h], OFFSET),
                ("post_attention_layernorm.weight", vec![h], OFFSET),
                ("mlp.gate_proj.weight", vec![i, h], plain),
                ("mlp.up_proj.weight", vec![i, h], plain),
                ("mlp.down_proj.weight", vec![h, i], plain),
            ];
            if (l + 1) % self.n("interval") == 0 {
                layer.extend([
                    ("self_attn.q_proj.weight", vec![2 * q, h], sharp),
                    ("self_attn.k_proj.weight", vec![kv, h], sharp),
                    ("self_attn.v_proj.weight", vec![kv, h], plain),
                    ("self_attn.o_proj.weight", vec![h, q], plain),
                    ("self_attn.q_norm.weight", vec![d], OFFSET),
                    ("self_attn.k_norm.weight", vec![d], OFFSET),
                ]);
            } else {
                let kin = Role::Kin { keys, gain: 2.0, own: 0.6 };
                let taps = Role::Kin { keys, gain: 0.5 * root, own: 0.2 * root };
                let bias = Role::Bell { centre: -3.0, std: 1.0 };
                let near_one = Role::Bell { centre: 1.0, std: 0.1 };
                layer.extend([
                    ("linear_attn.in_proj_qkv.weight", vec![channels, h], kin),
                    ("linear_attn.in_proj_z.weight", vec![nv * dv, h], plain),
                    ("linear_attn.in_proj_b.weight", vec![nv, h], plain),
                    ("linear_attn.in_proj_a.weight", vec![nv, h], plain),
                    ("linear_attn.conv1d.weight", vec![channels, 1, kernel], taps),
                    ("linear_attn.A_log", vec![nv], Role::LogRate),
                    ("linear_attn.dt_bias", vec![nv], bias),
                    ("linear_attn.norm.weight", vec![dv], near_one),
                    ("linear_attn.out_proj.weight", vec![h, nv * dv], plain),
                ]);
            }
            let named = |(name, shape, role)| (format!("layers.{l}.{name}"), shape, role);
            all.extend(layer.into_iter().map(named));
        }
        all.iter_mut().for_each(|(name, ..)| *name = format!("model.{name}"));
        all.push(("lm_head.weight".into(), vec![self.n("vocab"), h], Role::Linear(2.4)));
        all
    }

    fn write(&self, path: &Path) {
        let wide_logs = self.spec["log_dtype"] == "f32";
        let wide = self.spec["dtype"] == "f32";
        let drawn = self.tensors().into_iter().map(|(name, shape, role)| {
            let values = values(&name, &shape, role);
            let log = name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight");
            let (dtype, data): (_, Vec<u8>) = if wide || wide_logs && log {
                (safetensors::Dtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
            } else {
                let half = |x: &f32| ((round_bf16(*x).to_bits() >> 16) as u16).to_le_bytes();
                (safetensors::Dtype::BF16, values.iter().flat_map(half).collect())
            };
            let prefix = if self.is_hybrid() { "model.language_model." } else { "model." };
            (name.replacen("model.", prefix, 1), dtype, shape, data)
        });
        let drawn: Vec<_> = drawn.collect();
        let views = drawn.iter().map(|(name, dtype, shape, data)| {
            (name, TensorView::new(*dtype, shape.clone(), data).expect("data fill the shape"))
        });
        // With the metadata of the goldens' files, so that every tensor has its offset there.
        let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        safetensors::serialize_to_file(views, metadata, path)
            .expect("a scratch folder is writable");
    }
}

/// The numbers of a name under a seed.
pub fn stream(seed: u64, name: &str) -> impl Fn(usize) -> u64 {
    let name = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let key = mix(name ^ mix(seed.wrapping_add(STEP)));
    move |i| mix(key.wrapping_add((i as u64 + 1).wrapping_mul(STEP)))
}

fn values(name: &str, shape: &[usize], role: Role) -> Vec<f32> {
    let at = stream(1, name);
    let bell = |i: usize| {
        let fields = [0, 16, 32, 48].map(|shift| ((at(i) >> shift) & 0xFFFF) as i32);
        (fields.iter().sum::<i32>() - 2 * 65_535) as f32
    };
    let (count, columns) = (shape.iter().product(), shape[shape.len() - 1] as f32);
    let per_column = |gain: f32| gain / columns.sqrt() * UNIT;
    let value = |i: usize| match role {
        Role::Bell { centre, std } => centre + bell(i) * (std * UNIT),
        Role::Linear(gain) => 0.0 + bell(i) * per_column(gain),
        Role::Kin { keys, gain, own } => {
            let block = keys * (count / shape[0]);
            if i < block {
                0.9 * (bell(i + block) * per_column(gain)) + bell(i) * per_column(own)
            } else {
                bell(i) * per_column(gain)
            }
        }
        Role::LogRate => {
            let unit = ((at(i) >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
            (0.01 + 15.99 * unit).ln() as f32
        }
    };
    (0..count).map(value).collect()
}

/// Rows `from..to` of a site as the goldens hash them: [`scores` and `probs`: all heads, keys
/// before `to`], little-endian, in the dtype of the run or, for what is always f32, in f32.
pub fn hash(site: &str, array: &Array, (from, to): (usize, usize), dtype: Dtype) -> String {
    let op = site.rsplit('.').next().expect("a site has a name");
    let dtype = if ["g", "q_l2", "k_l2"].contains(&op) { Dtype::F32 } else { dtype };
    let bits = array.bits(dtype);
    let bits: Vec<u32> = if ["scores", "probs"].contains(&op) {
        let t = array.shape[1];
        let rows = bits.chunks(t).enumerate().filter(|(i, _)| (from..to).contains(&(i % t)));
        rows.flat_map(|(_, row)| row[..to].to_vec()).collect()
    } else {
        let width: usize = array.shape[1..].iter().product();
        bits[from * width..to * width].to_vec()
    };
    let width = if dtype == Dtype::F32 { 4 } else { 2 };
    let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()[..width].to_vec()).collect();
    Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect()
}
