//! Exact values of RMSNorm over an amplitude ladder, from a committed file of bit patterns.
//!
//! Small amplitudes make eps show, wide and odd rows the summation tree, weights away from 1 the
//! place of the rounding. The invariant: inputs follow from the case's seed by the rule here,
//! answers from the file, and `gates golden` is the only writer of it.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::op::{Backend, Layout, NormForm, Op, Site};
use samebits::tensor::Tensor;
use samebits_defects::{Defect, Defective};
use samebits_oracle::ops::RmsNorm;
use samebits_oracle::{self as oracle, Arithmetic};
use serde::{Deserialize, Serialize};

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare_rows};
use crate::context::{Context, data};
use crate::engine::defect;
use crate::sites::{Bits, Sites, oracle_dtype};

/// One row of a norm and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The dtype of input, weight and output.
    pub dtype: Dtype,
    /// Elements of the row.
    pub width: usize,
    /// Inputs are uniform in plus or minus this.
    pub amplitude: f64,
    /// Added to the mean of squares.
    pub eps: f64,
    /// What inputs and weights are drawn from.
    pub seed: u64,
    /// Bits of the first elements of the answer, in hex.
    pub want: Vec<String>,
    /// SHA-256 of the whole answer.
    pub sha256: String,
}

/// Where the answers lie.
pub fn file() -> std::path::PathBuf {
    data("data/rmsnorm.json")
}

/// Elements of an answer that the file spells out.
const SPELT: usize = 128;
const WIDTHS: [usize; 8] = [1, 16, 17, 67, 128, 1000, 1024, 5120];
const AMPLITUDES: [f64; 4] = [1.0, 0.03, 0.003, 1e-4];

/// SplitMix64: the same numbers everywhere.
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Input and weight of a case.
fn operands(case: &Case) -> (Vec<f64>, Vec<f64>) {
    let (mut state, dtype) = (case.seed, oracle_dtype(case.dtype));
    let mut row = |f: &dyn Fn(f64) -> f64| -> Vec<f64> {
        (0..case.width).map(|_| dtype.round(f(draw(&mut state)))).collect()
    };
    (row(&|u| case.amplitude * u), row(&|u| 1.0 + u / 4.0))
}

/// The answer by the contract, computed operation by operation.
fn answer(case: &Case) -> Bits {
    let (x, weight) = operands(case);
    let order = oracle::Order::Invariant;
    let arithmetic = oracle::Bits { order, dtype: oracle_dtype(case.dtype) };
    let values = arithmetic.rms_norm(&RmsNorm { x: &x, weight: &weight, eps: case.eps }).values;
    let array = oracle::Array { shape: vec![1, case.width], values, squares: None };
    Bits::of_array(&array, case.dtype)
}

/// All cases with their answers.
pub fn generate() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for (w, width) in WIDTHS.into_iter().enumerate() {
            for (a, amplitude) in AMPLITUDES.into_iter().enumerate() {
                let eps = if (w + a) % 4 == 3 { 1e-5 } else { 1e-6 };
                let seed = (100 * w + a) as u64;
                let (want, sha256) = (Vec::new(), String::new());
                let mut case = Case { dtype, width, amplitude, eps, seed, want, sha256 };
                let bits = answer(&case);
                case.want = bits.bits.iter().take(SPELT).map(|b| format!("{b:x}")).collect();
                case.sha256 = bits.sha256();
                cases.push(case);
            }
        }
    }
    cases
}

/// The engine's answer.
fn engine(case: &Case, defect: &Defect) -> (Bits, u64) {
    let cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let mut b = Defective::new(cpu, defect);
    let (x, weights) = operands(case);
    let tensor = |v: &[f64]| {
        let v: Vec<f32> = v.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(case.dtype, &v)
    };
    let mem = b.mem();
    let mut act = || mem.alloc(case.width, case.dtype, Layout::RowMajor);
    let (mut input, mut out) = (act(), act());
    mem.write(&mut input, 0, &tensor(&x));
    let mut weight = mem.alloc_weight(case.width, None, case.dtype);
    mem.write_weight(&mut weight, 0, &tensor(&weights));
    let (eps, form) = (case.eps as f32, NormForm::RoundThenScale);
    let (x, weight, rows, width) = (&input, &weight, 1, case.width);
    let site = Site { layer: Some(0), op: "input_layernorm" };
    b.run(site, Op::RmsNorm { out: &mut out, x, weight, eps, form, rows, width });
    let got = b.mem().read(&out, 0, width);
    let bits = (0..width).map(|i| got.bits(i)).collect();
    (Bits { dtype: case.dtype, shape: vec![1, width], bits }, b.hits())
}

/// Compares the engine with the file's answers.
pub fn prepare<'c>(_ctx: &'c Context, dtype: Dtype) -> Result<Measure<'c>, CheckError> {
    let path = file();
    let text = std::fs::read(&path).map_err(CheckError::io(&path))?;
    let all: Vec<Case> = serde_json::from_slice(&text).map_err(CheckError::json(&path))?;
    let cases: Vec<Case> = all.into_iter().filter(|case| case.dtype == dtype).collect();
    let spelt = |w: &usize| (1 + SPELT.min(*w)) * AMPLITUDES.len();
    let expected = WIDTHS.iter().map(spelt).sum::<usize>() as u64;
    Ok(Box::new(move |plant| {
        let defect = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
        let (mut found, mut hits) = (Comparison::default(), 0);
        for case in &cases {
            let (got, acted) = engine(case, defect);
            hits += acted;
            let bits = case.want.iter().map(|hex| u32::from_str_radix(hex, 16));
            let bits: Vec<u32> = bits
                .collect::<Result<_, _>>()
                .map_err(|_| CheckError::missing("hex bits of every answer", path.display()))?;
            let n = bits.len();
            let site = |bits| {
                let bits = Bits { dtype, shape: vec![1, n], bits };
                Sites::from([("layers.0.input_layernorm".to_owned(), bits)])
            };
            let text = format!("width {}, amplitude {:e}:", case.width, case.amplitude);
            let mut one = compare_rows(&site(bits), &site(got.bits[..n].to_vec()), 1);
            let same = got.sha256() == case.sha256;
            one.digest("layers.0.input_layernorm", Some(0), same, "hash of the whole row");
            found.then(one.labelled(&text));
        }
        Ok(Outcome::bitwise(found, expected).with_hits(hits))
    }))
}
