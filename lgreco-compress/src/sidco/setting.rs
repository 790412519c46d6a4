//! SIDCo's settings as text and as data, and the parameter that a search varies.

use super::{Fit, Sidco};
use crate::describe::{Described, Known, Planned, Unit, dtype_of};
use crate::error::Number;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::words::{Words, dtype, once, sent_as};
use crate::{Error, Result, Setting, wire};
use core::fmt;
use lgreco_core::method::Parameters;

/// Default number of stages. The text of a setting omits this default.
const STAGES: u32 = 1;

impl Described for Sidco {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        let density = self.density.to_bits();
        [density as u32, (density >> 32) as u32, self.fit as u32 | (self.values as u32) << 8, self.stages]
    }

    /// The parameters without the number of stages, which may differ between ranks.
    fn agreed(&self) -> Parameters {
        let [low, high, fit, _] = self.parameters();
        [low, high, fit, 0]
    }

    fn check(&self) -> Result<()> {
        Sidco::check(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sidco {}", Number(&self.density))?;
        f.write_str(match self.fit {
            Fit::Exponential => "",
            Fit::GammaPareto => " gamma-pareto",
            Fit::Pareto => " pareto",
        })?;
        if self.stages != STAGES {
            write!(f, " stages {}", self.stages)?;
        }
        f.write_str(sent_as(self.values))
    }

    fn method(&self) -> wire::Method {
        wire::Method::TopK
    }

    fn measure_workspace_len(&self, shape: Shape, _: Dtype) -> usize {
        super::measure_workspace_len(shape)
    }

    fn measure(&self, gradient: &Gradient<'_>, _: Stream, workspace: &mut [u64]) -> Result<(f64, usize)> {
        super::measure(self, gradient, workspace)
    }
}

pub(crate) const KNOWN: Known = Known { id: 9, name: "sidco", read: Some(read), from_parameters };

fn read(words: &mut Words<'_>) -> Result<Setting> {
    let density = words.number("a density, in (0, 1]")?;
    let (mut fit, mut stages, mut values) = (None, None, None);
    let known = &["exponential", "gamma-pareto", "pareto", "stages", "f32", "f16", "bf16"];
    words.options(known, |word, words| match word {
        "exponential" => once(word, &mut fit, Fit::Exponential),
        "gamma-pareto" => once(word, &mut fit, Fit::GammaPareto),
        "pareto" => once(word, &mut fit, Fit::Pareto),
        "stages" => once(word, &mut stages, words.number("a number of stages")?),
        _ => once(word, &mut values, dtype(word)),
    })?;
    let (fit, stages) = (fit.unwrap_or_default(), stages.unwrap_or(STAGES));
    Ok(Setting::Sidco(Sidco { density, fit, stages, values: values.unwrap_or(Dtype::F32) }))
}

fn from_parameters([low, high, fit, stages]: Parameters) -> Result<Setting> {
    let density = f64::from_bits(u64::from(low) | u64::from(high) << 32);
    let values = dtype_of(fit >> 8)?;
    let value = f64::from(fit & 0xff);
    let fits = [Fit::Exponential, Fit::GammaPareto, Fit::Pareto];
    let fit = fits.into_iter().find(|&each| each as u32 == fit & 0xff);
    let fit = fit.ok_or(Error::Parameter { what: "SIDCo's fit", value, expected: "0 to 2" })?;
    Ok(Setting::Sidco(Sidco { density, fit, stages, values }))
}

/// Searches use one stage of the cheapest fit.
pub(crate) const PLANNED: Planned = Planned {
    about: "Sparsification: elements above an estimated threshold; biased",
    default: 0.01,
    bounds: Unit::DENSITIES,
    expected: Unit::A_DENSITY,
    unit: Unit::Density,
    around: [2.0, 2.0, 4.0],
    setting: |density, _, values| Ok(Setting::Sidco(Sidco { density, fit: Fit::default(), stages: STAGES, values })),
};
