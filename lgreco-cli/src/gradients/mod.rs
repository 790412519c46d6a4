//! Reads gradients from safetensors files.
//!
//! A model is one file or several: the files that an index (`model.safetensors.index.json`) names, or else all files of a
//! folder except hidden ones. Tensors must be F32, F16 or BF16. Any other type is an error that names the tensor, so that no
//! tensor is left out unnoticed.
//!
//! Files are ordered by name. Within a file, layers are ordered by the position of their data. So the order is the same
//! on every run. Empty tensors at the same position are ordered by name.
//!
//! [`Stored`] holds the headers, and reads layers on request. [`Gradients`] holds all layers in memory.
//!
//! Files are read, not mapped: truncating a mapped file kills the process, and mapping needs unsafe code. Reading a
//! batch of layers into a reused buffer costs a copy (0.2 s of a core for 0.7 GB). Values are aligned in this copy,
//! even if they are not in the file. If a file ends early, the error names the file and the layer.
//!
//! A batch is at most four times as large as the largest layer, or 64 MiB if that is more. So memory depends on
//! the largest layers, not on the size of the model.

mod header;
mod shards;

use crate::failure::Failure;
use header::Tensor;
use lgreco::gradient::{Dtype, Values};
use lgreco::search::Layer;
use shards::{Files, wrong};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The gradients of a small transformer after 300 steps of training, in bf16.
static SAMPLE: &[u8] = include_bytes!("../../data/sample.safetensors");

/// Smallest limit on the bytes of a batch, because small reads are slow.
const SMALL_BATCH: usize = 64 << 20;

/// Gradients in files, of which only the headers are in memory.
#[derive(Debug)]
pub struct Stored {
    /// The index file that names the shards, if there is one.
    index: Option<PathBuf>,
    shards: Vec<Shard>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Shard {
    /// Path of the file. `None` for gradients in memory.
    path: Option<PathBuf>,
    bytes: Bytes,
}

/// The bytes of a file, either in the file or in memory.
#[derive(Debug)]
enum Bytes {
    /// A file. A lock covers seek and read, because all threads share the file's position.
    File(Mutex<File>),
    Memory(Cow<'static, [u8]>),
}

impl Bytes {
    fn open(path: &Path) -> io::Result<Bytes> {
        let mut file = File::open(path)?;
        if file.metadata()?.is_file() {
            return Ok(Bytes::File(file.into()));
        }
        // A pipe can be read only once, from start to end.
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Bytes::Memory(bytes.into()))
    }

    fn len(&self) -> io::Result<u64> {
        match self {
            Bytes::File(file) => Ok(file.lock().unwrap_or_else(PoisonError::into_inner).metadata()?.len()),
            Bytes::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Fills `out` with the bytes from the offset `place` on.
    fn read_at(&self, place: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Bytes::File(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(place))?;
                file.read_exact(out)
            }
            Bytes::Memory(bytes) => {
                let mut cursor = io::Cursor::new(bytes);
                cursor.set_position(place);
                cursor.read_exact(out)
            }
        }
    }
}

impl Stored {
    /// Reads the headers of the model at `path`: a safetensors file, an index (`*.json`) of several files, or a folder.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if [`parse`](Stored::parse) rejects its bytes. Also returns an
    /// error if a folder has no safetensors file or several indices, or if a layer is in two files. An index is an
    /// error if it is malformed, lists a layer twice, or names files outside its folder. It is also an error if an
    /// index and a file disagree about the file's layers. Each error names the file.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let files = Files::of(path)?;
        let mut stored = Stored { index: None, shards: Vec::new(), tensors: Vec::new() };
        for path in files.paths {
            let bytes = Bytes::open(&path).map_err(|error| match &files.index {
                Some(index) => wrong(&path, format_args!("{error} (listed in {})", index.path.display())),
                None => wrong(&path, error),
            })?;
            let tensors = header::read(&bytes, stored.shards.len()).map_err(|failure| wrong(&path, failure))?;
            for tensor in tensors {
                if let Some(index) = &files.index {
                    index.check(&tensor.name, &path)?;
                }
                stored.tensors.push(tensor);
            }
            stored.shards.push(Shard { path: Some(path), bytes });
        }
        stored.check(path)?;
        let layers: HashMap<&str, ()> = stored.tensors.iter().map(|tensor| (tensor.name.as_str(), ())).collect();
        if let Some(index) = &files.index
            && let Some((name, file)) = index.layers.iter().find(|(name, _)| !layers.contains_key(name.as_str()))
        {
            let what = format_args!("the file has no layer `{name}`, which {} has in it", index.path.display());
            return Err(wrong(file, what));
        }
        stored.index = files.index.map(|index| index.path);
        Ok(stored)
    }

    /// The sample compiled into the command.
    pub fn sample() -> Self {
        Stored::parse(SAMPLE).expect("the sample is valid")
    }

