//! PowerSGD's settings as text and as data, and the parameter that a search varies.

use super::{PowerSgd, effective_rank};
use crate::describe::{Described, Known, Planned, Reader, Unit};
use crate::words::{Words, once};
use crate::{Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

/// Default number of power iterations, as in the published method. The text of a setting omits this default.
const ITERATIONS: u32 = 1;

impl Described for PowerSgd {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.rank, self.iterations, 0, 0]
    }

    /// The parameters without the number of iterations, which may differ between ranks.
    fn agreed(&self) -> Parameters {
        [self.rank, 0, 0, 0]
    }

    fn check(&self) -> Result<()> {
        PowerSgd::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "powersgd {}", self.rank)?;
        if self.iterations == ITERATIONS { Ok(()) } else { write!(f, " iterations {}", self.iterations) }
    }

    fn method(&self) -> wire::Method {
        wire::Method::PowerSgd
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 3,
    name: "powersgd",
    read: Some(read),
    from_parameters: |[rank, iterations, ..]| Ok(Setting::PowerSgd(PowerSgd { rank, iterations })),
};

fn read(words: &mut Words<'_>) -> Result<Setting> {
    let (rank, mut iterations) = (words.number("a rank")?, None);
    words.options(&["iterations"], |word, words| {
        once(word, &mut iterations, words.number("a number of power iterations")?)
    })?;
    Ok(Setting::PowerSgd(PowerSgd { rank, iterations: iterations.unwrap_or(ITERATIONS) }))
}

pub(crate) const READER: Reader = Reader {
    method: wire::Method::PowerSgd,
    decode: super::decode,
    stated: super::stated,
    combine: Some(super::combine),
    stretch: None,
};

/// Searches use five power iterations, as the L-GreCo authors' code does.
pub(crate) const PLANNED: Planned = Planned {
    about: "Low-rank factors; biased",
    default: 4.0,
    bounds: [1.0, 65536.0],
    expected: "a whole rank, 1 to 65536",
    unit: Unit::Whole,
    around: [2.0, 2.0, f64::INFINITY],
    setting: |rank, shape, _| {
        Ok(Setting::PowerSgd(PowerSgd { rank: effective_rank(shape, rank as u32) as u32, iterations: 5 }))
    },
};
