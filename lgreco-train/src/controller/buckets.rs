//! Layers exchanged together, and the buffers of their exchange.

use super::Tensor;
use super::layer::{LayerState, bytes_out};
use crate::compress::{Compressor, Setting};
use crate::exchange::{self, Collective, Layer, Route};
use crate::gradient::{Dtype, Element, Gradient, Values, ValuesMut, first_too_large, with_elements};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The buckets of a model: consecutive layers, the same on every rank and under every plan.
pub(super) struct Buckets {
    ranges: Vec<Range<usize>>,
    /// The bucket of each layer.
    pub of: Vec<usize>,
    /// Room for a bucket's means, for what is offered to the compressors, and for this rank's contributions.
    mean: Vec<f32>,
    offered: Vec<f32>,
    own: Vec<f32>,
    /// Bytes of this rank's payloads, by layer of the bucket.
    sent: Vec<u64>,
    workspace: Vec<u64>,
    /// Empty between exchanges; kept for its room.
    list: Vec<Layer<'static>>,
}

/// When and how a bucket is exchanged.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub route: Route,
    pub seed: u64,
    pub step: u32,
    pub rank: u32,
    /// Whether relative errors are measured.
    pub measured: bool,
}

fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(room).split_at_mut(len);
    *room = rest;
    part
}

/// The room of an empty list, for layers of another lifetime; collecting in place keeps the allocation.
fn recycled<'b>(mut list: Vec<Layer<'_>>) -> Vec<Layer<'b>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

