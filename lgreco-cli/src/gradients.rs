//! Gradients out of safetensors files.
//!
//! Tensors must be F32, F16 or BF16; any other type is an error that names the tensor, so that nothing is left out
//! unnoticed. Layers keep the order of their data in the file, which is the same on every run; empty tensors at the
//! same place are ordered by name.

use crate::failure::{Failure, printable};
use bytemuck::try_cast_slice;
use lgreco_core::gradient::{Bf16, Element, F16, Shape, Values};
use lgreco_core::search::Layer;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

/// The gradients of a small transformer after 300 steps of training, in bf16.
static SAMPLE: &[u8] = include_bytes!("../data/sample.safetensors");

/// A model's gradients, with the bytes they came in.
#[derive(Debug)]
pub struct Gradients {
    bytes: Cow<'static, [u8]>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    dims: Vec<usize>,
    data: Data,
}

/// Values, used where they lie in the file if their place is aligned for them, and copied if not.
#[derive(Debug)]
enum Data {
    InPlace(Range<usize>, Dtype),
    F32(Vec<f32>),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
}

impl Gradients {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// What [`parse`](Gradients::parse) refuses, and files that cannot be read, by path.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let in_file = |what: &dyn std::fmt::Display| Failure::bad_input(format_args!("{}: {what}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| in_file(&error))?;
        Gradients::parse(bytes).map_err(|failure| in_file(&failure))
    }

    /// The sample compiled into the command.
    pub fn sample() -> Self {
        Gradients::parse(SAMPLE).expect("the sample is valid")
    }

    /// Reads a safetensors file's bytes. Total: any bytes give gradients or an error.
    ///
    /// ```
    /// use lgreco_cli::gradients::Gradients;
    /// assert_eq!(Gradients::sample().layers().len(), 41);
    /// assert!(Gradients::parse(vec![0; 100]).is_err());
    /// ```
    ///
    /// # Errors
    /// Bytes that are not a safetensors file; files without tensors; two tensors of one name; tensors of other types,
    /// or with 2^32 elements or more, by name.
    pub fn parse(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, Failure> {
        let bytes = bytes.into();
        if let Some(name) = duplicate_name(&bytes) {
            return Err(Failure::bad_input(format_args!("`{name}` is in the header twice")));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|error| Failure::bad_input(explain(&error, &bytes)))?;
        let mut views: Vec<(&str, TensorView<'_>)> = file.iter().collect();
        if views.is_empty() {
            return Err(Failure::bad_input("the file holds no tensors"));
        }
        let start = bytes.as_ptr().addr();
        let offset = |view: &TensorView<'_>| view.data().as_ptr().addr() - start;
        views.sort_by_key(|(name, view)| (offset(view), view.data().len(), *name));
        let tensors = views.iter().map(|(name, view)| Tensor::new(name, view, offset(view)));
        let tensors = tensors.collect::<Result<_, _>>()?;
        drop(file);
        Ok(Gradients { bytes, tensors })
    }

    /// All layers in order.
    pub fn layers(&self) -> Vec<Layer<'_>> {
        let layer = |tensor| self.layer(tensor).expect("checked when parsed");
        self.tensors.iter().map(layer).collect()
    }

    fn layer<'a>(&'a self, tensor: &'a Tensor) -> Result<Layer<'a>, lgreco_core::Error> {
        let values = match &tensor.data {
            Data::F32(values) => Values::F32(values),
            Data::F16(values) => Values::F16(values),
            Data::Bf16(values) => Values::Bf16(values),
            Data::InPlace(range, dtype) => {
                let bytes = &self.bytes[range.clone()];
                match dtype {
                    Dtype::F32 => Values::F32(bytemuck::cast_slice(bytes)),
                    Dtype::F16 => Values::F16(bytemuck::cast_slice(bytes)),
                    _ => Values::Bf16(bytemuck::cast_slice(bytes)),
                }
            }
        };
        Layer::new(&tensor.name, &tensor.dims, values)
    }
}

impl Tensor {
    fn new(name: &str, view: &TensorView<'_>, offset: usize) -> Result<Self, Failure> {
        let wrong =
            |what: &dyn std::fmt::Display| Failure::bad_input(format_args!("layer `{}`: {what}", printable(name)));
        let in_place = || Data::InPlace(offset..offset + view.data().len(), view.dtype());
        let data = match view.dtype() {
            Dtype::F32 => copy_unless_aligned(view.data()).map_or_else(in_place, Data::F32),
            Dtype::F16 => copy_unless_aligned(view.data()).map_or_else(in_place, Data::F16),
            Dtype::BF16 => copy_unless_aligned(view.data()).map_or_else(in_place, Data::Bf16),
            other => return Err(wrong(&format_args!("element type is {other:?}, expected F32, F16 or BF16"))),
        };
        Shape::from_dims(view.shape()).map_err(|error| wrong(&error))?;
        Ok(Tensor { name: name.into(), dims: view.shape().into(), data })
    }
}

