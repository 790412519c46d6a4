//! TopK per sample, and values at indices that both ends know.
//!
//! The body of TopK has the kept values and their positions for each sample, as in a payload of [`topk`]. The body of
//! shared-index has the values at the indices for each sample, in order of position.

use super::values::{get, put};
use crate::CoreError as Error;
use crate::compress::topk::TopK;
use crate::gradient::Dtype;
use lgreco::compress::topk;

/// Codec that keeps `keep` of the `features` values of each sample.
pub(super) struct Sparse {
    pub(super) keep: u32,
    pub(super) values: Dtype,
    pub(super) features: usize,
}

impl Sparse {
    const fn top(&self) -> TopK {
        TopK { keep: self.keep, values: self.values }
    }

    /// Bytes of one sample under TopK.
    pub(super) fn top_len(&self) -> u64 {
        topk::body_len(self.keep, self.features, self.values)
    }

    /// Bytes of one sample's indices.
    pub(super) fn indices_len(&self) -> u64 {
        topk::positions_len(self.keep, self.features)
    }

    /// Bytes of one sample under shared-index.
    pub(super) fn gathered_len(&self) -> u64 {
        self.keep as u64 * self.values.bytes() as u64
    }

    pub(super) fn encode_top(&self, values: &[f32], workspace: &mut [u64], body: &mut [u8]) -> Result<(), Error> {
        let samples = values.chunks_exact(self.features).zip(body.chunks_exact_mut(self.top_len() as usize));
        for (at, (sample, body)) in samples.enumerate() {
            topk::encode_body(&self.top(), sample, workspace, body).map_err(|error| match error {
                Error::ElementOverflow { index, value } => {
                    Error::ElementOverflow { index: index + at * self.features, value }
                }
                other => other,
            })?;
        }
        Ok(())
    }

    pub(super) fn decode_top(&self, body: &[u8], values: &mut [f32]) -> Result<(), Error> {
        let mut samples = values.chunks_exact_mut(self.features).zip(body.chunks_exact(self.top_len() as usize));
        samples.try_for_each(|(sample, body)| topk::decode_body(&self.top(), body, sample))
    }

    /// Copies the indices out of a TopK body.
    pub(super) fn copy_indices(&self, body: &[u8], indices: &mut [u8]) {
        let (len, from) = (self.indices_len() as usize, self.gathered_len() as usize);
        if len > 0 {
            for (sample, indices) in body.chunks_exact(self.top_len() as usize).zip(indices.chunks_exact_mut(len)) {
                indices.copy_from_slice(&sample[from..]);
            }
        }
    }

    /// The indices of sample `at`.
    fn indices_of<'a>(&self, at: usize, indices: &'a [u8]) -> &'a [u8] {
        let len = self.indices_len() as usize;
        &indices[at * len..(at + 1) * len]
    }

    pub(super) fn gather(&self, values: &[f32], indices: &[u8], body: &mut [u8]) -> Result<(), Error> {
        let samples = values.chunks_exact(self.features).zip(body.chunks_exact_mut(self.gathered_len() as usize));
        for (at, (sample, body)) in samples.enumerate() {
            let mut slots = body.chunks_exact_mut(self.values.bytes());
            topk::for_each_position(self.keep, self.features, self.indices_of(at, indices), |position| {
                let index = at * self.features + position as usize;
                put(self.values, index, sample[position as usize], slots.next().unwrap_or_default())
            })?;
        }
        Ok(())
    }

    pub(super) fn scatter(&self, body: &[u8], indices: &[u8], values: &mut [f32]) -> Result<(), Error> {
        values.fill(0.0);
        let samples = values.chunks_exact_mut(self.features).zip(body.chunks_exact(self.gathered_len() as usize));
        for (at, (sample, body)) in samples.enumerate() {
            let mut slots = body.chunks_exact(self.values.bytes());
            topk::for_each_position(self.keep, self.features, self.indices_of(at, indices), |position| {
                sample[position as usize] = get(self.values, slots.next().unwrap_or_default())?;
                Ok(())
            })?;
        }
        Ok(())
    }
}
