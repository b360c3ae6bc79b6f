//! A backend whose named sites write given tensors instead of their own.
//!
//! Deliberately absent: the tables of the rotation, which no op writes; [`take_rotary`] turns them
//! into tables that a run takes as a value.

use std::collections::BTreeMap;

use samebits::contract::RotaryTables;
use samebits::op::{Backend, Memory, Op, Out, Part, Site};
use samebits::tensor::Tensor;
use samebits::trace::Tap;
use thiserror::Error;

/// Why a replay is not what was asked for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReplayError {
    /// Names that no op of the run writes.
    #[error("the run never wrote {sites}")]
    NeverHit {
        /// The names.
        sites: String,
    },
    /// A tensor of another shape than the site's.
    #[error("{site} is {got:?} in the file, the run writes {want}")]
    Shape {
        /// The site.
        site: String,
        /// Shape of the tensor.
        got: Vec<usize>,
        /// What the run writes, in words.
        want: String,
    },
    /// A tensor of another dtype than the run's.
    #[error("{site} is {got} in the file, the run is {want}")]
    Dtype {
        /// The site.
        site: String,
        /// Dtype of the tensor.
        got: &'static str,
        /// Dtype of the run.
        want: &'static str,
    },
    /// Rows that the run did not come to.
    #[error("{site} has {got} rows in the file, the run wrote {used}")]
    Rows {
        /// The site.
        site: String,
        /// Rows of the tensor.
        got: usize,
        /// Rows that were used.
        used: usize,
    },
    /// One rotary table without the other, or two of different shape.
    #[error("rotary.cos and rotary.sin must both be there and both be [positions, head_dim / 2]")]
    Rotary,
}

/// A tensor to be written, and how many of its rows have been.
struct Injected {
    tap: Tap,
    rows: usize,
    used: usize,
}

/// A backend with replaced outputs. An op of a replaced site still runs.
pub struct Replayed<B> {
    inner: B,
    batch: usize,
    sites: BTreeMap<String, Injected>,
    error: Option<ReplayError>,
}

impl<B: Backend> Replayed<B> {
    /// Replaces the outputs of the sites that `taps` names, for `batch` sequences. Shapes are those
    /// of a trace; forwards one after another take the rows one after another.
    pub fn new(inner: B, batch: usize, taps: BTreeMap<String, Tap>) -> Self {
        let rows = |tap: &Tap| tap.shape.iter().rev().nth(1).copied().unwrap_or(0);
        let injected = |tap: Tap| Injected { rows: rows(&tap), tap, used: 0 };
        let sites = taps.into_iter().map(|(site, tap)| (site, injected(tap))).collect();
        Self { inner, batch, sites, error: None }
    }

    /// The backend, if every tensor fitted and was used up.
    ///
    /// # Errors
    /// The first tensor that did not fit; else sites that no op wrote; else rows left over.
    pub fn finish(self) -> Result<B, ReplayError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let unused = self.sites.iter().filter(|(_, s)| s.used == 0).map(|(name, _)| name.as_str());
        let unused: Vec<&str> = unused.collect();
        if !unused.is_empty() {
            return Err(ReplayError::NeverHit { sites: unused.join(", ") });
        }
        match self.sites.into_iter().find(|(_, s)| s.used < s.rows) {
            Some((site, s)) => Err(ReplayError::Rows { site, got: s.rows, used: s.used }),
            None => Ok(self.inner),
        }
    }
}

impl<B: Backend> Backend for Replayed<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        self.inner.exec(site, op);
        for out in op.outs() {
            let Out::Act { name, act, part } = out else { continue };
            let site = name.map_or(site, |name| site.named(name)).to_string();
            let Some(injected) = self.sites.get_mut(&site) else { continue };
            let mem = self.inner.mem();
            match injected.next(&site, self.batch, &part, (mem, act)) {
                Ok(data) => part.write(self.inner.mem(), act, &data),
                Err(error) => self.error = self.error.take().or(Some(error)),
            }
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self.inner.mem()
    }
}

impl Injected {
    /// The next rows, in the shape of the part.
    fn next<M: samebits::op::Mem>(
        &mut self,
        site: &str,
        batch: usize,
        part: &Part<'_, M>,
        (mem, act): (&mut dyn Memory<M>, &M::Act),
    ) -> Result<Tensor, ReplayError> {
        let written = part.read(mem, act);
        let [sequences, heads, rows, width] = written.shape;
        let count = sequences * rows / batch;
        let (got, want) = (self.tap.data.dtype(), written.data.dtype());
        if got != want {
            let (got, want) = (got.name(), want.name());
            return Err(ReplayError::Dtype { site: site.to_owned(), got, want });
        }
        // Keys may be padded to those of a longer forward; nothing else may be wider.
        let keyed = matches!(part, Part::Keys(_));
        let from = self.tap.shape.last().copied().unwrap_or(0);
        let fits = if keyed { from >= width } else { from == width };
        let whole = batch * heads * self.rows * from == self.tap.data.len();
        if !fits || !whole || self.used + count > self.rows {
            let most = if keyed { " or more" } else { "" };
            let want = format!(
                "{batch} x {heads} x rows {}..{} x {width}{most}",
                self.used,
                self.used + count
            );
            let got = self.tap.shape.clone();
            return Err(ReplayError::Shape { site: site.to_owned(), got, want });
        }
        let mut data = Tensor::zeros(want, 0);
        for matrix in 0..batch * heads {
            for row in self.used..self.used + count {
                data.extend(&self.tap.data.slice((matrix * self.rows + row) * from, width));
            }
        }
        self.used += count;
        Ok(data)
    }
}

/// Takes `rotary.cos` and `rotary.sin`, `[positions, head_dim / 2]`, out of `taps`.
///
/// # Errors
/// One table without the other, or tables of different or no shape.
pub fn take_rotary(taps: &mut BTreeMap<String, Tap>) -> Result<Option<RotaryTables>, ReplayError> {
    let (cos, sin) = match (taps.remove("rotary.cos"), taps.remove("rotary.sin")) {
        (None, None) => return Ok(None),
        (Some(cos), Some(sin)) => (cos, sin),
        _ => return Err(ReplayError::Rotary),
    };
    let [positions, half] = cos.shape[..] else { return Err(ReplayError::Rotary) };
    let len = positions * half;
    if cos.shape != sin.shape || len == 0 || cos.data.len() != len || sin.data.len() != len {
        return Err(ReplayError::Rotary);
    }
    Ok(Some(RotaryTables { half, cos: cos.data.to_f32(), sin: sin.data.to_f32() }))
}
