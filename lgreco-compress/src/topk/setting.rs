//! TopK's settings as text and as data, and what a search varies of them.

use super::{Body, TopK};
use crate::combine::Combine;
use crate::describe::{Described, Known, Planned, Reader, Unit, dtype_of};
use crate::gradient::Dtype;
use crate::quantised_topk::QuantisedTopK;
use crate::words::{Words, dtype, once, sent_as, wrong};
use crate::{Result, Setting, sparse, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for TopK {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.keep, self.values as u32, 0, 0]
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topk {}{}", self.keep, sent_as(self.values))
    }

    fn method(&self) -> wire::Method {
        wire::Method::TopK
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 2,
    name: "topk",
    read,
    from_parameters: |[keep, values, ..]| Ok(Setting::TopK(TopK { keep, values: dtype_of(values)? })),
};

/// Reads TopK of values and of values in few bits.
fn read(words: &mut Words<'_>) -> Result<Setting> {
    let keep = words.number("a number of elements")?;
    let (mut bits, mut values) = (None, None);
    words.options(&["bits", "f32", "f16", "bf16"], |word, words| match word {
        "bits" if values.is_none() => once(word, &mut bits, words.number("bits per kept value, 1 to 8")?),
        "f32" | "f16" | "bf16" if bits.is_none() => once(word, &mut values, dtype(word)),
        _ => Err(wrong(word, "a type or bits, not both")),
    })?;
    Ok(match bits {
        Some(bits) => Setting::QuantisedTopK(QuantisedTopK { keep, bits }),
        None => Setting::TopK(TopK { keep, values: values.unwrap_or(Dtype::F32) }),
    })
}

fn combine(payload: &wire::Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    sparse::combine::<Body<'_>>(payload, how, values)
}

pub(crate) const READER: Reader = Reader {
    method: wire::Method::TopK,
    decode: super::decode,
    stated: |header| Ok(super::stated(header)?.0),
    combine: Some(combine),
    stretch: Some((
        |payload, replace, start, place, values| {
            sparse::combine_stretch::<Body<'_>>(payload, replace, start, place, values)
        },
        |payload, start| sparse::place_of::<Body<'_>>(payload, start),
    )),
};

/// The values in the gradient's own type.
pub(crate) const PLANNED: Planned = Planned {
    about: "Sparsification: the largest magnitudes; biased",
    default: 0.01,
    bounds: Unit::DENSITIES,
    expected: Unit::A_DENSITY,
    unit: Unit::Density,
    around: [10.0, 10.0, 10.0],
    setting: |density, shape, dtype| Ok(Setting::TopK(TopK::with_density(density, shape.elements(), dtype)?)),
};
