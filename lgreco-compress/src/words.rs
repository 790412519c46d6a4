//! Reads the words of a setting's text from left to right.

use crate::error::Word;
use crate::gradient::Dtype;
use crate::{Error, Result};
use core::str::{FromStr, SplitAsciiWhitespace};

/// The words that have not been read yet.
pub(crate) struct Words<'a>(pub SplitAsciiWhitespace<'a>);

impl Words<'_> {
    /// Reads the next word as a number.
    pub fn number<T: FromStr>(&mut self, expected: &'static str) -> Result<T> {
        let word = self.0.next().unwrap_or_default();
        word.parse().map_err(|_| wrong(word, expected))
    }

    /// Returns an error if words are left.
    pub fn end(&mut self) -> Result<()> {
        self.0.next().map_or(Ok(()), |word| Err(wrong(word, "the end")))
    }

    /// Reads the only number of a method.
    pub fn last(&mut self, expected: &'static str) -> Result<u32> {
        let number = self.number(expected)?;
        self.end()?;
        Ok(number)
    }

    /// Reads all remaining options. Each option's name must be in `known`; `take` gets the name and reads what follows.
    pub fn options(
        &mut self,
        known: &'static [&'static str],
        mut take: impl FnMut(&str, &mut Self) -> Result<()>,
    ) -> Result<()> {
        while let Some(word) = self.0.next() {
            if !known.contains(&word) {
                return Err(unknown(word, known));
            }
            take(word, self)?;
        }
        Ok(())
    }

    /// Reads the type of the sent values, which is the only option.
    pub fn values(&mut self) -> Result<Dtype> {
        let mut values = None;
        self.options(&["f32", "f16", "bf16"], |word, _| once(word, &mut values, dtype(word)))?;
        Ok(values.unwrap_or(Dtype::F32))
    }
}

/// The type with the name `f32`, `f16` or `bf16`.
pub(crate) fn dtype(word: &str) -> Dtype {
    match word {
        "f16" => Dtype::F16,
        "bf16" => Dtype::Bf16,
        _ => Dtype::F32,
    }
}

/// Text of the type of the sent values; empty for f32, the default.
pub(crate) const fn sent_as(values: Dtype) -> &'static str {
    match values {
        Dtype::F32 => "",
        Dtype::F16 => " f16",
        Dtype::Bf16 => " bf16",
    }
}

/// Sets a parameter. It is an error if the parameter is already set.
pub(crate) fn once<T>(word: &str, place: &mut Option<T>, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(wrong(word, "each parameter once")),
    }
}

/// The error for a wrong word. `expected` names the allowed words.
pub(crate) fn wrong(word: &str, expected: &'static str) -> Error {
    Error::SettingSyntax { word: Word::new(word), expected }
}

/// The error for an unknown word. No known word resembles a number, so for a number the error says that no further
/// number is allowed.
pub(crate) fn unknown(word: &str, known: &'static [&'static str]) -> Error {
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        return wrong(word, "no further number");
    }
    Error::SettingWord { word: Word::new(word), known }
}
