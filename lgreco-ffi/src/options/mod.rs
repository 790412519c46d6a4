//! Options by name: a NULL-terminated array of texts, which are names and values in turn.
//!
//! Each function that takes options has a table of its options ([`Known`]). An entry has the name, the allowed values,
//! and the function that reads a value. The lists of options in the headers are made from these tables.

mod bucket;
mod compressor;
mod controller;
mod cut;
mod plan;
mod residual;
mod search;

use crate::failure::{Failure, Result};
use crate::pointers::text;
use core::ffi::c_char;
use core::str::FromStr;
use lgreco_train::feedback::Storage;
use lgreco_train::gradient::Dtype;

pub(crate) use {
    bucket::BucketOptions, compressor::CompressorOptions, controller::ControllerOptions, cut::CutOptions,
    plan::PlanOptions, search::SearchOptions,
};

/// An option that a function of the C API accepts.
pub(crate) struct Known<T> {
    name: &'static str,
    /// The allowed values, for messages.
    expected: &'static str,
    /// Meaning and default, for the headers.
    means: &'static str,
    read: fn(&mut T, &Value<'_>) -> Result<()>,
}

/// An option's value.
pub(crate) struct Value<'a> {
    name: &'static str,
    found: &'a str,
    expected: &'static str,
}

impl Value<'_> {
    /// Returns the error for a value that is not allowed.
    fn wrong(&self) -> Failure {
        Failure::OptionValue { name: self.name, found: self.found.into(), expected: self.expected }
    }

    /// Adds the option's name to an error from another part of the library.
    fn made<T, E: Into<Failure>>(&self, made: core::result::Result<T, E>) -> Result<T> {
        made.map_err(|error| {
            let (name, found) = (self.name, self.found.into());
            Failure::OfOption { name, found, failure: Box::new(error.into()) }
        })
    }

    fn number<N: FromStr>(&self) -> Result<N> {
        self.found.trim().parse().map_err(|_| self.wrong())
    }

    /// Parses numbers separated by commas.
    fn numbers<N: FromStr>(&self) -> Result<Vec<N>> {
        self.numbers_of(self.found)
    }

    fn numbers_of<N: FromStr>(&self, text: &str) -> Result<Vec<N>> {
        text.split(',').map(|number| number.trim().parse().map_err(|_| self.wrong())).collect()
    }

    fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let known = words.iter().find(|(word, _)| *word == self.found);
        known.map(|(_, value)| *value).ok_or_else(|| self.wrong())
    }

    fn truth(&self) -> Result<bool> {
        self.word(&[("true", true), ("false", false)])
    }

    /// Element type of sums over workers.
    fn reduce_dtype(&self) -> Result<Dtype> {
        self.word(&[("float32", Dtype::F32), ("bfloat16", Dtype::Bf16)])
    }

    fn storage(&self) -> Result<Storage> {
        self.word(&[("float32", Storage::F32), ("bfloat16", Storage::Bf16), ("int8", Storage::Int8)])
    }
}

/// Name, meaning and default of an option.
type Documented = (&'static str, &'static str);

/// The options of one kind of call.
pub(crate) trait Options: Default {
    /// The owner of the options, for messages.
    const OF: &'static str;

    /// Sets the option `name` to a value. Returns `None` if the option is unknown.
    fn set(&mut self, name: &str, found: &str) -> Option<Result<&'static str>>;

    /// All options, in the order of the headers.
    fn documented() -> Vec<Documented>;
}

/// Sets the option `name` to a value, if `table` has the option. Returns the name from the table.
fn set<T>(table: &[Known<T>], to: &mut T, name: &str, found: &str) -> Option<Result<&'static str>> {
    let known = table.iter().find(|known| known.name == name)?;
    let value = Value { name: known.name, found, expected: known.expected };
    Some((known.read)(to, &value).map(|()| known.name))
}

/// Stores a value in `place`.
fn put<T>(place: &mut T, value: Result<T>) -> Result<()> {
    *place = value?;
    Ok(())
}

fn documented_of<T>(table: &[Known<T>]) -> impl Iterator<Item = Documented> {
    table.iter().map(|known| (known.name, known.means))
}

/// Implements [`Options`] with one table.
macro_rules! options_of {
    ($name:ident, $of:literal, $table:ident) => {
        impl crate::options::Options for $name {
            const OF: &'static str = $of;

            fn set(&mut self, name: &str, found: &str) -> Option<crate::failure::Result<&'static str>> {
                crate::options::set($table, self, name, found)
            }

            fn documented() -> Vec<crate::options::Documented> {
                crate::options::documented_of($table).collect()
            }
        }
    };
}
use options_of;