    /// Reads the header of a safetensors file in memory. Arbitrary bytes give an error, not a panic.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a safetensors file, or if the file has no tensors or two tensors with the
    /// same name. Also returns an error, which names the tensor, if a tensor is not F32, F16 or BF16, or has 2^32 or
    /// more elements.
    pub fn parse(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, Failure> {
        let bytes = Bytes::Memory(bytes.into());
        let tensors = header::read(&bytes, 0)?;
        if tensors.is_empty() {
            return Err(Failure::bad_input(NO_TENSORS));
        }
        Ok(Stored { index: None, shards: vec![Shard { path: None, bytes }], tensors })
    }

    /// Checks that there are layers, and that no layer is in two files.
    fn check(&self, path: &Path) -> Result<(), Failure> {
        if self.tensors.is_empty() {
            return Err(wrong(path, NO_TENSORS));
        }
        let mut homes = HashMap::new();
        for tensor in &self.tensors {
            if let Some(other) = homes.insert(tensor.name.as_str(), tensor.shard) {
                let file = |shard: usize| self.shards[shard].path.as_deref().unwrap_or(path).display();
                let what = format_args!("layer `{}` is in {} too", tensor.name, file(other));
                return Err(wrong(self.shards[tensor.shard].path.as_deref().unwrap_or(path), what));
            }
        }
        Ok(())
    }

    /// The model's files, and the index that names them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().filter_map(|shard| shard.path.as_deref()).chain(self.index.as_deref())
    }

    /// The file that holds layer `index`. `None` for gradients in memory.
    ///
    /// # Panics
    /// Panics if the model has no layer `index`.
    pub fn file_of(&self, index: usize) -> Option<&Path> {
        self.shards[self.tensors[index].shard].path.as_deref()
    }

    /// Names, dimensions and element types of all layers, in order.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (&str, &[usize], Dtype)> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.dims[..], tensor.dtype))
    }

    /// Splits the layers, in order, into batches to read one after another. A batch is at most four times as large as
    /// the largest layer, or 64 MiB if that is more.
    pub fn batches(&self) -> Vec<Range<usize>> {
        let sizes = || self.tensors.iter().map(|tensor| words(tensor) * 8);
        let most = sizes().max().unwrap_or(0).saturating_mul(4).max(SMALL_BATCH);
        let (mut batches, mut start, mut held) = (Vec::new(), 0, 0usize);
        for (index, size) in sizes().enumerate() {
            if held.saturating_add(size) > most {
                batches.push(start..index);
                (start, held) = (index, 0);
            }
            held += size;
        }
        batches.push(start..self.tensors.len());
        batches
    }

    /// Reads the values of the layers `range` into `buffer`, which grows as needed.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or has become shorter; the error names file and layer. Also returns an
    /// error if the buffer cannot be allocated.
    ///
    /// # Panics
    /// Panics if `range` contains an index without a layer.
    pub fn read<'a>(&'a self, range: Range<usize>, buffer: &'a mut Vec<u64>) -> Result<Vec<Layer<'a>>, Failure> {
        let tensors = &self.tensors[range.clone()];
        let needed = tensors.iter().map(words).sum::<usize>();
        let more = needed.saturating_sub(buffer.len());
        buffer.try_reserve_exact(more).map_err(|error| {
            Failure::no_result(format_args!("{} layers of {} bytes: {error}", tensors.len(), needed * 8))
        })?;
        buffer.resize(buffer.len() + more, 0);
        let mut rest = &mut buffer[..];
        for (index, tensor) in range.zip(tensors) {
            let (room, next) = rest.split_at_mut(words(tensor));
            let out = &mut bytemuck::cast_slice_mut(room)[..tensor.bytes];
            self.shards[tensor.shard].bytes.read_at(tensor.at, out).map_err(|error| {
                let what = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "the file has become shorter since it was opened".into(),
                    _ => error.to_string(),
                };
                let file = self.file_of(index).map_or_else(String::new, |path| format!("{}: ", path.display()));
                Failure::bad_input(format_args!("{file}layer `{}`: {what}", tensor.name))
            })?;
            if cfg!(target_endian = "big") {
                out.chunks_exact_mut(tensor.dtype.bytes()).for_each(<[u8]>::reverse);
            }
            rest = next;
        }
        Ok(laid_out(tensors, buffer))
    }
}

const NO_TENSORS: &str = "the file holds no tensors";

/// Number of 8-byte words that a tensor takes in a buffer. Each tensor starts at the beginning of a word.
fn words(tensor: &Tensor) -> usize {
    tensor.bytes.div_ceil(8)
}

/// The layers of `tensors`, whose values lie one after the other in `buffer`.
fn laid_out<'a>(tensors: &'a [Tensor], mut buffer: &'a [u64]) -> Vec<Layer<'a>> {
    let layer = |tensor: &'a Tensor| {
        let (words, rest) = buffer.split_at(words(tensor));
        buffer = rest;
        let bytes = &bytemuck::cast_slice::<u64, u8>(words)[..tensor.bytes];
        let values = match tensor.dtype {
            Dtype::F32 => Values::F32(bytemuck::cast_slice(bytes)),
            Dtype::F16 => Values::F16(bytemuck::cast_slice(bytes)),
            Dtype::Bf16 => Values::Bf16(bytemuck::cast_slice(bytes)),
        };
        Layer::new(&tensor.name, &tensor.dims, values).expect("checked when the header was read")
    };
    tensors.iter().map(layer).collect()
}

