//! The errors of files: row files, run files, report files, hashed folders.
//!
//! Faults of a row are not here: they become the row's status and reason (`Fault`).

use std::io;
use std::path::PathBuf;

use crate::stamp::Stamp;

/// Why a file or a folder of row files was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The text is not JSON, or not of the schema's shape.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's word, with line and column.
        source: serde_json::Error,
    },
    /// The file names another schema, or none.
    #[error("{path}: schema is {found:?}, not {want:?}", path = path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What is read here.
        want: &'static str,
    },
    /// A gate id that cannot name a file without doubt.
    #[error("gate id {id:?}: want segments of [A-Za-z0-9._=,-], joined by `/`, no leading dot")]
    Id {
        /// The id.
        id: String,
    },
    /// A gate reported twice in one run: reruns do not count.
    #[error("gate {id}: reported twice ({path} exists)", path = path.display())]
    Duplicate {
        /// The gate.
        id: String,
        /// The file of the first report, or the folder's run file.
        path: PathBuf,
    },
    /// A row file whose name is not that of the row's id.
    #[error("{path}: holds the row of gate {id}", path = path.display())]
    Misnamed {
        /// The file.
        path: PathBuf,
        /// The id inside.
        id: String,
    },
    /// A row written before the run began.
    #[error("gate {id}: stale row of {ended}, the run began at {start}")]
    Stale {
        /// The gate.
        id: String,
        /// When the row was written.
        ended: Stamp,
        /// When the run began.
        start: Stamp,
    },
    /// A row of a gate that is not part of the run, or is of another kind, seed,
    /// commit or code there.
    #[error("gate {id}: not part of this run as it reports itself")]
    Unexpected {
        /// The gate.
        id: String,
    },
    /// A folder that holds files but is not a folder of rows, and so is not emptied.
    #[error("{path}: not empty and not a folder of rows", path = path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// A report whose status, order or totals do not follow from its rows.
    #[error("{path}: status, margin, order or totals do not follow from the rows",
        path = path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
    },
    /// A folder to hash without any file.
    #[error("{path}: nothing to hash", path = path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// A path that cannot be hashed without doubt: not UTF-8, a control character, a backslash,
    /// a link to a folder, or not a file.
    #[error("{path}: cannot be hashed", path = path.display())]
    Unhashable {
        /// The path.
        path: PathBuf,
    },
}

impl Error {
    /// Wraps an I/O error with its path.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }
}
