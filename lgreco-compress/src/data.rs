//! Settings as numbers: a method's id and four parameters, for messages, saved states and fingerprints.

use super::Setting;
use super::registry::METHODS;
use crate::{Error, Result};
use lgreco_core::method::{FIRST_ID, Methods, OwnSetting, Parameters};

impl Setting {
    /// The method's id and its parameters: as in a payload's header, and for methods whose payloads are TopK's, 7 (CLT-k),
    /// 8 (hard thresholds) and 9 (SIDCo).
    ///
    /// ```
    /// use lgreco_compress::{Setting, qsgd::Qsgd};
    /// let setting = Setting::Qsgd(Qsgd { bits: 3, bucket: 128, ..Qsgd::default() });
    /// assert_eq!(setting.data(), (1, [3, 128, 0, 1]));
    /// ```
    pub fn data(&self) -> (u8, Parameters) {
        (self.described().id(), self.described().parameters())
    }

    /// The setting that has exactly this [`data`](Setting::data).
    ///
    /// # Errors
    /// [`Error::UnknownMethod`] for an id that neither lgreco nor `methods` have; [`Error::Parameter`] for numbers that are
    /// not a setting's.
    pub fn from_data(id: u8, parameters: Parameters, methods: &Methods) -> Result<Setting> {
        let unknown = Error::UnknownMethod { id };
        let setting = if id >= FIRST_ID {
            Setting::Own(OwnSetting::new(methods.find(id).ok_or(unknown)?, parameters)?)
        } else {
            let known = METHODS.iter().find(|known| known.id == id).ok_or(unknown)?;
            (known.from_parameters)(parameters)?
        };
        setting.check()?;
        // Whatever else is in the numbers was written by nobody.
        let (_, expected) = setting.data();
        let same = expected == parameters;
        let odd = expected.iter().zip(&parameters).find(|(expected, found)| expected != found);
        let value = odd.map_or(0.0, |(_, &found)| found.into());
        Error::require(same, "parameter of a setting", value, "one that the method has").map(|()| setting)
    }

    /// What of [`data`](Setting::data) all ranks must have alike to decode each other's payloads: not PowerSGD's iterations,
    /// nor SIDCo's stages, of which each rank has its own number.
    pub fn agreed(&self) -> (u8, Parameters) {
        (self.described().id(), self.described().agreed())
    }
}
