mod golden;
use golden::*;
use samebits_oracle::*;
#[test]
fn explore() {
    let t = Bits { order: Order::Transformers, dtype: Dtype::Bf16 };
    for (name, prompts) in [("qwen3_5", vec![1, 7, 33, 70]), ("qwen3_5_f32log", vec![7])] {
        let m = model(name);
        let g = golden(&format!("{name}.bf16.safetensors"));
        let o = golden(&format!("{name}.oracle.safetensors"));
        for n in prompts {
            let ids = ids(&g, n);
            let tr = cached(&m, &t, &ids, n, Keep::All);
            let (p, d) = tr.logits().values.split_at(n * 300);
            println!(
                "{name} {n}: prefill {} of {}, decode {} of {}",
                differing(p, &g[&format!("L{n}/logits")].values),
                p.len(),
                differing(d, &g[&format!("L{n}/decode/logits")].values),
                d.len()
            );
            for l in 0..m.config().layers {
                let k = format!("L{n}/layer{l}");
                println!(
                    "   layer {l} {}",
                    differing(
                        &tr.sites[&format!("layers.{l}.mlp_residual")].values[..n * 64],
                        &g[&k].values
                    )
                );
            }
            let ideal = cached(&m, &Ideal, &ids, n, Keep::Logits);
            let want = [
                o[&format!("L{n}/logits")].values.clone(),
                o[&format!("L{n}/decode/logits")].values.clone(),
            ]
            .concat();
            println!("   ideal {:e}", distance(&ideal.logits().values, &want));
        }
        for (k, a) in &g {
            if k.contains("ops") || k.contains("cache") || k.contains("chunk") {
                println!("{k} {:?}", a.shape);
            }
        }
    }
}
