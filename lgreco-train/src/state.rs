//! Reads and writes saved states. States consist of 8-byte numbers, and of bytes and f32 that are padded with zeros to a multiple
//! of 8 bytes, all little-endian. A magic number and the version come first. The last number is a checksum of everything before.

use crate::checksum;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use lgreco::error::expect_len;

/// Counts are below this limit, so that adding to them never overflows.
const COUNT_LIMIT: u64 = 1 << 63;

/// Writes a state.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(magic: u64, version: u64) -> Writer {
        let mut to = Writer(vec![]);
        to.numbers([magic, version]);
        to
    }

    pub(crate) fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.0.extend(number.to_le_bytes()));
    }

    /// The next `len` bytes, which the caller must write.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.0.len();
        self.0.resize((start + len).next_multiple_of(8), 0);
        &mut self.0[start..start + len]
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    pub(crate) fn values(&mut self, values: &[f32]) {
        let room = self.room(4 * values.len()).as_chunks_mut().0;
        room.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
    }

    pub(crate) fn sealed(mut self) -> Vec<u8> {
        self.numbers([0]);
        checksum::seal(&mut self.0);
        self.0
    }
}

/// Reads a state, and refuses bytes that a [`Writer`] never writes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    pub(crate) version: u64,
}

impl<'a> Reader<'a> {
    /// Checks magic number, version and checksum, and begins to read after the version. `versions` are the allowed versions. A
    /// version that is not allowed gives another error than damaged bytes.
    pub(crate) fn open(bytes: &'a [u8], magic: u64, versions: &[u64]) -> Result<Reader<'a>, Error> {
        let mut reader = Reader { rest: bytes, version: 0 };
        let found = reader.number()?;
        CoreError::require_saved(found == magic, "magic", found)?;
        let version = reader.number()?;
        CoreError::require_saved(versions.contains(&version), "version", version)?;
        Ok(Reader { rest: &checksum::open(bytes)?[16..], version })
    }

    /// `Err` unless all bytes have been read.
    pub(crate) fn end(&self, what: &'static str) -> Result<(), Error> {
        Ok(expect_len(what, 0, self.rest.len())?)
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let expected = usize::try_from(len).unwrap_or(usize::MAX);
        let cut = CoreError::Length { what: "saved state bytes", expected, found: self.rest.len() };
        let padded = expected.checked_next_multiple_of(8).ok_or(cut)?;
        let (bytes, rest) = self.rest.split_at_checked(padded).ok_or(cut)?;
        self.rest = rest;
        let (bytes, padding) = bytes.split_at(expected);
        CoreError::require_saved(padding.iter().all(|&byte| byte == 0), "padding", len)?;
        Ok(bytes)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Error> {
        let bytes = self.bytes(8)?.first_chunk();
        Ok(bytes.map_or(0, |&bytes| u64::from_le_bytes(bytes)))
    }

    pub(crate) fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Error> {
        let mut numbers = [0; N];
        numbers.iter_mut().try_for_each(|number| self.number().map(|read| *number = read))?;
        Ok(numbers)
    }

    pub(crate) fn word(&mut self, what: &'static str) -> Result<u32, Error> {
        let found = self.number()?;
        u32::try_from(found).map_err(|_| CoreError::SavedState { what, found }.into())
    }

    pub(crate) fn count(&mut self, what: &'static str) -> Result<u64, Error> {
        let found = self.number()?;
        Ok(CoreError::require_saved(found < COUNT_LIMIT, what, found).map(|()| found)?)
    }

    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, Error> {
        let found = self.number()?;
        Ok(CoreError::require_saved(found < 2, what, found).map(|()| found == 1)?)
    }

    pub(crate) fn values(&mut self, len: usize) -> Result<Vec<f32>, Error> {
        let bytes = self.bytes(4 * len as u64)?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(CoreError::SavedState { what: "a value", found: value.to_bits().into() }.into()),
            None => Ok(values),
        }
    }

    /// Reads a finite number of at least 0, or `None`, which is stored as NaN.
    pub(crate) fn measured(&mut self, what: &'static str) -> Result<Option<f64>, Error> {
        let found = self.number()?;
        let value = f64::from_bits(found);
        let sound = found == f64::NAN.to_bits() || value.is_finite() && value.is_sign_positive();
        CoreError::require_saved(sound, what, found)?;
        Ok((!value.is_nan()).then_some(value))
    }
}
