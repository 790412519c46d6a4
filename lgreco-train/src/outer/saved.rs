//! Saved outer steps, and workers that come and go.
//!
//! `lgreco-o`, version 1, inner steps, fragments; of each: bytes of its controller's state, the state, and layer by layer what
//! the next outer step starts from and the velocities, f32, padded to 8 bytes; a checksum. Numbers are u64, little-endian.

use super::OuterStep;
use super::fragment::Fragment;
use crate::checksum;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

const MAGIC: u64 = u64::from_le_bytes(*b"lgreco-o");
const VERSION: u64 = 1;

/// A fragment as it was saved.
struct Saved<'a> {
    controller: &'a [u8],
    starts: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
}

impl OuterStep {
    /// This rank's state as bytes, the same on every machine, with what the next outer step starts from; every rank saves its
    /// own, beside its model and inner optimiser.
    ///
    /// # Errors
    /// As [`Controller::save`](crate::controller::Controller::save).
    ///
    /// # Complexity
    /// Two f32 per parameter, and the controllers' states.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![];
        let numbers = |all: &[u64], bytes: &mut Vec<u8>| {
            all.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        };
        numbers(&[MAGIC, VERSION, self.steps, self.fragments.len() as u64], &mut bytes);
        for fragment in &self.fragments {
            let state = fragment.controller.save()?;
            numbers(&[state.len() as u64], &mut bytes);
            bytes.extend(state);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            for values in fragment.starts.iter().chain(&fragment.velocities) {
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
                bytes.resize(bytes.len().next_multiple_of(8), 0);
            }
        }
        bytes.resize(bytes.len() + checksum::LEN, 0);
        checksum::seal(&mut bytes);
        Ok(bytes)
    }

    /// Continues from saved states, of the same layers and fragments, and replaces `parameters` by what the next outer step
    /// starts from, which inner training has left since; a rank that resumes its own restores its model apart, afterwards.
    ///
    /// Workers may leave or join between outer steps: the group is formed anew by whatever forms groups, a new `OuterStep`
    /// is made in it, and every rank loads. `state` and `residuals` are as in [`Controller::load`](crate::controller::Controller::load): a rank that stays
    /// gives its own state as both, and hands on what one that left had accumulated by giving that state among `residuals`, too,
    /// or drops it; one that joins gives any rank's state and no residuals.
    ///
    /// # Errors
    /// As [`Controller::load`](crate::controller::Controller::load); [`CoreError::SavedState`] for another number of fragments. All
    /// is then as it was.
    pub fn load(&mut self, state: &[u8], residuals: &[&[u8]], parameters: &mut [&mut [f32]]) -> Result<(), Error> {
        super::check_lens(self.fragments.iter().flat_map(Fragment::lens), parameters)?;
        let (steps, saved) = self.parse(state)?;
        let others = residuals.iter().map(|bytes| self.parse(bytes).map(|(_, saved)| saved));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let before = self.fragments.iter().map(|fragment| fragment.controller.save()).collect::<Result<Vec<_>, _>>()?;
        for (index, saved) in saved.iter().enumerate() {
            let residuals: Vec<&[u8]> = others.iter().map(|other| other[index].controller).collect();
            if let Err(error) = self.fragments[index].controller.load(saved.controller, &residuals) {
                for (fragment, before) in self.fragments[..index].iter_mut().zip(&before) {
                    fragment.controller.load(before, &[before])?;
                }
                return Err(error);
            }
        }
        for (fragment, saved) in self.fragments.iter_mut().zip(saved) {
            for (values, start) in parameters[fragment.layers()].iter_mut().zip(&saved.starts) {
                values.copy_from_slice(start);
            }
            (fragment.starts, fragment.velocities) = (saved.starts, saved.velocities);
        }
        self.steps = steps;
        Ok(())
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<(u64, Vec<Saved<'a>>), Error> {
        let mut rest = Rest(bytes);
        expect("magic", MAGIC, rest.number()?)?;
        expect("version", VERSION, rest.number()?)?;
        rest = Rest(&checksum::open(bytes)?[16..]);
        let steps = rest.number()?;
        expect("number of fragments", self.fragments.len() as u64, rest.number()?)?;
        let mut all = Vec::with_capacity(self.fragments.len());
        for fragment in &self.fragments {
            let len = rest.number()?;
            let controller = rest.take(len)?;
            let mut values = || fragment.lens().map(|len| rest.values(len)).collect::<Result<Vec<_>, _>>();
            let (starts, velocities) = (values()?, values()?);
            all.push(Saved { controller, starts, velocities });
        }
        expect("bytes after the last fragment", 0, rest.0.len() as u64)?;
        Ok((steps, all))
    }
}

fn expect(what: &'static str, expected: u64, found: u64) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(CoreError::SavedState { what, found }.into()) }
}

/// What has not been read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let cut = CoreError::Length {
            what: "saved state bytes",
            expected: usize::try_from(len).unwrap_or(usize::MAX),
            found: self.0.len(),
        };
        let whole = usize::try_from(len).ok().and_then(|len| Some((len, len.checked_next_multiple_of(8)?)));
        let (len, padded) = whole.ok_or(cut)?;
        let (bytes, rest) = self.0.split_at_checked(padded).ok_or(cut)?;
        self.0 = rest;
        expect("padding", 0, bytes[len..].iter().map(|&byte| u64::from(byte)).sum())?;
        Ok(&bytes[..len])
    }

    fn number(&mut self) -> Result<u64, Error> {
        Ok(self.take(8)?.first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes)))
    }

    fn values(&mut self, len: usize) -> Result<Vec<f32>, Error> {
        let bytes = self.take(4 * len as u64)?.as_chunks().0;
        let values: Vec<f32> = bytes.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(CoreError::SavedState { what: "a value", found: value.to_bits().into() }.into()),
            None => Ok(values),
        }
    }
}
