//! QSGD's settings as text and as data, and the parameter that a search varies.

use super::{Qsgd, Rounding, Scale};
use crate::describe::{Described, Known, Planned, Reader, Unit};
use crate::words::{Words, once};
use crate::{Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for Qsgd {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        let rounding = match self.rounding {
            Rounding::Nearest => 0,
            Rounding::Stochastic => 1,
        };
        [self.bits.into(), self.bucket, self.scale as u32, rounding]
    }

    fn check(&self) -> Result<()> {
        Qsgd::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qsgd {}", self.bits)?;
        if self.bucket != Qsgd::default().bucket {
            write!(f, " bucket {}", self.bucket)?;
        }
        f.write_str(match self.scale {
            Scale::MaxNorm => "",
            Scale::MinMax => " min-max",
        })?;
        f.write_str(match self.rounding {
            Rounding::Stochastic => "",
            Rounding::Nearest => " nearest",
        })
    }

    fn method(&self) -> wire::Method {
        wire::Method::Qsgd
    }
}

pub(crate) const KNOWN: Known = Known { id: 1, name: "qsgd", read: Some(read), from_parameters };

fn read(words: &mut Words<'_>) -> Result<Setting> {
    let bits = words.number("bits, 1 to 8")?;
    let (mut bucket, mut scale, mut rounding) = (None, None, None);
    words.options(&["bucket", "max-norm", "min-max", "stochastic", "nearest"], |word, words| match word {
        "bucket" => once(word, &mut bucket, words.number("a number of elements per bucket")?),
        "max-norm" => once(word, &mut scale, Scale::MaxNorm),
        "min-max" => once(word, &mut scale, Scale::MinMax),
        "stochastic" => once(word, &mut rounding, Rounding::Stochastic),
        _ => once(word, &mut rounding, Rounding::Nearest),
    })?;
    let bucket = bucket.unwrap_or(Qsgd::default().bucket);
    let (scale, rounding) = (scale.unwrap_or_default(), rounding.unwrap_or_default());
    Ok(Setting::Qsgd(Qsgd { bits, bucket, scale, rounding }))
}

fn from_parameters([bits, bucket, scale, rounding]: Parameters) -> Result<Setting> {
    let scale = if scale == 0 { Scale::MaxNorm } else { Scale::MinMax };
    let rounding = if rounding == 0 { Rounding::Nearest } else { Rounding::Stochastic };
    Ok(Setting::Qsgd(Qsgd { bits: bits as u8, bucket, scale, rounding }))
}

pub(crate) const READER: Reader = Reader {
    method: wire::Method::Qsgd,
    decode: super::decode,
    stated: super::stated,
    combine: Some(super::combine),
    stretch: Some((
        |payload, replace, start, _, values| super::combine_stretch(payload, replace, start, values),
        |_, _| Ok(Some([0; 2])),
    )),
};

/// Searches use max-norm buckets of 512 and stochastic rounding. In §5 of the QSGD paper, training with this setting
/// recovered the accuracy.
pub(crate) const PLANNED: Planned = Planned {
    about: "Quantisation with max-norm buckets of 512 and stochastic rounding; unbiased",
    default: 4.0,
    bounds: [1.0, 8.0],
    expected: "a whole number of bits, 1 to 8",
    unit: Unit::Whole,
    around: [2.0, 2.0, f64::INFINITY],
    setting: |bits, _, _| Ok(Setting::Qsgd(Qsgd { bits: bits as u8, ..Qsgd::default() })),
};
