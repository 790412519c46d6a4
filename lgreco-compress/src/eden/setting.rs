//! EDEN's settings as text and as data, and the parameter that a search varies.

use super::{Eden, Scale};
use crate::describe::{Described, Known, Planned, Reader, Unit};
use crate::words::{Words, once};
use crate::{Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for Eden {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.bits.into(), self.scale as u32, 0, 0]
    }

    /// The scale may differ between ranks, because only the encoder uses it.
    fn agreed(&self) -> Parameters {
        [self.bits.into(), 0, 0, 0]
    }

    fn check(&self) -> Result<()> {
        Eden::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eden {}", self.bits)?;
        f.write_str(match self.scale {
            Scale::Unbiased => "",
            Scale::LeastSquares => " least-squares",
        })
    }

    fn method(&self) -> wire::Method {
        wire::Method::Eden
    }
}

pub(crate) const KNOWN: Known = Known { id: 10, name: "eden", read: Some(read), from_parameters };

fn read(words: &mut Words<'_>) -> Result<Setting> {
    let (bits, mut scale) = (words.number("bits, 1 to 8")?, None);
    words.options(&["unbiased", "least-squares"], |word, _| match word {
        "unbiased" => once(word, &mut scale, Scale::Unbiased),
        _ => once(word, &mut scale, Scale::LeastSquares),
    })?;
    Ok(Setting::Eden(Eden { bits, scale: scale.unwrap_or_default() }))
}

fn from_parameters([bits, scale, ..]: Parameters) -> Result<Setting> {
    let scale = if scale == 0 { Scale::Unbiased } else { Scale::LeastSquares };
    Ok(Setting::Eden(Eden { bits: bits as u8, scale }))
}

pub(crate) const READER: Reader = Reader {
    method: wire::Method::Eden,
    decode: super::decode,
    stated: super::stated,
    combine: Some(super::combine),
    stretch: Some((
        |payload, replace, start, _, values| super::combine_stretch(payload, replace, start, values),
        |_, _| Ok(Some([0; 2])),
    )),
};

/// Searches use the unbiased scale.
pub(crate) const PLANNED: Planned = Planned {
    about: "Rotated quantisation in blocks of 4096; unbiased",
    default: 3.0,
    bounds: [1.0, 8.0],
    expected: "a whole number of bits, 1 to 8",
    unit: Unit::Whole,
    around: [8.0, 8.0, f64::INFINITY], // one pass measures all widths
    setting: |bits, _, _| Ok(Setting::Eden(Eden { bits: bits as u8, ..Eden::default() })),
};
