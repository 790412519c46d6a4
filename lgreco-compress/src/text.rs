//! Settings as text, written and read; [`Setting`] says how it reads.

use super::Setting;
use super::adacomp::AdaComp;
use super::clt::CltK;
use super::hard_threshold::HardThreshold;
use super::loco::LoCo;
use super::powersgd::PowerSgd;
use super::qsgd::{Qsgd, Rounding, Scale};
use super::quantised_topk::QuantisedTopK;
use super::sidco::{Fit, Sidco};
use super::topk::TopK;
use crate::error::{Number, Word};
use crate::gradient::Dtype;
use crate::{Error, Result};
use core::fmt;
use core::str::{FromStr, SplitAsciiWhitespace};
use lgreco_core::method::{Methods, RESERVED};

/// Power iterations that are not written: those of the published method.
const ITERATIONS: u32 = 1;
/// Stages of SIDCo that are not written.
const STAGES: u32 = 1;

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Setting::Dense => f.write_str("dense"),
            Setting::Qsgd(Qsgd { bits, bucket, scale, rounding }) => {
                write!(f, "qsgd {bits}")?;
                if bucket != Qsgd::default().bucket {
                    write!(f, " bucket {bucket}")?;
                }
                f.write_str(match scale {
                    Scale::MaxNorm => "",
                    Scale::MinMax => " min-max",
                })?;
                f.write_str(match rounding {
                    Rounding::Stochastic => "",
                    Rounding::Nearest => " nearest",
                })
            }
            Setting::TopK(TopK { keep, values }) => write!(f, "topk {keep}{}", sent_as(values)),
            Setting::QuantisedTopK(QuantisedTopK { keep, bits }) => write!(f, "topk {keep} bits {bits}"),
            Setting::PowerSgd(PowerSgd { rank, iterations: ITERATIONS }) => write!(f, "powersgd {rank}"),
            Setting::PowerSgd(PowerSgd { rank, iterations }) => write!(f, "powersgd {rank} iterations {iterations}"),
            Setting::CltK(CltK { keep }) => write!(f, "clt-k {keep}"),
            Setting::HardThreshold(HardThreshold { lambda, values }) => {
                write!(f, "hard-threshold {}{}", Number(&lambda), sent_as(values))
            }
            Setting::AdaComp(AdaComp { bin }) => write!(f, "adacomp {bin}"),
            Setting::LoCo(LoCo { group }) => write!(f, "loco {group}"),
            Setting::Own(own) => write!(f, "{own}"),
            Setting::Sidco(Sidco { density, fit, stages, values }) => {
                write!(f, "sidco {}", Number(&density))?;
                f.write_str(match fit {
                    Fit::Exponential => "",
                    Fit::GammaPareto => " gamma-pareto",
                    Fit::Pareto => " pareto",
                })?;
                if stages != STAGES {
                    write!(f, " stages {stages}")?;
                }
                f.write_str(sent_as(values))
            }
        }
    }
}

/// What is written of the type of the values sent.
const fn sent_as(values: Dtype) -> &'static str {
    match values {
        Dtype::F32 => "",
        Dtype::F16 => " f16",
        Dtype::Bf16 => " bf16",
    }
}

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Setting> {
        Setting::parse(text, &Methods::NONE)
    }
}

impl Setting {
    /// The setting that a text states, of lgreco's methods or of `methods`.
    ///
    /// # Errors
    /// As the type says, and as [`Methods::parse`].
    pub fn parse(text: &str, methods: &Methods) -> Result<Setting> {
        if let Some(own) = methods.parse(text)? {
            return Ok(Setting::Own(own));
        }
        let mut words = Words(text.split_ascii_whitespace());
        let setting = match words.0.next().unwrap_or_default() {
            "dense" => {
                words.end()?;
                Setting::Dense
            }
            "qsgd" => Setting::Qsgd(words.qsgd()?),
            "topk" => words.topk()?,
            "powersgd" => Setting::PowerSgd(words.powersgd()?),
            "clt-k" => Setting::CltK(CltK { keep: words.last("a number of elements")? }),
            "hard-threshold" => {
                Setting::HardThreshold(HardThreshold { lambda: words.number("a magnitude")?, values: words.values()? })
            }
            "adacomp" => Setting::AdaComp(AdaComp { bin: words.last("a number of elements per bin")? }),
            "loco" => Setting::LoCo(LoCo { group: words.last("a number of elements per group")? }),
            "sidco" => Setting::Sidco(words.sidco()?),
            "" => return Err(wrong("", "a method, such as dense or qsgd")),
            method => return Err(unknown(method, &RESERVED)),
        };
        setting.check()?;
        Ok(setting)
    }
}

