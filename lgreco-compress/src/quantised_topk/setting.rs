//! TopK in few bits's settings as text and as data.

use super::{Body, QuantisedTopK};
use crate::combine::Combine;
use crate::describe::{Described, Known, Reader};
use crate::{Result, Setting, sparse, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for QuantisedTopK {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.keep, self.bits.into(), 0, 0]
    }

    fn check(&self) -> Result<()> {
        QuantisedTopK::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topk {} bits {}", self.keep, self.bits)
    }

    fn method(&self) -> wire::Method {
        wire::Method::QuantisedTopK
    }
}

/// Its text is read by TopK, which has the same name and stands before it.
pub(crate) const KNOWN: Known = Known {
    id: 6,
    name: "topk",
    read: crate::topk::KNOWN.read,
    from_parameters: |[keep, bits, ..]| Ok(Setting::QuantisedTopK(QuantisedTopK { keep, bits: bits as u8 })),
};

fn combine(payload: &wire::Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    sparse::combine::<Body<'_>>(payload, how, values)
}

pub(crate) const READER: Reader = Reader {
    method: wire::Method::QuantisedTopK,
    decode: super::decode,
    stated: super::stated,
    combine: Some(combine),
    stretch: Some((
        |payload, replace, start, place, values| {
            sparse::combine_stretch::<Body<'_>>(payload, replace, start, place, values)
        },
        |payload, start| sparse::place_of::<Body<'_>>(payload, start),
    )),
};
