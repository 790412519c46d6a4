//! Ranges of parameters, error metrics, and widths of TopK's values.

pub use crate::compress::SearchMethod as Method;
use crate::compress::{Planned, Setting, Unit};
use crate::{Error, Result};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::FromStr;
use num_traits::Float;

/// Rounds off the errors of binary fractions (0.1 · 3 · 100 = 30.000000000000004).
fn tidy(x: f64) -> f64 {
    Float::round(x * 1e9) / 1e9
}

/// Like [`tidy`], but rounds to 12 significant digits, for numbers of any magnitude.
fn tidy_digits(x: f64) -> f64 {
    let exponent = 11 - Float::floor(Float::log10(x)) as i32;
    match exponent {
        0.. => Float::round(x * Float::powi(10.0, exponent)) / Float::powi(10.0, exponent),
        _ => Float::round(x / Float::powi(10.0, -exponent)) * Float::powi(10.0, -exponent),
    }
}

/// The metric that turns a squared error into an error of the table.
///
/// Planners add the errors of layers, and the sum should predict the effect on the loss. SGD's expected loss rises with
/// the squared norm of the step's error. The squared norms of layers add up to the squared norm of the whole gradient.
/// So [`SquaredL2`](Metric::SquaredL2) is the default. The L-GreCo paper adds [norms](Metric::L2). The square root
/// reduces the weight of large errors. So plans may accept a large error in one layer to reduce errors in many other
/// layers.
///
/// When a search has several methods, bias and noise must be treated differently. TopK and PowerSGD drop the same part
/// of a gradient on every worker. The mean over the workers lacks the dropped part completely; error feedback sends
/// this part later. QSGD's stochastic rounding and EDEN's rotation are independent between workers. So the mean of W
/// payloads has 1/W of the squared error of one payload. [`Search::workers`](super::Search::workers) is W, which
/// controllers set.
///
/// The experiment in docs/src/experiments/which-error.md trained two models with 48 random plans, and compared how well
/// each metric ranks the losses. In this experiment, the division by W matters. The square root makes no difference
/// beyond the variation between seeds. Weights for the delay of error feedback, 1/(1−r) or 1/(1−r)² for a relative
/// squared error r (Stich et al., NeurIPS 2018), make no difference beyond that variation either.
///
/// ```
/// use lgreco::search::Metric;
/// assert_eq!("squared-l2".parse(), Ok(Metric::SquaredL2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Metric {
    /// The L2 norm, as in the L-GreCo paper (MLSys 2024, §3).
    L2,
    /// The squared L2 norm, which adds up exactly over layers.
    SquaredL2,
}

impl Metric {
    /// The name used in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::L2 => "l2",
            Metric::SquaredL2 => "squared-l2",
        }
    }

    /// Converts a squared L2 error to this metric.
    pub fn error(self, squared: f64) -> f64 {
        match self {
            Metric::L2 => crate::num::sqrt(squared),
            Metric::SquaredL2 => squared,
        }
    }
}

/// Conversion of the squared error of one worker's payload into the error of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighing {
    pub metric: Metric,
    /// Number of averaged payloads, at least 1.
    pub workers: f64,
}

impl Weighing {
    /// The number by which averaging over the workers divides the squared error: `workers` for unbiased methods, else
    /// 1.
    fn averaged(self, setting: &Setting) -> f64 {
        if setting.is_unbiased() { self.workers } else { 1.0 }
    }

    /// The metric's name in tables.
    pub fn name(self) -> String {
        let metric = self.metric.name();
        if self.workers > 1.0 { format!("{metric} (mean of {} workers)", self.workers) } else { metric.into() }
    }

    pub fn error(self, setting: &Setting, squared: f64) -> f64 {
        self.metric.error(squared / self.averaged(setting))
    }

    /// The inverse of [`error`](Weighing::error).
    pub fn squared(self, setting: &Setting, error: f64) -> f64 {
        let squared = match self.metric {
            Metric::L2 => error * error,
            Metric::SquaredL2 => error,
        };
        squared * self.averaged(setting)
    }
}