impl Buckets {
    pub(super) fn new(tensors: &[Tensor], bucket_bytes: usize) -> Self {
        let (mut ranges, mut of, mut start, mut bytes) = (vec![], vec![], 0, 0u64);
        for (index, tensor) in tensors.iter().enumerate() {
            if index > start && bytes + tensor.bytes() > bucket_bytes as u64 {
                ranges.push(start..index);
                (start, bytes) = (index, 0);
            }
            bytes += tensor.bytes();
            of.push(ranges.len());
        }
        if start < tensors.len() {
            ranges.push(start..tensors.len());
        }
        let elements = |range: &Range<usize>| tensors[range.clone()].iter().map(|t| t.shape.elements()).sum::<usize>();
        let room = ranges.iter().map(elements).max().unwrap_or(0);
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        Buckets {
            ranges,
            of,
            mean: vec![0.0; room],
            offered: vec![0.0; room],
            own: vec![0.0; room],
            sent: Vec::with_capacity(longest),
            workspace: vec![],
            list: Vec::with_capacity(longest),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The layers of bucket `bucket`.
    pub(super) fn layers(&self, bucket: usize) -> Range<usize> {
        self.ranges[bucket].clone()
    }

    /// Words of workspace that exchanges need when layer `i` has the setting `settings(i)`.
    pub(super) fn workspace_len(
        &self,
        tensors: &[Tensor],
        settings: impl Fn(usize) -> Setting + Clone,
        route: Route,
        world: u32,
    ) -> Result<usize, Error> {
        let mut longest = 0;
        for range in &self.ranges {
            let of = |i: usize, dtype: Dtype| (settings(i), tensors[i].shape, dtype);
            let narrow = exchange::workspace_len(range.clone().map(|i| of(i, tensors[i].dtype)), route, world)?;
            // With a residual, f32 is compressed.
            let wide = exchange::workspace_len(range.clone().map(|i| of(i, Dtype::F32)), route, world)?;
            longest = longest.max(narrow).max(wide);
        }
        Ok(longest)
    }

    pub(super) fn resize(&mut self, workspace: Vec<u64>) {
        self.workspace = workspace;
    }

    /// Exchanges bucket `bucket`: gradients become means, residuals take note; returns the bytes sent. A rank whose
    /// gradient and residual overflow together fails in the exchange, and with it all others.
    ///
    /// `late` gets an error that this rank alone has met after the exchange; its residual is then unchanged.
    ///
    /// # Errors
    /// Those of [`exchange::aggregate`]; [`CoreError::ElementOverflow`] when a mean does not fit its layer's element
    /// type. All ranks fail alike, with gradients and residuals of this bucket unchanged.
    #[expect(clippy::too_many_arguments, reason = "one private call")]
    pub(super) fn exchange<C: Collective + ?Sized>(
        &mut self,
        bucket: usize,
        collective: &mut C,
        tensors: &[Tensor],
        states: &mut [LayerState],
        gradients: &mut [ValuesMut<'_>],
        moment: Moment,
        late: &mut Option<Error>,
    ) -> Result<u64, Error> {
        let range = self.ranges[bucket].clone();
        let (tensors, states, gradients) =
            (&tensors[range.clone()], &mut states[range.clone()], &mut gradients[range.clone()]);
        let overflow = self.offer(range.start, collective, tensors, states, gradients, moment)?;
        if let Some(error) = overflow {
            return Err(error);
        }
        for (tensor, part) in tensors.iter().zip(parts(tensors)) {
            if let Some(index) = first_too_large(&self.mean[part.clone()], tensor.dtype) {
                return Err(Error::Core(CoreError::ElementOverflow { index, value: self.mean[part][index] }));
            }
        }
        let mut bytes = 0;
        let layers = states.iter_mut().zip(tensors).zip(gradients).zip(parts(tensors)).zip(&self.sent);
        for (index, ((((state, tensor), gradient), part), &sent)) in (range.start..).zip(layers) {
            let stream = Stream { seed: moment.seed, step: moment.step, layer: index as u32, rank: moment.rank };
            let own = &self.own[part.clone()];
            if moment.measured && owns(state, moment) {
                state.relative_error = Some(match state.memory {
                    Some(_) => relative_error(Values::F32(&self.offered[part.clone()]), own),
                    None => relative_error(gradient.values(), own),
                });
            }
            if let (true, Some(memory)) = (state.feedback, &mut state.memory) {
                let updated = memory.update(&Gradient::new(gradient.values(), tensor.shape)?, own, stream);
                *late = late.take().or(updated.err());
            } else {
                state.memory = None;
            }
            state.counts.steps += 1;
            state.counts.bytes_in += tensor.bytes();
            let sent =
                if state.choice.setting.has_fixed_len() { bytes_out(&state.choice.setting, tensor)? } else { sent };
            state.counts.bytes_out += sent;
            bytes += sent;
            gradient.write(self.mean[part].iter().copied());
        }
        Ok(bytes)
    }

    /// The exchange itself. Returns this rank's overflow, with which the exchange failed.
    fn offer<C: Collective + ?Sized>(
        &mut self,
        first: usize,
        collective: &mut C,
        tensors: &[Tensor],
        states: &mut [LayerState],
        gradients: &[ValuesMut<'_>],
        moment: Moment,
    ) -> Result<Option<Error>, Error> {
        let (mut mean, mut offered, mut own) = (&mut self.mean[..], &mut self.offered[..], &mut self.own[..]);
        let mut list = recycled(core::mem::take(&mut self.list));
        let mut overflow = None;
        for (index, ((state, tensor), gradient)) in (first..).zip(states.iter_mut().zip(tensors).zip(gradients)) {
            let elements = tensor.shape.elements();
            let owned = owns(state, moment);
            let mut gradient = Gradient::new(gradient.values(), tensor.shape)?;
            let mut fresh = None;
            let offered = take(&mut offered, elements);
            if let Some(memory) = &state.memory {
                if let Err(error) = memory.compensate(&gradient, offered) {
                    // Makes the exchange fail on every rank.
                    offered.fill(f32::NAN);
                    overflow = overflow.or(Some(error));
                }
                fresh = matches!(state.choice.setting, Setting::AdaComp(_)).then_some(gradient);
                gradient = Gradient::new(Values::F32(offered), tensor.shape)?;
            }
            let own = take(&mut own, elements);
            list.push(Layer {
                index: index as u32,
                setting: state.choice.setting,
                gradient,
                fresh,
                sent: 0,
                mean: take(&mut mean, elements),
                own: owned.then_some(own),
                factor: &mut state.factor,
            });
        }
        let Moment { route, seed, step, .. } = moment;
        let outcome = exchange::aggregate(collective, &mut list, route, seed, step, &mut self.workspace);
        self.sent.clear();
        self.sent.extend(list.iter().map(|layer| layer.sent));
        self.list = recycled(list);
        match overflow {
            Some(error) => Ok(Some(error)),
            None => outcome.map(|()| None),
        }
    }

    /// Averages a bucket as it is, uncompressed, with whatever is not finite in it.
    pub(super) fn pass<C: Collective + ?Sized>(
        &mut self,
        bucket: usize,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
    ) -> Result<(), Error> {
        let gradients = &mut gradients[self.ranges[bucket].clone()];
        let mut at = 0;
        for gradient in gradients.iter() {
            let room = &mut self.mean[at..];
            with_elements!(gradient.values(), v => room.iter_mut().zip(v).for_each(|(to, x)| *to = x.to_f32()));
            at += gradient.values().len();
        }
        collective.all_reduce_sum(&mut self.mean[..at])?;
        let world = collective.world_size() as f32;
        let mut means = self.mean[..at].iter().map(|sum| sum / world);
        gradients.iter_mut().for_each(|gradient| gradient.write(means.by_ref()));
        Ok(())
    }
}

/// Where each layer lies in the buffers of its bucket.
fn parts(tensors: &[Tensor]) -> impl Iterator<Item = Range<usize>> {
    tensors.iter().scan(0, |end, tensor| {
        let start = *end;
        *end += tensor.shape.elements();
        Some(start..*end)
    })
}

/// Whether a layer's own contribution is needed.
fn owns(state: &LayerState, moment: Moment) -> bool {
    state.memory.is_some() || moment.measured && state.choice.uncompressed.is_none()
}

/// ‖values − own‖² / ‖values‖², 0 for zeros.
fn relative_error(values: Values<'_>, own: &[f32]) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    with_elements!(values, v => for (x, &y) in v.iter().zip(own) {
        let (x, y) = (x.to_f32() as f64, y as f64);
        error += (x - y) * (x - y);
        norm += x * x;
    });
    if norm > 0.0 { error / norm } else { 0.0 }
}

/// Zeroed memory.
pub(super) fn workspace(words: usize) -> Result<Vec<u64>, Error> {
    let mut workspace = Vec::new();
    workspace.try_reserve_exact(words).map_err(|_| Error::Core(CoreError::OutOfMemory { words }))?;
    workspace.resize(words, 0);
    Ok(workspace)
}
