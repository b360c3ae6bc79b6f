//! Bits against bits: how many differ, and where first in the order of execution.
//!
//! Absent on purpose: any tolerance. The invariant: a site that is missing, or of another shape or
//! dtype, differs; nothing is compared that both sides do not have.

use std::ops::Range;

use samebits_reports::{Divergence, Num};

use crate::sites::{Bits, Sites, is_state, keyed, op_of, rank, split, ulps};

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Elements (or hashes) compared.
    pub compared: u64,
    /// Those that differ.
    pub differing: u64,
    /// Those that are infinite or NaN on the candidate's side where the reference's are finite.
    pub nonfinite: u64,
    /// The first that differs.
    pub first: Option<Divergence>,
}

impl Comparison {
    /// Adds another comparison, made after this one.
    pub fn then(&mut self, other: Self) {
        self.compared += other.compared;
        self.differing += other.differing;
        self.nonfinite += other.nonfinite;
        self.first = self.first.take().or(other.first);
    }

    /// The same with `text` said of the first divergence.
    pub fn labelled(mut self, text: &str) -> Self {
        if let Some(first) = &mut self.first {
            first.text = format!("{text} {}", first.text).trim().to_owned();
        }
        self
    }

    /// Counts one more comparison of two digests or ids.
    pub fn digest(&mut self, site: &str, position: Option<usize>, same: bool, text: &str) {
        self.compared += 1;
        if !same {
            self.differing += 1;
            self.first
                .get_or_insert_with(|| Divergence { text: text.to_owned(), ..at(site, position) });
        }
    }
}

/// A divergence at a site, not yet told apart further.
pub fn at(site: &str, position: Option<usize>) -> Divergence {
    Divergence {
        op: op_of(site).to_owned(),
        layer: split(site).map(|(layer, _)| layer as u64),
        position: position.map(|p| p as u64),
        element: None,
        ulps: None,
        want: None,
        got: None,
        text: String::new(),
    }
}

/// Site names in the order of execution.
pub fn in_order<T>(sites: &std::collections::BTreeMap<String, T>) -> Vec<&String> {
    let mut names: Vec<&String> = sites.keys().filter(|name| rank(name).is_some()).collect();
    names.sort_by_key(|name| rank(name));
    names
}

/// Compares every site of `want` with `got`, forward by forward.
///
/// `forwards` are the rows of each forward of the run; one range where they do not matter.
pub fn compare(want: &Sites, got: &Sites, forwards: &[Range<usize>]) -> Comparison {
    let mut all = Comparison::default();
    let names = in_order(want);
    for forward in forwards {
        for name in &names {
            let site = &want[*name];
            match got.get(*name) {
                Some(other) if other.shape == site.shape && other.dtype == site.dtype => {
                    let mut one = rows(name, site, other, forward.clone());
                    if let (Some(first), true) = (&mut one.first, forwards.len() > 1) {
                        first.text = format!("forward of rows {forward:?} {}", first.text);
                    }
                    all.then(one);
                }
                other => all.then(unlike(name, site, other)),
            }
        }
    }
    all
}

/// Compares every site of `want` with `got` over `count` rows, whatever forwards they ran in.
pub fn compare_rows(want: &Sites, got: &Sites, count: usize) -> Comparison {
    compare(want, got, std::slice::from_ref(&(0..count)))
}

/// Compares what two runs carry on after their last forwards.
pub fn compare_states(want: &Sites, got: &Sites) -> Comparison {
    let mut all = Comparison::default();
    let mut names: Vec<&String> = want.keys().filter(|name| is_state(name)).collect();
    names.sort_by_key(|name| split(name));
    for name in names {
        let site = &want[name];
        match got.get(name) {
            Some(other) if other.shape == site.shape && other.dtype == site.dtype => {
                let mut one = rows(name, site, other, 0..site.shape[0]);
                if let Some(first) = &mut one.first {
                    let part = first.position.take().unwrap_or(0);
                    first.text = format!("part {part} of what the last forward left");
                }
                all.then(one);
            }
            other => all.then(unlike(name, site, other)),
        }
    }
    all
}

/// A site that is missing or of another shape or dtype.
fn unlike(name: &str, want: &Bits, got: Option<&Bits>) -> Comparison {
    let shape = got.map(|o| (&o.shape, o.dtype));
    let text = format!("want {:?} {:?}, got {shape:?}", want.shape, want.dtype);
    let first = Some(Divergence { text, ..at(name, None) });
    Comparison { differing: 1, first, ..Comparison::default() }
}

/// Compares the rows of one forward at one site.
fn rows(name: &str, want: &Bits, got: &Bits, forward: Range<usize>) -> Comparison {
    let mut found = Comparison::default();
    let all = want.row_count(name);
    let (blocks, width) = if keyed(name) {
        (want.shape[0], want.shape[2])
    } else {
        (1, want.bits.len() / all.max(1))
    };
    for row in forward {
        for block in 0..blocks {
            let start = (block * all + row) * width;
            let (a, b) = (&want.bits[start..start + width], &got.bits[start..start + width]);
            found.compared += width as u64;
            for i in (0..width).filter(|i| a[*i] != b[*i]) {
                found.differing += 1;
                let (w, g) = (want.value(start + i), got.value(start + i));
                found.nonfinite += u64::from(w.is_finite() && !g.is_finite());
                found.first.get_or_insert_with(|| Divergence {
                    element: Some((block * width + i) as u64),
                    ulps: ulps(want.dtype, a[i], b[i]),
                    want: Some(Num(w)),
                    got: Some(Num(g)),
                    text: if blocks > 1 { format!("head {block} key {i}") } else { String::new() },
                    ..at(name, Some(row))
                });
            }
        }
    }
    found
}

/// Elements that are infinite or NaN.
pub fn nonfinite(sites: &Sites) -> u64 {
    let count = |b: &Bits| (0..b.bits.len()).filter(|i| !b.value(*i).is_finite()).count() as u64;
    sites.values().map(count).sum()
}
