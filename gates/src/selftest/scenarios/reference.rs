//! The reference against a pencil and against Transformers, and goldens against their makers.

use std::collections::BTreeMap;

use samebits_fixtures::golden::sha256;
use samebits_fixtures::provenance::{Origin, Provenance, TRANSFORMERS};
use samebits_fixtures::{golden, paths};
use samebits_oracle::ops::{Heads, Linear, Mix, RmsNorm, Rope, Scores, Softmax, Tables};
use samebits_oracle::{Bits, Dtype, Order, RunOptions};

use crate::context::Context;
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, hold, said, same};

/// Rounding of a handful of f64 operations, on values of about one.
const CLOSE: f64 = 64.0 * f64::EPSILON;

fn close(what: &str, got: &[f64], want: &[f64]) -> Verdict {
    same(&format!("values of {what}"), got.len(), want.len())?;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        hold(&format!("{what} [{i}]: {g}, want {w}"), (g - w).abs() <= CLOSE)?;
    }
    Ok(())
}

/// Four numbers to a head.
const ONE_HEAD: Heads = Heads { heads: 1, kv_heads: 1, head_dim: 4 };

pub(super) fn paper(runner: &Runner, _ctx: &Context) -> Verdict {
    let exact = (runner.exact)();
    let norm = |x: &[f64], weight: &[f64], eps| exact.rms_norm(&RmsNorm { x, weight, eps }).values;
    // The mean of squares is 12.5 and eps as much: their root is 5.
    close("a norm", &norm(&[3.0, 4.0], &[1.0, 2.0], 12.5), &[0.6, 1.6])?;
    let faint = [0.001, -0.001];
    let root = 0.5f64.sqrt();
    close("a norm as small as eps", &norm(&faint, &[1.0, 1.0], 1e-6), &[root, -root])?;
    let linear = Linear { x: &[1.0, 2.0], weight: &[0.5, 0.25, 3.0, 4.0], k: 2, true_rows: 1 };
    close("a linear", &exact.linear(&linear).values, &[1.0, 11.0])?;
    // Position 1 turns the first pair by one radian, the second by a hundredth.
    let tables: Tables = exact.rotary(1e4, 4, 2);
    let turned = |x: &[f64]| {
        let op = Rope { x, tables: &tables, heads: 1, head_dim: 4, first: 1 };
        exact.rope(&op).values
    };
    let (sin, cos) = 1f64.sin_cos();
    close("a turn", &turned(&[1.0, 0.0, 0.0, 0.0]), &[cos, 0.0, sin, 0.0])?;
    close("a turn", &turned(&[0.0, 0.0, 1.0, 0.0]), &[-sin, 0.0, cos, 0.0])?;
    let (sin, cos) = 0.01f64.sin_cos();
    close("a slow turn", &turned(&[0.0, 1.0, 0.0, 0.0]), &[0.0, cos, 0.0, sin])?;
    let (q, k) = ([2.0, 0.0, 0.0, 1.0], [3.0, 5.0, 5.0, 4.0]);
    let scores = Scores { q: &q, k: &k, dims: ONE_HEAD, first: 0, true_rows: 1 };
    close("a score", &exact.scores(&scores).values, &[5.0])?;
    let three = 3f64.ln();
    let row = [0.0, three, 0.0];
    let seen = Softmax { scores: &row, rows: 1, keys: 3, first: 1 };
    close("a softmax", &exact.softmax(&seen).values, &[0.25, 0.75, 0.0])?;
    let v = [4.0, 0.0, 1.0, 0.0, 8.0, 2.0, 1.0, 0.0];
    let probs = [0.25, 0.75];
    let mix = Mix { probs: &probs, v: &v, dims: ONE_HEAD, first: 1, true_rows: 1 };
    close("a mix", &exact.mix(&mix).values, &[7.0, 1.5, 1.0, 0.0])?;
    close("silu", &exact.silu(&[three, 0.0]).values, &[0.75 * three, 0.0])?;
    close("a product", &exact.mul(&[3.0], &[-2.0]).values, &[-6.0])?;
    close("a sum", &exact.add(&[3.0], &[-2.0]).values, &[1.0])
}

