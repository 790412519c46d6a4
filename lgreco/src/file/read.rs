//! Reads JSON objects field by field, so that errors name the field.

use super::{Error, VERSION};
use crate::compress::Setting;
use crate::compress::method::Methods;
use crate::error::nearest;
use alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;
use serde::Serializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Description of a [`Count`] for error messages.
pub(super) const COUNT: &str = "an integer from 0 to 2^64 - 1";

/// Checks that the bytes of a file are UTF-8 text without a byte order mark.
pub(super) fn text(json: &[u8]) -> Result<&str, Error> {
    let wrong = |what| Error::Json { place: String::new(), what };
    let text = core::str::from_utf8(json).map_err(|error| wrong(format!("not UTF-8: {error}")))?;
    match text.starts_with('\u{feff}') {
        true => Err(wrong("a byte order mark in front: JSON has none".to_owned())),
        false => Ok(text),
    }
}

/// An integer of at least 0. As in JSON Schema, `3.0` and `1e3` are integers too. Integers with a point or an exponent
/// must be at most 2^53, because f64 cannot represent all larger integers.
pub(super) struct Count<T>(pub(super) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Count<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        count(deserializer).map(Count)
    }
}

/// For each kind of file: the kind's name for messages, and a mandatory field that the other kind lacks.
pub(super) const TABLE: (&str, &str) = ("a table", "metric");
pub(super) const PLAN: (&str, &str) = ("a plan", "solver");

/// Reads an integer as [`Count`] defines it.
pub(super) fn count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let count = deserializer.deserialize_u64(Integer)?;
    T::try_from(count).map_err(|_| D::Error::custom(format_args!("integer {count} is too large")))
}

/// Reads an integer as [`Count`] defines it, or null.
pub(super) fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Count<u64>>::deserialize(deserializer)?.map(|Count(count)| count))
}

/// Reads a setting as text, or null. The setting must belong to one of lgreco's own methods.
pub(super) fn optional_setting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Setting>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

/// Writes a setting as text.
pub(super) fn write_setting<S: Serializer>(setting: &Option<Setting>, serializer: S) -> Result<S::Ok, S::Error> {
    match setting {
        Some(setting) => serializer.collect_str(setting),
        None => serializer.serialize_none(),
    }
}

struct Integer;

impl Visitor<'_> for Integer {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(COUNT)
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<u64, E> {
        const LARGEST: f64 = (1u64 << 53) as f64;
        let integer = value as u64;
        if (0.0..=LARGEST).contains(&value) && integer as f64 == value {
            Ok(integer)
        } else {
            Err(E::invalid_value(serde::de::Unexpected::Float(value), &self))
        }
    }
}

/// A JSON object, whose fields are read one by one.
pub(super) struct Object<'a> {
    place: String,
    fields: BTreeMap<String, &'a RawValue>,
}

/// The fields of an object. Each key occurs once.
struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if fields.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("key `{key}` is there twice")));
                    }
                    fields.insert(key, map.next_value()?);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

impl<'a> Object<'a> {
    pub(super) fn parse(place: String, json: &'a str) -> Result<Object<'a>, Error> {
        match serde_json::from_str(json) {
            Ok(Fields(fields)) => Ok(Object { place, fields }),
            Err(error) => Err(Error::Json { place, what: error.to_string() }),
        }
    }

    /// Checks that the version is [`VERSION`].
    pub(super) fn version(&self) -> Result<(), Error> {
        match self.required("version", "1")? {
            Count(VERSION) => Ok(()),
            Count(found) => Err(Error::Version { found }),
        }
    }

    /// Rejects a file of the other kind. Such a file has the other kind's mandatory field `mark`, and lacks this kind's
    /// mandatory field `own`.
    pub(super) fn expect_kind(
        &self,
        (expected, own): (&'static str, &str),
        (found, mark): (&'static str, &str),
    ) -> Result<(), Error> {
        let is_other = self.fields.contains_key(mark) && !self.fields.contains_key(own);
        if is_other { Err(Error::Kind { found, expected }) } else { Ok(()) }
    }

    /// Rejects keys that are not `known` and do not begin with `x-`.
    pub(super) fn only(&self, known: &[&'static str]) -> Result<(), Error> {
        let unknown = |key: &&String| !known.contains(&key.as_str()) && !key.starts_with("x-");
        let Some(key) = self.fields.keys().find(unknown) else { return Ok(()) };
        Err(Error::Key { place: self.place.clone(), key: shortened(key), nearest: nearest(key, known) })
    }

    /// Reads a mandatory [`Count`].
    pub(super) fn count(&self, field: &'static str) -> Result<u64, Error> {
        self.required(field, COUNT).map(|Count(count)| count)
    }

    /// Reads a mandatory field.
    pub(super) fn required<T: Deserialize<'a>>(&self, field: &'static str, expected: &'static str) -> Result<T, Error> {
        let json = self.fields.get(field).map(|value| value.get());
        json.and_then(|json| serde_json::from_str(json).ok()).ok_or_else(|| self.wrong(field, expected))
    }

    /// Reads a field that may be missing or null.
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

    /// Reads a field that contains a setting as text. The field may be missing or null.
    pub(super) fn setting(&self, field: &'static str, methods: &Methods) -> Result<Option<Setting>, Error> {
        let text: Option<String> = self.optional(field, "a setting as text")?;
        let setting = text.map(|text| Setting::parse(&text, methods)).transpose();
        setting.map_err(|error| Error::Setting { place: self.place.clone(), error })
    }

    /// Reads a mandatory array, and returns the JSON of its elements.
    pub(super) fn array(&self, field: &'static str) -> Result<Vec<&'a str>, Error> {
        let elements: Vec<&RawValue> = self.required(field, "an array")?;
        Ok(elements.into_iter().map(RawValue::get).collect())
    }

    pub(super) fn wrong(&self, field: &'static str, expected: &'static str) -> Error {
        let found = self.fields.get(field).map_or("missing".to_owned(), |value| shortened(value.get()));
        Error::Field { place: self.place.clone(), field, expected, found }
    }
}

/// Cuts a text to the length that messages show.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 40;
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
