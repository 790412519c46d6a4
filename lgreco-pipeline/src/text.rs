//! Codecs and memories of a cut as text, such as `min-max 4 tile 128` and `samples 1024 bits 4`. The C API takes these
//! texts. `Display` writes texts that `FromStr` reads.

use super::codec::{Codec, Tile};
use super::setting::{LinkMemory, RowStorage};
use super::symmetric::Scope;
use crate::CoreError;
use crate::feedback::{Residual, Storage};
use crate::gradient::Dtype;
use core::fmt::{Display, Formatter, Result as Written};
use core::str::{FromStr, SplitAsciiWhitespace};

const CODECS: &str = "dense, min-max BITS, symmetric BITS, topk KEEP, shared-index KEEP or eden BITS, and what the codec may go \
    on with: tile ELEMENTS, tile batch, channels NUMBER, scale bf16, f16 or bf16";
const MEMORIES: &str = "none, residual, mixed, ef21 or samples CAPACITY, and what the memory may go on with: gain NUMBER, \
    reset MESSAGES, f32, bf16, int8 or bits NUMBER";

const DTYPES: [(&str, Dtype); 3] = [("f32", Dtype::F32), ("f16", Dtype::F16), ("bf16", Dtype::Bf16)];
const STORAGES: [(&str, Storage); 3] = [("f32", Storage::F32), ("bf16", Storage::Bf16), ("int8", Storage::Int8)];