impl FromStr for Metric {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let unknown = Error::UnknownName { what: "metric", expected: "l2 or squared-l2" };
        [Metric::L2, Metric::SquaredL2].into_iter().find(|m| m.name() == name).ok_or(unknown)
    }
}

/// The number format of TopK's kept values.
///
/// ```
/// use lgreco::search::Width;
/// assert_eq!(("full".parse(), "4".parse()), (Ok(Width::Full), Ok(Width::Bits(4))));
/// assert!("0".parse::<Width>().is_err() && "16".parse::<Width>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The gradient's element type.
    Full,
    /// 1 to 8 bits, including the sign.
    Bits(u8),
}

impl FromStr for Width {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "full" => Ok(Width::Full),
            _ => match text.parse() {
                Ok(bits @ 1..=8) => Ok(Width::Bits(bits)),
                _ => Err(Error::UnknownName { what: "width", expected: "full or bits per kept value, 1 to 8" }),
            },
        }
    }
}

/// The widths in which TopK's densities are offered. If TopK is the first method of a search, its default density is
/// always offered with full values, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Widths {
    full: bool,
    /// Bit i is set for a width of i bits.
    bits: u16,
}

impl Widths {
    pub(super) const FULL: Widths = Widths { full: true, bits: 0 };

    /// The widths as a word with one bit per width. Bit 0 is set for full values.
    pub(super) fn word(self) -> u64 {
        u64::from(self.full) | u64::from(self.bits)
    }

    pub(super) fn new(widths: &[Width]) -> Result<Widths> {
        let mut found = Widths { full: false, bits: 0 };
        for &width in widths {
            match width {
                Width::Full => found.full = true,
                Width::Bits(bits @ 1..=8) => found.bits |= 1 << bits,
                Width::Bits(bits) => {
                    let expected = "1 to 8";
                    return Err(Error::Parameter { what: "bits per kept value", value: bits.into(), expected });
                }
            }
        }
        if widths.is_empty() {
            return Err(Error::Length { what: "widths of kept values", expected: 1, found: 0 });
        }
        Ok(found)
    }

    /// Whether every density is offered with full values. If not, only the default density may have full values.
    pub(super) fn full(self) -> bool {
        self.full
    }

    /// The widths in bits, in descending order.
    pub(super) fn bits(self) -> Vec<u8> {
        (1..=8).rev().filter(|&bits| self.bits >> bits & 1 == 1).collect()
    }
}

/// Parameters `first`, `first + step`, … up to `last`, in the method's unit.
///
/// ```
/// use lgreco::search::{Method, Range, Search};
/// let every_third = Range { first: 1.0, last: 8.0, step: 3.0 };
/// # use lgreco::{backend::Portable, gradient::Values, search::Layer};
/// # let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
/// # let model = [Layer::new("weight", &[64, 64], Values::F32(&weight))?];
/// let table = Search::new(Method::PowerSgd).with_range(every_third)?.measure(&model, &mut Portable)?.table;
/// assert_eq!(table.labels(0), ["powersgd 1", "powersgd 4", "powersgd 7"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The smallest parameter.
    pub first: f64,
    /// The end of the range. If a whole number of steps leads from `first` to `last`, `last` is itself a parameter.
    pub last: f64,
    /// The step, above 0.
    pub step: f64,
}

/// One method with its default parameter and the range around it. The method is never [`Method::Hybrid`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Family {
    pub method: Method,
    pub default: f64,
    pub range: Range,
    /// The widths of TopK's values. Other methods have the full width.
    pub widths: Widths,
}

/// Largest number of parameters that one method may offer per layer.
pub const MAX_OPTIONS: usize = 10_000;

impl Family {
    pub(super) fn of(method: Method) -> Self {
        Family::new(method, method.planned().default)
    }

