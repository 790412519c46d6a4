//! Hard threshold's settings as text and as data, and the parameter that a search varies.

use super::HardThreshold;
use crate::describe::{Described, Known, Planned, Unit, dtype_of};
use crate::error::Number;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::words::sent_as;
use crate::{Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

impl Described for HardThreshold {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.lambda.to_bits(), self.values as u32, 0, 0]
    }

    fn check(&self) -> Result<()> {
        HardThreshold::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hard-threshold {}{}", Number(&self.lambda), sent_as(self.values))
    }

    fn method(&self) -> wire::Method {
        wire::Method::TopK
    }

    fn measure_workspace_len(&self, _: Shape, _: Dtype) -> usize {
        0
    }

    fn measure(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64]) -> Result<(f64, usize)> {
        super::measure(self, gradient)
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 8,
    name: "hard-threshold",
    read: Some(|words| {
        Ok(Setting::HardThreshold(HardThreshold { lambda: words.number("a magnitude")?, values: words.values()? }))
    }),
    from_parameters: |[lambda, values, ..]| {
        Ok(Setting::HardThreshold(HardThreshold { lambda: f32::from_bits(lambda), values: dtype_of(values)? }))
    },
};

pub(crate) const PLANNED: Planned = Planned {
    about: "Sparsification: all elements of at least a given magnitude; biased",
    default: 0.01,
    bounds: [f32::MIN_POSITIVE as f64, f32::MAX as f64],
    expected: "a magnitude above 0, of f32",
    unit: Unit::Real,
    around: [2.0, 2.0, 4.0],
    setting: |lambda, _, values| Ok(Setting::HardThreshold(HardThreshold { lambda: lambda as f32, values })),
};