/// A model's gradients in memory.
#[derive(Debug)]
pub struct Gradients {
    stored: Stored,
    values: Vec<u64>,
}

impl Gradients {
    /// Reads the model at `path`; see [`Stored::open`].
    ///
    /// # Errors
    /// The errors of [`Stored::open`] and [`Stored::read`].
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Stored::open(path)?.try_into()
    }

    /// The sample compiled into the command.
    pub fn sample() -> Self {
        Stored::sample().try_into().expect("the sample is valid")
    }

    /// Reads a safetensors file in memory. Arbitrary bytes give an error, not a panic.
    ///
    /// ```
    /// use lgreco_cli::gradients::Gradients;
    /// assert_eq!(Gradients::sample().layers().len(), 41);
    /// assert!(Gradients::parse(vec![0; 100]).is_err());
    /// ```
    ///
    /// # Errors
    /// The errors of [`Stored::parse`].
    pub fn parse(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, Failure> {
        Stored::parse(bytes)?.try_into()
    }

    /// All layers in order.
    pub fn layers(&self) -> Vec<Layer<'_>> {
        laid_out(&self.stored.tensors, &self.values)
    }
}

impl TryFrom<Stored> for Gradients {
    type Error = Failure;

    fn try_from(stored: Stored) -> Result<Self, Failure> {
        let mut values = Vec::new();
        stored.read(0..stored.tensors.len(), &mut values)?;
        Ok(Gradients { stored, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lgreco::gradient::Element;

    /// Makes a safetensors file of a header and data.
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
    fn lengths_of_headers_are_believed_as_far_as_the_file_goes() {
        let message = |len: u64, rest: usize| {
            Gradients::parse([&len.to_le_bytes()[..], &vec![b' '; rest]].concat()).unwrap_err().message
        };
        assert!(message(u64::MAX, 9).contains("a header of 18446744073709551615 bytes, at most 100000000"));
        assert!(message(100_000_001, 9).contains("at most"));
        assert!(message(100_000_000, 9).contains("9 bytes of a header of 100000000; truncated?"));
        assert!(message(9, 9).contains("invalid header"));
    }

    #[test]
    fn batches_hold_every_layer_once_and_no_more_than_they_may() {
        let tensor = |bytes: usize| Tensor {
            name: String::new(),
            dims: vec![bytes / 4],
            dtype: Dtype::F32,
            shard: 0,
            at: 0,
            bytes,
        };
        let stored = |sizes: &[usize]| Stored {
            index: None,
            shards: Vec::new(),
            tensors: sizes.iter().copied().map(tensor).collect(),
        };
        let (small, large) = (4 << 20, 100 << 20);
        assert_eq!(stored(&[small; 40]).batches(), [0..16, 16..32, 32..40]);
        assert_eq!(stored(&[large; 9]).batches(), [0..4, 4..8, 8..9]);
        assert_eq!(stored(&[0, large, 0, 4 * large, large, 16 * large]).batches(), vec![Range { start: 0, end: 6 }]);
        assert_eq!(stored(&[SMALL_BATCH]).batches().len(), 1);
    }

    #[test]
    fn a_file_that_becomes_shorter_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("g.safetensors");
        let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        std::fs::write(&path, file(header, &[0; 8])).unwrap();
        let stored = Stored::open(&path).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(stored.read(0..1, &mut buffer).unwrap()[0].name(), "w");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20).unwrap();
        let message = stored.read(0..1, &mut buffer).unwrap_err().message;
        assert!(
            message.ends_with("g.safetensors: layer `w`: the file has become shorter since it was opened"),
            "{message}"
        );
    }

    #[test]
    fn threads_that_read_at_once_get_their_own_bytes() {
        const LAYERS: usize = 64;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("g.safetensors");
        let entry =
            |i: usize| format!(r#""w{i}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}"#, 4 * i, 4 * i + 4);
        let header = format!("{{{}}}", (0..LAYERS).map(entry).collect::<Vec<_>>().join(","));
        let data: Vec<u8> = (0..LAYERS).flat_map(|i| (i as f32).to_le_bytes()).collect();
        std::fs::write(&path, file(&header, &data)).unwrap();
        let stored = Stored::open(&path).unwrap();
        let read_all = &|from: usize| {
            for i in (0..200 * LAYERS).map(|i| (i + from) % LAYERS) {
                let mut buffer = Vec::new();
                let layers = stored.read(i..i + 1, &mut buffer).unwrap();
                assert_eq!(floats(&layers[0]), [i as f32]);
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|thread| drop(scope.spawn(move || read_all(thread * LAYERS / 4))));
        });
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
