//! The format of a saved controller, read.
//!
//! All fields are little-endian; numbers are u64 or f64, lists are preceded by nothing where their length is known from
//! what came before, and padded with zeros to a multiple of 8 bytes.
//!
//! | field | |
//! |---|---|
//! | `lgreco-c`, version 2, or 3 under measured seconds | 8 bytes each |
//! | rank, world size, steps taken | |
//! | step of the next decision (2^64 − 1: none), steps in the window, highest learning rate, steps that were not finite | |
//! | 0 or 1, then the last decision, 10 numbers | |
//! | number of buckets, 0 | |
//! | version 3: the decision's timing, 8 numbers; trials and overheads of methods; numbers of the link's model, and these | |
//! | number of layers; of each: | |
//! | length of its name, the name, rows, columns, code of the element type | |
//! | setting, 2 numbers; steps, bytes in, bytes out, refusals; relative error (NaN: none), norm (NaN: none) | |
//! | PowerSGD's factor, f32 | cols × rank |
//! | 0 or 1, then the window's mean, f32 | one per element |
//! | length of the residual's state, that of [`Memory::save`](crate::feedback::Memory::save) but for its checksum | |
//! | checksum of all before it | |
//!
//! The same in parts: `lgreco-p`, version 2 or 3, rank, world size, steps taken, then 0 and what is above from the step of the
//! next decision to the link's model, or 1 and a layer as above; a checksum closes each.

use super::codes::Choice;
use super::compute::{Compute, FAMILIES};
use super::layer::Counts;
use super::link::Link;
use super::{Decision, Tensor, Timing, accordion::Highest};
use crate::checksum;
use crate::compress::Compressor;
use crate::error::{expect_distinct, expect_len};
use crate::exchange::factor_rank;
use crate::feedback::{RESIDUAL, SavedState};
use crate::gradient::{Dtype, Shape};
use crate::{CoreError, Error};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"lgreco-c");
pub(super) const PART_MAGIC: u64 = u64::from_le_bytes(*b"lgreco-p");
pub(super) const VERSION: u64 = 3;
/// Of states in which nothing is measured.
pub(super) const UNMEASURED_VERSION: u64 = 2;
pub(super) const NONE: u64 = u64::MAX;
/// Counts are below this, so that adding to them never overflows.
const COUNT_LIMIT: u64 = 1 << 63;

struct Reader<'a> {
    rest: &'a [u8],
    version: u64,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let found = self.rest.len();
        let cut = || {
            Error::Core(CoreError::Length {
                what: "saved state bytes",
                expected: len.try_into().unwrap_or(usize::MAX),
                found,
            })
        };
        let len = usize::try_from(len).map_err(|_| cut())?;
        let padded = len.checked_next_multiple_of(8).ok_or_else(cut)?;
        let (bytes, rest) = self.rest.split_at_checked(padded).ok_or_else(cut)?;
        self.rest = rest;
        let (bytes, padding) = bytes.split_at(len);
        check("padding", padding.iter().all(|&byte| byte == 0), len as u64)?;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64, Error> {
        let bytes = self.bytes(8)?.first_chunk();
        Ok(bytes.map_or(0, |&bytes| u64::from_le_bytes(bytes)))
    }

    fn word(&mut self, what: &'static str) -> Result<u32, Error> {
        let found = self.number()?;
        u32::try_from(found).map_err(|_| Error::Core(CoreError::SavedState { what, found }))
    }

    fn count(&mut self, what: &'static str) -> Result<u64, Error> {
        let found = self.number()?;
        check(what, found < COUNT_LIMIT, found)?;
        Ok(found)
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, Error> {
        let found = self.number()?;
        check(what, found < 2, found)?;
        Ok(found == 1)
    }

    fn values(&mut self, len: usize) -> Result<Vec<f32>, Error> {
        let bytes = self.bytes(4 * len as u64)?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(Error::Core(CoreError::SavedState { what: "a value", found: value.to_bits() as u64 })),
            None => Ok(values),
        }
    }

    /// A finite number of at least 0, or none.
    fn measured(&mut self, what: &'static str) -> Result<Option<f64>, Error> {
        let found = self.number()?;
        let value = f64::from_bits(found);
        check(what, found == f64::NAN.to_bits() || value.is_finite() && value.is_sign_positive(), found)?;
        Ok((!value.is_nan()).then_some(value))
    }
}

