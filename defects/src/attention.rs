//! Faults of attention: the head map and the cache.

use samebits::op::{Backend, Heads, Op, Out, Site};
use samebits::tensor::Tensor;

use crate::altered::{gather, upload};
use crate::fault::{Cache, Stale};

/// Query head `j` reads key head `j mod kv`: heads move to the slots that read it, and back.
pub fn head_map<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    match op {
        Op::Scores { out, q, cache, scale, span } => {
            let (heads, scale, span) = (span.heads, *scale, *span);
            let len = heads.batch * span.rows.of * heads.query * heads.dim;
            let q = to_slots(&b.mem().read(q, 0, len), heads, heads.dim);
            let q = upload(b, &q);
            b.run(site, Op::Scores { out, q: &q, cache, scale, span });
        }
        Op::Mix { out, probs, cache, span } => {
            let (heads, span) = (span.heads, *span);
            let width = span.rows.count * span.stride;
            let probs = b.mem().read(probs, 0, heads.batch * heads.query * width);
            let probs = upload(b, &to_slots(&probs, heads, width));
            b.run(site, Op::Mix { out, probs: &probs, cache, span });
        }
        _ => return false,
    }
    let (heads, per_head) = match op {
        Op::Scores { span, .. } => {
            let keys = b.mem().read_ints(span.keys, 1)[0] as usize;
            (span.heads, span.rows.count * keys)
        }
        Op::Mix { span, .. } => (span.heads, span.heads.dim),
        _ => unreachable!("both ops were matched above"),
    };
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        let mixed = part.read(b.mem(), act).data;
        part.write(b.mem(), act, &from_slots(&mixed, heads, per_head));
    }
    true
}

/// The slot whose key head is `j mod kv`.
fn slot(j: usize, heads: Heads) -> usize {
    j % heads.kv * (heads.query / heads.kv) + j / heads.kv
}

/// Head `j` of every group of heads goes to its slot; a head is `len` elements.
fn to_slots(data: &Tensor, heads: Heads, len: usize) -> Tensor {
    let mut head_of = vec![0; heads.query];
    (0..heads.query).for_each(|j| head_of[slot(j, heads)] = j);
    gather(data, |i| {
        let (group, at) = (i / len / heads.query, i / len % heads.query);
        (group * heads.query + head_of[at]) * len + i % len
    })
}

/// The inverse of [`to_slots`].
fn from_slots(data: &Tensor, heads: Heads, len: usize) -> Tensor {
    gather(data, |i| {
        let (group, j) = (i / len / heads.query, i / len % heads.query);
        (group * heads.query + slot(j, heads)) * len + i % len
    })
}

/// Rows of a cache that keep what they held, or take the row before theirs.
pub fn stale<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    (form, cache): (Stale, Cache),
) -> bool {
    let Op::KvAppend { heads, rows, .. } = op else { return false };
    let shows = match form {
        Stale::Swapped => *rows > 1,
        Stale::OtherSequence => heads.batch > 1,
        Stale::Unwritten | Stale::Late => true,
    };
    if !shows {
        return false;
    }
    let before = contents(b, op);
    b.exec(site, op);
    let after = contents(b, op);
    for (i, out) in op.outs().into_iter().enumerate() {
        let Out::Act { act, part, .. } = out else { continue };
        if !matches!((i, cache), (_, Cache::Both) | (0, Cache::Keys) | (1, Cache::Values)) {
            continue;
        }
        let [_, _, rows, width] = part.read(b.mem(), act).shape;
        let row = |i: usize| i / width % rows;
        let mut old = before[i].clone();
        old.extend(&after[i]);
        let new = after[i].len();
        // The second half of `old` is what was written, the first what was there before.
        let from = |i: usize| match form {
            Stale::Unwritten if row(i) + 1 == rows => i,
            Stale::Late if row(i) == 0 => i,
            Stale::Late => new + i - width,
            Stale::Unwritten => new + i,
            Stale::Swapped if rows > 1 && row(i) + 1 == rows => new + i - width,
            Stale::Swapped if rows > 1 && row(i) + 2 == rows => new + i + width,
            Stale::Swapped => new + i,
            Stale::OtherSequence => new + i % (rows * width),
        };
        let stale = gather(&old, |i| if i < new { from(i) } else { i }).slice(0, new);
        part.write(b.mem(), act, &stale);
    }
    true
}

/// What the written parts of an op hold now.
fn contents<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> Vec<Tensor> {
    let mut contents = Vec::new();
    for out in op.outs() {
        if let Out::Act { act, part, .. } = out {
            contents.push(part.read(b.mem(), act).data);
        }
    }
    contents
}
