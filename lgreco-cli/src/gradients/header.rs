//! Reads the header of a safetensors file, and checks it against the file's length.

use super::Bytes;
use crate::failure::{Failure, printable};
use lgreco::gradient::{Dtype, Shape};
use safetensors::tensor::{Dtype as Stored, Metadata};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

/// Longest header that the format allows, in bytes.
const LONGEST: u64 = 100_000_000;

/// A tensor, and the position of its values.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    pub(super) dtype: Dtype,
    /// Index of its file.
    pub(super) shard: usize,
    /// Position of the tensor's first byte in the file.
    pub(super) at: u64,
    /// Length of the tensor's values in bytes.
    pub(super) bytes: usize,
}

/// Reads the header of the file with index `shard`. The returned tensors are ordered by the position of their data.
pub(super) fn read(bytes: &Bytes, shard: usize) -> Result<Vec<Tensor>, Failure> {
    let wrong = |what: &dyn fmt::Display| Failure::bad_input(what);
    let whole = bytes.len().map_err(|error| wrong(&error))?;
    let mut len = [0; 8];
    match whole {
        0 => return Err(wrong(&"the file is empty")),
        1..8 => return Err(wrong(&format_args!("not a safetensors file: it has {whole} bytes; truncated?"))),
        _ => bytes.read_at(0, &mut len).map_err(|error| wrong(&error))?,
    }
    let len = u64::from_le_bytes(len);
    if len > LONGEST {
        return Err(wrong(&format_args!("not a safetensors file: a header of {len} bytes, at most {LONGEST} allowed")));
    }
    if len > whole - 8 {
        let rest = whole - 8;
        return Err(wrong(&format_args!(
            "not a whole safetensors file: {rest} bytes of a header of {len}; truncated?"
        )));
    }
    let mut header = vec![0; len as usize];
    bytes.read_at(8, &mut header).map_err(|error| wrong(&error))?;

    let entries: Result<Entries<IgnoredAny>, _> = serde_json::from_slice(&header);
    if let Ok(entries) = entries
        && let Some(name) = entries.twice()
    {
        return Err(wrong(&format_args!("`{name}` is in the header twice")));
    }
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| wrong(&format_args!("not a safetensors file (invalid header: {error})")))?;
    let (stated, found) = (metadata.data_len() as u64, whole - 8 - len);
    if stated != found {
        let cut = if found < stated { "; truncated?" } else { "" };
        let what = format_args!("not a whole safetensors file: {found} bytes of data, {stated} in the header{cut}");
        return Err(wrong(&what));
    }
    let mut infos: Vec<_> = metadata.tensors().into_iter().collect();
    infos.sort_unstable_by(|(a, left), (b, right)| (left.data_offsets, a).cmp(&(right.data_offsets, b)));
    let mut tensors = Vec::with_capacity(infos.len());
    for (name, info) in infos {
        let wrong = |what: &dyn fmt::Display| wrong(&format_args!("layer `{}`: {what}", printable(&name)));
        let dtype = match info.dtype {
            Stored::F32 => Dtype::F32,
            Stored::F16 => Dtype::F16,
            Stored::BF16 => Dtype::Bf16,
            other => return Err(wrong(&format_args!("element type is {other:?}, expected F32, F16 or BF16"))),
        };
        Shape::from_dims(&info.shape).map_err(|error| wrong(&error))?;
        let (start, end) = info.data_offsets;
        let (dims, at) = (info.shape.clone(), 8 + len + start as u64);
        tensors.push(Tensor { name, dims, dtype, shard, at, bytes: end - start });
    }
    Ok(tensors)
}

/// The entries of a JSON object in written order, including repeated keys.
pub(super) struct Entries<T>(pub(super) Vec<(String, T)>);

impl<T> Entries<T> {
    /// The first key that occurs twice.
    pub(super) fn twice(&self) -> Option<&str> {
        let mut seen = HashSet::new();
        self.0.iter().map(|(name, _)| name.as_str()).find(|name| !seen.insert(*name))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}
