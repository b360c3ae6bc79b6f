//! What all gates of a run share: seed, limits, checkpoints built once and models loaded once.
//!
//! The invariant: nothing here depends on the order in which gates run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use samebits::checkpoint::{Checkpoint, CheckpointError, Family};
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::Model;
use samebits_fixtures::{HybridSpec, Spec, paths, synthetic, synthetic_hybrid};
use samebits_oracle as oracle;
use tempfile::TempDir;

use crate::checks::CheckError;
use crate::limits::{LimitError, Limits};
use crate::manifest::Source;

/// A checkpoint on disk; a temporary one lives as long as this does.
pub struct Folder {
    path: PathBuf,
    _keep: Option<TempDir>,
}

impl Folder {
    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A value made by the first who asks; others wait for it.
type Once<T> = Arc<OnceLock<Result<Arc<T>, String>>>;
/// Values made once, by key.
type Store<K, T> = Mutex<HashMap<K, Once<T>>>;

/// What all gates share.
pub struct Context {
    /// Seed of all inputs.
    pub seed: u64,
    /// A checkpoint that replaces the embedded one of its family.
    pub model: Option<(PathBuf, Family)>,
    /// The limits.
    pub limits: Limits,
    /// The `gates` binary, for fresh processes.
    pub child: PathBuf,
    folders: Store<String, Folder>,
    models: Store<(String, &'static str, &'static str), Model<CpuMem>>,
    references: Store<String, oracle::Model>,
}

/// Where the crate's own data lie.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

impl Context {
    /// A context for one run; `child` is the `gates` binary.
    ///
    /// # Errors
    /// A limits file that cannot be used.
    pub fn new(
        seed: u64,
        model: Option<(PathBuf, Family)>,
        child: PathBuf,
    ) -> Result<Self, LimitError> {
        Ok(Self {
            seed,
            model,
            limits: Limits::load(&data("limits.json"))?,
            child,
            folders: Mutex::default(),
            models: Mutex::default(),
            references: Mutex::default(),
        })
    }

    /// The folder of a checkpoint, built if need be.
    ///
    /// # Errors
    /// A checkpoint that cannot be built.
    pub fn folder(&self, source: &Source) -> Result<Arc<Folder>, CheckError> {
        let spec = match source {
            Source::Embedded => return Ok(self.replaced(Family::Qwen3, paths::tiny_qwen3)),
            Source::EmbeddedHybrid => {
                return Ok(self.replaced(Family::Qwen3_5, paths::tiny_qwen3_5));
            }
            Source::Narrow(name) => {
                return Ok(Arc::new(Folder { path: paths::narrow(name), _keep: None }));
            }
            Source::Named(name) if HybridSpec::names().contains(&name.as_str()) => {
                return self.synthetic_hybrid(&HybridSpec::named(name)?, SYNTHETIC_SEED);
            }
            Source::Hybrid(spec) => return self.synthetic_hybrid(spec, SYNTHETIC_SEED),
            Source::Named(name) => Spec::named(name)?,
            Source::Spec(spec) => spec.clone(),
        };
        self.synthetic(&spec, SYNTHETIC_SEED)
    }

    /// The given checkpoint where there is one of the family, else the embedded one.
    fn replaced(&self, family: Family, embedded: impl FnOnce() -> PathBuf) -> Arc<Folder> {
        let given = self.model.as_ref().filter(|(_, of)| *of == family);
        let path = given.map_or_else(embedded, |(path, _)| path.clone());
        Arc::new(Folder { path, _keep: None })
    }

    /// The folder of a synthetic hybrid.
    ///
    /// # Errors
    /// A checkpoint that cannot be written.
    pub fn synthetic_hybrid(
        &self,
        spec: &HybridSpec,
        seed: u64,
    ) -> Result<Arc<Folder>, CheckError> {
        once(&self.folders, format!("{spec:?} {seed}"), || {
            let keep = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
            synthetic_hybrid(spec, seed, keep.path())?;
            Ok(Folder { path: keep.path().to_path_buf(), _keep: Some(keep) })
        })
    }

    /// The folder of a synthetic checkpoint.
    ///
    /// # Errors
    /// A checkpoint that cannot be written.
    pub fn synthetic(&self, spec: &Spec, seed: u64) -> Result<Arc<Folder>, CheckError> {
        once(&self.folders, format!("{spec:?} {seed}"), || {
            let keep = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
            synthetic(spec, seed, keep.path())?;
            Ok(Folder { path: keep.path().to_path_buf(), _keep: Some(keep) })
        })
    }

    /// A checkpoint on the CPU, for runs in the default order.
    ///
    /// # Errors
    /// What admission or the files answered.
    pub fn load(&self, folder: &Path, dtype: Dtype) -> Result<Arc<Model<CpuMem>>, CheckError> {
        self.load_for(folder, dtype, Order::Invariant)
    }

    /// A checkpoint on the CPU, for runs in `order`: of a gated delta net some weights follow it.
    ///
    /// # Errors
    /// What admission or the files answered.
    pub fn load_for(
        &self,
        folder: &Path,
        dtype: Dtype,
        order: Order,
    ) -> Result<Arc<Model<CpuMem>>, CheckError> {
        // A dense model is the same in every order, and held once.
        let hybrid = || family(folder).is_ok_and(|family| family == Family::Qwen3_5);
        let order = if order != Order::Invariant && hybrid() { order } else { Order::Invariant };
        let key = (folder.display().to_string(), dtype.name(), order.name());
        once(&self.models, key, || {
            let checkpoint = Checkpoint::open_as(folder, Some(dtype))?;
            // Weights are laid out by dtype alone, so that every kernel table reads the same copy.
            let mut cpu = Cpu::new(Kernels::best(), order);
            Ok(Model::load(&mut cpu, &checkpoint, order)?)
        })
    }

    /// A checkpoint in the reference's hands.
    ///
    /// # Errors
    /// What the reference's own reader answered.
    pub fn reference(&self, folder: &Path) -> Result<Arc<oracle::Model>, CheckError> {
        once(&self.references, folder.display().to_string(), || Ok(oracle::Model::load(folder)?))
    }
}

/// The family of a checkpoint.
///
/// # Errors
/// What admission answered.
pub fn family(folder: &Path) -> Result<Family, CheckpointError> {
    Ok(Checkpoint::open(folder)?.config().family)
}

/// Seed of synthetic checkpoints; inputs have the run's own.
const SYNTHETIC_SEED: u64 = 1;

fn lock<T>(store: &Mutex<T>) -> MutexGuard<'_, T> {
    store.lock().expect("no thread panics while it holds the lock")
}

/// The value of `key`, made by the first caller.
fn once<K: Eq + std::hash::Hash, T>(
    store: &Store<K, T>,
    key: K,
    make: impl FnOnce() -> Result<T, CheckError>,
) -> Result<Arc<T>, CheckError> {
    let cell = Arc::clone(lock(store).entry(key).or_default());
    let made = cell.get_or_init(|| make().map(Arc::new).map_err(|error| error.to_string()));
    made.clone().map_err(|why| CheckError::Checkpoint { why })
}
