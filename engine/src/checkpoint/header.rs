//! The header of a safetensors file: 8 bytes of length, JSON, data.
//!
//! Here: the format as written down, strictly. Every byte of the data section belongs to exactly
//! one tensor, names are unique, sizes follow from dtype and shape. Any order of keys and any
//! offset, odd ones included, is legal. Absent: which tensors a model needs.
//!
//! The invariant: nothing is allocated by what a header claims. The length is compared with the
//! file's size first; the text is parsed as it is read, 64 KiB at a time.

use std::cmp::min;
use std::io::{self, BufReader, Read};

use super::dtype::StorageDtype;
use super::error::ReadError;
use super::header_json::{RawEntry, RawHeader};
use super::json::one_line;
use super::recognise::{PREFIX_BYTES, Stranger, not_weights};
use super::source::Source;

/// Longest header read, in bytes: 1 GiB. A published header of 1.3 million tensors has 126 MB.
const HEADER_BYTES_MAX: u64 = 1 << 30;

/// How a file departs from the safetensors format. Ranges are bytes of the data section.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("{0}")]
    NotWeights(Stranger),
    #[error("has {0} bytes, and a header alone needs 10")]
    TooShort(u64),
    #[error(
        "states a header of {header_bytes} bytes, but the file has {file_bytes} (truncated, or \
         not safetensors)"
    )]
    LongerThanFile { header_bytes: u64, file_bytes: u64 },
    #[error("states a header of {header_bytes} bytes; at most {HEADER_BYTES_MAX} are read")]
    TooLong { header_bytes: u64 },
    #[error("header of {header_bytes} bytes does not begin with `{{`")]
    NoObject { header_bytes: u64 },
    #[error("header: {0}")]
    Json(String),
    #[error("tensor {tensor} appears twice, at bytes {first:?} and {second:?}")]
    Duplicate { tensor: String, first: [u64; 2], second: [u64; 2] },
    #[error("tensor {tensor} has the unknown dtype {dtype}")]
    UnknownDtype { tensor: String, dtype: String },
    #[error("tensor {tensor} begins at byte {begin} and ends at {end}")]
    Backwards { tensor: String, begin: u64, end: u64 },
    #[error("tensor {tensor} has shape {shape:?}, whose number of elements overflows 64 bits")]
    Overflow { tensor: String, shape: Vec<u64> },
    #[error(
        "tensor {tensor}: shape {shape:?} of {dtype} needs {want} bytes, its range {range:?} has \
         {}",
        range[1] - range[0]
    )]
    Size { tensor: String, dtype: &'static str, shape: Vec<u64>, want: u128, range: [u64; 2] },
    #[error(
        "tensor {tensor} begins at byte {begin}, the tensors before it end at {covered}: a hole"
    )]
    Hole { tensor: String, begin: u64, covered: u64 },
    #[error(
        "tensors {other} and {tensor} {} bytes: {other_range:?} and {range:?}",
        if range == other_range { "are the same" } else { "overlap in" }
    )]
    Overlap { tensor: String, range: [u64; 2], other: String, other_range: [u64; 2] },
    #[error(
        "is truncated: tensor {tensor} ends at byte {want} of the data, the file holds {got} ({} \
         missing)",
        want - got
    )]
    Truncated { tensor: String, want: u64, got: u64 },
    #[error(
        "has {got} bytes of data, the last tensor {tensor} ends at {covered} ({} left over)",
        got - covered
    )]
    Trailing { tensor: String, covered: u64, got: u64 },
    #[error("header: {0}")]
    Read(ReadError),
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Name, as the file states it.
    pub name: String,
    /// Dtype of the elements.
    pub dtype: StorageDtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the data section.
    pub begin: u64,
    /// Byte after the last, counted likewise.
    pub end: u64,
}

/// A header that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Tensors in the order of their bytes.
    pub entries: Vec<Entry>,
    /// Where the data section starts in the file, in bytes.
    pub data_start: u64,
}

impl Header {
    /// Reads and checks the header of `source`.
    ///
    /// # Errors
    /// The first way in which the file departs from the format.
    pub fn read(source: &dyn Source) -> Result<Self, HeaderError> {
        let header_bytes = length(source)?;
        let data_start = 8 + header_bytes;
        let text = Text { source, at: 8, end: data_start };
        let raw: RawHeader = serde_json::from_reader(BufReader::with_capacity(64 << 10, text))
            .map_err(|e| match e.classify() {
                serde_json::error::Category::Io => {
                    HeaderError::Read(ReadError::from(io::Error::from(e)))
                }
                _ => HeaderError::Json(one_line(&e.to_string())),
            })?;
        let mut entries = Vec::with_capacity(raw.entries.len());
        unique(&raw.entries)?;
        for (name, entry) in raw.entries {
            entries.push(check(name, entry)?);
        }
        entries.sort_by_key(|e| (e.begin, e.end));
        cover(&entries, source.size() - data_start)?;
        Ok(Self { entries, data_start })
    }
}

