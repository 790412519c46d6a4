//! The messages inside a node. The first message is in `reduction.rs`.
//!
//! The last message is an all-gather. Each rank's part has the rank's [`Fault`] in 16 bytes, and then the means of its shards in
//! their layers' types, each padded to a multiple of 8 bytes.
//!
//! A bucket has memory for one message, and only from the first call that writes to the message until its results are read. Then
//! the next message of any bucket can use the memory. Between its two messages, a bucket stores the means of this rank's shards in
//! the gradients, at the positions of the shards.

use super::Topology;
use super::layer::Layer;
use super::reduction::{Reduction, words};
use crate::Error;
use crate::controller::buffers::take;
use crate::controller::spare::Spare;
use crate::controller::tensor::check_layer;
use crate::exchange::{Request, Slip, judge};
use crate::gradient::{Bf16, Dtype, F16, ValuesMut};
use alloc::vec::Vec;
use lgreco::error::expect_len;

/// Words of a [`Fault`].
pub(super) const FAULT: usize = 2;

/// The first failure that a rank knows of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Fault {
    /// The error's [code](Error::code); 0 for none.
    pub code: u64,
    /// The rank that found the error, by its number among all ranks.
    pub rank: u32,
    /// Whether rank `rank` failed after its last message to its peers, so that other nodes have their means.
    pub alone: bool,
}

impl Fault {
    /// The fault of a rank that found this error.
    pub(super) fn new(error: Error, rank: u32) -> Fault {
        Fault { code: error.code().into(), rank, alone: false }
    }

    pub(super) fn words(self) -> [u64; FAULT] {
        [self.code, u64::from(self.rank) | u64::from(self.alone) << 32].map(u64::to_le)
    }

    pub(super) fn read(words: &[u64]) -> Fault {
        let word = |at: usize| words.get(at).map_or(0, |&word| u64::from_le(word));
        Fault { code: word(0), rank: word(1) as u32, alone: word(1) >> 32 != 0 }
    }

    pub(super) fn slip(self) -> Slip {
        Slip { code: self.code, fingerprint: 0 }
    }
}

/// `Err` if some rank has a fault: this rank's `own` error, or [`Error::Peer`] with the rank that the first of the most
/// serious faults names.
pub(super) fn judge_faults(own: Option<Error>, mut faults: impl Iterator<Item = Fault> + Clone) -> Result<(), Error> {
    match judge(own, faults.clone().map(Fault::slip)) {
        Err(Error::Peer { rank, code }) => {
            Err(Error::Peer { rank: faults.nth(rank as usize).map_or(rank, |fault| fault.rank), code })
        }
        judged => judged,
    }
}

/// A bucket's messages, and their memory. By default, memory is kept between buckets, and is enough for every bucket for which
/// [`reserve`](Messages::reserve) was called.
#[derive(Default)]
pub(super) struct Messages {
    pub reduction: Reduction,
    /// Bytes of each rank's part of the last message.
    pub bytes: Vec<u64>,
    /// Memory of the message under way.
    memory: Vec<u64>,
    /// The pool from which memory is taken, and to which it is returned.
    spare: Spare,
}

impl Messages {
    /// Messages of one of many buckets, which share the `spare` memory.
    pub(super) fn sharing(spare: &Spare) -> Messages {
        Messages { spare: spare.clone(), ..Messages::default() }
    }

    /// Prepares the messages of a bucket, and provides memory for the first message, which is also large enough for the last
    /// message. Gradients are sent as `dtype`.
    pub(super) fn reserve(&mut self, layers: &[Layer], topology: &Topology, dtype: Dtype) -> Result<(), Error> {
        self.measure(layers, topology, dtype);
        let words = self.most_words();
        self.spare.provide_message(&mut self.memory, words)
    }

    fn most_words(&self) -> usize {
        self.reduction.words().max(words(&self.bytes))
    }

    /// The number of words that the larger message of a bucket of these layers takes.
    pub(super) fn words_of(layers: &[Layer], topology: &Topology, dtype: Dtype) -> usize {
        let mut messages = Messages::default();
        messages.measure(layers, topology, dtype);
        messages.most_words()
    }

    fn measure(&mut self, layers: &[Layer], topology: &Topology, dtype: Dtype) {
        let words = |local: u32| layers.iter().map(|layer| layer.words(local)).sum::<usize>() + FAULT;
        self.bytes.clear();
        self.bytes.extend((0..topology.per_node).map(|local| 8 * words(local) as u64));
        self.reduction.measure(layers, topology, dtype);
    }

    /// Gives the memory of a message back after its results were read, so that the next message can use it.
    pub(super) fn release(&mut self) {
        self.spare.release(&mut self.memory);
    }

    /// Whether the means of all ranks have the same number of bytes.
    pub(super) fn is_even(&self) -> bool {
        self.bytes.windows(2).all(|two| two[0] == two[1])
    }

    /// Writes this rank's gradients for the first message, or zeros for a layer without a gradient.
    ///
    /// # Errors
    /// The errors of gradients that do not fit their layers or are not finite.
    pub(super) fn fill(
        &mut self,
        layers: &[Layer],
        gradients: &[ValuesMut<'_>],
        topology: &Topology,
    ) -> Result<(), Error> {
        check(layers, gradients)?;
        self.reduction.fill(&mut self.memory, layers, gradients, topology)
    }

    /// Completes the first message with this rank's status. A rank that has failed sends zeros in place of its gradients.
    pub(super) fn put_status(&mut self, slip: Slip, topology: &Topology) {
        if slip.code != 0 {
            self.memory.fill(0);
        }
        self.reduction.put_status(&mut self.memory, slip, topology);
    }

    /// Shortens each rank's part of the first message to a single value (f32) or a status (bf16), because the node's ranks differ
    /// in the bucket's layers.
    pub(super) fn without_values(&mut self) {
        self.memory.fill(0);
        self.reduction.without_values();
    }

    /// The collective of the first message.
    pub(super) fn reduce(&mut self) -> Request<'_> {
        self.reduction.request(&mut self.memory)
    }