pub(super) fn rounding(runner: &Runner, _ctx: &Context) -> Verdict {
    let bf16 = (runner.rounded)(Dtype::Bf16);
    // 0.6 and 0.8 are stored as 154 and 205 of 256, and only then meet the weight.
    let norm = RmsNorm { x: &[3.0, 4.0], weight: &[3.0, 1.0], eps: 12.5 };
    let stored = [154.0 * 3.0 / 256.0, 205.0 / 256.0];
    same("a norm", bf16.rms_norm(&norm).values, stored.to_vec())?;
    let step = 1.0 / 128.0; // of bf16 from 1 to 2
    let linear = |last| {
        let op = Linear { x: &[1.0, 1.0], weight: &[1.0, last], k: 2, true_rows: 1 };
        bf16.linear(&op).values
    };
    same("half a step above an even number", linear(0.5 * step), vec![1.0])?;
    same("half a step above an odd one", linear(1.5 * step), vec![1.0 + 2.0 * step])?;
    let product = bf16.mul(&[1.0 + step], &[1.0 + step]).values;
    same("a product", product, vec![1.0 + 2.0 * step])?;
    same("a sum", bf16.add(&[1.0], &[0.25 * step]).values, vec![1.0])?;
    let least = -(2.0 - step) * 2f64.powi(127);
    same("the value of a hidden key", bf16.masked(), least)?;
    let f32 = (runner.rounded)(Dtype::F32);
    same("a sum in f32", f32.add(&[1.0], &[0.25 * step]).values, vec![1.0 + 0.25 * step])?;
    same("a sum below f32", f32.add(&[1.0], &[2f64.powi(-30)]).values, vec![1.0])
}

pub(super) fn transformers(runner: &Runner, ctx: &Context) -> Verdict {
    let name = golden::NARROW[0];
    let file = paths::golden(&format!("{name}.bf16.safetensors"));
    let tensors = golden::tensors(&file).map_err(said)?;
    let recorded = |key: &str| tensors.get(key).ok_or(format!("{key} is not recorded"));
    let model = ctx.reference(&paths::narrow(name)).map_err(said)?;
    let bits = Bits { order: Order::Transformers, dtype: Dtype::Bf16 };
    for prompt in [7, 33] {
        let ids: Vec<u32> = recorded(&format!("L{prompt}/input_ids"))?
            .i64s()
            .into_iter()
            .map(|id| id as u32)
            .collect();
        let trace = (runner.reference)(&model, &bits, &ids, &RunOptions::default());
        let got = trace.map_err(said)?.logits().values.clone();
        let want = recorded(&format!("L{prompt}/logits"))?.widened();
        same("logits", got.len(), want.len())?;
        let differing = got.iter().zip(&want).filter(|(g, w)| g.to_bits() != w.to_bits()).count();
        same(&format!("logits of {prompt} ids that differ from Transformers'"), differing, 0)?;
    }
    Ok(())
}

pub(super) fn goldens(runner: &Runner, _ctx: &Context) -> Verdict {
    let (file, float64) = ("a.bf16.safetensors", "a.oracle.safetensors");
    let bytes = b"what Transformers computed".as_slice();
    let made = |maker: &str, tool: &str, version: &str| Origin {
        maker: maker.to_owned(),
        tools: BTreeMap::from([(tool.to_owned(), version.to_owned())]),
        sha256: sha256(bytes),
    };
    let sound = made("make_goldens.py", "transformers", TRANSFORMERS);
    let altered = Origin { sha256: sha256(b"other bytes"), ..sound.clone() };
    for (why, entry, file, admitted) in [
        ("sound", (file, sound.clone()), file, true),
        ("float64", (float64, made("oracle_f64.py", "numpy", "2.4.6")), float64, true),
        ("no entry", (float64, sound.clone()), file, false),
        ("other bytes", (file, altered), file, false),
        ("of the engine", (file, made("samebits", "samebits", "0.1.0")), file, false),
        (
            "of the engine by a script",
            (file, made("make_goldens.py", "samebits", "0.1.0")),
            file,
            false,
        ),
        (
            "an older version",
            (file, made("make_goldens.py", "transformers", "5.16.0")),
            file,
            false,
        ),
        ("no such script", (file, made("mine.py", "transformers", TRANSFORMERS)), file, false),
        ("a script elsewhere", (file, made("../x.py", "transformers", TRANSFORMERS)), file, false),
        ("bf16 of numpy", (file, made("oracle_f64.py", "numpy", "2.4.6")), file, false),
    ] {
        let all = Provenance(BTreeMap::from([(entry.0.to_owned(), entry.1)]));
        let said = (runner.golden)(&all, file, bytes);
        hold(&format!("{why}: {said:?}"), said.is_ok() == admitted)?;
    }
    Ok(())
}
