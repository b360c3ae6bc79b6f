//! Three terms at a time: whether the first two meet before the third.

use samebits::contract::Dtype;
use samebits::op::Backend;
use samebits_oracle::bits::{exp_s, round_bf16};

use super::{Case, Found, Reduction, Tree, masks, ops};

/// `(left, right, sibling)`, a term beyond them where there is one, and where they stand: the
/// first two meet before the third.
struct Triple {
    terms: [usize; 3],
    ballast: Option<usize>,
}

pub fn compare<B: Backend>(b: &mut B, case: Case, want: &Tree) -> Found {
    let mut triples = Vec::new();
    collect(want, None, &mut triples);
    // The large term at the sibling: the small ones count. At one of the two: they do not.
    let probes: Vec<([usize; 3], Option<usize>, bool)> = triples
        .iter()
        .flat_map(|t| {
            let [left, right, sibling] = t.terms;
            let apart = ([sibling, right, left], None, false);
            [([left, right, sibling], t.ballast, true)]
                .into_iter()
                .chain((case.reduction == Reduction::SumOfSquares).then_some(apart))
        })
        .collect();
    let met = match case.reduction {
        Reduction::Softmax => softmax(b, case, &probes),
        Reduction::SumOfSquares => squares(b, case, &probes),
        _ => masks::meet(b, case, &probes.iter().map(|(terms, ..)| *terms).collect::<Vec<_>>()),
    };
    let at = probes.iter().zip(&met).position(|((.., together), met)| met != together)?;
    let ([x, y, z], ..) = probes[at];
    let say = |met: bool| {
        let when = if met { "before" } else { "no earlier than" };
        format!("terms {x} and {y} meet {when} term {z}")
    };
    Some((x.max(y), [say(probes[at].2), say(met[at])]))
}

/// One triple for each inner node but the root.
fn collect(tree: &Tree, outside: Option<usize>, into: &mut Vec<Triple>) {
    for (i, part) in tree.parts.iter().enumerate() {
        let sibling = &tree.parts[1 - i];
        // A second term of the sibling, or one beyond: it meets the sibling's first as soon.
        let second = sibling.parts.get(1).map(|p| p.lowest).or(outside);
        if let [left, right] = &part.parts[..] {
            let terms = [left.lowest, right.lowest, sibling.lowest];
            into.push(Triple { terms, ballast: second });
        }
        collect(part, Some(sibling.lowest), into);
    }
}

/// Squares 1, 2^-24 and 2^-24, and an epsilon that cancels 1 / n: infinite unless the small
/// ones met first.
fn squares<B: Backend>(
    b: &mut B,
    case: Case,
    probes: &[([usize; 3], Option<usize>, bool)],
) -> Vec<bool> {
    let mut x = vec![0.0; probes.len() * case.k];
    for (x, ([left, right, sibling], ..)) in x.chunks_mut(case.k).zip(probes) {
        (x[*left], x[*right], x[*sibling]) = (2f32.powi(-12), 2f32.powi(-12), 1.0);
    }
    let out = ops::rms_norm(b, case, &x, -1.0 / case.k as f32);
    let large = out.chunks(case.k).zip(probes).map(|(out, ([.., large], ..))| out[*large]);
    large.map(f32::is_finite).collect()
}

/// Exponentials 1 at the large term and 0.69 x 2^-24 at the small ones, which count only together.
/// A ballast and a witness are chosen so that the witness's probability rounds differently for sums
/// one step apart.
fn softmax<B: Backend>(
    b: &mut B,
    case: Case,
    probes: &[([usize; 3], Option<usize>, bool)],
) -> Vec<bool> {
    let [with, without] = [true, false].map(|ballast| tell_apart(case.dtype, ballast));
    let mut x = vec![NOTHING; probes.len() * case.k];
    let mut witnesses = Vec::new();
    for (x, (terms, ballast, _)) in x.chunks_mut(case.k).zip(probes) {
        let free = |t: &usize| !terms.contains(t) && *ballast != Some(*t);
        let witness = (0..case.k).find(free).expect("more than four terms");
        let tell = if ballast.is_some() { with } else { without };
        let tell = tell.expect("every f32 sum, and every bf16 sum with a ballast, shows");
        let [left, right, large] = *terms;
        (x[left], x[right], x[large], x[witness]) =
            (tell.small, tell.small, tell.large, tell.witness);
        ballast.iter().for_each(|t| x[*t] = tell.ballast);
        witnesses.push((witness, tell.together));
    }
    let out = ops::softmax(b, case, &x);
    let shown = out.chunks(case.k).zip(witnesses);
    shown.map(|(out, (witness, together))| out[witness] == together).collect()
}

/// A score whose exponential is 0.
const NOTHING: f32 = -200.0;

/// Scores of a probe, all of them bf16, and the witness's probability if the small terms met.
#[derive(Clone, Copy)]
struct Tell {
    large: f32,
    small: f32,
    ballast: f32,
    witness: f32,
    together: f32,
}

/// Every bf16 from one value to another of the same sign.
fn grid(first: f32, last: f32) -> impl Iterator<Item = f32> {
    let bits = (first.to_bits() >> 16)..(last.to_bits() >> 16);
    bits.map(|bits| f32::from_bits(bits << 16))
}

/// Scores that tell a sum from the next. Their exponentials are of differences, so that another
/// largest score gives others.
fn tell_apart(dtype: Dtype, with_ballast: bool) -> Option<Tell> {
    let ballasts: Vec<f32> =
        if with_ballast { grid(-0.0625, -12.0).collect() } else { vec![NOTHING] };
    let probes =
        grid(0.0625, 1.0).flat_map(|large| ballasts.iter().map(move |ballast| (large, *ballast)));
    probes.into_iter().find_map(|(large, ballast)| tell(dtype, large, ballast))
}

fn tell(dtype: Dtype, large: f32, ballast: f32) -> Option<Tell> {
    let round = |p: f32| if dtype == Dtype::Bf16 { round_bf16(p) } else { p };
    let (step, small) = (2f32.powi(-23), round_bf16(large - 17.0));
    let weight = exp_s(ballast - large);
    let sum = 1.0 + weight;
    // A tie would round by parity, and one step more might become none or two.
    if 1.0 + step + weight != sum + step {
        return None;
    }
    let [apart, met] = [1.0 / sum, 1.0 / (sum + step)];
    grid(-40.0, -87.0).find_map(|witness| {
        let [apart, together] = [apart, met].map(|inv| round(exp_s(witness - large) * inv));
        (apart != together).then_some(Tell { large, small, ballast, witness, together })
    })
}