/// The name of `value` in `list`.
fn name_of<T: PartialEq>(list: &[(&'static str, T)], value: &T) -> &'static str {
    list.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
}

/// The words of a text. Methods that return an option return `None` when a word is wrong.
struct Words<'a>(core::iter::Peekable<SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words(text.split_ascii_whitespace().peekable())
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    /// Consumes the next word if it equals `word`, and returns whether it does.
    fn is(&mut self, word: &str) -> bool {
        self.0.next_if(|next| *next == word).is_some()
    }

    /// The number after `word`, or `default` if `word` does not come next.
    fn number_after<T: FromStr>(&mut self, word: &str, default: T) -> Option<T> {
        if self.is(word) { self.number() } else { Some(default) }
    }

    /// Consumes the next word if it is a name in `list`, and returns its value. Otherwise returns the first value of
    /// `list`.
    fn one_of<T: Copy>(&mut self, list: &[(&str, T)]) -> T {
        list.iter().find(|(name, _)| self.is(name)).unwrap_or(&list[0]).1
    }

    /// Returns `value` if no word is left.
    fn end<T>(mut self, value: T) -> Option<T> {
        self.0.next().is_none().then_some(value)
    }
}

fn codec(text: &str) -> Option<Codec> {
    let mut words = Words::new(text);
    let codec = match words.0.next()? {
        "dense" => Codec::Dense { values: words.one_of(&DTYPES) },
        "min-max" => {
            let bits = words.number()?;
            let tile = if words.is("tile") {
                if words.is("batch") { Tile::Batch } else { Tile::Elements(words.number()?) }
            } else {
                Tile::Elements(128)
            };
            Codec::MinMax { bits, tile }
        }
        "symmetric" => {
            let bits = words.number()?;
            let scope = if words.is("channels") { Scope::Channel { channels: words.number()? } } else { Scope::Sample };
            let scale = if words.is("scale") { words.one_of(&DTYPES) } else { Dtype::F32 };
            Codec::Symmetric { bits, scope, scale }
        }
        "topk" => Codec::TopK { keep: words.number()?, values: words.one_of(&DTYPES) },
        "shared-index" => Codec::SharedIndex { keep: words.number()?, values: words.one_of(&DTYPES) },
        "eden" => Codec::Eden { bits: words.number()? },
        _ => return None,
    };
    words.end(codec)
}

fn memory(text: &str) -> Option<LinkMemory> {
    let mut words = Words::new(text);
    let residual = |words: &mut Words<'_>| {
        let gain = words.number_after("gain", Residual::CLASSIC.gain)?;
        let reset_every = words.number_after("reset", Residual::CLASSIC.reset_every)?;
        Some(Residual { gain, reset_every, storage: words.one_of(&STORAGES) })
    };
    let memory = match words.0.next()? {
        "none" => LinkMemory::None,
        "residual" => LinkMemory::Residual(residual(&mut words)?),
        "mixed" => LinkMemory::Mixed(residual(&mut words)?),
        "ef21" => LinkMemory::Ef21,
        "samples" => {
            let capacity = words.number()?;
            let storage = if words.is("bits") {
                RowStorage::Quantised { bits: words.number()? }
            } else {
                words.one_of(&[("bf16", RowStorage::Bf16), ("f32", RowStorage::F32)])
            };
            LinkMemory::Samples { capacity, storage }
        }
        _ => return None,
    };
    words.end(memory)
}

/// ```
/// use lgreco_pipeline::{Codec, Tile};
/// let codec = Codec::MinMax { bits: 4, tile: Tile::Elements(128) };
/// assert_eq!("min-max 4".parse(), Ok(codec));
/// assert_eq!(codec.to_string(), "min-max 4 tile 128");
/// assert!("min-max 4 tiles 128".parse::<Codec>().is_err());
/// ```
impl FromStr for Codec {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Codec, CoreError> {
        codec(text).ok_or(CoreError::UnknownName { what: "codec", expected: CODECS })
    }
}

/// ```
/// use lgreco_pipeline::{LinkMemory, RowStorage};
/// let memory = LinkMemory::Samples { capacity: 1024, storage: RowStorage::Quantised { bits: 4 } };
/// assert_eq!("samples 1024 bits 4".parse(), Ok(memory));
/// assert_eq!(memory.to_string(), "samples 1024 bits 4");
/// ```
impl FromStr for LinkMemory {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<LinkMemory, CoreError> {
        memory(text).ok_or(CoreError::UnknownName { what: "memory of a link", expected: MEMORIES })
    }
}

impl Display for Codec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        match *self {
            Codec::Dense { values } => write!(f, "dense {}", name_of(&DTYPES, &values)),
            Codec::MinMax { bits, tile: Tile::Batch } => write!(f, "min-max {bits} tile batch"),
            Codec::MinMax { bits, tile: Tile::Elements(elements) } => write!(f, "min-max {bits} tile {elements}"),
            Codec::Symmetric { bits, scope, scale } => {
                write!(f, "symmetric {bits}")?;
                if let Scope::Channel { channels } = scope {
                    write!(f, " channels {channels}")?;
                }
                write!(f, " scale {}", name_of(&DTYPES, &scale))
            }
            Codec::TopK { keep, values } => write!(f, "topk {keep} {}", name_of(&DTYPES, &values)),
            Codec::SharedIndex { keep, values } => write!(f, "shared-index {keep} {}", name_of(&DTYPES, &values)),
            Codec::Eden { bits } => write!(f, "eden {bits}"),
        }
    }
}

impl Display for LinkMemory {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let residual = |f: &mut Formatter<'_>, name, residual: Residual| {
            let Residual { gain, reset_every, storage } = residual;
            write!(f, "{name} gain {gain} reset {reset_every} {}", name_of(&STORAGES, &storage))
        };
        match *self {
            LinkMemory::None => f.write_str("none"),
            LinkMemory::Residual(rule) => residual(f, "residual", rule),
            LinkMemory::Mixed(rule) => residual(f, "mixed", rule),
            LinkMemory::Ef21 => f.write_str("ef21"),
            LinkMemory::Samples { capacity, storage } => match storage {
                RowStorage::F32 => write!(f, "samples {capacity} f32"),
                RowStorage::Bf16 => write!(f, "samples {capacity} bf16"),
                RowStorage::Quantised { bits } => write!(f, "samples {capacity} bits {bits}"),
            },
        }
    }
}