/// The values, where they cannot be used in place.
fn copy_unless_aligned<T: Element>(bytes: &[u8]) -> Option<Vec<T>> {
    let usable = cfg!(target_endian = "little") && try_cast_slice::<u8, T>(bytes).is_ok();
    (!usable).then(|| bytes.chunks_exact(size_of::<T>()).map(T::read_le).collect())
}

/// The first key that a safetensors header has twice, which the format's own reader passes over in silence.
fn duplicate_name(file: &[u8]) -> Option<String> {
    let (len, rest) = file.split_first_chunk()?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    let Names { twice } = serde_json::from_slice(header).ok()?;
    twice
}

/// The keys of an object, as far as they are there twice.
struct Names {
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Names;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let (mut seen, mut twice) = (HashSet::new(), None);
                while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                    if twice.is_none() && !seen.insert(name.clone()) {
                        twice = Some(name);
                    }
                }
                Ok(Names { twice })
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

fn explain(error: &SafeTensorError, bytes: &[u8]) -> String {
    match error {
        _ if bytes.is_empty() => "the file is empty".into(),
        SafeTensorError::MetadataIncompleteBuffer | SafeTensorError::InvalidHeaderLength => {
            format!("not a whole safetensors file ({error}); truncated?")
        }
        _ => format!("not a safetensors file ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file with the given header and data.
    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    fn floats(layer: &Layer<'_>) -> Vec<f32> {
        match layer.gradient().values() {
            Values::F32(v) => v.to_vec(),
            Values::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            Values::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
        }
    }

    #[test]
    fn values_are_read_at_any_alignment() {
        let data: Vec<u8> = [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat();
        let data = [&data[..], &0x3c00u16.to_le_bytes(), &0xbf80u16.to_le_bytes()].concat();
        for padding in 0..8 {
            let header = format!(
                r#"{{"z":{{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}},
                "b":{{"dtype":"F16","shape":[1],"data_offsets":[8,10]}},
                "a":{{"dtype":"BF16","shape":[],"data_offsets":[10,12]}}}}{}"#,
                " ".repeat(padding)
            );
            let gradients = Gradients::parse(file(&header, &data)).unwrap();
            let layers = gradients.layers();
            let names: Vec<_> = layers.iter().map(Layer::name).collect();
            assert_eq!(names, ["z", "b", "a"], "the order of the data");
            assert_eq!(layers.iter().map(floats).collect::<Vec<_>>(), [vec![1.5, -2.0], vec![1.0], vec![-1.0]]);
            assert_eq!(layers[0].dims(), [2, 1]);
        }
    }

    #[test]
    fn what_cannot_be_taken_is_named() {
        let message = |header: &str, data: &[u8]| Gradients::parse(file(header, data)).unwrap_err().message;
        let double = r#"{"fc.weight":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#;
        assert_eq!(message(double, &[0; 8]), "layer `fc.weight`: element type is F64, expected F32, F16 or BF16");
        let huge = r#"{"huge":{"dtype":"F32","shape":[4294967296,0,1],"data_offsets":[0,0]}}"#;
        assert!(message(huge, &[]).starts_with("layer `huge`: "));
        let twice = r#"{"fc":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"fc":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        assert_eq!(message(twice, &[0; 4]), "`fc` is in the header twice");
        assert_eq!(message("{}", &[]), "the file holds no tensors");
        assert_eq!(Gradients::parse(Vec::new()).unwrap_err().message, "the file is empty");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let whole = file(header, &[0; 8]);
        assert!(Gradients::parse(whole.clone()).is_ok());
        for len in 0..whole.len() {
            assert!(Gradients::parse(whole[..len].to_vec()).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn every_changed_byte_gives_gradients_or_an_error() {
        let header = r#"{"w":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}"#;
        let whole = file(header, &[0; 4]);
        let mut taken = 0;
        for place in 0..whole.len() {
            for byte in 0..=255 {
                let mut changed = whole.clone();
                changed[place] = byte;
                if let Ok(gradients) = Gradients::parse(changed) {
                    taken += gradients.layers().len();
                }
            }
        }
        assert!(taken > 2 * 256 * 4, "the data can be anything");
    }
}
