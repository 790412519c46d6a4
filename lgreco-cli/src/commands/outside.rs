//! Reads tables with settings of compressors from outside lgreco. A solver needs only the sizes and errors in a table.

use lgreco::compress::method::{Method, Methods, Parameters, RESERVED};
use lgreco::file::{Error, TableFile};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::rng::Stream;
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads a table. Settings whose first word is not a method of lgreco are kept as text.
pub fn read(json: &[u8]) -> Result<TableFile, Error> {
    TableFile::parse(json).or_else(|error| match error {
        Error::Setting { .. } => TableFile::parse_with(json, &methods(json).ok_or(error)?),
        error => Err(error),
    })
}

/// A method that this program knows by name only. It cannot compress.
#[derive(Debug)]
struct Outside {
    id: u8,
    name: &'static str,
    /// For each parameter, whether some setting gives it a value that is not a whole number.
    floats: Vec<bool>,
}

impl Method for Outside {
    fn id(&self) -> u8 {
        self.id
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn parameters(&self) -> usize {
        self.floats.len()
    }

    fn is_float(&self, index: usize) -> bool {
        self.floats.get(index).is_some_and(|&is_float| is_float)
    }

    fn body_len(&self, _: &Parameters, _: Shape, _: Dtype) -> Result<usize, lgreco::Error> {
        Err(UNKNOWN)
    }

    fn encode(
        &self,
        _: &Parameters,
        _: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        _: &mut [u8],
    ) -> Result<usize, lgreco::Error> {
        Err(UNKNOWN)
    }

    fn decode(&self, _: &Parameters, _: Shape, _: &[u8], _: &mut [f32]) -> Result<(), lgreco::Error> {
        Err(UNKNOWN)
    }
}

const UNKNOWN: lgreco::Error = lgreco::Error::UnknownName { what: "method", expected: "one of lgreco's" };

/// Returns the methods from outside lgreco in a table's settings. Returns `None` if the table has no such methods or
/// too many, or if a name is not allowed. The methods are never freed, because settings refer to them. This leak is
/// small, because a command reads only one table.
fn methods(json: &[u8]) -> Option<Methods> {
    let table: Value = serde_json::from_slice(json).ok()?;
    let layers = table["layers"].as_array()?.iter();
    let options = layers.filter_map(|layer| layer["options"].as_array()).flatten();
    let mut found: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for setting in options.filter_map(|option| option["setting"].as_str()) {
        let mut words = setting.split_ascii_whitespace();
        let Some(name) = words.next().filter(|name| !RESERVED.contains(name)) else { continue };
        let floats = found.entry(name).or_default();
        for (index, word) in words.enumerate() {
            let is_float = word.parse::<u32>().is_err();
            match floats.get_mut(index) {
                Some(known) => *known |= is_float,
                None => floats.push(is_float),
            }
        }
    }
    let of = |((name, floats), id): ((&str, Vec<bool>), u8)| -> &'static dyn Method {
        Box::leak(Box::new(Outside { id, name: name.to_owned().leak(), floats }))
    };
    let count = found.len();
    let all: Vec<_> = found.into_iter().zip(lgreco::compress::method::FIRST_ID..=u8::MAX).map(of).collect();
    (count > 0 && all.len() == count).then(|| Methods::new(all.leak()).ok()).flatten()
}
