//! Philox4x32-10, the counter-based generator of the contract (Salmon et al., 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for a counter under a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let products: [u64; 2] =
            [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        let (low, high) = (products.map(|p| p as u32), products.map(|p| (p >> 32) as u32));
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// A uniform in 0 <= u < 1 with 53 bits, the same for the same seed, sequence and position.
pub fn uniform(seed: u64, sequence: u32, position: u32) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [a, b, ..] = philox([position, sequence, 0, 0], key);
    ((u64::from(a) << 32 | u64::from(b)) >> 11) as f64 * 2f64.powi(-53)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the Random123 distribution.
    #[test]
    fn gives_the_published_answers() {
        for (counter, key, want) in [
            ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([!0; 4], [!0; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ] {
            assert_eq!(philox(counter, key), want);
        }
    }

    #[test]
    fn uniforms_depend_on_all_three() {
        let base = uniform(1, 2, 3);
        assert!((0.0..1.0).contains(&base));
        for (seed, sequence, position) in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (1 << 40 | 1, 2, 3)] {
            assert_ne!(uniform(seed, sequence, position), base);
        }
    }
}