/// The length of the JSON, once the file can be a safetensors file of that length.
fn length(source: &dyn Source) -> Result<u64, HeaderError> {
    let file_bytes = source.size();
    let mut prefix = [0; PREFIX_BYTES];
    let prefix = &mut prefix[..min(PREFIX_BYTES as u64, file_bytes) as usize];
    source.read_at(0, prefix).map_err(HeaderError::Read)?;
    if let Some(stranger) = not_weights(prefix) {
        return Err(HeaderError::NotWeights(stranger));
    }
    let Some((length, rest)) = prefix.split_first_chunk::<8>() else {
        return Err(HeaderError::TooShort(file_bytes));
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > file_bytes - 8 {
        return Err(HeaderError::LongerThanFile { header_bytes, file_bytes });
    }
    if header_bytes > HEADER_BYTES_MAX {
        return Err(HeaderError::TooLong { header_bytes });
    }
    match rest.first() {
        Some(b'{') if header_bytes > 0 => Ok(header_bytes),
        _ => Err(HeaderError::NoObject { header_bytes }),
    }
}

/// The JSON of a header, read in order.
struct Text<'a> {
    source: &'a dyn Source,
    at: u64,
    end: u64,
}

impl Read for Text<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = min(out.len() as u64, self.end - self.at) as usize;
        self.source.read_at(self.at, &mut out[..n]).map_err(io::Error::from)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Refuses a name that two entries share.
fn unique(entries: &[(String, RawEntry)]) -> Result<(), HeaderError> {
    let mut order: Vec<&(String, RawEntry)> = entries.iter().collect();
    order.sort_by(|a, b| a.0.cmp(&b.0));
    match order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(HeaderError::Duplicate {
            tensor: one_line(&pair[0].0),
            first: pair[0].1.data_offsets,
            second: pair[1].1.data_offsets,
        }),
    }
}

/// Checks one entry alone: dtype, then shape, then the length of its range.
fn check(name: String, raw: RawEntry) -> Result<Entry, HeaderError> {
    let tensor = || one_line(&name);
    let Some(dtype) = StorageDtype::named(&raw.dtype) else {
        return Err(HeaderError::UnknownDtype { tensor: tensor(), dtype: one_line(&raw.dtype) });
    };
    let [begin, end] = raw.data_offsets;
    if begin > end {
        return Err(HeaderError::Backwards { tensor: tensor(), begin, end });
    }
    let elements = raw.shape.0.iter().try_fold(1_u64, |n, &dim| n.checked_mul(dim));
    let Some(elements) = elements else {
        return Err(HeaderError::Overflow { tensor: tensor(), shape: raw.shape.0 });
    };
    let bits = u128::from(elements) * u128::from(dtype.bits());
    if bits != u128::from(end - begin) * 8 {
        let (dtype, shape, want) = (dtype.name(), raw.shape.0, bits.div_ceil(8));
        return Err(HeaderError::Size {
            tensor: tensor(),
            dtype,
            shape,
            want,
            range: [begin, end],
        });
    }
    Ok(Entry { name, dtype, shape: raw.shape.0, begin, end })
}

