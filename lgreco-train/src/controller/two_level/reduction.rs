//! The first message inside a node, after which each rank has the sums of its shards.
//!
//! | sent as | collective | each rank's part |
//! |---|---|---|
//! | f32 | reduce-scatter | its shard of every layer; per layer the number of ranks with a gradient; per rank its [status](Slip::to_sum) |
//! | bf16 | all-to-all | the sender's [status](Slip), 16 bytes; per layer a byte, 1 if the sender has a gradient, padded to a multiple of 8 bytes; its shard of every layer, padded as well |
//!
//! Shards are sent as bf16 if [`reduce_dtype`](crate::search::Search::reduce_dtype) is bf16. The sums are in f32 nevertheless: each
//! rank adds the shards that it receives to its own shard, which was not rounded. Gradients are multiplied by a power of two, so
//! that sums of finite values stay finite.

use super::Topology;
use super::layer::Layer;
use crate::Error;
use crate::controller::buffers::take;
use crate::controller::tensor::expect_finite;
use crate::exchange::{Request, Round, Slip, scale_part};
use crate::gradient::{Bf16, Dtype, Element, Gradient, ValuesMut};
use alloc::vec::Vec;

/// Lengths of the message's parts. The caller holds the memory of the message.
#[derive(Default)]
pub(super) struct Reduction {
    /// Whether shards are sent as bf16.
    halves: bool,
    /// Size of each rank's part: with f32 the number of values, with bf16 the number of bytes that are sent to that rank.
    lens: Vec<u64>,
    /// Number of elements of this rank's shards.
    own_len: usize,
    /// Number of f32 sums in the memory. With f32, all parts are sums. With bf16, only this rank's shards have sums, followed by
    /// the number of ranks with a gradient per layer.
    sums_len: usize,
    /// With bf16, the bytes that each other rank sends.
    received_lens: Vec<u64>,
    /// With bf16, this rank's status.
    status: Option<Slip>,
}

/// The parts of the message's memory. `sent` and `received` are only used with bf16.
struct Places<'a> {
    sums: &'a mut [f32],
    sent: &'a mut [u64],
    received: &'a mut [u64],
}

impl Reduction {
    /// Computes the lengths for a bucket of these layers, whose shards are sent as `dtype`.
    pub(super) fn measure(&mut self, layers: &[Layer], topology: &Topology, dtype: Dtype) {
        let (ranks, own) = (0..topology.per_node, topology.local);
        let values = |local: u32| layers.iter().map(|layer| layer.len(local)).sum::<usize>();
        (self.halves, self.own_len) = (dtype == Dtype::Bf16, values(own));
        self.lens.clear();
        self.received_lens.clear();
        if !self.halves {
            let beside = layers.len() + topology.per_node as usize;
            self.lens.extend(ranks.map(|local| (values(local) + beside) as u64));
            self.sums_len = self.lens.iter().sum::<u64>() as usize;
            return;
        }
        let bytes = |local: u32| (part_start(layers.len()) + 2 * values(local)).next_multiple_of(8) as u64;
        self.lens.extend(ranks.clone().map(|local| if local == own { 0 } else { bytes(local) }));
        self.received_lens.extend(ranks.map(|local| if local == own { 0 } else { bytes(own) }));
        self.sums_len = self.own_len + layers.len();
    }

    /// The number of words of the message's memory.
    pub(super) fn words(&self) -> usize {
        let apart = if self.halves { words(&self.lens) + words(&self.received_lens) } else { 0 };
        self.sums_len.div_ceil(2) + apart
    }

