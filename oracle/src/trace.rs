//! What a run wrote, by site, and the one place that every site passes.
//!
//! Deliberately absent: values of its own. Invariant: what is kept changes no value; only an
//! injected tensor does, from its site on.

use std::collections::{BTreeMap, BTreeSet};

use crate::dtype::Array;
use crate::ops::Out;
use crate::run::Keep;

/// What a run wrote, by site. Rows of the forwards of a cached run are joined; `scores` and
/// `probs` are `[heads, tokens, tokens]`, filled up with the masked score and 0.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Kept sites.
    pub sites: BTreeMap<String, Array>,
    /// What the last forward left in each gated delta net, by layer.
    pub states: BTreeMap<usize, State>,
}

/// What a gated delta net carries from one forward to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// `[channels, kernel]`: the last inputs of the convolution, oldest first, 0 before the start.
    pub conv: Array,
    /// `[value_heads, key_dim, value_dim]`, f32.
    pub delta: Array,
}

impl Trace {
    /// The logits, `[rows, vocab]`.
    pub fn logits(&self) -> &Array {
        &self.sites["lm_head"]
    }
}

/// A trace in the making.
pub(crate) struct Recorder<'a> {
    pub keep: &'a Keep,
    pub inject: &'a BTreeMap<String, Vec<f64>>, // by site, the rows of all tokens
    pub injected: BTreeSet<String>,             // those that were met
    pub tokens: usize,                          // of all forwards together
    pub first: usize,                           // position of row 0 of the current forward
    pub trace: Trace,
}

impl Recorder<'_> {
    pub(crate) fn keeps(&self, site: &str) -> bool {
        match self.keep {
            Keep::Logits => site == "lm_head",
            Keep::All => true,
            Keep::Only(sites) => site == "lm_head" || sites.contains(site),
        }
    }

    /// Joins the rows of a forward to the site's and hands the values on.
    pub(crate) fn put(&mut self, site: &str, shape: &[usize], mut out: Out) -> Vec<f64> {
        if let Some(whole) = self.inject.get(site) {
            let width: usize = shape[1..].iter().product();
            assert_eq!(whole.len(), self.tokens * width, "inject: length of {site}");
            let rows = &whole[self.first * width..][..shape[0] * width];
            out = Out { values: rows.to_vec(), squares: None };
            self.injected.insert(site.to_owned());
        }
        if self.keeps(site) {
            let array = self.trace.sites.entry(site.to_owned()).or_insert_with(|| Array {
                shape: [&[0], &shape[1..]].concat(),
                values: Vec::new(),
                squares: out.squares.as_ref().map(|_| Vec::new()),
            });
            array.shape[0] += shape[0];
            array.values.extend(&out.values);
            if let (Some(whole), Some(part)) = (&mut array.squares, &out.squares) {
                whole.extend(part);
            }
        }
        out.values
    }

    /// Places `[heads, n, keys]` into the site's `[heads, tokens, tokens]`.
    pub(crate) fn put_square(&mut self, site: &str, shape: [usize; 3], out: &Out, fill: f64) {
        if !self.keeps(site) {
            return;
        }
        let (t, first, [heads, n, keys]) = (self.tokens, self.first, shape);
        let array = self.trace.sites.entry(site.to_owned()).or_insert_with(|| Array {
            shape: vec![heads, t, t],
            values: vec![fill; heads * t * t],
            squares: out.squares.as_ref().map(|_| vec![0.0; heads * t * t]),
        });
        let place = |whole: &mut [f64], part: &[f64]| {
            for (i, row) in part.chunks(keys).enumerate() {
                let at = ((i / n) * t + first + i % n) * t;
                whole[at..at + keys].copy_from_slice(row);
            }
        };
        place(&mut array.values, &out.values);
        if let (Some(whole), Some(part)) = (&mut array.squares, &out.squares) {
            place(whole, part);
        }
    }
}
