//! Types with which each method describes its settings, its payloads and the parameter that a search varies.

use super::registry::decode_parsed;
use super::words::Words;
use super::{Compressor, wire};
use crate::combine::Combine;
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::wire::Payload;
use crate::{Result, Setting};
use core::fmt;
use lgreco_core::method::Parameters;

/// Description of a method's setting: its text, its numbers, its payload format and its measurement.
pub(crate) trait Described: Compressor {
    /// Number of the method in settings as data ([`Setting::data`]).
    fn id(&self) -> u8;

    /// Parameters of the setting as data.
    fn parameters(&self) -> Parameters;

    /// The parameters that must be equal on all ranks.
    fn agreed(&self) -> Parameters {
        self.parameters()
    }

    /// Checks the parameters against the limits that do not depend on the tensor.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Writes the setting as text.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The method in the header of the payloads.
    fn method(&self) -> wire::Method;

    /// Decodes a payload of this setting.
    fn decode(&self, payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
        payload.header.expect_method(self.method())?;
        decode_parsed(payload, values)
    }

    /// Words of workspace that [`measure`](Described::measure) needs.
    fn measure_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        let payload = self.payload_len(shape, dtype).unwrap_or(0);
        words_to_measure(self.encode_workspace_len(shape, dtype), payload, shape.elements())
    }

    /// Measures this setting alone. Returns the squared error and the payload's length in bytes. The default
    /// implementation encodes and decodes. Methods that measure several settings in one pass are measured by
    /// [`Candidates`](crate::Candidates) instead.
    fn measure(&self, gradient: &Gradient<'_>, stream: Stream, workspace: &mut [u64]) -> Result<(f64, usize)> {
        let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
        // Each length is computed once, because an outside method may return another length at the next call.
        let (encode, payload) = (self.encode_workspace_len(shape, dtype), self.payload_len(shape, dtype)?);
        expect_room("workspace words", words_to_measure(encode, payload, shape.elements()), workspace.len())?;
        let (words, rest) = workspace.split_at_mut(encode);
        let (payload, rest) = rest.split_at_mut(payload.div_ceil(8));
        let payload: &mut [u8] = bytemuck::cast_slice_mut(payload);
        let values: &mut [f32] = &mut bytemuck::cast_slice_mut(rest)[..shape.elements()];
        let len = self.encode(gradient, stream, words, payload)?;
        self.decode(&Payload::parse(&payload[..len])?, values)?;
        Ok((squared_distance(gradient, values), len))
    }
}

/// Words for an encoder with `encode` words of workspace, a payload of `payload` bytes, and `elements` decoded values.
fn words_to_measure(encode: usize, payload: usize, elements: usize) -> usize {
    // The addition saturates, because an outside method may return any length.
    encode.saturating_add(payload.div_ceil(8) + elements.div_ceil(2))
}

fn squared_distance(gradient: &Gradient<'_>, decoded: &[f32]) -> f64 {
    with_elements!(gradient.values(), values => {
        let square = |(x, y): (_, &f32)| {
            let difference = f64::from(Element::to_f32(x)) - f64::from(*y);
            difference * difference
        };
        values.iter().copied().zip(decoded).map(square).sum()
    })
}

/// Reader of a method's settings.
pub(crate) struct Known {
    /// The same as [`Described::id`].
    pub id: u8,
    /// First word of the text.
    pub name: &'static str,
    /// Parses the text after the name. `None` if the reader of another method with the same name parses these settings.
    pub read: Option<fn(&mut Words<'_>) -> Result<Setting>>,
    /// Makes a setting from its parameters as data.
    pub from_parameters: fn(Parameters) -> Result<Setting>,
}

/// Function that adds a payload's values to a slice or subtracts them from it.
pub(crate) type Combined = fn(&Payload<'_>, Combine, &mut [f32]) -> Result<()>;
/// Function that reads a stretch (consecutive values) of a payload; see
/// [`combine_stretch`](crate::payload::combine_stretch).
pub(crate) type Stretch = fn(&Payload<'_>, bool, usize, &mut [u64; 2], &mut [f32]) -> Result<()>;
/// Function that finds where a stretch begins in the payload; see [`place_of`](crate::payload::place_of).
pub(crate) type PlaceOf = fn(&Payload<'_>, usize) -> Result<Option<[u64; 2]>>;

/// Reader of one payload format.
pub(crate) struct Reader {
    /// The method in the headers of these payloads.
    pub method: wire::Method,
    /// Decodes all values.
    pub decode: fn(&Payload<'_>, &mut [f32]) -> Result<()>,
    /// Returns the number of bytes after the header.
    pub stated: fn(&wire::Header) -> Result<usize>,
    /// Adds or subtracts the values without scratch memory. `None` if the payload must first be decoded to scratch
    /// memory.
    pub combine: Option<Combined>,
    /// The functions that read a stretch and that find where it begins. `None` if payloads cannot be read in stretches.
    pub stretch: Option<(Stretch, PlaceOf)>,
}

/// The element type with this code.
pub(crate) fn dtype_of(code: u32) -> Result<Dtype> {
    Dtype::from_code(code.try_into().unwrap_or(u8::MAX))
}

/// The one parameter of a method that a search varies.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Text for users: what the method does, and whether it is biased.
    pub about: &'static str,
    /// Default, taken from the paper or from the method's authors.
    pub default: f64,
    /// Smallest and largest value.
    pub bounds: [f64; 2],
    /// The allowed values as text, for error messages.
    pub expected: &'static str,
    /// Unit of the parameter.
    pub unit: Unit,
    /// The range that is searched around a default D, as three numbers `[a, b, c]`. The search goes from D / a to D ·
    /// b, in steps of D / c. Whole-number parameters are rounded up, and their steps are at least 1.
    pub around: [f64; 3],
    /// Makes the setting of a layer from the parameter, the layer's shape and its element type.
    pub setting: fn(f64, Shape, Dtype) -> Result<Setting>,
}

/// Unit of a [`Planned`] parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Fraction of the elements.
    Density,
    /// A whole number.
    Whole,
    /// A real number.
    Real,
}

impl Unit {
    /// Range of densities. A density below 2^-32 is less than one element of any tensor, because tensors have fewer
    /// than 2^32 elements.
    pub(crate) const DENSITIES: [f64; 2] = [1.0 / (1u64 << 32) as f64, 1.0];
    pub(crate) const A_DENSITY: &'static str = "a density of at least 2^-32 and at most 1 (100%)";
    /// Range of elements per group or bin.
    pub(crate) const GROUPS: [f64; 2] = [1.0, (1u32 << 24) as f64];
    pub(crate) const A_GROUP: &'static str = "a whole number of elements, 1 to 2^24";
}