pub(super) fn check(what: &'static str, holds: bool, found: u64) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Core(CoreError::SavedState { what, found })) }
}

/// Whose state it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Owner {
    pub rank: u32,
    pub world: u32,
    pub step: u64,
}

/// What belongs to no layer.
pub(super) struct Run {
    pub due: Option<u64>,
    pub window_steps: u64,
    pub learning_rate: Highest,
    pub non_finite: u64,
    pub decision: Option<Decision>,
    /// Of a run that measured seconds.
    pub learnt: Option<(Compute, Link)>,
}

/// A rank's layers.
pub(super) struct Layers<'a> {
    pub owner: Owner,
    pub layers: Vec<Layer<'a>>,
    /// Of each layer, by name.
    places: BTreeMap<&'a str, usize>,
}

pub(super) struct Layer<'a> {
    pub name: &'a str,
    pub shape: Shape,
    pub dtype: Dtype,
    pub choice: Choice,
    pub counts: Counts,
    pub relative_error: Option<f64>,
    pub norm: Option<f64>,
    pub factor: Vec<f32>,
    pub mean: Option<Vec<f32>>,
    pub memory: Option<SavedState<'a>>,
}

/// What a part is about.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
pub(super) enum Part<'a> {
    Run(Run),
    Layer(Layer<'a>),
}

/// A state whose bytes have been checked.
pub(super) fn parse(bytes: &[u8]) -> Result<(Run, Layers<'_>), Error> {
    let mut reader = open(bytes, MAGIC)?;
    let owner = Owner::parse(&mut reader)?;
    let run = Run::parse(&mut reader)?;
    let mut layers = vec![];
    for _ in 0..reader.number()? {
        layers.push(Layer::parse(&mut reader)?);
    }
    expect_len("saved state bytes after the last layer", 0, reader.rest.len())?;
    Ok((run, Layers::new(owner, layers)?))
}

/// A part of a state, likewise.
pub(super) fn parse_part(bytes: &[u8]) -> Result<(Owner, Part<'_>), Error> {
    let mut reader = open(bytes, PART_MAGIC)?;
    let owner = Owner::parse(&mut reader)?;
    let part = match reader.flag("kind of part")? {
        false => Part::Run(Run::parse(&mut reader)?),
        true => Part::Layer(Layer::parse(&mut reader)?),
    };
    expect_len("saved state bytes after the part", 0, reader.rest.len())?;
    Ok((owner, part))
}

fn open(bytes: &[u8], magic: u64) -> Result<Reader<'_>, Error> {
    let mut reader = Reader { rest: bytes, version: 0 };
    let found = reader.number()?;
    check("magic", found == magic, found)?;
    let version = reader.number()?;
    check("version", matches!(version, UNMEASURED_VERSION | VERSION), version)?;
    let mut reader = Reader { rest: checksum::open(bytes)?, version };
    reader.bytes(16)?;
    Ok(reader)
}

impl Owner {
    fn parse(reader: &mut Reader<'_>) -> Result<Owner, Error> {
        let (rank, world) = (reader.word("rank")?, reader.word("world size")?);
        check("rank", rank < world, rank as u64)?;
        Ok(Owner { rank, world, step: reader.count("number of steps")? })
    }
}

