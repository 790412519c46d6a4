//! lgreco's own methods: the one list of them. All that is particular to a method is in its folder.
//!
//! `Setting` is an enum of the methods' structs, not `(id, parameters)` with an object behind it: code that selects a GPU kernel or
//! PowerSGD's factors has the fields by name, and a copy needs no lookup. `Setting::data` is the same as an id and four numbers.

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
use super::sidco::Sidco;
use super::topk::TopK;
use super::{adacomp, clt, eden, hard_threshold, loco, powersgd, qsgd, quantised_topk, sidco, topk};
use lgreco_core::method::OwnSetting;

macro_rules! methods {
    ($(#[$of_setting:meta])* Setting { $($(#[$of_method:meta])* $name:ident($settings:ty) $module:ident;)* }) => {
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

        /// How settings are read.
        pub(super) static METHODS: &[Known] = &[dense::KNOWN, $($module::KNOWN,)*];
    };
}

methods! {
    /// One compressor with its parameters: what a plan gives each layer.
    ///
    /// # As text
    /// A setting is written as one line of text ([`Display`](core::fmt::Display)) and read from it
    /// ([`FromStr`](core::str::FromStr)), neither of which allocates. A text that is read gives the setting that was
    /// written, bit for bit. The method and its first number come first; the words after it may stand in any order, are
    /// written only where they are not the default, and may be read all the same:
    ///
    /// | text | may go on with | default |
    /// |---|---|---|
    /// | `dense` | | |
    /// | `qsgd BITS` | `bucket ELEMENTS`, `max-norm` or `min-max`, `stochastic` or `nearest` | `bucket 512 max-norm stochastic` |
    /// | `eden BITS` | `unbiased` or `least-squares` | `unbiased` |
    /// | `topk ELEMENTS` | `f32`, `f16` or `bf16`: the type of the values sent; or `bits NUMBER`, 1 to 8: a sign and a bin | `f32` |
    /// | `powersgd RANK` | `iterations NUMBER` | `iterations 1` |
    /// | `clt-k ELEMENTS` | | |
    /// | `hard-threshold MAGNITUDE` | `f32`, `f16` or `bf16` | `f32` |
    /// | `adacomp ELEMENTS` (per bin) | | |
    /// | `loco ELEMENTS` (per group) | | |
    /// | `sidco DENSITY` | `exponential`, `gamma-pareto` or `pareto`, `stages NUMBER`, `f32`, `f16` or `bf16` | `exponential stages 1 f32` |
    ///
    /// Reading fails with [`SettingWord`](crate::Error::SettingWord) on a word that is not known there, [`SettingSyntax`](crate::Error::SettingSyntax) where another
    /// word or a number is expected or a parameter is there twice, and [`Parameter`](crate::Error::Parameter) outside of a parameter's range.
    /// Whether as many elements can be kept as `topk` and `clt-k` say, the layer decides
    /// ([`payload_len`](crate::Compressor::payload_len)).
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
        /// Quantised.
        Qsgd(Qsgd) qsgd;
        /// Quantised after a rotation.
        Eden(Eden) eden;
        /// Sparsified.
        TopK(TopK) topk;
        /// Sparsified, the values in a few bits.
        QuantisedTopK(QuantisedTopK) quantised_topk;
        /// Low rank.
        PowerSgd(PowerSgd) powersgd;
        /// Sparsified at positions that all workers share.
        CltK(CltK) clt;
        /// Sparsified by magnitude, as many elements as there are.
        HardThreshold(HardThreshold) hard_threshold;
        /// What stands out of its bin, as plus or minus one magnitude.
        AdaComp(AdaComp) adacomp;
        /// Quantised to 4 bits, to nearest.
        LoCo(LoCo) loco;
        /// Sparsified by an estimated magnitude.
        Sidco(Sidco) sidco;
    }
}

/// How payloads are read.
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
