//! `exp_S` and the functions made of it, in f32: SLEEF's expf to one ulp, with FMA.

/// The exponential function of the contract. 0 below -104, infinity above 100.
///
/// Source: the scheme of Sleef_expf_u10. Written so that a compiler may vectorise it; no
/// contraction or reassociation is possible, so every instruction set gives the same bits.
#[inline(always)]
pub fn exp_s(x: f32) -> f32 {
    let q = (x * std::f32::consts::LOG2_E).round_ties_even();
    let s = q.mul_add(-0.693_145_751_953_125_f64 as f32, x);
    let s = q.mul_add(-1.428_606_765_330_187e-6_f64 as f32, s);
    let mut u = 1.985_276_176_128_536_5e-4_f64 as f32;
    u = u.mul_add(s, 1.393_043_552_525_341_5e-3_f64 as f32);
    u = u.mul_add(s, 8.333_360_776_305_199e-3_f64 as f32);
    u = u.mul_add(s, 4.166_648_536_920_547_5e-2_f64 as f32);
    u = u.mul_add(s, 1.666_666_716_337_204e-1_f64 as f32);
    u = u.mul_add(s, 0.5);
    let u = 1.0 + (s * s).mul_add(u, s);
    let q = q.clamp(-200.0, 200.0) as i32;
    let half = q >> 1;
    let u = u * power_of_two(half) * power_of_two(q - half);
    let u = if x < -104.0 { 0.0 } else { u };
    if x > 100.0 { f32::INFINITY } else { u }
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// `1 / (1 + exp(-x))`, in f32.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp_s(0.0 - x))
}

/// `x / (1 + exp(-x))`, in f32: not `x * sigmoid(x)`, whose bits differ.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp_s(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_defined() {
        for (x, want) in [
            (0.0, 1.0),
            (-0.0, 1.0),
            (-104.1, 0.0),
            (f32::NEG_INFINITY, 0.0),
            (f32::MIN, 0.0),
            (100.1, f32::INFINITY),
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
        ] {
            assert_eq!(exp_s(x).to_bits(), f32::to_bits(want), "exp({x})");
        }
        assert!(exp_s(f32::NAN).is_nan());
        assert!(silu(f32::NEG_INFINITY).is_nan(), "-inf / inf");
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn stays_within_one_ulp_of_the_true_value() {
        let mut worst = 0.0f64;
        for i in -100_000..=88_000 {
            let x = i as f32 * 1e-3;
            if x < -87.0 {
                continue;
            }
            let want = f64::from(x).exp();
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - want as f32 as f64;
            worst = worst.max((f64::from(exp_s(x)) - want).abs() / ulp);
        }
        assert!(worst < 1.0, "{worst} ulp");
    }
}