impl Run {
    fn parse(reader: &mut Reader<'_>) -> Result<Run, Error> {
        let due = reader.number()?;
        let window_steps = reader.count("steps in the window")?;
        let learning_rate = reader.measured("learning rate")?.unwrap_or(0.0);
        let non_finite = reader.count("steps that were not finite")?;
        let decided = reader.flag("decision")?;
        let mut decision = [0; Decision::WORDS];
        for word in &mut decision {
            *word = reader.number()?;
        }
        let decision = Decision::decode(&decision)?;
        reader.word("buckets")?;
        let zero = reader.number()?;
        check("a number that is always 0", zero == 0, zero)?;
        let (timing, learnt) = match reader.version {
            VERSION => Self::measured(reader).map(|(timing, learnt)| (timing, Some(learnt)))?,
            _ => (None, None),
        };
        Ok(Run {
            due: (due != NONE).then_some(due),
            window_steps,
            learning_rate: Highest(learning_rate),
            non_finite,
            decision: decided.then_some(Decision { timing, ..decision }),
            learnt,
        })
    }

    fn measured(reader: &mut Reader<'_>) -> Result<(Option<Timing>, (Compute, Link)), Error> {
        let mut timing = [0; Timing::WORDS];
        for word in &mut timing {
            *word = reader.number()?;
        }
        let mut methods = [0.0; 2 * FAMILIES];
        for number in &mut methods {
            *number = f64::from_bits(reader.number()?);
        }
        let len = u64::from(reader.word("numbers of the link's model")?);
        let numbers = reader.bytes(8 * len)?;
        let numbers = numbers.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect::<Vec<_>>();
        let learnt = Compute::from_numbers(&methods).zip(Link::from_numbers(&numbers));
        let wrong = Error::Core(CoreError::SavedState { what: "a number of what was measured", found: len });
        Ok((Timing::decode(&timing)?, learnt.ok_or(wrong)?))
    }
}

impl<'a> Layers<'a> {
    pub(super) fn new(owner: Owner, layers: Vec<Layer<'a>>) -> Result<Self, Error> {
        expect_distinct(layers.iter().map(|layer| layer.name))?;
        Ok(Layers { owner, places: layers.iter().map(|layer| layer.name).zip(0..).collect(), layers })
    }

    pub(super) fn layer(&self, name: &str) -> Option<&Layer<'a>> {
        self.places.get(name).map(|&place| &self.layers[place])
    }

    /// The layer of this name, shape and element type.
    pub(super) fn fitting(&self, tensor: &Tensor) -> Option<&Layer<'a>> {
        self.layer(&tensor.name).filter(|layer| (layer.shape, layer.dtype) == (tensor.shape, tensor.dtype))
    }
}

impl<'a> Layer<'a> {
    fn parse(reader: &mut Reader<'a>) -> Result<Self, Error> {
        let len = reader.number()?;
        let name = core::str::from_utf8(reader.bytes(len)?);
        let name = name.map_err(|_| {
            Error::Core(CoreError::SavedState { what: "a layer's name, not UTF-8, of length", found: len })
        })?;
        let shape = Shape::new(reader.word("rows")? as usize, reader.word("columns")? as usize)?;
        let dtype = reader.number()?;
        let wrong = Error::Core(CoreError::SavedState { what: "element type", found: dtype });
        let dtype = u8::try_from(dtype).ok().and_then(|code| Dtype::from_code(code).ok()).ok_or(wrong)?;
        let choice = Choice::decode([reader.number()?, reader.number()?])?;
        choice.setting.payload_len(shape, dtype)?;
        let counts = Counts {
            steps: reader.count("a layer's steps")?,
            bytes_in: reader.count("a layer's bytes in")?,
            bytes_out: reader.count("a layer's bytes out")?,
            not_contractive: reader.count("a layer's refusals")?,
        };
        let (relative_error, norm) = (reader.measured("relative error")?, reader.measured("norm")?);
        let factor = reader.values(shape.cols() * factor_rank(&choice.setting, shape))?;
        let mean = if reader.flag("window")? { Some(reader.values(shape.elements())?) } else { None };
        let memory = match reader.number()? {
            0 => None,
            len => Some(SavedState::parse_part(RESIDUAL, reader.bytes(len)?)?),
        };
        if let Some(memory) = &memory {
            check("a residual of another shape, elements", memory.shape() == shape, memory.shape().elements() as u64)?;
        }
        Ok(Layer { name, shape, dtype, choice, counts, relative_error, norm, factor, mean, memory })
    }
}