    /// The method with its range around `default`.
    ///
    /// QSGD, TopK and PowerSGD have the ranges of L-GreCo §4. For a default D, bits and ranks have the range [D/2, 2D]
    /// with step 1, and densities have [D/10, 10 D] with step D/10. EDEN's range is 1 to 8 bits. Ranges end at the
    /// method's bounds. If a step of 1 gives more than [`MAX_OPTIONS`] whole parameters, the step is the smallest one
    /// that gives at most [`MAX_OPTIONS`].
    pub(super) fn new(method: Method, default: f64) -> Self {
        let planned = method.planned();
        let [below, above, steps] = planned.around;
        let (mut first, last, mut step) = (default / below, (default * above).min(planned.bounds[1]), default / steps);
        if planned.unit == Unit::Whole {
            first = Float::ceil(first);
            let smallest = Float::ceil((last - first + 1.0) / (MAX_OPTIONS - 1) as f64);
            step = Float::ceil(step).max(smallest);
        }
        Family { method, default, range: Range { first, last, step }, widths: Widths::FULL }
    }

    pub(super) fn checked(method: Method, default: f64, range: Option<Range>) -> Result<Self> {
        check_parameter(method, "default", default)?;
        let mut family = Family::new(method, default);
        if let Some(range) = range {
            check_parameter(method, "start of the range", range.first)?;
            check_parameter(method, "end of the range", range.last)?;
            let Range { first, last, step } = range;
            Error::require(first <= last, "end of the range", last, "not below its start")?;
            let require = |holds, expected| Error::require(holds, "step of the range", step, expected);
            require(step > 0.0 && step.is_finite(), "a finite number above 0")?;
            require(method.planned().unit != Unit::Whole || Float::fract(step) == 0.0, "a whole number")?;
            require((last - first) / step < MAX_OPTIONS as f64, "at most 10000 options")?;
            family.range = range;
            require(family.parameters().len() <= MAX_OPTIONS, "at most 10000 options with the default")?;
        }
        Ok(family)
    }

    /// The method after the part `done` of a ramp. The method's default is then between `first` and the final default.
    /// A range that was derived from the default moves with the default.
    pub(super) fn ramped(&self, first: f64, done: f64) -> Result<Self> {
        check_parameter(self.method, "first default", first)?;
        let at = Float::powf(first, 1.0 - done) * Float::powf(self.default, done);
        let Planned { unit, bounds: [least, most], .. } = *self.method.planned();
        let at = if unit == Unit::Whole { Float::round(at) } else { at.clamp(least, most) };
        let own = self.range == Family::new(self.method, self.default).range;
        Family::checked(self.method, at, (!own).then_some(self.range))
    }

    /// The candidate parameters in ascending order, including the default.
    pub(super) fn parameters(&self) -> Vec<f64> {
        let Range { first, last, step } = self.range;
        let steps = Float::floor((last - first) / step + 1e-9) as usize;
        let tidied = |parameter: f64| match self.method.planned().unit {
            Unit::Real => tidy_digits(parameter),
            _ => tidy(parameter * 100.0) / 100.0,
        };
        let mut parameters: Vec<f64> = (0..=steps).map(|i| tidied(first + i as f64 * step)).collect();
        if !parameters.iter().any(|&p| (p - self.default).abs() <= 1e-9 * self.default) {
            let at = parameters.partition_point(|&p| p < self.default);
            parameters.insert(at, self.default);
        }
        parameters
    }
}

