//! TopK's settings as text and as data, and the parameter that a search varies.

use super::{Body, TopK};
use crate::combine::Combine;
use crate::describe::{Described, Known, Planned, Reader, Unit, dtype_of};
use crate::words::sent_as;
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

/// [`QuantisedTopK`](crate::quantised_topk::QuantisedTopK) parses the text, because both methods have the name `topk`.
pub(crate) const KNOWN: Known = Known {
    id: 2,
    name: "topk",
    read: None,
    from_parameters: |[keep, values, ..]| Ok(Setting::TopK(TopK { keep, values: dtype_of(values)? })),
};

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

/// Searches send the values in the gradient's element type.
pub(crate) const PLANNED: Planned = Planned {
    about: "Sparsification: the largest magnitudes; biased",
    default: 0.01,
    bounds: Unit::DENSITIES,
    expected: Unit::A_DENSITY,
    unit: Unit::Density,
    around: [10.0, 10.0, 10.0],
    setting: |density, shape, dtype| Ok(Setting::TopK(TopK::with_density(density, shape.elements(), dtype)?)),
};
