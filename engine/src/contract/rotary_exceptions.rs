//! The angles at which torch rounds a bf16 cosine or sine the other way.
//!
//! Transformers computes f32 cosines and sines with MKL, whose last bit is now and then wrong, and
//! rounds them to bf16. Over all f32 angles from 2^-30 to 2^18 that shows at these 238 alone: the
//! exact value lies so near a midpoint that MKL's lies beyond it. Beyond 2^18 entries are correctly
//! rounded. Absent: f32 tables, which are correctly rounded everywhere. The invariant: an exception
//! is the other neighbour of the f32 value, never further.

/// The bf16 cosine of an angle, from its correctly rounded f32 cosine.
pub fn cos_bf16(angle: f32, cos: f32) -> f32 {
    rounded(&COSINES, angle, cos)
}

/// The bf16 sine of an angle, from its correctly rounded f32 sine.
pub fn sin_bf16(angle: f32, sin: f32) -> f32 {
    rounded(&SINES, angle, sin)
}

/// The bf16 value nearest to `value`, or at an exception the other of the two around it.
fn rounded(exceptions: &[u32], angle: f32, value: f32) -> f32 {
    let nearest = half::bf16::from_f32(value).to_f32();
    if exceptions.binary_search(&angle.to_bits()).is_err() {
        return nearest;
    }
    let inner = f32::from_bits(value.to_bits() & 0xFFFF_0000); // Towards 0.
    if nearest == inner { f32::from_bits(inner.to_bits() + 0x1_0000) } else { inner }
}

/// Bits of the angles whose sine is an exception, ascending.
const SINES: [u32; 111] = [
    0x3dee091b, 0x3e294514, 0x3e635d11, 0x3e687e08, 0x3e6b9288, 0x3e8014eb, 0x3e81e386, 0x3ebee454,
    0x3ec331b1, 0x3ec559c3, 0x3ede6e55, 0x3ee1be43, 0x3ee3f4fc, 0x3eeaa041, 0x3efb7ddf, 0x3f05c0b1,
    0x3f17204c, 0x3f2d798f, 0x3f585966, 0x3f5e7594, 0x3f6e8ecc, 0x3f703e01, 0x3f7c7d79, 0x3f88e4e3,
    0x3fc10f82, 0x3fd11034, 0x3ff45968, 0x40081618, 0x4011d53d, 0x40217508, 0x4056c291, 0x4061bb13,
    0x4064ba63, 0x406f727f, 0x408c5ba1, 0x409e8fbb, 0x40e74dfe, 0x40f1b311, 0x40f953bb, 0x40fecb0f,
    0x411e6893, 0x4126b0e3, 0x412ae89b, 0x413c182e, 0x414fab8a, 0x4173db0d, 0x417fad7d, 0x4185ab25,
    0x419b6825, 0x41a14ba7, 0x41a8d49d, 0x41dfe3b4, 0x41e9cf18, 0x41f4472e, 0x41f72f04, 0x41f86967,
    0x420ba12a, 0x420efbb7, 0x423ab6f3, 0x423d675b, 0x4258fc3c, 0x4279c6f5, 0x428b4a74, 0x4299d022,
    0x42b50349, 0x42bf831b, 0x42c8bd3f, 0x42d66cb0, 0x42fac688, 0x42fc8bc3, 0x4340e1ba, 0x4364061d,
    0x439c7514, 0x43a38747, 0x43ade02e, 0x43b8e1a5, 0x43f6d59b, 0x44035370, 0x441c1d03, 0x4445320a,
    0x444c1f2b, 0x445e5b0d, 0x44843092, 0x44b0129f, 0x44bcd57e, 0x44d336db, 0x44ea48c3, 0x45031495,
    0x45088de9, 0x4516e606, 0x4529f419, 0x452d6e6c, 0x453397ce, 0x4552c01b, 0x45a5904d, 0x45ad9a4d,
    0x45cf30d8, 0x45d40c34, 0x45f7adfa, 0x460358f5, 0x460fe1ad, 0x46242c7a, 0x4629acf7, 0x46649f9f,
    0x4678b71c, 0x473f36ef, 0x475d2852, 0x47f0a4fb, 0x47f64ec1, 0x480cf798, 0x4812aff2,
];

