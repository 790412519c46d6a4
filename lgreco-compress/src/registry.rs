//! The list of lgreco's own methods. Everything specific to a method is in its folder.
//!
//! `Setting` is an enum of the methods' structs, not a method's id with four numbers. So code that selects a GPU kernel
//! or PowerSGD's factors can read the fields by name, and needs no lookup of the method. `Setting::data` converts a
//! setting to an id and four numbers.

use super::adacomp::AdaComp;
use super::clt::CltK;
use super::dense::{self, Dense};
use super::describe::{Described, Known, Reader};
use super::eden::Eden;
use super::hard_threshold::HardThreshold;
use super::loco::LoCo;
use super::powersgd::PowerSgd;
use super::qsgd::Qsgd;
use super::quantised_topk::QuantisedTopK;
use super::searched::searched;
use super::sidco::Sidco;
use super::topk::TopK;
use super::wire::{Method as Format, Payload};
use super::{adacomp, clt, eden, hard_threshold, loco, powersgd, qsgd, quantised_topk, sidco, topk};
use crate::Error;
use lgreco_core::method::OwnSetting;

/// One line per method: doc comment, name, type of the settings, and module. If searches can vary a parameter of the
/// method (`PLANNED` in the module), the parameter's doc comment follows.
macro_rules! methods {
    (
        $(#[$of_setting:meta])* Setting {
            $($(#[$of_method:meta])* $name:ident($settings:ty) $module:ident $(, $searched:literal)?;)*
        }
    ) => {
        $(#[$of_setting])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Setting {
            /// Uncompressed.
            Dense,
            $($(#[$of_method])* $name($settings),)*
            /// A method from outside lgreco.
            Own(OwnSetting),
        }

        impl Setting {
            pub(super) fn described(&self) -> &dyn Described {
                match self {
                    Setting::Dense => &Dense,
                    $(Setting::$name(settings) => settings,)*
                    Setting::Own(settings) => settings,
                }
            }
        }

        /// Readers of settings, one per method.
        pub(super) static METHODS: &[Known] = &[dense::KNOWN, $($module::KNOWN,)*];

        searched! { $($(#[doc = $searched] $name $module;)?)* }
    };
}

methods! {
    /// A compressor with all its parameters. A plan gives each layer one setting.
    ///
    /// # As text
    /// A setting is written as one line of text ([`Display`](core::fmt::Display)) and parsed from it
    /// ([`FromStr`](core::str::FromStr)). Neither allocates. Parsing returns exactly the setting that was written, bit
    /// for bit. A text begins with the method and its first number. Options follow in any order. Options with default
    /// values are not written, but may be given:
    ///
    /// | text | options | defaults |
    /// |---|---|---|
    /// | `dense` | | |
    /// | `qsgd BITS` | `bucket ELEMENTS`, `max-norm` or `min-max`, `stochastic` or `nearest` | `bucket 512 max-norm stochastic` |
    /// | `eden BITS` | `unbiased` or `least-squares` | `unbiased` |
    /// | `topk ELEMENTS` | `f32`, `f16` or `bf16`: type of the sent values; or `bits NUMBER`, 1 to 8: sign and bin | `f32` |
    /// | `powersgd RANK` | `iterations NUMBER` | `iterations 1` |
    /// | `clt-k ELEMENTS` | | |
    /// | `hard-threshold MAGNITUDE` | `f32`, `f16` or `bf16` | `f32` |
    /// | `adacomp ELEMENTS` (per bin) | | |
    /// | `loco ELEMENTS` (per group) | | |
    /// | `sidco DENSITY` | `exponential`, `gamma-pareto` or `pareto`, `stages NUMBER`, `f32`, `f16` or `bf16` | `exponential stages 1 f32` |
    ///
    /// Parsing fails with [`SettingWord`](crate::Error::SettingWord) on an unknown word. Parsing fails with
    /// [`SettingSyntax`](crate::Error::SettingSyntax) when another word or a number is expected, or when a parameter is
    /// repeated. Parsing fails with [`Parameter`](crate::Error::Parameter) when a parameter is out of range. How many
    /// elements `topk` and `clt-k` can keep depends on the layer; [`payload_len`](crate::Compressor::payload_len)
    /// checks this limit.
    ///
    /// ```
    /// use lgreco_compress::{Setting, qsgd::{Qsgd, Scale}};
    /// let setting = Setting::Qsgd(Qsgd { bits: 4, bucket: 128, scale: Scale::MinMax, ..Qsgd::default() });
    /// assert_eq!(setting.to_string(), "qsgd 4 bucket 128 min-max");
    /// assert_eq!("qsgd 4 min-max bucket 128 stochastic".parse(), Ok(setting));
    /// let misspelt = "qsgd 4 buckt 128".parse::<Setting>().unwrap_err();
    /// assert_eq!(misspelt.to_string(), "setting: `buckt` is unknown: is `bucket` meant?");
    /// ```
    ///
    /// # Example
    /// ```
    /// use lgreco_compress::{Compressor, Setting, decode, topk::TopK};
    /// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
    /// use lgreco_core::rng::Stream;
    /// let values = [0.1f32, -3.0, 0.2, 2.0];
    /// let gradient = Gradient::new(Values::F32(&values), Shape::new(4, 1)?)?;
    /// let setting = Setting::TopK(TopK { keep: 2, values: Dtype::F32 });
    /// let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
    /// let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32)?];
    /// setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
    /// let mut decoded = [0.0; 4];
    /// decode(&payload, &mut decoded)?;
    /// assert_eq!(decoded, [0.0, -3.0, 0.0, 2.0]);
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    Setting {
        /// Quantised (QSGD).
        Qsgd(Qsgd) qsgd, "Quantisation; the parameter is bits per element, 1 to 8.";
        /// Quantised after a rotation (EDEN).
        Eden(Eden) eden, "Quantisation after a rotation; the parameter is bits per element, 1 to 8.";
        /// Sparsified to the k largest magnitudes.
        TopK(TopK) topk, "Sparsification; the parameter is the density, from 2^-32 to 1.";
        /// Sparsified to the k largest magnitudes, with values in a few bits.
        QuantisedTopK(QuantisedTopK) quantised_topk;
        /// Low rank (PowerSGD).
        PowerSgd(PowerSgd) powersgd, "Low rank; the parameter is the rank, 1 to 65536.";
        /// Sparsified at positions that all workers share (CLT-k).
        CltK(CltK) clt, "Sparsification at positions that all workers share; the parameter is the density.";
        /// Sparsified: sends every element whose magnitude reaches a threshold.
        HardThreshold(HardThreshold) hard_threshold,
            "Sparsification by magnitude; the parameter is the least magnitude sent, above 0.";
        /// Sparsified: sends elements that stand out in their bin, as plus or minus one magnitude (AdaComp).
        AdaComp(AdaComp) adacomp,
            "Sparsification to elements that stand out of their bin; the parameter is elements per bin, 1 to 2^24.";
        /// Quantised to 4 bits, rounded to nearest (LoCo).
        LoCo(LoCo) loco, "Quantisation to 4 bits, rounded to nearest; the parameter is elements per group, 1 to 2^24.";
        /// Sparsified by an estimated threshold (SIDCo).
        Sidco(Sidco) sidco, "Sparsification by an estimated magnitude; the parameter is the density.";
    }
}

/// Readers of payloads, one per payload format.
pub(super) static READERS: &[Reader] = &[
    dense::READER,
    qsgd::READER,
    topk::READER,
    powersgd::READER,
    adacomp::READER,
    loco::READER,
    quantised_topk::READER,
    eden::READER,
];

/// The reader of payloads of one of lgreco's own methods.
pub(super) fn reader(method: Format) -> Result<&'static Reader, Error> {
    READERS.iter().find(|reader| reader.method == method).ok_or(Error::UnknownMethod { id: method.id() })
}

/// Decodes a parsed payload of one of lgreco's own methods, like [`decode`](crate::decode()).
pub fn decode_parsed(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    (reader(payload.header.method)?.decode)(payload, values)
}