fn check_parameter(method: Method, what: &'static str, value: f64) -> Result<()> {
    let Planned { unit, bounds: [least, most], expected, .. } = *method.planned();
    let whole = unit != Unit::Whole || Float::fract(value) == 0.0;
    Error::require(whole && (least..=most).contains(&value), what, value, expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn ramps_end_at_the_default_and_take_the_range_along() {
        let top = Family::new(Method::TopK, 0.01);
        assert_eq!((top.ramped(0.25, 0.0), top.ramped(0.25, 1.0)), (Ok(Family::new(Method::TopK, 0.25)), Ok(top)));
        let densities = [0.25, 0.5, 0.75].map(|done| top.ramped(0.16, done).unwrap().default);
        assert!(densities.iter().zip([0.08, 0.04, 0.02]).all(|(found, expected)| (found - expected).abs() < 1e-12));
        let rank = Family::new(Method::PowerSgd, 2.0);
        let ranks = [0.0, 0.25, 0.5, 0.75, 1.0].map(|done| rank.ramped(16.0, done).unwrap());
        assert_eq!(ranks, [16.0, 10.0, 6.0, 3.0, 2.0].map(|rank| Family::new(Method::PowerSgd, rank)));
        let range = Range { first: 1.0, last: 3.0, step: 1.0 };
        let given = Family::checked(Method::Qsgd, 2.0, Some(range)).unwrap();
        let ramped = given.ramped(8.0, 0.5).unwrap();
        assert_eq!((ramped.default, ramped.parameters()), (4.0, [1.0, 2.0, 3.0, 4.0].into()));
        assert!(rank.ramped(0.0, 0.5).is_err() && rank.ramped(2.5, 0.5).is_err() && top.ramped(f64::NAN, 0.5).is_err());
    }

    #[test]
    fn published_ranges() {
        let of = |method, default| Family::new(method, default).parameters();
        assert_eq!(of(Method::Qsgd, 4.0), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(of(Method::PowerSgd, 4.0), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        for method in [Method::Qsgd, Method::PowerSgd] {
            assert_eq!(of(method, 3.0), [2.0, 3.0, 4.0, 5.0, 6.0]);
            assert_eq!(of(method, 1.0), [1.0, 2.0]);
        }
        // Thresholds may be tiny or huge, so they are rounded to significant digits.
        let magnitudes = |scale: f64| of(Method::HardThreshold, scale).iter().map(|x| x / scale).collect::<Vec<_>>();
        for scale in [1e-30, 1e-12, 1e-3, 1.0, 1e30] {
            let (found, usual) = (magnitudes(scale), magnitudes(0.01));
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
            assert!(found.len() == usual.len() && found.iter().zip(&usual).all(close), "{scale}: {found:?}");
        }
        let densities = of(Method::TopK, 0.01);
        assert_eq!((densities.len(), densities[0], densities[9], densities[99]), (100, 0.001, 0.01, 0.1));
        assert_eq!(Method::TopK.label(densities[2]).to_string(), "topk 0.3%");
    }

    #[test]
    fn no_range_is_too_long_or_leaves_the_method() {
        for default in [65536.0, 65535.0, 40000.0, 6668.0, 6667.0, 6666.0, 6665.0] {
            let family = Family::checked(Method::PowerSgd, default, None).unwrap();
            let ranks = family.parameters();
            assert!(ranks.len() <= MAX_OPTIONS && ranks.contains(&default), "{default}: {}", ranks.len());
            assert!(ranks[0] >= default / 2.0 && ranks.iter().all(|&rank| rank <= 65536.0));
        }
        let smallest = Family::checked(Method::TopK, Method::TopK.planned().bounds[0], None).unwrap().parameters();
        assert!(smallest.iter().all(|&density| density > 0.0));
        let full = Range { first: 1.0, last: 19999.0, step: 2.0 };
        assert_eq!(Family::checked(Method::PowerSgd, 3.0, Some(full)).unwrap().parameters().len(), MAX_OPTIONS);
        assert!(Family::checked(Method::PowerSgd, 4.0, Some(full)).is_err());
    }

    #[test]
    fn the_default_is_always_offered() {
        let range = Range { first: 2.0, last: 8.0, step: 2.0 };
        let family = Family::checked(Method::Qsgd, 5.0, Some(range)).unwrap();
        assert_eq!(family.parameters(), [2.0, 4.0, 5.0, 6.0, 8.0]);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        for (method, value) in [
            (Method::Qsgd, 9.0),
            (Method::Qsgd, 2.5),
            (Method::TopK, 0.0),
            (Method::TopK, 1.5),
            (Method::TopK, 1e-12),
            (Method::TopK, 2e-10),
            (Method::PowerSgd, f64::NAN),
        ] {
            assert!(matches!(Family::checked(method, value, None), Err(Error::Parameter { .. })), "{method:?} {value}");
        }
        let endless = Range { first: 0.001, last: 1.0, step: 1e-9 };
        assert!(Family::checked(Method::TopK, 0.01, Some(endless)).is_err());
    }
}
