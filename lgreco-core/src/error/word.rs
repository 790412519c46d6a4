//! Words of a text, as error messages show them.

use core::fmt;

/// A word from a text, cut to at most 22 bytes for error messages. It needs no allocator.
///
/// ```
/// use lgreco_core::Word;
/// assert_eq!(Word::new("qsdg").to_string(), "qsdg");
/// assert_eq!(Word::new("a-word-that-does-not-end-here").to_string(), "a-word-that-does-not-e…");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word {
    bytes: [u8; Word::LONGEST],
    len: u8,
    whole: bool,
}

impl Word {
    const LONGEST: usize = 22;

    /// Copies whole characters from the start of `word`, up to 22 bytes.
    pub fn new(word: &str) -> Word {
        let mut bytes = [0; Word::LONGEST];
        let ends = word.char_indices().map(|(start, c)| start + c.len_utf8());
        let len = ends.take_while(|&end| end <= Word::LONGEST).last().unwrap_or(0);
        bytes[..len].copy_from_slice(&word.as_bytes()[..len]);
        Word { bytes, len: len as u8, whole: len == word.len() }
    }

    fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or_default()
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        if self.whole { Ok(()) } else { f.write_str("…") }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// Writes a word in backticks, or "nothing" for an empty one.
pub(super) struct Found<'a>(pub(super) &'a Word);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len == 0 && self.0.whole { f.write_str("nothing") } else { write!(f, "`{}`", self.0) }
    }
}

/// The text after an unknown word in a message. The text suggests the nearest known word if this word is probably
/// meant, and otherwise lists all known words.
pub(super) struct Meant<'a>(pub(super) &'a Word, pub(super) &'a [&'static str]);

impl fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (found, known) = (self.0.text(), self.1);
        let nearest = nearest(found, known);
        if is_near(found, nearest) {
            return write!(f, ": is `{nearest}` meant?");
        }
        for (index, word) in known.iter().enumerate() {
            write!(f, "{}{word}", if index == 0 { ", expected " } else { " or " })?;
        }
        Ok(())
    }
}

/// Whether `found` is probably a misspelling of `known`. A misspelling is a part of `known` with at least 4 letters, or
/// has the same letters in another order. Words that differ by at most one edit per three letters of `known` are also
/// misspellings.
fn is_near(found: &str, known: &str) -> bool {
    let count = |word: &str, letter: char| word.chars().filter(|&c| c == letter).count();
    let is_part = found.len() > 3 && known.contains(found);
    let is_reordered = found.len() == known.len() && found.chars().all(|c| count(found, c) == count(known, c));
    is_part || is_reordered || 3 * distance(found, known) <= known.len()
}

/// The known word at the smallest edit distance from `found`. Of several such words, returns the first. Returns an
/// empty text if `known` is empty.
pub fn nearest(found: &str, known: &[&'static str]) -> &'static str {
    known.iter().copied().min_by_key(|known| distance(found, known)).unwrap_or_default()
}

/// Levenshtein distance between the first 40 characters of both words. The distance ignores the case of ASCII letters.
fn distance(found: &str, known: &str) -> usize {
    const LONGEST: usize = 40;
    let mut row: [usize; LONGEST + 1] = core::array::from_fn(|column| column);
    for (line, a) in found.chars().take(LONGEST).enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], line + 1);
        for (column, b) in known.chars().take(LONGEST).enumerate() {
            let replaced = diagonal + usize::from(!a.eq_ignore_ascii_case(&b));
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[known.chars().take(LONGEST).count()]
}
