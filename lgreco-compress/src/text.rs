//! Writes settings as text and parses them. [`Setting`] documents the syntax.

use super::Setting;
use super::registry::METHODS;
use super::words::{Words, unknown, wrong};
use crate::{Error, Result};
use core::fmt;
use core::str::FromStr;
use lgreco_core::method::{Methods, RESERVED};

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.described().write(f)
    }
}

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Setting> {
        Setting::parse(text, &Methods::NONE)
    }
}

impl Setting {
    /// Parses a setting of one of lgreco's methods or of the outside `methods`.
    ///
    /// # Errors
    /// The errors listed at [`Setting`], and the errors of [`Methods::parse`].
    pub fn parse(text: &str, methods: &Methods) -> Result<Setting> {
        if let Some(own) = methods.parse(text)? {
            return Ok(Setting::Own(own));
        }
        let mut words = Words(text.split_ascii_whitespace());
        let name = words.0.next().unwrap_or_default();
        let setting = match METHODS.iter().find_map(|known| known.read.filter(|_| known.name == name)) {
            Some(read) => read(&mut words)?,
            None if name.is_empty() => return Err(wrong("", "a method, such as dense or qsgd")),
            None => return Err(unknown(name, &RESERVED)),
        };
        setting.check()?;
        Ok(setting)
    }
}
