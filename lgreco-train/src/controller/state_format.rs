//! The format of a saved controller, and how it is read.
//!
//! All fields are little-endian. Numbers are u64 or f64. A list is preceded by its length only if earlier fields do not imply the
//! length. Lists are padded with zeros to a multiple of 8 bytes.
//!
//! | field | |
//! |---|---|
//! | `lgreco-c`, version 4, or 6 under measured seconds | 8 bytes each |
//! | rank, world size, steps taken | |
//! | step of the next decision (2^64 − 1: none), steps in the window, highest learning rate, steps that were not finite | |
//! | 0 or 1, then the last decision, 10 numbers | |
//! | number of buckets, 0 | |
//! | version 6: the decision's timing, 8 numbers; trials and overheads of methods; the number of values in the link's model, and these values | |
//! | number of layers; for each layer: | |
//! | length of its name, the name, rows, columns, code of the element type | |
//! | setting, 3 numbers; steps, bytes in, bytes out, refusals; relative error (NaN: none), norm (NaN: none) | |
//! | PowerSGD's factor, f32 | cols × rank |
//! | 0 or 1, then the window's mean, f32 | one per element |
//! | length of the residual's state, and the state: as [`Memory::save`](crate::feedback::Memory::save) writes it, without its checksum | |
//! | checksum of all fields before it | |
//!
//! A part begins with `lgreco-p`, version 4 or 6, rank, world size and steps taken. The part that belongs to no layer continues
//! with 0 and the fields from the step of the next decision to the link's model. A layer's part continues with 1 and the fields of
//! that layer. A checksum ends each part.

use super::compute::Compute;
use super::decision::LayerSetting;
use super::layer::Counts;
use super::link::Link;
use super::{Decision, Tensor, Timing, accordion::Highest};
use crate::compress::method::Methods;
use crate::compress::{Compressor, Cost};
use crate::exchange::factor_len;
use crate::feedback::SavedState;
use crate::gradient::{Dtype, Shape};
use crate::state::Reader;
use crate::{CoreError, Error};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use lgreco::error::distinct;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"lgreco-c");
pub(super) const PART_MAGIC: u64 = u64::from_le_bytes(*b"lgreco-p");
pub(super) const VERSION: u64 = 6;
/// The version of states without measured seconds.
pub(super) const UNMEASURED_VERSION: u64 = 4;
pub(super) const NONE: u64 = u64::MAX;
/// The rank, number of workers and step of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Owner {
    pub rank: u32,
    pub world: u32,
    pub step: u64,
}

/// The part of a state that belongs to no layer.
pub(super) struct Run {
    pub due: Option<u64>,
    pub window_steps: u64,
    pub learning_rate: Highest,
    pub non_finite: u64,
    pub decision: Option<Decision>,
    /// The learnt costs of computing and sending, in a run that measures seconds.
    pub learnt: Option<(Compute, Link)>,
}

/// The saved layers of one rank.
pub(super) struct Layers<'a> {
    pub owner: Owner,
    pub layers: Vec<Layer<'a>>,
    /// The index of each layer in `layers`, by name.
    places: BTreeMap<&'a str, usize>,
}

#[derive(Clone)]
pub(super) struct Layer<'a> {
    pub name: &'a str,
    pub shape: Shape,
    pub dtype: Dtype,
    pub choice: LayerSetting,
    pub counts: Counts,
    pub relative_error: Option<f64>,
    pub norm: Option<f64>,
    pub factor: Vec<f32>,
    pub mean: Option<Vec<f32>>,
    pub memory: Option<SavedState<'a>>,
}

/// The owner of a state, the part that belongs to no layer, and the layers. The bytes of a single layer's part have no [`Run`].
pub(super) type Parsed<'a> = (Owner, Option<Run>, Vec<Layer<'a>>);

