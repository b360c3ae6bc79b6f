//! Where two traces part: the first op in the order of execution, and the smallest place in it.
//!
//! Absent: judgement of which side is right, and the replay of the op. The invariants: what
//! does not differ is refused, and an op whose own inputs differ, or are not in both traces, is
//! never called the culprit.

use thiserror::Error;

use crate::compare::in_order;
use crate::sites::{Bits, Sites, keyed, op_of, split, ulps};

/// Where two traces part.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The first site that differs.
    pub site: String,
    /// Elements that differ there, and all of them.
    pub differing: (u64, u64),
    /// Row of the first that differs.
    pub position: usize,
    /// Its head, where the site has heads.
    pub head: Option<usize>,
    /// Its place within the row, or within the head.
    pub element: usize,
    /// Its distance; none beside a NaN.
    pub ulps: Option<u64>,
    /// Sites that the op reads.
    pub inputs: Vec<String>,
    /// Those that both traces do not hold.
    pub unknown: Vec<String>,
}

/// Why nothing was localised.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LocalizeError {
    /// Two traces of other runs.
    #[error("the traces have no site in common")]
    Apart,
    /// Nothing to find.
    #[error("nothing differs at any of the {0} sites that both traces hold")]
    Equal(usize),
    /// A tensor of another shape or dtype.
    #[error("{site}: {want} in one trace, {got} in the other")]
    Shape {
        /// Where.
        site: String,
        /// One.
        want: String,
        /// The other.
        got: String,
    },
    /// Two runs of the same thing that do not agree.
    #[error(
        "{0} differs between two traces of the same side: flaky, so that nothing it says holds"
    )]
    Flaky(String),
}

/// The sites that an op reads.
pub fn inputs(site: &str) -> Vec<String> {
    let Some((layer, op)) = split(site) else {
        return match site {
            "lm_head" => vec!["norm".to_owned()],
            _ => Vec::new(),
        };
    };
    let own = |op: &str| format!("layers.{layer}.{op}");
    let stream = || match layer {
        0 => "embed_tokens".to_owned(),
        _ => format!("layers.{}.mlp_residual", layer - 1),
    };
    match op {
        "input_layernorm" => vec![stream()],
        "q_proj" | "k_proj" | "v_proj" => vec![own("input_layernorm")],
        "q_norm" => vec![own("q_proj")],
        "k_norm" => vec![own("k_proj")],
        "q_rope" => vec![own("q_norm")],
        "k_rope" => vec![own("k_norm")],
        "k_cache" => vec![own("k_rope")],
        "v_cache" => vec![own("v_proj")],
        "scores" => vec![own("q_rope"), own("k_cache")],
        "probs" => vec![own("scores")],
        "mix" => vec![own("probs"), own("v_cache")],
        "o_proj" => vec![own("mix")],
        "attn_residual" => vec![stream(), own("o_proj")],
        "post_attention_layernorm" => vec![own("attn_residual")],
        "gate_proj" | "up_proj" => vec![own("post_attention_layernorm")],
        "silu" => vec![own("gate_proj")],
        "mul" => vec![own("silu"), own("up_proj")],
        "down_proj" => vec![own("mul")],
        _ => vec![own("attn_residual"), own("down_proj")],
    }
}

/// The first site at which `got` departs from `want`.
///
/// # Errors
/// Traces that have nothing in common, hold other shapes, or do not differ.
pub fn localize(want: &Sites, got: &Sites) -> Result<Found, LocalizeError> {
    let both: Vec<&String> =
        in_order(want).into_iter().filter(|name| got.contains_key(*name)).collect();
    if both.is_empty() {
        return Err(LocalizeError::Apart);
    }
    for name in &both {
        let (a, b) = (&want[*name], &got[*name]);
        if a.dtype != b.dtype || a.bits.len() != b.bits.len() {
            let say = |x: &Bits| format!("{:?} {:?}", x.dtype, x.shape);
            let site = (*name).clone();
            return Err(LocalizeError::Shape { site, want: say(a), got: say(b) });
        }
        if a.bits != b.bits {
            let mut found = place(name, a, b);
            let missing = |site: &&String| !(want.contains_key(*site) && got.contains_key(*site));
            found.unknown = found.inputs.iter().filter(missing).cloned().collect();
            return Ok(found);
        }
    }
    Err(LocalizeError::Equal(both.len()))
}

/// Refuses a side whose two traces disagree.
///
/// # Errors
/// The first site at which they do.
pub fn steady(one: &Sites, again: &Sites) -> Result<(), LocalizeError> {
    match localize(one, again) {
        Err(LocalizeError::Equal(_)) => Ok(()),
        Ok(found) => Err(LocalizeError::Flaky(found.site)),
        Err(error) => Err(error),
    }
}

