//! The JSON grammar of a safetensors header.
//!
//! Here: which keys and types may stand where. Absent: what the values mean. The invariant: only
//! the shapes below are built, so nesting is bounded, and repeated names are kept for the caller
//! to report, not merged.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// All entries of a header in the order of the file, repeated names included.
pub(super) struct RawHeader {
    pub entries: Vec<(String, RawEntry)>,
}

/// One entry, of the right types only.
pub(super) struct RawEntry {
    pub dtype: String,
    pub shape: Shape,
    pub data_offsets: [u64; 2],
}

/// Dimensions; more than torch's 64 are refused while they are read.
pub(super) struct Shape(pub Vec<u64>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut entries = Vec::new();
        let mut metadata_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if name != "__metadata__" {
                let entry = map.next_value();
                let entry =
                    entry.map_err(|e| A::Error::custom(format_args!("tensor {name}: {e}")))?;
                entries.push((name, entry));
            } else if metadata_seen {
                return Err(A::Error::custom("the key `__metadata__` appears twice"));
            } else {
                map.next_value::<Metadata>()
                    .map_err(|e| A::Error::custom(format_args!("__metadata__: {e}")))?;
                metadata_seen = true;
            }
        }
        Ok(RawHeader { entries })
    }
}

// Written out, since the derived form would take a list for an object.
impl<'de> Deserialize<'de> for RawEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = RawEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEntry, A::Error> {
        const FIELDS: &[&str] = &["dtype", "shape", "data_offsets"];
        let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let repeated = match key.as_str() {
                "dtype" => dtype.replace(map.next_value()?).is_some(),
                "shape" => shape.replace(map.next_value()?).is_some(),
                "data_offsets" => data_offsets.replace(map.next_value()?).is_some(),
                _ => return Err(A::Error::unknown_field(&key, FIELDS)),
            };
            if repeated {
                return Err(A::Error::custom(format_args!("the key `{key}` appears twice")));
            }
        }
        Ok(RawEntry {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            data_offsets: data_offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

/// A map of strings to strings, which nothing here needs.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some((key, _)) = map.next_entry::<String, String>()? {
            if let Some(key) = keys.replace(key) {
                return Err(A::Error::custom(format_args!("the key `{key}` appears twice")));
            }
        }
        Ok(Metadata)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        const RANK_MAX: usize = 64;
        let mut dims = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if dims.len() == RANK_MAX {
                return Err(A::Error::custom("a shape has more than 64 dimensions"));
            }
            dims.push(dim);
        }
        Ok(Shape(dims))
    }
}