/// Checks that sorted `entries` cover the data section of `data_bytes` exactly.
fn cover(entries: &[Entry], data_bytes: u64) -> Result<(), HeaderError> {
    let mut covered = 0;
    for (i, entry) in entries.iter().enumerate() {
        let tensor = || one_line(&entry.name);
        if entry.begin > covered {
            return Err(HeaderError::Hole { tensor: tensor(), begin: entry.begin, covered });
        }
        if entry.begin < covered {
            // Not the first, since nothing is covered before it.
            let other = &entries[i - 1];
            return Err(HeaderError::Overlap {
                tensor: tensor(),
                range: [entry.begin, entry.end],
                other: one_line(&other.name),
                other_range: [other.begin, other.end],
            });
        }
        covered = entry.end;
    }
    let last = || entries.last().map(|e| one_line(&e.name)).unwrap_or_default();
    if covered > data_bytes {
        return Err(HeaderError::Truncated { tensor: last(), want: covered, got: data_bytes });
    }
    if covered < data_bytes {
        return Err(HeaderError::Trailing { tensor: last(), covered, got: data_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A file of any size, of which only the first bytes are given and the rest are zero.
    struct Sparse {
        head: Vec<u8>,
        bytes: u64,
        read: AtomicU64,
    }

    impl Sparse {
        fn new(length: u64, text: &str, bytes: u64) -> Self {
            let head = [&length.to_le_bytes()[..], text.as_bytes()].concat();
            Self { head, bytes, read: AtomicU64::new(0) }
        }
    }

    impl Source for Sparse {
        fn path(&self) -> &Path {
            Path::new("sparse")
        }

        fn size(&self) -> u64 {
            self.bytes
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
            assert!(offset + out.len() as u64 <= self.bytes, "a read leaves the file");
            self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
            out.fill(0);
            let held = self.head.get(offset as usize..).unwrap_or(&[]);
            let n = held.len().min(out.len());
            out[..n].copy_from_slice(&held[..n]);
            Ok(())
        }
    }

    #[test]
    fn a_claimed_length_is_refused_before_it_is_read() {
        let many = 1 << 42;
        let cases = [
            ("2^64 - 1", u64::MAX, "{}", 10, "18446744073709551615"),
            ("2^63 in a huge file", 1 << 63, "{}", 1 << 62, "9223372036854775808"),
            ("5000 of 70", 5000, "{}", 70, "5000"),
            ("over the cap", (1 << 30) + 1, "{\"", many, "1073741824"),
            ("zeros after the brace", 1 << 30, "{", many, "header: "),
            ("zeros in a name", 1 << 30, "{\"a", many, "header: "),
            ("nothing", 0, "", 8, "0 bytes"),
            ("no object", 2, "[]", 10, "does not begin"),
            ("a space first", 3, " {}", 11, "does not begin"),
            ("no room for a length", 0, "", 4, "4 bytes"),
        ];
        for (why, length, text, bytes, mentions) in cases {
            let source = Sparse::new(length, text, bytes);
            let error = Header::read(&source).expect_err(why).to_string();
            assert!(error.contains(mentions), "{why}: {error}");
            let read = source.read.load(Ordering::Relaxed);
            assert!(read <= 80 << 10, "{why}: read {read} bytes before refusing");
        }
    }

    #[test]
    fn a_header_of_more_than_100_mb_is_read() {
        let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
        let mut tensors = 0_u64;
        while text.len() <= 100 << 20 {
            let (begin, end) = (tensors * 2, tensors * 2 + 2);
            text += &format!(
                ",\"model.language_model.layers.{tensors}.a.long.name.of.a.tensor.weight\":\
                 {{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[{begin},{end}]}}"
            );
            tensors += 1;
        }
        text.push('}');
        let length = text.len() as u64;
        let source = Sparse::new(length, &text, 8 + length + 2 * tensors);
        let header = Header::read(&source).expect("a genuine header");
        assert_eq!(header.entries.len() as u64, tensors);
        assert_eq!(header.data_start, 8 + length);
    }

    const RIGHT: &str = r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#;

    /// Why, what stands for `"a"`, and what the refusal mentions.
    const ENTRIES: &[(&str, &str, Option<&str>)] = &[
        ("keys in another order", r#"{"shape":[1],"data_offsets":[0,4],"dtype":"F32"}"#, None),
        ("a scalar", r#"{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#, None),
        ("a list", r#"["F32",[1],[0,4]]"#, Some("tensor a")),
        ("a field is missing", r#"{"dtype":"F32","shape":[1]}"#, Some("data_offsets")),
        ("negative", r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, Some("-1")),
        ("not whole", r#"{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}"#, Some("tensor a")),
        ("three", r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}"#, Some("tensor a")),
        ("null", "null", Some("tensor a")),
    ];

    /// Why, the text with `@` for a right entry's keys, and what the refusal mentions.
    const TEXTS: &[(&str, &str, Option<&str>)] = &[
        ("control", r#"{"a":{@}}  "#, None),
        ("metadata last", r#"{"a":{@},"__metadata__":{"k":"v"}}"#, None),
        ("an unknown field", r#"{"a":{@,"extra":1}}"#, Some("extra")),
        ("a repeated field", r#"{"a":{@,"shape":[1]}}"#, Some("shape")),
        ("a repeated name", r#"{"a":{@},"a":{@}}"#, Some("a appears twice")),
        ("an escaped repeat", r#"{"a":{@},"\u0061":{@}}"#, Some("twice")),
        ("two metadata", r#"{"__metadata__":{},"a":{@},"__metadata__":{}}"#, Some("twice")),
        ("a metadata key twice", r#"{"__metadata__":{"k":"1","k":"2"},"a":{@}}"#, Some("`k`")),
        ("metadata not text", r#"{"__metadata__":{"k":1},"a":{@}}"#, Some("__metadata__")),
        ("text after the object", r#"{"a":{@}} x"#, Some("trailing")),
        ("not UTF-8 escapes", r#"{"\ud800":{@}}"#, Some("header: ")),
    ];

    #[test]
    fn the_grammar_is_strict() {
        let deep = format!("{{\"a\":{}", "[".repeat(10_000));
        let wide = format!("[{}1]", "1,".repeat(64));
        let wide = format!(r#"{{"a":{{"dtype":"F32","shape":{wide},"data_offsets":[0,4]}}}}"#);
        let entries = ENTRIES.iter().map(|&(why, e, m)| (why, format!("{{\"a\":{e}}}"), m));
        let texts = TEXTS.iter().map(|&(why, text, m)| (why, text.replace('@', RIGHT), m));
        let built = [("deep", deep, Some("tensor a")), ("wide", wide, Some("64 dimensions"))];
        let mut wrong = Vec::new();
        for (why, text, mentions) in entries.chain(texts).chain(built) {
            let length = text.len() as u64;
            match (Header::read(&Sparse::new(length, &text, 8 + length + 4)), mentions) {
                (Ok(_), None) => {}
                (Err(e), Some(part)) if e.to_string().contains(part) => {}
                (got, _) => wrong.push(format!("{why}: {got:?}")),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
