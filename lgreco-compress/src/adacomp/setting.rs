//! AdaComp's settings as text and as data, and the parameter that a search varies.

use super::AdaComp;
use crate::describe::{Described, Known, Planned, Reader, Unit};
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for AdaComp {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.bin, 0, 0, 0]
    }

    fn check(&self) -> Result<()> {
        AdaComp::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adacomp {}", self.bin)
    }

    fn method(&self) -> wire::Method {
        wire::Method::AdaComp
    }

    fn measure_workspace_len(&self, _: Shape, _: Dtype) -> usize {
        0
    }

    fn measure(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64]) -> Result<(f64, usize)> {
        super::measure(self, gradient)
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 4,
    name: "adacomp",
    read: Some(|words| Ok(Setting::AdaComp(AdaComp { bin: words.last("a number of elements per bin")? }))),
    from_parameters: |[bin, ..]| Ok(Setting::AdaComp(AdaComp { bin })),
};

pub(crate) const READER: Reader = Reader {
    method: wire::Method::AdaComp,
    decode: super::decode,
    stated: |header| Ok(super::stated(header)?.0),
    combine: Some(super::combine),
    stretch: None,
};

pub(crate) const PLANNED: Planned = Planned {
    about: "Sparsification: elements that stand out in their bin, all sent with one magnitude; biased",
    default: 500.0,
    bounds: Unit::GROUPS,
    expected: Unit::A_GROUP,
    unit: Unit::Whole,
    around: [2.0, 2.0, 4.0],
    setting: |bin, _, _| Ok(Setting::AdaComp(AdaComp { bin: bin as u32 })),
};
