//! What the folder of each method says of it.

use super::words::Words;
use super::{Compressor, wire};
use crate::combine::Combine;
use crate::gradient::{Dtype, Shape};
use crate::wire::Payload;
use crate::{Result, Setting};
use core::fmt;
use lgreco_core::method::Parameters;

/// What a method's settings tell of themselves, beside what any [`Compressor`] does.
pub(crate) trait Described: Compressor {
    /// The method's number in settings as data.
    fn id(&self) -> u8;

    /// The parameters of the setting as data.
    fn parameters(&self) -> Parameters;

    /// Those of them that all ranks must have alike.
    fn agreed(&self) -> Parameters {
        self.parameters()
    }

    /// `Err` unless they are in the ranges that they have for any tensor.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Writes the setting as text.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// What payloads say that they are.
    fn method(&self) -> wire::Method;
}

/// How settings of a method are read.
pub(crate) struct Known {
    /// [`Described::id`].
    pub id: u8,
    /// The first word of the text.
    pub name: &'static str,
    /// Reads the text behind it. `None`: the other method with this name reads it.
    pub read: Option<fn(&mut Words<'_>) -> Result<Setting>>,
    /// Reads the parameters.
    pub from_parameters: fn(Parameters) -> Result<Setting>,
}

/// Adds a payload's values to others, or subtracts them.
pub(crate) type Combined = fn(&Payload<'_>, Combine, &mut [f32]) -> Result<()>;
/// Reads a stretch of a payload's values; [`combine_stretch`](crate::payload::combine_stretch).
pub(crate) type Stretch = fn(&Payload<'_>, bool, usize, &mut [u64; 2], &mut [f32]) -> Result<()>;
/// Where to begin in the middle; [`place_of`](crate::payload::place_of).
pub(crate) type PlaceOf = fn(&Payload<'_>, usize) -> Result<Option<[u64; 2]>>;

/// How payloads of a kind are read.
pub(crate) struct Reader {
    /// What they say that they are.
    pub method: wire::Method,
    /// Writes all values.
    pub decode: fn(&Payload<'_>, &mut [f32]) -> Result<()>,
    /// The bytes after the header.
    pub stated: fn(&wire::Header) -> Result<usize>,
    /// Adds or subtracts without memory of its own; `None`: by way of decoding.
    pub combine: Option<Combined>,
    /// Reads a stretch, and tells where to begin there; `None`: not in stretches.
    pub stretch: Option<(Stretch, PlaceOf)>,
}

/// The element type that a parameter says.
pub(crate) fn dtype_of(code: u32) -> Result<Dtype> {
    Dtype::from_code(code.try_into().unwrap_or(u8::MAX))
}

/// What a search varies of a method: one parameter.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// What the method does, and whether it is biased.
    pub about: &'static str,
    /// The parameter of the paper, or of the method's authors.
    pub default: f64,
    /// Least and largest parameter.
    pub bounds: [f64; 2],
    /// What is said where it is none of them.
    pub expected: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The range searched around a default D: from D over the first to D times the second, in steps of D over the third; whole
    /// parameters are rounded up, steps to at least 1.
    pub around: [f64; 3],
    /// The setting of a layer.
    pub setting: fn(f64, Shape, Dtype) -> Result<Setting>,
}

/// What a [`Planned`] parameter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A share of the elements.
    Density,
    /// Whole numbers.
    Whole,
    /// Any numbers.
    Real,
}

impl Unit {
    /// From 2^-32, below which no tensor keeps an element.
    pub(crate) const DENSITIES: [f64; 2] = [1.0 / (1u64 << 32) as f64, 1.0];
    pub(crate) const A_DENSITY: &'static str = "a density of at least 2^-32 and at most 1 (100%)";
    /// Elements of a group or bin.
    pub(crate) const GROUPS: [f64; 2] = [1.0, (1u32 << 24) as f64];
    pub(crate) const A_GROUP: &'static str = "a whole number of elements, 1 to 2^24";
}
