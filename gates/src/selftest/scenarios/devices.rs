//! What is seen of a device: taps, counts, memory that nobody wrote.

use std::ops::{Add, Mul};
use std::process::Command;

use half::bf16;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::generate::Sampler;
use samebits::op::{Backend, Layout};
use samebits::tensor::Tensor;
use samebits_fixtures::paths;

use crate::checks::Outcome;
use crate::checks::running::heap::{Case, Counted};
use crate::checks::running::{prompts, request};
use crate::context::Context;
use crate::decor::{Seam, Traffic, Waste, Wasteful};
use crate::engine::Setup;
use crate::limits::Limits;
use crate::manifest::Plant;
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, blank, gate, hold, planted, said, same};
use crate::sites::Sites;
use samebits_reports::Status;

/// Rows of a run, and those of its first forward.
const ROWS: usize = 8;
const FIRST: usize = 5;

fn cpu() -> Cpu {
    Cpu::new(Kernels::best(), Order::Invariant)
}

/// The taps of a run of the embedded model: a prefill, then single rows.
fn taps_of(runner: &Runner, ctx: &Context, plant: Option<&Plant>) -> Result<Sites, String> {
    let model = ctx.load(&paths::tiny_qwen3(), Dtype::Bf16).map_err(said)?;
    let setup = Setup::new(Order::Invariant, "self-test").decode_from(FIRST, ROWS);
    let ids = samebits_fixtures::prompt_ids(ctx.seed, model.shape.vocab, ROWS);
    let mut traces = (runner.trace)(&model, &setup, &[ids], plant).map_err(said)?;
    Ok(traces.sequences.remove(0))
}

/// What is done to two numbers.
type Each = fn(f32, f32) -> f32;

/// `a op b`, element by element, rounded to bf16 once, as bits.
fn each(a: &[f64], b: &[f64], op: Each) -> Vec<u32> {
    let one = |(a, b): (&f64, &f64)| bf16::from_f32(op(*a as f32, *b as f32)).to_bits();
    a.iter().zip(b).map(one).map(u32::from).collect()
}

pub(super) fn taps(runner: &Runner, ctx: &Context) -> Verdict {
    let sites = taps_of(runner, ctx, None)?;
    let layers = sites.keys().filter(|name| name.ends_with(".o_proj")).count();
    hold("there are several layers", layers > 1)?;
    let get = |name: &str| sites.get(name).ok_or(format!("no tap of {name}"));
    let mut stream = "embed_tokens".to_owned();
    for layer in 0..layers {
        let own = |op: &str| format!("layers.{layer}.{op}");
        for (out, a, b, op) in [
            (own("attn_residual"), stream.clone(), own("o_proj"), Add::add as Each),
            (own("mul"), own("silu"), own("up_proj"), Mul::mul),
            (own("mlp_residual"), own("attn_residual"), own("down_proj"), Add::add),
        ] {
            let want = each(&get(&a)?.values(), &get(&b)?.values(), op);
            hold(&format!("{out} is not made of {a} and {b}"), get(&out)?.bits == want)?;
        }
        for (cache, written) in [("k_cache", "k_rope"), ("v_cache", "v_proj")] {
            let equal = get(&own(cache))?.bits == get(&own(written))?.bits;
            hold(&format!("{} does not hold {written}", own(cache)), equal)?;
        }
        let turned = get(&own("q_rope"))?.bits != get(&own("q_norm"))?.bits;
        hold(&format!("{} shows what came after it", own("q_norm")), turned)?;
        let normed = get(&own("input_layernorm"))?.bits != get(&stream)?.bits;
        hold(&format!("{stream} shows what came after it"), normed)?;
        stream = own("mlp_residual");
    }
    for site in sites.values() {
        hold("a tap of other rows", site.shape.contains(&ROWS))?;
    }
    Ok(())
}

pub(super) fn flipped(runner: &Runner, ctx: &Context) -> Verdict {
    let run = |id: &str| taps_of(runner, ctx, Some(&Plant::Defect(id.to_owned())));
    let (clean, null, flipped) = (taps_of(runner, ctx, None)?, run("null")?, run("flip-bit-low")?);
    let compare = |got| (runner.compare)(&clean, got, std::slice::from_ref(&(0..ROWS)));
    let found = compare(&null);
    same("elements that no fault changes", found.differing, 0)?;
    let elements: usize = clean.values().map(|site| site.bits.len()).sum();
    same("elements compared", found.compared, elements as u64)?;
    let first = compare(&flipped).first;
    let seen = first.as_ref().map(|f| (f.op.as_str(), f.layer, f.ulps));
    same("a flipped bit", seen, Some(("down_proj", Some(0), Some(1))))
}

pub(super) fn children(runner: &Runner, ctx: &Context) -> Verdict {
    for (why, word) in [("dies", "no-such-command"), ("answers no hashes", "--version")] {
        let answer = (runner.child)(ctx, Command::new(&ctx.child).arg(word), 0);
        hold(&format!("a process that {why} is believed"), answer.is_err())?;
    }
    let mut absent = Command::new(ctx.child.join("absent"));
    hold("a process that never began is believed", (runner.child)(ctx, &mut absent, 0).is_err())
}