/// Reads the options of the caller's array. NULL means the defaults.
///
/// # Safety `list` is null, misaligned, or an array of pointers to NUL-terminated texts. A NULL in place of a name or a
/// value ends the array.
pub(crate) unsafe fn read<T: Options>(list: *const *const c_char) -> Result<T> {
    let mut options = T::default();
    if list.is_null() {
        return Ok(options);
    }
    let (mut given, mut at) = (Vec::new(), 0);
    loop {
        // SAFETY: no earlier pointer was the NULL that ends the array, so this pointer is readable. `check_array` has
        // checked the alignment.
        let (name, value) = unsafe {
            let [name, value] = [0, 1].map(|further| list.wrapping_add(at + further));
            crate::pointers::check_array(name, 1, "options")?;
            if (*name).is_null() {
                return Ok(options);
            }
            (text(*name, "the name of an option")?, *value)
        };
        if value.is_null() {
            return Err(unvalued::<T>(name));
        }
        // SAFETY: the caller meets the safety requirements of this function.
        let found = unsafe { text(value, "the value of an option") }?;
        let known = match options.set(name, found) {
            Some(known) => known?,
            None => return Err(unknown::<T>(name)),
        };
        if given.contains(&known) {
            return Err(Failure::OptionTwice(known));
        }
        given.push(known);
        at += 2;
    }
}

fn unknown<T: Options>(name: &str) -> Failure {
    let known: Vec<&str> = T::documented().iter().map(|(name, _)| *name).collect();
    Failure::UnknownOption { call: T::OF, name: name.into(), known: known.join(", ") }
}

fn unvalued<T: Options>(name: &str) -> Failure {
    let known = T::documented().into_iter().find(|(known, _)| *known == name);
    known.map_or_else(|| unknown::<T>(name), |(name, _)| Failure::NoValue { name })
}

/// Returns all tables of options for the headers: each table's name, and its options with their meanings.
pub fn documented() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    vec![
        ("search", SearchOptions::documented()),
        ("plan", PlanOptions::documented()),
        ("compressor", CompressorOptions::documented()),
        ("controller", controller::own().collect()),
        ("bucket", BucketOptions::documented()),
        ("cut", CutOptions::documented()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::*;
    use core::ptr::null;

    fn refused<T: Options>(list: &[*const c_char]) -> (lgreco_status, String) {
        // SAFETY: the lists of the tests end with NULL.
        let failure = unsafe { read::<T>(list.as_ptr()) }.map(drop).unwrap_err();
        (failure.status(), failure.to_string())
    }

    #[test]
    fn what_is_wrong_is_said_with_names() {
        let [period, seven, few] = [c"period", c"7", c"few"].map(|text| text.as_ptr());
        // SAFETY: the list ends with NULL.
        let read = unsafe { read::<ControllerOptions>([period, seven, null()].as_ptr()) };
        assert!(read.is_ok());
        let unknown = refused::<PlanOptions>(&[period, seven, null()]);
        let known = "a plan has no option `period`; there are solver, levels, states, budget, alpha";
        assert_eq!(unknown, (LGRECO_UNKNOWN_OPTION, known.into()));
        let twice = refused::<ControllerOptions>(&[period, seven, period, seven, null()]);
        assert_eq!(twice, (LGRECO_UNKNOWN_OPTION, "the option `period` is given twice".into()));
        let wrong = refused::<ControllerOptions>(&[period, few, null()]);
        let expected = "the option `period` is `few`, expected a number of steps of at least 1";
        assert_eq!(wrong, (LGRECO_PARAMETER, expected.into()));
        let none = refused::<ControllerOptions>(&[period, null()]);
        assert_eq!(none, (LGRECO_NULL_POINTER, "the option `period` has no value: NULL follows it".into()));
        let text = refused::<ControllerOptions>(&[period, c"\xff".as_ptr(), null()]);
        assert_eq!(text, (LGRECO_TEXT, "the value of an option is not UTF-8".into()));
        let method = refused::<SearchOptions>(&[c"method".as_ptr(), c"qsgd,qsdg".as_ptr(), null()]);
        assert_eq!(method.0, LGRECO_UNKNOWN_NAME);
        assert!(method.1.starts_with("the option `method` is `qsgd,qsdg`: unknown method"), "{}", method.1);
    }

    #[test]
    fn every_name_is_there_once() {
        for names in [ControllerOptions::documented(), CutOptions::documented(), BucketOptions::documented()] {
            for (at, (name, means)) in names.iter().enumerate() {
                assert!(!means.is_empty() && names[..at].iter().all(|(other, _)| other != name), "{name}");
            }
        }
    }
}
