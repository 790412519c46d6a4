//! Settings of TopK in few bits as text and as data.

use super::{Body, QuantisedTopK};
use crate::combine::Combine;
use crate::describe::{Described, Known, Reader};
use crate::gradient::Dtype;
use crate::topk::TopK;
use crate::words::{Words, dtype, once, wrong};
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

pub(crate) const KNOWN: Known = Known {
    id: 6,
    name: "topk",
    read: Some(read),
    from_parameters: |[keep, bits, ..]| Ok(Setting::QuantisedTopK(QuantisedTopK { keep, bits: bits as u8 })),
};

/// Parses both kinds of TopK: with full values, and with values in few bits.
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
