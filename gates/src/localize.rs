//! Where two traces part: the first op in the order of execution, and the smallest place in it.
//!
//! Here: bits against bits. [`forced`] judges each op of a trace on the trace's own inputs, which
//! tells a fault from another legal order of summation, and [`gate`] starts from a red gate. The
//! invariants: what does not differ is refused, and an op whose own inputs differ, or are not in
//! both traces, is never called the culprit.

pub mod forced;
pub mod gate;
pub mod names;
pub mod read;
pub mod spans;

use std::borrow::Cow;

use thiserror::Error;

use crate::compare::in_order;
use crate::sites::{Bits, Sites, keyed, op_of, split, ulps};

/// An element, found as a reader would look for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// Which sequence.
    pub batch: usize,
    /// Row of the sequence.
    pub position: usize,
    /// Its head, where the site has heads.
    pub head: Option<usize>,
    /// Its place within the row, or within the head.
    pub element: usize,
}

impl Spot {
    /// The spot of element `i` of a site: `[rows, width]`, `[rows, heads, width]` or `[heads, rows,
    /// keys]`, each perhaps with a batch before.
    pub fn of(site: &str, shape: &[usize], i: usize) -> Self {
        let (headed, n) = (headed(site) || keyed(site), shape.len());
        let last = shape.last().copied().unwrap_or(1).max(1);
        let axis = |back: usize| if n > back { shape[n - 1 - back].max(1) } else { 1 };
        let (at, element) = (i / last, i % last);
        if headed && n > 2 {
            let (inner, outer) = (at % axis(1), at / axis(1) % axis(2));
            let (position, head) = if keyed(site) { (inner, outer) } else { (outer, inner) };
            return Self { batch: at / axis(1) / axis(2), position, head: Some(head), element };
        }
        Self { batch: at / axis(1), position: at % axis(1), head: None, element }
    }
}

/// Whether a site is `[rows, heads, width]`.
fn headed(site: &str) -> bool {
    let attention = ["q_norm", "k_norm", "q_rope", "k_rope", "k_cache", "v_cache"];
    let delta = ["in_proj_z", "q_l2", "k_l2", "core", "gdn_norm"];
    attention.contains(&op_of(site)) || delta.contains(&op_of(site))
}

/// Where two traces part.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The first site that differs.
    pub site: String,
    /// Elements that differ there, and all of them.
    pub differing: (u64, u64),
    /// The first that differs.
    pub spot: Spot,
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

/// The sites that an op reads, in a run that wrote `sites`: they tell which kind of layer it is in.
pub fn inputs(site: &str, sites: &Sites) -> Vec<String> {
    let Some((layer, op)) = split(site) else {
        return match site {
            "norm" => stream_after(sites),
            "lm_head" => vec!["norm".to_owned()],
            _ => Vec::new(),
        };
    };
    let own = |op: &str| format!("layers.{layer}.{op}");
    let all = |ops: &[&str]| ops.iter().map(|op| own(op)).collect();
    let stream = || match layer {
        0 => "embed_tokens".to_owned(),
        _ => format!("layers.{}.mlp_residual", layer - 1),
    };
    let wrote = |op: &str| sites.contains_key(&own(op));
    match op {
        "input_layernorm" => vec![stream()],
        "q_proj" | "k_proj" | "v_proj" | "in_proj_qkv" | "in_proj_z" | "in_proj_b"
        | "in_proj_a" => all(&["input_layernorm"]),
        "q_norm" | "q_gate" => all(&["q_proj"]),
        "k_norm" => all(&["k_proj"]),
        "q_rope" => all(&["q_norm"]),
        "k_rope" => all(&["k_norm"]),
        "k_cache" => all(&["k_rope"]),
        "v_cache" => all(&["v_proj"]),
        "scores" => all(&["q_rope", "k_cache"]),
        "probs" => all(&["scores"]),
        "mix" => all(&["probs", "v_cache"]),
        "gate_sigmoid" => all(&["q_gate"]),
        "mix_gated" => all(&["mix", "gate_sigmoid"]),
        "o_proj" if wrote("gate_sigmoid") || wrote("mix_gated") => all(&["mix_gated"]),
        "o_proj" => all(&["mix"]),
        "conv" => all(&["in_proj_qkv"]),
        "conv_silu" => all(&["conv"]),
        "beta" => all(&["in_proj_b"]),
        "g" => all(&["in_proj_a"]),
        "q_l2" | "k_l2" => all(&["conv_silu"]),
        "core" => all(&["q_l2", "k_l2", "conv_silu", "beta", "g"]),
        "gdn_norm" => all(&["core", "in_proj_z"]),
        "out_proj" => all(&["gdn_norm"]),
        "attn_residual" if wrote("out_proj") => vec![stream(), own("out_proj")],
        "attn_residual" => vec![stream(), own("o_proj")],
        "post_attention_layernorm" => all(&["attn_residual"]),
        "gate_proj" | "up_proj" => all(&["post_attention_layernorm"]),
        "silu" => all(&["gate_proj"]),
        "mul" => all(&["silu", "up_proj"]),
        "down_proj" => all(&["mul"]),
        _ => all(&["attn_residual", "down_proj"]),
    }
}

