//! Reductions of the contract: the sum of squares and the softmax sum's tree. f32 sums.

/// Lanes of the softmax sum.
pub const LANES: usize = 16;

const WIDTH: usize = 8; // lanes of the sum of squares
const SLOTS: usize = 4; // independent accumulators of it
const LEVELS: usize = 4; // of the cascade in an accumulator

/// f32 in, f32 sum of `x[i] * x[i]`: eight lanes in four accumulators, each a four-level cascade.
///
/// Vector `v` of eight goes to accumulator `v mod 4`; leftover vectors go to the first. Levels are
/// added in order, then accumulators, then lanes one after another onto the scalar tail's sum.
/// Source: ATen's cascade sum with AVX2 vectors, which Zen 4 takes as well.
#[inline(always)]
pub fn sum_of_squares(x: impl Fn(usize) -> f32, len: usize) -> f32 {
    let square = |i: usize| {
        let v = x(i);
        v * v
    };
    let vectors = len / WIDTH;
    let steps = vectors / SLOTS;
    let mut slots = cascade(&square, steps);
    for v in steps * SLOTS..vectors {
        for (lane, sum) in slots[0].iter_mut().enumerate() {
            *sum += square(v * WIDTH + lane);
        }
    }
    let [mut lanes, rest @ ..] = slots;
    for slot in rest {
        for lane in 0..WIDTH {
            lanes[lane] += slot[lane];
        }
    }
    let mut sum = 0.0;
    for i in vectors * WIDTH..len {
        sum += square(i);
    }
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// The four accumulators after `steps` steps of four vectors each.
#[inline(always)]
fn cascade(square: &impl Fn(usize) -> f32, steps: usize) -> [[f32; WIDTH]; SLOTS] {
    let log = usize::BITS - steps.saturating_sub(1).leading_zeros();
    let level_log = (log / LEVELS as u32).max(4);
    let group = 1usize << level_log;
    let mut levels = [[[0.0f32; WIDTH]; SLOTS]; LEVELS];
    let mut step = 0;
    while step + group <= steps {
        for _ in 0..group {
            add_step(&mut levels[0], square, step);
            step += 1;
        }
        for level in 1..LEVELS {
            let below = std::mem::take(&mut levels[level - 1]);
            add(&mut levels[level], &below);
            if step & ((group - 1) << (level as u32 * level_log)) != 0 {
                break;
            }
        }
    }
    while step < steps {
        add_step(&mut levels[0], square, step);
        step += 1;
    }
    let [mut total, higher @ ..] = levels;
    for level in &higher {
        add(&mut total, level);
    }
    total
}

#[inline(always)]
fn add_step(sums: &mut [[f32; WIDTH]; SLOTS], square: &impl Fn(usize) -> f32, step: usize) {
    for (slot, lanes) in sums.iter_mut().enumerate() {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += square((step * SLOTS + slot) * WIDTH + lane);
        }
    }
}

#[inline(always)]
fn add(into: &mut [[f32; WIDTH]; SLOTS], from: &[[f32; WIDTH]; SLOTS]) {
    for (a, b) in into.iter_mut().flatten().zip(from.iter().flatten()) {
        *a += b;
    }
}

/// Sums 16 lanes by halving: lane `i` takes lane `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
#[inline(always)]
pub fn halving_tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule for n <= 512, said another way: slot `s` of lane `l` sums `x[8 s + l + 32 i]`.
    #[test]
    fn short_sums_follow_the_strided_rule() {
        for n in [1usize, 7, 8, 31, 32, 33, 64, 100, 128, 500, 512] {
            let x: Vec<f32> =
                (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 * 0.37 - 150.0).collect();
            let vectors = n / 8;
            let mut lanes = [0.0f32; 8];
            for (lane, total) in lanes.iter_mut().enumerate() {
                let mut slots = [0.0f32; 4];
                for v in 0..vectors {
                    let slot = if v < vectors / 4 * 4 { v % 4 } else { 0 };
                    slots[slot] += x[v * 8 + lane] * x[v * 8 + lane];
                }
                *total = slots[0] + slots[1] + slots[2] + slots[3];
            }
            let tail = x[vectors * 8..].iter().fold(0.0f32, |s, v| s + v * v);
            let want = lanes.iter().fold(tail, |s, v| s + v);
            assert_eq!(sum_of_squares(|i| x[i], n).to_bits(), want.to_bits(), "n = {n}");
        }
    }

    #[test]
    fn long_sums_take_the_cascade() {
        let n = 4096;
        let x: Vec<f32> = (0..n).map(|i| 1.0 + ((i * 104_729) % 997) as f32 * 1e-4).collect();
        let flat: f32 = {
            let mut lanes = [0.0f32; 32];
            for i in 0..n {
                lanes[i % 32] += x[i] * x[i];
            }
            (0..8).fold(0.0, |s, l| s + (lanes[l] + lanes[l + 8] + lanes[l + 16] + lanes[l + 24]))
        };
        let got = sum_of_squares(|i| x[i], n);
        assert_ne!(got.to_bits(), flat.to_bits(), "the cascade must show at n = {n}");
        assert!((got / flat - 1.0).abs() < 1e-5);
    }
}