    /// The statuses of all ranks of the node, after the first message.
    pub(super) fn statuses(&mut self, topology: &Topology) -> Vec<Slip> {
        self.reduction.statuses(&mut self.memory, topology)
    }

    /// Writes the means of this rank's node to its shards in the gradients, after the first message. Records which layers have a
    /// gradient on some rank of the node.
    pub(super) fn average(&mut self, layers: &mut [Layer], gradients: &mut [ValuesMut<'_>], topology: &Topology) {
        let (mut sums, divisor) = self.reduction.sums(&mut self.memory, layers.len(), topology);
        for (layer, gradient) in layers.iter().zip(gradients) {
            let range = layer.range(topology.local);
            let sums = take(&mut sums, range.len());
            gradient.part(range).write(sums.iter().map(|sum| sum / divisor));
        }
        for layer in layers {
            layer.present = take(&mut sums, 1).iter().any(|&count| count > 0.0);
        }
    }

    /// Provides memory for the last message, and writes this rank's part: its fault, or the means in its shards of the gradients.
    /// If the node's ranks have put different layers into the bucket, the message has no means, but only faults.
    ///
    /// # Errors
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). Nothing has changed then.
    pub(super) fn put_means(
        &mut self,
        fault: Fault,
        layers: &[Layer],
        gradients: &mut [ValuesMut<'_>],
        topology: &Topology,
    ) -> Result<(), Error> {
        self.spare.provide_message(&mut self.memory, words(&self.bytes))?;
        let mut part = part_of(&self.bytes, &mut self.memory, topology.local);
        take(&mut part, FAULT).copy_from_slice(&fault.words());
        if fault.code == 0 {
            for (layer, gradient) in layers.iter().zip(gradients) {
                let to = take(&mut part, layer.words(topology.local));
                copy(view(layer, to, topology.local), gradient.part(layer.range(topology.local)));
            }
        }
        Ok(())
    }

    /// Leaves only the faults in the last message, because the node's ranks differ in the bucket's layers.
    pub(super) fn without_means(&mut self) {
        self.bytes.fill(8 * FAULT as u64);
    }

    /// The collective of the last message.
    pub(super) fn gather(&mut self) -> Request<'_> {
        let is_even = self.is_even();
        let Messages { bytes, memory, .. } = self;
        let buffer = bytemuck::cast_slice_mut(&mut memory[..words(bytes)]);
        match is_even {
            true => Request::AllGather { buffer },
            false => Request::AllGatherEach { lens: bytes, buffer },
        }
    }

    /// The faults of all ranks of the node, after the last message.
    pub(super) fn faults(&self) -> impl Iterator<Item = Fault> + Clone + '_ {
        let starts = self.bytes.iter().scan(0, |end, &bytes| {
            let start = *end;
            *end += bytes as usize / 8;
            Some(start)
        });
        starts.map(|start| Fault::read(&self.memory[start..]))
    }

    /// Writes the means of the other ranks' shards to the gradients, after the last message.
    pub(super) fn deliver(&mut self, layers: &[Layer], gradients: &mut [ValuesMut<'_>], topology: &Topology) {
        for local in (0..topology.per_node).filter(|&local| local != topology.local) {
            let mut part = part_of(&self.bytes, &mut self.memory, local);
            let _ = take(&mut part, FAULT);
            for (layer, gradient) in layers.iter().zip(&mut *gradients) {
                let from = take(&mut part, layer.words(local));
                copy(gradient.part(layer.range(local)), view(layer, from, local));
            }
        }
    }
}

/// `Err` unless the gradients have the lengths and element types of the layers.
pub(super) fn check(layers: &[Layer], gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
    expect_len("gradients, one per layer", layers.len(), gradients.len())?;
    let mut both = layers.iter().zip(gradients);
    both.try_for_each(|(layer, gradient)| check_layer(layer.index, layer.shape, layer.dtype, gradient.values()))
}

/// A local rank's part of the last message.
fn part_of<'a>(bytes: &[u64], memory: &'a mut [u64], local: u32) -> &'a mut [u64] {
    let local = local as usize;
    &mut memory[words(&bytes[..local])..][..bytes[local] as usize / 8]
}

/// Copies values of the same type.
fn copy(to: ValuesMut<'_>, from: ValuesMut<'_>) {
    match (to, from) {
        (ValuesMut::F32(to), ValuesMut::F32(from)) => to.copy_from_slice(from),
        (ValuesMut::F16(to), ValuesMut::F16(from)) => to.copy_from_slice(from),
        (ValuesMut::Bf16(to), ValuesMut::Bf16(from)) => to.copy_from_slice(from),
        // The function `check` has made sure that the types are equal.
        _ => {}
    }
}

/// The memory `words` as the values of a shard.
fn view<'a>(layer: &Layer, words: &'a mut [u64], local: u32) -> ValuesMut<'a> {
    let len = layer.len(local);
    match layer.dtype {
        Dtype::F32 => ValuesMut::F32(&mut bytemuck::cast_slice_mut(words)[..len]),
        Dtype::F16 => ValuesMut::F16(&mut bytemuck::cast_slice_mut::<u64, F16>(words)[..len]),
        Dtype::Bf16 => ValuesMut::Bf16(&mut bytemuck::cast_slice_mut::<u64, Bf16>(words)[..len]),
    }
}
