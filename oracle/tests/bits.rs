//! The scalars of the contract against the hardware, against torch 2.11.0 and against reasoning.
//!
//! Deliberately absent: models. Invariant: each table was measured on a Zen 4, and a changed bit of
//! any result changes a compared number.

use proptest::prelude::*;
use samebits_oracle::bits::*;
use samebits_oracle::{Dtype, Order};

/// Numbers in [-1, 1) that every language can repeat.
fn numbers(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 40) as f64 / 2f64.powi(23) - 1.0) as f32
    };
    (0..n).map(|_| next()).collect()
}

/// FNV-1a over 32-bit words.
fn hash(x: &[f32]) -> u64 {
    let step = |h: u64, x: &f32| (h ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01B3);
    x.iter().fold(0xCBF2_9CE4_8422_2325, step)
}

#[test]
fn two_chained_flushing_fmas_are_the_instruction() {
    let mut compared = 0;
    for line in include_str!("data/vdpbf16ps.txt").lines().filter(|l| !l.starts_with('#')) {
        let words = line.split(' ').map(|w| u32::from_str_radix(w, 16).expect("hex words"));
        let r: Vec<f32> = words.map(f32::from_bits).collect();
        let got = fma_flush(r[1], r[2], fma_flush(r[3], r[4], r[0]));
        assert_eq!(got.to_bits(), r[5].to_bits(), "{line}: got {:08X}", got.to_bits());
        compared += 1;
    }
    assert_eq!(compared, 250);
}