    fn places<'a>(&self, memory: &'a mut [u64]) -> Places<'a> {
        let (sums, rest) = memory.split_at_mut(self.sums_len.div_ceil(2));
        let sums = &mut bytemuck::cast_slice_mut(sums)[..self.sums_len];
        if !self.halves {
            return Places { sums, sent: &mut [], received: &mut [] };
        }
        let (sent, rest) = rest.split_at_mut(words(&self.lens));
        Places { sums, sent, received: &mut rest[..words(&self.received_lens)] }
    }

    /// Shortens each rank's part to a single value (f32) or a status (bf16), because the node's ranks differ in the bucket's
    /// layers.
    pub(super) fn without_values(&mut self) {
        let least = if self.halves { Slip::LEN as u64 } else { 1 };
        for len in self.lens.iter_mut().chain(&mut self.received_lens) {
            *len = (*len).min(least);
        }
    }

    /// Writes this rank's gradients, or zeros for a layer without a gradient.
    ///
    /// # Errors
    /// The errors of gradients that are not finite.
    pub(super) fn fill(
        &self,
        memory: &mut [u64],
        layers: &[Layer],
        gradients: &[ValuesMut<'_>],
        topology: &Topology,
    ) -> Result<(), Error> {
        let share = self.share(topology);
        let Places { mut sums, mut sent, .. } = self.places(memory);
        for (local, &len) in (0..).zip(&self.lens) {
            let present = layers.iter().map(|layer| u8::from(layer.present));
            if self.halves && local != topology.local {
                let part: &mut [u8] = bytemuck::cast_slice_mut(take(&mut sent, len as usize / 8));
                let (head, values) = part.split_at_mut(part_start(layers.len()));
                head[Slip::LEN..].iter_mut().zip(present).for_each(|(to, present)| *to = present);
                put::<Bf16>(layers, gradients, local, share, &mut bytemuck::cast_slice_mut(values))?;
                continue;
            }
            put(layers, gradients, local, share, &mut sums)?;
            take(&mut sums, layers.len()).iter_mut().zip(present).for_each(|(to, present)| *to = present.into());
            if !self.halves {
                take(&mut sums, topology.per_node as usize).fill(0.0);
            }
        }
        Ok(())
    }

    /// Writes this rank's status to the part of each rank of the node.
    pub(super) fn put_status(&mut self, memory: &mut [u64], slip: Slip, topology: &Topology) {
        self.status = Some(slip);
        let Places { sums, sent, .. } = self.places(memory);
        let mut end = 0;
        for &len in self.lens.iter().filter(|&&len| len > 0) {
            let start = end;
            end += len as usize;
            if self.halves {
                slip.write(bytemuck::cast_slice_mut(&mut sent[start / 8..]));
                continue;
            }
            let statuses = &mut sums[end - topology.per_node as usize..end];
            statuses.fill(0.0);
            statuses[topology.local as usize] = slip.to_sum();
        }
    }

    /// The collective.
    pub(super) fn request<'a>(&'a self, memory: &'a mut [u64]) -> Request<'a> {
        let Places { sums, sent, received } = self.places(memory);
        if !self.halves {
            let len = self.lens.iter().sum::<u64>() as usize;
            return Request::ReduceScatterSum { lens: &self.lens, values: &mut sums[..len] };
        }
        Request::AllToAll {
            send: bytemuck::cast_slice_mut(sent),
            send_lens: &self.lens,
            received: bytemuck::cast_slice_mut(received),
            received_lens: &self.received_lens,
        }
    }

    /// The collective's size.
    pub(super) fn round(&self, topology: &Topology) -> Round {
        let all = |lens: &[u64]| lens.iter().sum::<u64>() as usize;
        match self.halves {
            true => Round::AllToAll { send: all(&self.lens), received: all(&self.received_lens) },
            false => {
                Round::ReduceScatterSum { values: all(&self.lens), own: self.lens[topology.local as usize] as usize }
            }
        }
    }

    /// The index at which this rank's part of the f32 sums begins.
    fn start(&self, topology: &Topology) -> usize {
        if self.halves { 0 } else { self.lens[..topology.local as usize].iter().sum::<u64>() as usize }
    }

    /// The parts that this rank has received as bf16, in the order of ranks. This rank's own part is empty.
    fn received<'a>(&self, received: &'a [u64]) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = received;
        self.received_lens.iter().map(move |&len| {
            let (part, left) = rest.split_at(len as usize / 8);
            rest = left;
            bytemuck::cast_slice(part)
        })
    }

    /// The statuses of all ranks of the node, after the collective.
    pub(super) fn statuses(&self, memory: &mut [u64], topology: &Topology) -> Vec<Slip> {
        let Places { sums, received, .. } = self.places(memory);
        if self.halves {
            let own = self.status.unwrap_or(Slip { code: 0, fingerprint: 0 });
            let parts = self.received(received);
            return parts.map(|part| if part.is_empty() { own } else { Slip::read(part) }).collect();
        }
        let end = self.start(topology) + self.lens[topology.local as usize] as usize;
        sums[end - topology.per_node as usize..end].iter().map(|&sum| Slip::of_sum(sum)).collect()
    }

    /// After the collective, returns the sums of this rank's shards, followed by the number of ranks with a gradient per layer. The
    /// second result is the number by which the sums must be divided to become means.
    pub(super) fn sums<'a>(&self, memory: &'a mut [u64], layers: usize, topology: &Topology) -> (&'a mut [f32], f32) {
        let Places { sums, received, .. } = self.places(memory);
        if self.halves {
            self.add_received(layers, sums, received);
        }
        let (start, divisor) = (self.start(topology), topology.per_node as f32 * self.share(topology));
        (&mut sums[start..], divisor)
    }

    /// The power of two by which values are multiplied before they are summed. With bf16, the factor is half as large, because
    /// rounding may make values larger.
    fn share(&self, topology: &Topology) -> f32 {
        let room = if self.halves { 2 } else { 1 };
        1.0 / (room * topology.per_node.next_power_of_two()) as f32
    }

    fn add_received(&self, layers: usize, sums: &mut [f32], received: &[u64]) {
        let (sums, counts) = sums.split_at_mut(self.own_len);
        for part in self.received(received).filter(|part| !part.is_empty()) {
            let (head, values) = part.split_at(part_start(layers));
            for (sum, x) in sums.iter_mut().zip(bytemuck::cast_slice::<u8, Bf16>(values)) {
                *sum += x.to_f32();
            }
            for (count, &present) in counts[..layers].iter_mut().zip(&head[Slip::LEN..]) {
                *count += f32::from(present);
            }
        }
    }
}

/// The number of bytes before the values of a part that is sent as bf16.
fn part_start(layers: usize) -> usize {
    Slip::LEN + layers.next_multiple_of(8)
}

/// The number of words of parts whose lengths in bytes are `lens`.
pub(super) fn words(lens: &[u64]) -> usize {
    lens.iter().sum::<u64>() as usize / 8
}

/// Writes a local rank's shards, multiplied by `share`, to the beginning of `values`, and shortens `values` to the rest.
fn put<T: Element>(
    layers: &[Layer],
    gradients: &[ValuesMut<'_>],
    local: u32,
    share: f32,
    values: &mut &mut [T],
) -> Result<(), Error> {
    for (layer, gradient) in layers.iter().zip(gradients) {
        let range = layer.range(local);
        let values = take(values, range.len());
        if !layer.present {
            values.fill(T::from_f32(0.0));
        } else if !scale_part(&Gradient::new(gradient.values(), layer.shape)?, range.start, share, values) {
            expect_finite(layer.index, gradient.values())?;
            return Err(Error::NonFiniteGradient { layer: layer.index, index: range.start, value: f32::NAN });
        }
    }
    Ok(())
}
