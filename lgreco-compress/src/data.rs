//! Settings as numbers: a method's id and four parameters, for messages, saved states and fingerprints.

use super::Setting;
use super::registry::METHODS;
use crate::{Error, Result};
use lgreco_core::method::{FIRST_ID, Methods, OwnSetting, Parameters};

impl Setting {
    /// Id of the method and its parameters. The id is the one in payload headers, with three exceptions. CLT-k (7),
    /// hard threshold (8) and SIDCo (9) send TopK's payloads, but have separate ids.
    ///
    /// ```
    /// use lgreco_compress::{Setting, qsgd::Qsgd};
    /// let setting = Setting::Qsgd(Qsgd { bits: 3, bucket: 128, ..Qsgd::default() });
    /// assert_eq!(setting.data(), (1, [3, 128, 0, 1]));
    /// ```
    pub fn data(&self) -> (u8, Parameters) {
        (self.described().id(), self.described().parameters())
    }

    /// Makes the setting with exactly this [`data`](Setting::data).
    ///
    /// # Errors
    /// [`Error::UnknownMethod`] for an id that is neither lgreco's nor one of `methods`. [`Error::Parameter`] for
    /// numbers that no setting has.
    pub fn from_data(id: u8, parameters: Parameters, methods: &Methods) -> Result<Setting> {
        let unknown = Error::UnknownMethod { id };
        let setting = if id >= FIRST_ID {
            Setting::Own(OwnSetting::new(methods.find(id).ok_or(unknown)?, parameters)?)
        } else {
            let known = METHODS.iter().find(|known| known.id == id).ok_or(unknown)?;
            (known.from_parameters)(parameters)?
        };
        setting.check()?;
        // Refuses numbers that no setting writes, such as values of unused parameters.
        let (_, expected) = setting.data();
        let same = expected == parameters;
        let odd = expected.iter().zip(&parameters).find(|(expected, found)| expected != found);
        let value = odd.map_or(0.0, |(_, &found)| found.into());
        Error::require(same, "parameter of a setting", value, "one that the method has").map(|()| setting)
    }

    /// The part of [`data`](Setting::data) that must be equal on all ranks so that they can decode each other's
    /// payloads. This part leaves out EDEN's scale, PowerSGD's iterations and SIDCo's stages, which each rank may
    /// choose for itself.
    pub fn agreed(&self) -> (u8, Parameters) {
        (self.described().id(), self.described().agreed())
    }
}