#[test]
fn the_edges_of_flushing() {
    let p = |e: i32| 2f32.powi(e);
    let above = f32::from_bits(0x0080_0001);
    let cases = [
        ("a tiny product is not flushed by itself", p(-70), p(-70), p(-126), 0x0080_0200u32),
        ("a tiny result is", -p(-70), p(-70), 0.0, 0x8000_0000),
        ("a subnormal accumulator is zero", 0.0, 1.0, -p(-130), 0x0000_0000),
        ("a subnormal operand is zero", -p(-130), p(20), 0.0, 0x0000_0000),
        ("rounds up to the smallest normal", -1.25 * p(-75), p(-75), above, 0x0080_0000),
        ("below half a step of unbounded exponent", -1.75 * p(-75), p(-74), above, 0x0000_0000),
        ("a zero sum of opposite terms is +0", 1.0, 1.0, -1.0, 0x0000_0000),
    ];
    for (why, a, b, acc, want) in cases {
        assert_eq!(fma_flush(a, b, acc).to_bits(), want, "{why}");
    }
    assert_eq!(round_bf16_flush(f32::from_bits(0x007F_FFFF)).to_bits(), 0);
    assert_eq!(round_bf16_flush(-p(-127)).to_bits(), 0x8000_0000);
    assert_eq!(round_bf16(p(-130)).to_bits(), p(-130).to_bits(), "other roundings keep subnormals");
    assert_eq!(round_bf16(f32::from_bits(0xFFA5_0000)).to_bits(), 0x7FC0_0000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Near underflow the exact sum fits f64: scaled up, its f32 rounding has unbounded exponent.
    #[test]
    fn flushing_is_rounding_with_unbounded_exponent(
        a in 0x1C00u16..0x2200, b in 0x1C00u16..0x2200, acc in 0x0080_0000u32..0x0180_0000,
        signs in 0u8..4,
    ) {
        let sign = |x: f32, bit: u8| if signs & bit == 0 { x } else { -x };
        let a = sign(f32::from_bits(u32::from(a) << 16), 1);
        let (b, acc) = (f32::from_bits(u32::from(b) << 16), sign(f32::from_bits(acc), 2));
        let product = f64::from(a) * f64::from(b);
        let sum = product + f64::from(acc);
        prop_assume!(sum - product == f64::from(acc) && sum - f64::from(acc) == product);
        let scale = 2f64.powi(100);
        let want = f64::from((sum * scale) as f32) / scale;
        let tiny = want.abs() < f64::from(f32::MIN_POSITIVE);
        let want = if tiny { 0f32.copysign(want as f32) } else { want as f32 };
        prop_assert_eq!(fma_flush(a, b, acc).to_bits(), want.to_bits());
    }

    /// The nearer of the two neighbours, the even one if both are as near.
    #[test]
    fn rounding_takes_the_nearest(bits in 0u32..0x7F7F_0000) {
        let low = bits & 0xFFFF_0000;
        let at = |u: u32| f64::from(f32::from_bits(u));
        let (down, up) = (at(bits) - at(low), at(low + 0x1_0000) - at(bits));
        let take_up = up < down || (up == down && low & 0x1_0000 != 0);
        let want = if take_up { low + 0x1_0000 } else { low };
        prop_assert_eq!(round_bf16(f32::from_bits(bits)).to_bits(), want);
        prop_assert_eq!(round_bf16(-f32::from_bits(bits)).to_bits(), want | 0x8000_0000);
    }
}

#[test]
fn the_odd_element_comes_first() {
    let big = 2f32.powi(60);
    // Each sum keeps the ones that are added after the two large terms have cancelled.
    assert_eq!(dot_bf16(&[1.0, big, 1.0, -big], &[1.0; 4], 1024), 1.0);
    assert_eq!(dot_bf16(&[big, 1.0, -big, 1.0], &[1.0; 4], 1024), 0.0);
    assert_eq!(dot_bf16(&[-big, big, 1.0], &[1.0; 3], 1024), 1.0);
    assert_eq!(dot_f32(&[1.0, big, 1.0, -big], &[1.0; 4], 1024), 0.0);
    assert_eq!(dot_f32(&[big, 1.0, -big, 1.0], &[1.0; 4], 1024), 1.0);
}

#[test]
fn blocks_are_summed_apart() {
    let mut x = vec![1f32; 700];
    (x[0], x[513]) = (2f32.powi(30), -2f32.powi(30));
    // One chain: pair (512, 513) cancels, then 187 ones remain. Two blocks: every one is absorbed.
    assert_eq!(dot_bf16(&x, &vec![1.0; 700], 1024), 187.0);
    assert_eq!(dot_bf16(&x, &vec![1.0; 700], 512), 0.0);
}

#[test]
fn block_lengths_are_those_of_the_table() {
    use Dtype::{Bf16, F32};
    use Order::{Invariant, Transformers};
    let cases = [
        (Invariant, Bf16, 1024, 1, 512, 1024),
        (Invariant, Bf16, 1025, 1, 1024, 1024),
        (Invariant, Bf16, 64, 7, 512, 1024),
        (Transformers, Bf16, 1024, 7, 512, 512),
        (Transformers, Bf16, 1025, 1, 512, 512),
        (Transformers, Bf16, 1025, 2, 1024, 1024),
        (Invariant, F32, 192, 7, 192, 192),
        (Invariant, F32, 193, 7, 96, 192),
        (Transformers, F32, 383, 7, 191, 191),
        (Transformers, F32, 384, 7, 192, 192),
        (Transformers, F32, 100, 7, 100, 100),
    ];
    for (order, dtype, k, rows, linear, mix) in cases {
        let got = (linear_block(order, dtype, k, rows), mix_block(order, dtype, k, rows));
        assert_eq!(got, (linear, mix), "{order:?} {dtype:?} K = {k}, {rows} rows");
    }
}

#[test]
fn mean_of_squares_is_torchs() {
    let x = numbers(17_408);
    let measured = [
        (8, 0x3E88_44B9u32),
        (31, 0x3E8B_0385),
        (64, 0x3EA4_B6FE),
        (257, 0x3EAA_D060),
        (512, 0x3EAD_B3BC),
        (1000, 0x3EAB_F411),
        (1152, 0x3EAB_E2A2),
        (4096, 0x3EAC_03C5),
        (17_408, 0x3EAB_0DC4),
    ];
    for (n, want) in measured {
        assert_eq!(mean_of_squares(&x[..n]).to_bits(), want, "{n} values");
    }
}

#[test]
fn silu_and_softmax_are_torchs() {
    let x = numbers(16_384);
    let y: Vec<f32> = x.iter().map(|x| silu(x * 30.0)).collect();
    assert_eq!(hash(&y), 0x6337_181A_71F3_7165);
    // Whether lanes give the same bits: always from 16 values on, and by luck for these 5.
    let measured = [
        (5, 0xE661_5B61_1E79_D07Eu64, true),
        (15, 0xB6A5_687E_135C_4A4D, false),
        (16, 0xA772_44F5_8882_9117, true),
        (17, 0xB04D_4EA4_4C55_0461, true),
        (100, 0xDD74_2EB6_CB41_DFEC, true),
        (1100, 0xFB6D_29C0_FA3E_A231, true),
    ];
    for (n, want, same) in measured {
        let x: Vec<f32> = x[..n].iter().map(|x| x * 8.0).collect();
        assert_eq!(hash(&softmax(&x, false)), want, "{n} values");
        assert_eq!(hash(&softmax(&x, true)) == want, same, "{n} values in lanes");
    }
    let edges = [(-104.1, 0.0), (-103.0, f32::from_bits(1)), (100.5, f32::INFINITY), (0.0, 1.0)];
    for (x, want) in edges {
        assert_eq!(exp_s(x), want, "exp of {x}");
    }
    assert!(exp_s(f32::NAN).is_nan() && silu(f32::NEG_INFINITY).is_nan());
}

#[test]
fn inverse_frequencies_are_torchs() {
    let measured = [
        (1e6, 128, 0x0742_AC1C_545E_FFEEu64),
        (1e4, 64, 0x81AD_70B6_B1A6_2105),
        // Here the scheme of the vector part would differ from the scalar tail in one entry each.
        (1e4, 48, 0x2446_F586_29C3_608A),
        (1e7, 112, 0x61FC_C982_E911_0DA7),
        (1e4, 128, 0x7F21_6562_749B_EE15),
        (5e6, 128, 0x2DF8_F6DF_3A76_EE58),
        (1e7, 256, 0x164E_F777_4EDA_3FF9),
        (123_457.0, 96, 0x6504_750A_F1DE_BE54),
        (1e6, 32, 0xE2DD_730B_F559_BCD7),
        (777.5, 80, 0x75DF_B5F8_907E_6BA7),
        (1e5, 192, 0x058A_0C2D_33CE_0E9D),
    ];
    for (theta, head_dim, want) in measured {
        let got = inverse_frequencies(theta, head_dim);
        assert_eq!(hash(&got), want, "theta {theta}, width {head_dim}");
    }
}

#[test]
fn cos_and_sin_in_bf16_are_torchs() {
    // (angle, torch's cos, torch's sin), bf16 bits; each first one has a neighbour that is exact.
    let measured = [
        (0x3DEE_091Bu32, 0x3F7E, 0x3DEE),
        (0x3DEE_091A, 0x3F7E, 0x3DED),
        (0x3D80_058A, 0x3F7F, 0x3D80),
        (0x3D80_0589, 0x3F80, 0x3D80),
    ];
    for (angle, cos, sin) in measured {
        let got = cos_sin_bf16(f32::from_bits(angle));
        let bits = [got.0, got.1].map(|x| x.to_bits() >> 16);
        assert_eq!(bits, [cos, sin], "angle {angle:08X}");
    }
    // Theta 1e6, heads of 128: torch's tables of positions to 17,000, hashed; and where they are
    // not the f32 tables rounded.
    let (cos, sin) = rotary_table_bf16(1e6, 128, 17_000);
    assert_eq!([hash(&cos), hash(&sin)], [0x1ED3_7167_7C7B_2B25, 0xA2D8_0E69_F4B2_2B25]);
    let exact = rotary_table(1e6, 128, 17_000);
    let apart = |bf16: &[f32], f32: &[f32]| -> Vec<(usize, usize)> {
        let differ = |i: &usize| bf16[*i] != round_bf16(f32[*i]);
        (0..bf16.len()).filter(differ).map(|i| (i / 64, i % 64)).collect()
    };
    assert_eq!(apart(&cos, &exact.0), []);
    assert_eq!(apart(&sin, &exact.1), [(2_954, 8), (16_522, 48)]);
}

#[test]
fn sigmoid_and_sum_of_squares_are_torchs() {
    let x = numbers(16_384);
    let y: Vec<f32> = x.iter().map(|x| sigmoid(x * 30.0)).collect();
    assert_eq!(hash(&y), 0x2970_E2B7_77A7_D263);
    let measured = [(16, 0x4061_BE10u32), (32, 0x410C_8CF1), (48, 0x4155_C12B), (100, 0x4200_AD36)];
    for (n, want) in measured {
        assert_eq!(sum_of_squares(&x[..n]).to_bits(), want, "{n} values");
    }
}

#[test]
fn decay_rounds_after_every_step() {
    // -exp(log) * log1p(exp(a + bias)), each correctly rounded: f64 in one go ends elsewhere.
    let x = numbers(3000);
    let (mut compared, mut apart) = (0, 0);
    for x in x.as_chunks::<3>().0 {
        let [a, log, bias] = x.map(|x| x * 4.0);
        let wide = f64::from(a + bias).exp().ln_1p() * -f64::from(log).exp();
        let ulps =
            (i64::from(decay(a, log, bias).to_bits()) - i64::from((wide as f32).to_bits())).abs();
        assert!(ulps <= 3, "decay({a}, {log}, {bias}): {ulps} ulp");
        (compared, apart) = (compared + 1, apart + i64::from(ulps > 0));
    }
    assert!(compared == 1000 && apart > 100, "{apart} of {compared}");
}