/// Checks the bytes of a whole state, or of one part.
pub(super) fn parse<'a>(bytes: &'a [u8], methods: &Methods) -> Result<Parsed<'a>, Error> {
    let whole = bytes.first_chunk() == Some(&MAGIC.to_le_bytes());
    let magic = if whole { MAGIC } else { PART_MAGIC };
    let mut reader = Reader::open(bytes, magic, &[UNMEASURED_VERSION, VERSION])?;
    let owner = Owner::parse(&mut reader)?;
    let of_layer = !whole && reader.flag("kind of part")?;
    let run = if of_layer { None } else { Some(Run::parse(&mut reader)?) };
    let number = if whole { reader.number()? } else { of_layer.into() };
    let mut layers = vec![];
    for _ in 0..number {
        layers.push(Layer::parse(&mut reader, methods)?);
    }
    reader.end("saved state bytes after the last layer")?;
    Ok((owner, run, layers))
}

impl Owner {
    fn parse(reader: &mut Reader<'_>) -> Result<Owner, Error> {
        let (rank, world) = (reader.word("rank")?, reader.word("world size")?);
        CoreError::require_saved(rank < world, "rank", rank as u64)?;
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
        let decision = Decision::decode(&reader.numbers()?)?;
        reader.word("buckets")?;
        let zero = reader.number()?;
        CoreError::require_saved(zero == 0, "a number that is always 0", zero)?;
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
        let timing = reader.numbers()?;
        let methods = reader.numbers::<{ 2 * Cost::FAMILIES }>()?.map(f64::from_bits);
        let len = u64::from(reader.word("numbers of the link's model")?);
        let numbers = reader.bytes(8 * len)?;
        let numbers = numbers.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect::<Vec<_>>();
        let learnt = Compute::from_numbers(&methods).zip(Link::from_numbers(&numbers));
        let wrong = CoreError::SavedState { what: "a number of what was measured", found: len };
        Ok((Timing::decode(&timing)?, learnt.ok_or(wrong)?))
    }
}

impl<'a> Layers<'a> {
    pub(super) fn new(owner: Owner, layers: Vec<Layer<'a>>) -> Result<Self, Error> {
        Ok(Layers { owner, places: distinct(layers.iter().map(|layer| layer.name))?.into_iter().collect(), layers })
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
    fn parse(reader: &mut Reader<'a>, methods: &Methods) -> Result<Self, Error> {
        let len = reader.number()?;
        let name = core::str::from_utf8(reader.bytes(len)?);
        let name =
            name.map_err(|_| CoreError::SavedState { what: "a layer's name, not UTF-8, of length", found: len })?;
        let shape = Shape::new(reader.word("rows")? as usize, reader.word("columns")? as usize)?;
        let dtype = reader.number()?;
        let wrong = CoreError::SavedState { what: "element type", found: dtype };
        let dtype = u8::try_from(dtype).ok().and_then(|code| Dtype::from_code(code).ok()).ok_or(wrong)?;
        let choice = LayerSetting::decode(reader.numbers()?, methods)?;
        choice.setting.payload_len(shape, dtype)?;
        let counts = Counts {
            steps: reader.count("a layer's steps")?,
            bytes_in: reader.count("a layer's bytes in")?,
            bytes_out: reader.count("a layer's bytes out")?,
            not_contractive: reader.count("a layer's refusals")?,
        };
        let (relative_error, norm) = (reader.measured("relative error")?, reader.measured("norm")?);
        let factor = reader.values(factor_len(&choice.setting, shape))?;
        let mean = if reader.flag("window")? { Some(reader.values(shape.elements())?) } else { None };
        let memory = match reader.number()? {
            0 => None,
            len => Some(SavedState::parse_part(reader.bytes(len)?)?),
        };
        if let Some(memory) = &memory {
            CoreError::require_saved(
                memory.shape() == shape,
                "a residual of another shape, elements",
                memory.shape().elements() as u64,
            )?;
        }
        Ok(Layer { name, shape, dtype, choice, counts, relative_error, norm, factor, mean, memory })
    }
}