pub(super) fn poison(runner: &Runner, _ctx: &Context) -> Verdict {
    let mut b = (runner.poisoned)(cpu());
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let mut act = b.mem().alloc(8, dtype, Layout::RowMajor);
        let two = Tensor::from_f32(dtype, &[1.0, 2.0]);
        b.mem().write(&mut act, 3, &two);
        let read = b.mem().read(&act, 0, 8).to_f32();
        for (i, value) in read.iter().enumerate() {
            let written = (3..5).contains(&i);
            same(&format!("element {i} of {dtype:?} is a number"), !value.is_nan(), written)?;
        }
    }
    let ids = b.mem().alloc_ints(4);
    hold("ids that nobody wrote are ids", b.mem().read_ints(&ids, 4) == [u32::MAX; 4])
}

pub(super) fn hook(runner: &Runner, _ctx: &Context) -> Verdict {
    let (mut b, traffic) = (runner.watched)(cpu());
    let mem = b.mem();
    let mut act = mem.alloc(8, Dtype::F32, Layout::RowMajor);
    let mut ids = mem.alloc_ints(4);
    let mut weight = mem.alloc_weight(2, Some(4), Dtype::F32);
    let eight = Tensor::from_f32(Dtype::F32, &[1.0; 8]);
    for _ in 0..2 {
        mem.write(&mut act, 0, &eight);
    }
    for _ in 0..3 {
        mem.write_ints(&mut ids, &[1, 2]);
    }
    for _ in 0..4 {
        mem.write_weight(&mut weight, 0, &eight);
    }
    for _ in 0..5 {
        mem.read(&act, 1, 7);
        mem.fetch_ints(&ids, &mut [0; 3]);
    }
    for _ in 0..6 {
        mem.fence();
    }
    for _ in 0..7 {
        mem.read_weight(&weight, 1, 1);
    }
    let want = Traffic::of(&[
        ("buffers", 3),
        ("writes", 2),
        ("id_writes", 3),
        ("weight_writes", 4),
        ("reads", 5),
        ("elements_read", 35),
        ("id_reads", 5),
        ("ids_read", 15),
        ("fences", 6),
        ("weight_reads", 7),
    ]);
    same("calls counted", traffic.get(), want)
}

pub(super) fn steps(runner: &Runner, ctx: &Context) -> Verdict {
    const STEPS: usize = 4;
    let model = ctx.load(&paths::tiny_qwen3(), Dtype::Bf16).map_err(said)?;
    let prompts = prompts(ctx.seed, model.shape.vocab, 1, ROWS);
    let request = request(prompts, STEPS + 1, Sampler::Greedy);
    for (waste, reads) in [(Waste::None, 1), (Waste::IdsRead, 2)] {
        let (watched, traffic) = (runner.watched)(cpu());
        let mut b = Seam::new(Wasteful::new(watched, waste));
        let mut marks = Vec::new();
        (runner.looped)(&mut b, &model, &request, &mut || marks.push(traffic.get()))
            .map_err(said)?;
        same("marks of a loop", marks.len(), STEPS + 1)?;
        let need = Traffic::of(&[
            ("id_reads", reads),
            ("ids_read", reads),
            ("id_writes", 4),
            ("fences", model.shape.layers as u64),
        ]);
        for pair in marks.windows(2) {
            same(&format!("a step with {waste:?} wasted"), pair[1] - pair[0], need)?;
        }
    }
    Ok(())
}

pub(super) fn heap(runner: &Runner, _ctx: &Context) -> Verdict {
    let gate = gate("allocator/greedy-32/bf16")?;
    let case = Case { dtype: Dtype::Bf16, steps: 3, batch: 1, threads: 1, sampled: false };
    let red = || Outcome { statistic: "steps_changing_heap", ..planted(1.0, "decode") };
    let still = |armed, threads| Counted { armed, calls: vec![9; 4], held: vec![5; 4], threads };
    let grown = Counted { held: vec![5, 5, 5, 6], ..still(true, 1) };
    let asked = Counted { calls: vec![9, 9, 9, 10], ..still(true, 1) };
    let short = Counted { calls: vec![9; 3], held: vec![5; 3], ..still(true, 1) };
    for (why, counted, status) in [
        ("still", still(true, 1), Status::Pass),
        ("not counted", still(false, 1), Status::Error),
        ("fewer threads than asked for", still(true, 0), Status::Error),
        ("grown in the last step", grown, Status::Fail),
        ("a block in the last step", asked, Status::Fail),
        ("a step too few", short, Status::Error),
    ] {
        let outcome = (runner.heap)(&counted, case);
        let row = (runner.judge)(&gate, blank(&gate), Limits::none(), outcome, red());
        same(&format!("{why}: {}", row.reason), row.status, status)?;
    }
    Ok(())
}
