//! Objects read field by field, so that errors name the place.

use super::Error;
use alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A JSON object whose values are read one by one.
pub(super) struct Object<'a> {
    place: String,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> Object<'a> {
    pub(super) fn parse(place: String, json: &'a str) -> Result<Object<'a>, Error> {
        match serde_json::from_str(json) {
            Ok(fields) => Ok(Object { place, fields }),
            Err(error) => Err(Error::Json { place, what: error.to_string() }),
        }
    }

    /// A field that must be there.
    pub(super) fn required<T: Deserialize<'a>>(&self, field: &'static str, expected: &'static str) -> Result<T, Error> {
        let json = self.fields.get(field).map(|value| value.get());
        json.and_then(|json| serde_json::from_str(json).ok()).ok_or_else(|| self.wrong(field, expected))
    }

    /// A field that may be missing or null.
    pub(super) fn optional<T: Deserialize<'a>>(
        &self,
        field: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, Error> {
        match self.fields.get(field) {
            None => Ok(None),
            Some(_) => self.required(field, expected),
        }
    }

    /// The elements of an array field.
    pub(super) fn array(&self, field: &'static str) -> Result<Vec<&'a str>, Error> {
        let elements: Vec<&RawValue> = self.required(field, "an array")?;
        Ok(elements.into_iter().map(RawValue::get).collect())
    }

    pub(super) fn wrong(&self, field: &'static str, expected: &'static str) -> Error {
        const LONGEST: usize = 40;
        let found = match self.fields.get(field).map(|value| value.get()) {
            None => "missing".to_owned(),
            Some(json) if json.chars().count() <= LONGEST => json.to_owned(),
            Some(json) => format!("{}…", json.chars().take(LONGEST).collect::<String>()),
        };
        Error::Field { place: self.place.clone(), field, expected, found }
    }
}