/// Bits of the angles whose cosine is an exception, ascending.
const COSINES: [u32; 127] = [
    0x3d80058a, 0x3d80058b, 0x3d80058c, 0x3d80058d, 0x3d80058e, 0x3d80058f, 0x3d800590, 0x3d800591,
    0x3d800592, 0x3d800593, 0x3d800594, 0x3d800595, 0x3dddcf6d, 0x3dddcf6e, 0x3dddcf6f, 0x3dddcf70,
    0x3dddcf71, 0x3dddcf72, 0x3e0f39ac, 0x3e404854, 0x3e54a54e, 0x3e673f1a, 0x3e787ae1, 0x3e844ea9,
    0x3e8beb72, 0x3e9a0c05, 0x3ea0a88a, 0x3eb31471, 0x3ebe68ef, 0x3ec92173, 0x3efc7a77, 0x3f06721d,
    0x3f0c5056, 0x3f101b31, 0x3f11f82a, 0x3f176fb9, 0x3f1afc84, 0x3f2a28fc, 0x3f2d607a, 0x3f441748,
    0x3f899f0d, 0x3f9d138b, 0x3fa29c7b, 0x3fe59c4c, 0x3fe78959, 0x3ff6e93e, 0x40058989, 0x40108b4a,
    0x401e1e44, 0x4035ce5a, 0x403a9be9, 0x40450fae, 0x404d1007, 0x40623409, 0x40a23129, 0x40bf0552,
    0x40c30d98, 0x40cd89a8, 0x40ec0871, 0x4102357f, 0x410c4360, 0x410d385d, 0x4136cfb3, 0x41388f7f,
    0x415a8322, 0x4177315c, 0x41c400cd, 0x41dc882c, 0x41ec46a5, 0x422f193a, 0x426365ee, 0x427010dc,
    0x4290bad9, 0x42a58eab, 0x42b8a338, 0x42bb2a8b, 0x42bdb4d6, 0x42dcea03, 0x432ffde0, 0x4332d400,
    0x435b35ad, 0x435f8789, 0x435fac0e, 0x4373930e, 0x4392b473, 0x43a4e701, 0x43b6ba61, 0x43b86d31,
    0x43c7f00e, 0x43e7f8aa, 0x43f07607, 0x4401ba4c, 0x4407cd52, 0x4413823c, 0x441d4394, 0x4450e679,
    0x4476adfc, 0x448c44b5, 0x448e69e9, 0x44a9f7e5, 0x44ac7ce0, 0x44b13f6a, 0x44b464e6, 0x44e6e635,
    0x44f96bda, 0x450870ea, 0x451259d4, 0x453092e1, 0x4548bccf, 0x45801f18, 0x4582dbc2, 0x45aa5f39,
    0x45b10db8, 0x45c77805, 0x45e52d26, 0x45eb9a81, 0x45ecd2a7, 0x461a12c6, 0x4671982a, 0x46a76246,
    0x46a92c74, 0x4710d16f, 0x4766b51f, 0x4789d698, 0x4792f691, 0x482ca5d6, 0x48451140,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Dtype, RotaryTables, cos_f32, sin_f32};

    /// An exception lies within a unit of the last f32 bit of a midpoint of bf16, or it is none.
    #[test]
    fn every_exception_is_a_near_tie() {
        for (table, f) in [(&SINES[..], sin_f32 as fn(f32) -> f32), (&COSINES[..], cos_f32)] {
            assert!(table.is_sorted(), "looked up by halves");
            for bits in table {
                let value = f(f32::from_bits(*bits));
                let from_tie = (value.to_bits() & 0xFFFF).abs_diff(0x8000);
                assert!(from_tie <= 1, "angle {bits:#x}: {from_tie} from a midpoint");
            }
        }
    }

    #[test]
    fn the_published_width_meets_the_first_at_position_2954() {
        let tables = RotaryTables::new(Dtype::Bf16, 1e6, 128, 2_955);
        let exact = RotaryTables::new(Dtype::F32, 1e6, 128, 2_955);
        let nearest = |x: &f32| half::bf16::from_f32(*x).to_f32();
        let other = |(own, exact): (&[f32], &[f32])| -> Vec<usize> {
            (0..own.len()).filter(|i| own[*i] != nearest(&exact[*i])).collect()
        };
        assert_eq!(other((&tables.sin, &exact.sin)), [2_954 * 64 + 8]);
        assert_eq!(other((&tables.cos, &exact.cos)), [] as [usize; 0]);
    }
}