fn place(site: &str, a: &Bits, b: &Bits) -> Found {
    let differs = |i: &usize| a.bits[*i] != b.bits[*i];
    let n = a.bits.len();
    let (position, head, element) = (0..n)
        .filter(differs)
        .map(|i| spot(site, a, i))
        .min()
        .expect("the caller saw a difference");
    let differing = (0..n).filter(differs).count() as u64;
    let first = (0..n).filter(differs).find(|i| spot(site, a, *i) == (position, head, element));
    let first = first.expect("the spot came from one of these");
    Found {
        site: site.to_owned(),
        differing: (differing, n as u64),
        position,
        head,
        element,
        ulps: ulps(a.dtype, a.bits[first], b.bits[first]),
        inputs: inputs(site),
        unknown: Vec::new(),
    }
}

/// Position, head and element of a flat index.
fn spot(site: &str, bits: &Bits, i: usize) -> (usize, Option<usize>, usize) {
    let last = bits.shape.last().copied().unwrap_or(1).max(1);
    match bits.shape[..] {
        [_, rows, _] if keyed(site) => (i / last % rows, Some(i / last / rows), i % last),
        [_, heads, _] => (i / last / heads, Some(i / last % heads), i % last),
        _ => (i / last, None, i % last),
    }
}

/// One sentence for each thing found.
pub fn sentences(found: &Found) -> String {
    let Found { site, differing: (n, of), position, element, .. } = found;
    let head = found.head.map_or_else(String::new, |head| format!(", head {head}"));
    let far = found.ulps.map_or_else(|| "NaN".to_owned(), |ulps| format!("{ulps} ulps"));
    let inputs = found.inputs.join(", ");
    let cause = match (op_of(site), found.unknown.as_slice()) {
        (_, []) if found.inputs.is_empty() => {
            "it reads ids and weights only: one of them already differs, or the op does".to_owned()
        }
        (_, []) => format!("its inputs ({inputs}) are equal: the op itself departs"),
        (_, unknown) => {
            format!("its inputs may already differ: {} is not in both traces", unknown.join(", "))
        }
    };
    format!(
        "first difference: {site}\nplace: position {position}{head}, element {element}, {far}; \
         {n} of {of} elements differ\n{cause}\n"
    )
}

#[cfg(test)]
mod tests {
    use samebits::contract::Dtype;

    use super::*;

    fn sites(all: &[(&str, &[usize], &[u32])]) -> Sites {
        let bits = |shape: &[usize], bits: &[u32]| Bits {
            dtype: Dtype::Bf16,
            shape: shape.to_vec(),
            bits: bits.to_vec(),
        };
        all.iter().map(|(name, shape, data)| ((*name).to_owned(), bits(shape, data))).collect()
    }

    #[test]
    fn the_first_op_and_its_smallest_place_are_named() {
        let want = sites(&[
            ("layers.0.k_rope", &[1, 2, 2], &[0; 4]),
            ("layers.0.k_cache", &[1, 2, 2], &[0; 4]),
            ("layers.0.q_rope", &[1, 2, 2], &[0; 4]),
            ("layers.0.scores", &[2, 2, 2], &[0; 8]),
        ]);
        let mut got = want.clone();
        got.insert("layers.0.scores".to_owned(), {
            let mut bits = want["layers.0.scores"].clone();
            bits.bits[3] = 1; // head 0, row 1
            bits.bits[5] = 2; // head 1, row 0
            bits
        });
        let found = localize(&want, &got).expect("they differ");
        assert_eq!((found.site.as_str(), found.position), ("layers.0.scores", 0));
        assert_eq!((found.head, found.element, found.ulps), (Some(1), 1, Some(2)));
        assert!(found.unknown.is_empty() && sentences(&found).contains("the op itself"));
        got.remove("layers.0.k_cache");
        let found = localize(&want, &got).expect("they differ");
        assert!(sentences(&found).contains("may already differ: layers.0.k_cache"));
    }

    #[test]
    fn what_does_not_differ_and_what_is_flaky_is_refused() {
        let one = sites(&[("norm", &[1, 2], &[1, 2])]);
        let other = sites(&[("norm", &[1, 2], &[1, 3])]);
        assert_eq!(localize(&one, &one), Err(LocalizeError::Equal(1)));
        assert_eq!(localize(&one, &sites(&[("lm_head", &[1], &[1])])), Err(LocalizeError::Apart));
        assert_eq!(steady(&one, &one), Ok(()));
        assert_eq!(steady(&one, &other), Err(LocalizeError::Flaky("norm".to_owned())));
        let wide = sites(&[("norm", &[1, 3], &[1, 2, 3])]);
        assert!(matches!(localize(&one, &wide), Err(LocalizeError::Shape { .. })));
    }
}
