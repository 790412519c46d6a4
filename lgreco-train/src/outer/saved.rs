//! Saved states of outer steps, also for workers that join or leave.
//!
//! A state consists of `lgreco-o`, version 1, the number of inner steps, the number of fragments, all fragments, and a checksum.
//! A fragment consists of the length of the controller's state, this state, the parameters after the last outer step, and the
//! velocities. Parameters and velocities are f32, layer by layer, each layer padded to 8 bytes. Numbers are u64, little-endian.

use super::OuterStep;
use super::fragment::Fragment;
use crate::state::{Reader, Writer};
use crate::{CoreError, Error};
use alloc::vec::Vec;

const MAGIC: u64 = u64::from_le_bytes(*b"lgreco-o");
const VERSION: u64 = 1;

/// The saved state of a fragment.
struct Saved<'a> {
    controller: &'a [u8],
    starts: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
}

impl OuterStep {
    /// This rank's state as bytes, in the same format on every machine. The state includes the parameters after the last outer
    /// step. Every rank saves its own state, in addition to its model and inner optimiser.
    ///
    /// # Errors
    /// The errors of [`Controller::save`](crate::controller::Controller::save).
    ///
    /// # Complexity
    /// Two f32 per parameter, and the controllers' states.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        let mut to = Writer::new(MAGIC, VERSION);
        to.numbers([self.steps, self.fragments.len() as u64]);
        for fragment in &self.fragments {
            let state = fragment.controller.save().map_err(|error| fragment.in_model(error))?;
            to.numbers([state.len() as u64]);
            to.bytes(&state);
            fragment.starts.iter().chain(&fragment.velocities).for_each(|values| to.values(values));
        }
        Ok(to.sealed())
    }

    /// Continues from saved states of the same layers and fragments, and sets `parameters` to their values after the last outer
    /// step. When the state was saved, inner steps may already have changed the model. So a rank that resumes its own state
    /// restores its model separately, after this call.
    ///
    /// Workers may leave or join between outer steps. The caller forms a new group and creates a new `OuterStep` in this group,
    /// and every rank calls `load`. `state` and `residuals` are as in [`Controller::load`](crate::controller::Controller::load).
    /// A rank that stays passes its own state both as `state` and in `residuals`. To keep the residuals of a rank that has left,
    /// a rank that stays also passes that rank's state in `residuals`. A rank that joins passes any rank's state and no
    /// residuals.
    ///
    /// All ranks load states of the same step of the same run. Otherwise, the next outer step fails on every rank with
    /// [`Error::PeerOption`].
    ///
    /// # Errors
    /// The errors of [`Controller::load`](crate::controller::Controller::load); [`CoreError::SavedState`] for another number of
    /// fragments; [`Error::OfLayer`] with [`CoreError::SavedState`] if a state's layers have other names or another order than the
    /// model's; the errors of [`step`](OuterStep::step) for parameters that do not fit. On failure, nothing has changed. A state of
    /// joined layers has no names, so only the numbers of elements are compared.
    ///
    /// # Complexity
    /// Linear in the bytes of all states.
    pub fn load(&mut self, state: &[u8], residuals: &[&[u8]], parameters: &mut [&mut [f32]]) -> Result<(), Error> {
        super::check_lens(self.fragments.iter().flat_map(Fragment::lens), parameters)?;
        let (steps, saved) = self.parse(state)?;
        let others = residuals.iter().map(|bytes| self.parse(bytes).map(|(_, saved)| saved));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let before = self.fragments.iter().map(|fragment| fragment.controller.save()).collect::<Result<Vec<_>, _>>()?;
        for (index, saved) in saved.iter().enumerate() {
            let residuals: Vec<&[u8]> = others.iter().map(|other| other[index].controller).collect();
            if let Err(error) = self.fragments[index].controller.load(&[saved.controller], &residuals) {
                for (fragment, before) in self.fragments[..index].iter_mut().zip(&before) {
                    fragment.controller.load(&[before], &[before])?;
                }
                return Err(self.fragments[index].in_model(error));
            }
        }
        for (fragment, saved) in self.fragments.iter_mut().zip(saved) {
            for (values, start) in parameters[fragment.layers.clone()].iter_mut().zip(&saved.starts) {
                values.copy_from_slice(start);
            }
            fragment.load(saved.starts, saved.velocities);
        }
        self.steps = steps;
        Ok(())
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<(u64, Vec<Saved<'a>>), Error> {
        let mut reader = Reader::open(bytes, MAGIC, &[VERSION])?;
        let (steps, fragments) = (reader.count("inner steps")?, reader.number()?);
        CoreError::require_saved(fragments == self.fragments.len() as u64, "number of fragments", fragments)?;
        let mut all = Vec::with_capacity(self.fragments.len());
        for fragment in &self.fragments {
            let len = reader.number()?;
            let controller = reader.bytes(len)?;
            fragment.controller.check_saved_layers(controller).map_err(|error| fragment.in_model(error))?;
            let mut values = || fragment.lens().map(|len| reader.values(len)).collect::<Result<Vec<_>, _>>();
            let (starts, velocities) = (values()?, values()?);
            all.push(Saved { controller, starts, velocities });
        }
        reader.end("saved state bytes after the last fragment")?;
        Ok((steps, all))
    }
}
