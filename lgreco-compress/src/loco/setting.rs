//! LoCo's settings as text and as data, and the parameter that a search varies.

use super::LoCo;
use crate::Compressor;
use crate::describe::{Described, Known, Planned, Reader, Unit};
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for LoCo {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.group, 0, 0, 0]
    }

    fn check(&self) -> Result<()> {
        LoCo::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loco {}", self.group)
    }

    fn method(&self) -> wire::Method {
        wire::Method::LoCo
    }

    fn measure_workspace_len(&self, _: Shape, _: Dtype) -> usize {
        0
    }

    fn measure(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64]) -> Result<(f64, usize)> {
        Ok((super::squared_error(self, gradient)?, self.payload_len(gradient.shape(), Dtype::F32)?))
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 5,
    name: "loco",
    read: Some(|words| Ok(Setting::LoCo(LoCo { group: words.last("a number of elements per group")? }))),
    from_parameters: |[group, ..]| Ok(Setting::LoCo(LoCo { group })),
};

pub(crate) const READER: Reader =
    Reader { method: wire::Method::LoCo, decode: super::decode, stated: super::stated, combine: None, stretch: None };

pub(crate) const PLANNED: Planned = Planned {
    about: "Quantisation to 4 bits in groups, rounded to nearest; biased",
    default: 512.0,
    bounds: Unit::GROUPS,
    expected: Unit::A_GROUP,
    unit: Unit::Whole,
    around: [2.0, 2.0, 4.0],
    setting: |group, _, _| Ok(Setting::LoCo(LoCo { group: group as u32 })),
};