/// The residual stream after the last layer of which there is any site.
fn stream_after(sites: &Sites) -> Vec<String> {
    let last = sites.keys().filter_map(|site| Some(split(site)?.0)).max();
    last.map(|layer| format!("layers.{layer}.mlp_residual")).into_iter().collect()
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
        let (first, (a, b)) = (past(want), same_rows(name, a, b));
        let (a, b) = (a.as_ref(), b.as_ref());
        let kept = want[*name].row_count(name).max(got[*name].row_count(name));
        let first = first + kept - a.row_count(name);
        if a.dtype != b.dtype || !same_shape(name, a, b) {
            let say = |x: &Bits| format!("{:?} {:?}", x.dtype, x.shape);
            let site = (*name).clone();
            return Err(LocalizeError::Shape { site, want: say(a), got: say(b) });
        }
        if a.bits != b.bits {
            let mut found = place(name, a, b);
            found.spot.position += first;
            found.inputs = inputs(name, want);
            let missing = |site: &&String| !(want.contains_key(*site) && got.contains_key(*site));
            found.unknown = found.inputs.iter().filter(missing).cloned().collect();
            return Ok(found);
        }
    }
    Err(LocalizeError::Equal(both.len()))
}

/// Positions that were in the cache before a trace's first row: keys that are no rows.
fn past(sites: &Sites) -> usize {
    let scores = sites.iter().find(|(name, bits)| keyed(name) && bits.shape.len() == 3);
    scores.map_or(0, |(_, bits)| bits.shape[2].saturating_sub(bits.shape[1]))
}

/// Two tensors of logits, the longer cut to as many last rows as the shorter has.
fn same_rows<'a>(site: &str, a: &'a Bits, b: &'a Bits) -> (Cow<'a, Bits>, Cow<'a, Bits>) {
    let few = a.row_count(site).min(b.row_count(site));
    let cut = |bits: &'a Bits| {
        let all = bits.row_count(site);
        match site {
            "norm" | "lm_head" if few < all => Cow::Owned(bits.rows(site, all - few..all, 0)),
            _ => Cow::Borrowed(bits),
        }
    };
    (cut(a), cut(b))
}

/// Whether two tensors have the shape of one site: heads of a row may be joined.
fn same_shape(site: &str, a: &Bits, b: &Bits) -> bool {
    let joined = !keyed(site) && a.shape.first() == b.shape.first();
    a.shape == b.shape || (joined && a.bits.len() == b.bits.len())
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
    let n = a.bits.len();
    let differing: Vec<usize> = (0..n).filter(|i| a.bits[*i] != b.bits[*i]).collect();
    let first = differing.iter().map(|i| (Spot::of(site, &a.shape, *i), *i)).min();
    let (spot, first) = first.expect("the caller saw a difference");
    Found {
        site: site.to_owned(),
        differing: (differing.len() as u64, n as u64),
        spot,
        ulps: ulps(a.dtype, a.bits[first], b.bits[first]),
        inputs: Vec::new(),
        unknown: Vec::new(),
    }
}

/// The words for a spot.
fn words(spot: &Spot) -> String {
    let Spot { batch, position, head, element } = spot;
    let head = head.map_or_else(String::new, |head| format!(", head {head}"));
    format!("batch {batch}, position {position}{head}, element {element}")
}

/// One sentence for each thing found.
pub fn sentences(found: &Found) -> String {
    let Found { site, differing: (n, of), spot, .. } = found;
    let far = found.ulps.map_or_else(|| "NaN".to_owned(), |ulps| format!("{ulps} ulps"));
    let inputs = found.inputs.join(", ");
    let cause = match found.unknown.as_slice() {
        [] if found.inputs.is_empty() => {
            "it reads ids and weights only: one of them already differs, or the op does".to_owned()
        }
        [] => format!("its inputs ({inputs}) are equal: the op itself departs"),
        unknown => {
            format!("its inputs may already differ: {} is not in both traces", unknown.join(", "))
        }
    };
    let place = words(spot);
    format!(
        "first difference: {site}\nplace: {place}, {far}; {n} of {of} elements differ\n{cause}\n"
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
        assert_eq!((found.site.as_str(), found.ulps), ("layers.0.scores", Some(2)));
        let spot = Spot { batch: 0, position: 0, head: Some(1), element: 1 };
        assert_eq!(found.spot, spot);
        assert!(found.unknown.is_empty() && sentences(&found).contains("the op itself"));
        got.remove("layers.0.k_cache");
        let found = localize(&want, &got).expect("they differ");
        assert!(sentences(&found).contains("may already differ: layers.0.k_cache"));
    }

    #[test]
    fn the_place_is_found_in_every_layout() {
        for (site, shape, i, want) in [
            ("norm", vec![3, 4], 7, (0, 1, None, 3)),
            ("norm", vec![2, 3, 4], 19, (1, 1, None, 3)),
            ("layers.0.q_norm", vec![3, 2, 4], 13, (0, 1, Some(1), 1)),
            ("layers.0.q_norm", vec![3, 8], 13, (0, 1, None, 5)),
            ("layers.0.v_cache", vec![2, 3, 2, 4], 24 + 13, (1, 1, Some(1), 1)),
            ("layers.0.scores", vec![2, 3, 5], 15 + 7, (0, 1, Some(1), 2)),
            ("layers.0.probs", vec![2, 2, 3, 5], 30 + 7, (1, 1, Some(0), 2)),
        ] {
            let (batch, position, head, element) = want;
            let want = Spot { batch, position, head, element };
            assert_eq!(Spot::of(site, &shape, i), want, "{site} {shape:?} {i}");
        }
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
