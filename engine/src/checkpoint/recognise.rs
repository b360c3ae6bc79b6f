//! What a file is when it is not weights.
//!
//! Here: the first bytes of the things that stand in the place of a weight or configuration file
//! after a failed download. The invariant: a well-formed safetensors file is never taken for
//! anything else, since its ninth byte is `{` and its first eight are a small number.

use std::fmt;

use super::json::one_line;

/// How many first bytes tell what a file is.
pub(super) const PREFIX_BYTES: usize = 512;

/// Something that stands where a file of a checkpoint should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// No bytes at all.
    Empty,
    /// A Git LFS pointer: the file itself was never fetched.
    LfsPointer { promised_bytes: Option<u64> },
    /// An HTML or XML page.
    Page,
    /// The body of a failed download.
    NotFound { line: String },
    /// A format with a known signature.
    Format(&'static str),
    /// Text of some other kind.
    Text { start: String },
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty (0 bytes)"),
            Self::LfsPointer { promised_bytes: Some(bytes) } => write!(
                f,
                "is a Git LFS pointer, not the file: it promises {bytes} bytes (run `git lfs pull`)"
            ),
            Self::LfsPointer { promised_bytes: None } => {
                f.write_str("is a Git LFS pointer, not the file (run `git lfs pull`)")
            }
            Self::Page => f.write_str("is an HTML page, not the file (a failed download)"),
            Self::NotFound { line } => {
                write!(f, "is the text \"{line}\", not the file (a failed download)")
            }
            Self::Format(name) => write!(f, "is {name}, not a safetensors file"),
            Self::Text { start } => write!(f, "is text that begins \"{start}\", not weights"),
        }
    }
}

/// Formats that are not text, by their first bytes.
const SIGNATURES: [(&[u8], &str); 6] = [
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
];

/// What `prefix`, the first bytes of a file, shows any file of a checkpoint to be instead.
pub(super) fn impostor(prefix: &[u8]) -> Option<Stranger> {
    if prefix.is_empty() {
        return Some(Stranger::Empty);
    }
    let text = String::from_utf8_lossy(prefix);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let first_line = text.lines().next().unwrap_or("");
    let lower = first_line.to_ascii_lowercase();
    if lower.starts_with("version https://git-lfs.github.com/spec/")
        || lower.starts_with("version https://hawser.github.com/spec/")
    {
        let size = text.lines().find_map(|line| line.strip_prefix("size "));
        let promised_bytes = size.and_then(|size| size.trim().parse().ok());
        return Some(Stranger::LfsPointer { promised_bytes });
    }
    if ["<!doctype", "<html", "<head", "<body", "<?xml", "<!--"]
        .iter()
        .any(|p| lower.starts_with(p))
    {
        return Some(Stranger::Page);
    }
    const BODIES: [&str; 8] = [
        "entry not found",
        "not found",
        "404",
        "403",
        "401",
        "repository not found",
        "invalid username or password",
        "access to model",
    ];
    if BODIES.iter().any(|p| lower.starts_with(p)) {
        return Some(Stranger::NotFound { line: one_line(first_line.trim_end()) });
    }
    None
}

/// What `prefix`, the first bytes of a file, shows a weight file to be instead.
pub(super) fn not_weights(prefix: &[u8]) -> Option<Stranger> {
    if let Some(stranger) = impostor(prefix) {
        return Some(stranger);
    }
    let signature = SIGNATURES.iter().find(|(bytes, _)| prefix.starts_with(bytes));
    if let Some((_, name)) = signature.filter(|_| prefix.get(8) != Some(&b'{')) {
        return Some(Stranger::Format(name));
    }
    // Eight printable bytes read as a header length are at least 2^56.
    let head = &prefix[..prefix.len().min(8)];
    if head.iter().all(|&b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        let start = String::from_utf8_lossy(&prefix[..prefix.len().min(40)]);
        return Some(Stranger::Text { start: one_line(start.trim_end()) });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_told_apart() {
        let pointer =
            "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1503300328\n";
        let bytes = Some(1_503_300_328);
        let line = "Entry not found".to_owned();
        let cases: [(&[u8], Option<Stranger>); 9] = [
            (b"", Some(Stranger::Empty)),
            (pointer.as_bytes(), Some(Stranger::LfsPointer { promised_bytes: bytes })),
            (b"\n <!DOCTYPE html><p>", Some(Stranger::Page)),
            (b"<HTML>", Some(Stranger::Page)),
            (b"Entry not found", Some(Stranger::NotFound { line })),
            (b"GGUF\x03\0\0\0\0\0", Some(Stranger::Format("a GGUF file"))),
            (b"hello, I am", Some(Stranger::Text { start: "hello, I am".to_owned() })),
            (b"\x02\0\0\0\0\0\0\0{}", None),
            // A legal header whose length looks like a signature's first bytes.
            (b"\x1f\x8b\0\0\0\0\0\0{\"", None),
        ];
        for (bytes, want) in cases {
            assert_eq!(not_weights(bytes), want, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