/// What has not been read yet.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl Words<'_> {
    fn number<T: FromStr>(&mut self, expected: &'static str) -> Result<T> {
        let word = self.0.next().unwrap_or_default();
        word.parse().map_err(|_| wrong(word, expected))
    }

    fn end(&mut self) -> Result<()> {
        self.0.next().map_or(Ok(()), |word| Err(wrong(word, "the end")))
    }

    /// The only number of a method.
    fn last(&mut self, expected: &'static str) -> Result<u32> {
        let number = self.number(expected)?;
        self.end()?;
        Ok(number)
    }

    /// The options that follow, each of them known and at most once.
    fn options(&mut self, known: &'static [&'static str]) -> Result<Options> {
        let mut found = Options::default();
        while let Some(word) = self.0.next() {
            match word {
                _ if !known.contains(&word) => return Err(unknown(word, known)),
                "bucket" => once(word, &mut found.bucket, self.number("a number of elements per bucket")?)?,
                "max-norm" => once(word, &mut found.scale, Scale::MaxNorm)?,
                "min-max" => once(word, &mut found.scale, Scale::MinMax)?,
                "stochastic" => once(word, &mut found.rounding, Rounding::Stochastic)?,
                "nearest" => once(word, &mut found.rounding, Rounding::Nearest)?,
                "iterations" => once(word, &mut found.iterations, self.number("a number of power iterations")?)?,
                "exponential" => once(word, &mut found.fit, Fit::Exponential)?,
                "gamma-pareto" => once(word, &mut found.fit, Fit::GammaPareto)?,
                "pareto" => once(word, &mut found.fit, Fit::Pareto)?,
                "stages" => once(word, &mut found.stages, self.number("a number of stages")?)?,
                "bits" if found.values.is_none() => {
                    once(word, &mut found.bits, self.number("bits per kept value, 1 to 8")?)?
                }
                "f32" if found.bits.is_none() => once(word, &mut found.values, Dtype::F32)?,
                "f16" if found.bits.is_none() => once(word, &mut found.values, Dtype::F16)?,
                "bf16" if found.bits.is_none() => once(word, &mut found.values, Dtype::Bf16)?,
                _ => return Err(wrong(word, "a type or bits, not both")),
            }
        }
        Ok(found)
    }

    fn qsgd(&mut self) -> Result<Qsgd> {
        let bits = self.number("bits, 1 to 8")?;
        let Options { bucket, scale, rounding, .. } =
            self.options(&["bucket", "max-norm", "min-max", "stochastic", "nearest"])?;
        let bucket = bucket.unwrap_or(Qsgd::default().bucket);
        Ok(Qsgd { bits, bucket, scale: scale.unwrap_or_default(), rounding: rounding.unwrap_or_default() })
    }

    fn topk(&mut self) -> Result<Setting> {
        let keep = self.number("a number of elements")?;
        let Options { bits, values, .. } = self.options(&["bits", "f32", "f16", "bf16"])?;
        Ok(match bits {
            Some(bits) => Setting::QuantisedTopK(QuantisedTopK { keep, bits }),
            None => Setting::TopK(TopK { keep, values: values.unwrap_or(Dtype::F32) }),
        })
    }

    fn powersgd(&mut self) -> Result<PowerSgd> {
        let rank = self.number("a rank")?;
        Ok(PowerSgd { rank, iterations: self.options(&["iterations"])?.iterations.unwrap_or(ITERATIONS) })
    }

    fn sidco(&mut self) -> Result<Sidco> {
        let density = self.number("a density, in (0, 1]")?;
        let Options { fit, stages, values, .. } =
            self.options(&["exponential", "gamma-pareto", "pareto", "stages", "f32", "f16", "bf16"])?;
        let (fit, stages) = (fit.unwrap_or_default(), stages.unwrap_or(STAGES));
        Ok(Sidco { density, fit, stages, values: values.unwrap_or(Dtype::F32) })
    }

    /// The type of the values.
    fn values(&mut self) -> Result<Dtype> {
        Ok(self.options(&["f32", "f16", "bf16"])?.values.unwrap_or(Dtype::F32))
    }
}

/// Options of any method.
#[derive(Default)]
struct Options {
    bucket: Option<u32>,
    scale: Option<Scale>,
    rounding: Option<Rounding>,
    iterations: Option<u32>,
    fit: Option<Fit>,
    stages: Option<u32>,
    bits: Option<u8>,
    values: Option<Dtype>,
}

/// Sets a parameter that has not been set yet.
fn once<T>(word: &str, place: &mut Option<T>, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(wrong(word, "each parameter once")),
    }
}

fn wrong(word: &str, expected: &'static str) -> Error {
    Error::SettingSyntax { word: Word::new(word), expected }
}

/// A number where there should be none is near to no word.
fn unknown(word: &str, known: &'static [&'static str]) -> Error {
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        return wrong(word, "no further number");
    }
    Error::SettingWord { word: Word::new(word), known }
}
