//! The messages inside a node. The first is in `reduction.rs`.
//!
//! In the last one, an all-gather, each rank's part has its [`Fault`], 16 bytes, and the means of its shards in their layers' types,
//! each padded to a multiple of 8 bytes.

use super::Topology;
use super::layer::Layer;
use super::reduction::Reduction;
use crate::Error;
use crate::controller::buffers::{grow, take};
use crate::controller::tensor::check_layer;
use crate::exchange::{Slip, judge};
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
    /// Whether that rank failed after its last message to its peers, so that other nodes have their means.
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

/// `Err` if some rank has a fault: this rank's `own` error, or [`Error::Peer`] with the first rank that failed by itself.
pub(super) fn judge_faults(own: Option<Error>, mut faults: impl Iterator<Item = Fault> + Clone) -> Result<(), Error> {
    match judge(own, faults.clone().map(Fault::slip)) {
        Err(Error::Peer { rank, code }) => {
            Err(Error::Peer { rank: faults.nth(rank as usize).map_or(rank, |fault| fault.rank), code })
        }
        judged => judged,
    }
}

/// The memory of a bucket's messages.
#[derive(Default)]
pub(super) struct Messages {
    pub reduction: Reduction,
    /// Bytes of each rank's means. The next field has the means.
    pub bytes: Vec<u64>,
    pub means: Vec<u64>,
}

impl Messages {
    /// Allocates memory for the messages of a bucket. Gradients are sent as `dtype`.
    pub(super) fn reserve(&mut self, layers: &[Layer], topology: &Topology, dtype: Dtype) -> Result<(), Error> {
        let words = |local: u32| layers.iter().map(|layer| layer.words(local)).sum::<usize>() + FAULT;
        self.bytes.clear();
        self.bytes.extend((0..topology.per_node).map(|local| 8 * words(local) as u64));
        self.reduction.reserve(layers, topology, dtype)?;
        grow(&mut self.means, self.bytes.iter().sum::<u64>() as usize / 8)
    }

    /// Leaves only the faults in the all-gather at the end, because the node's ranks differ in the bucket's layers.
    pub(super) fn without_means(&mut self) {
        self.bytes.fill(8 * FAULT as u64);
    }

    /// Whether the means of all ranks have the same number of bytes.
    pub(super) fn is_even(&self) -> bool {
        self.bytes.windows(2).all(|two| two[0] == two[1])
    }

    pub(super) fn means(&mut self) -> &mut [u64] {
        let len = self.bytes.iter().sum::<u64>() as usize / 8;
        &mut self.means[..len]
    }

    /// Writes this rank's gradients for the first message. A layer without a gradient counts as zeros.
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
        self.reduction.fill(layers, gradients, topology)
    }

    /// Turns this rank's sums into the means of its node, in the layers' types. Records which layers have a gradient on some rank
    /// of the node.
    pub(super) fn average(&mut self, layers: &mut [Layer], topology: &Topology) {
        let local = topology.local;
        let (mut sums, divisor) = self.reduction.sums(layers.len(), topology);
        let mut means = own_means(&self.bytes, &mut self.means, topology);
        let _ = take(&mut means, FAULT);
        for layer in layers.iter() {
            let sums = take(&mut sums, layer.len(local));
            let words = take(&mut means, layer.words(local));
            view(layer, words, local).write(sums.iter().map(|sum| sum / divisor));
        }
        for layer in layers {
            layer.present = take(&mut sums, 1).iter().any(|&count| count > 0.0);
        }
    }

    /// This rank's shards. They hold the means of its node, and after the exchange the means over all nodes.
    pub(super) fn shards(&mut self, layers: &[Layer], topology: &Topology) -> Vec<ValuesMut<'_>> {
        let mut means = own_means(&self.bytes, &mut self.means, topology);
        let _ = take(&mut means, FAULT);
        let shards = layers.iter().map(|layer| {
            let words = take(&mut means, layer.words(topology.local));
            view(layer, words, topology.local)
        });
        shards.collect()
    }

    /// Writes this rank's fault before its means.
    pub(super) fn put_fault(&mut self, fault: Fault, topology: &Topology) {
        own_means(&self.bytes, &mut self.means, topology)[..FAULT].copy_from_slice(&fault.words());
    }

    /// The faults of all ranks of the node.
    pub(super) fn faults(&self) -> impl Iterator<Item = Fault> + Clone + '_ {
        let starts = self.bytes.iter().scan(0, |end, &bytes| {
            let start = *end;
            *end += bytes as usize / 8;
            Some(start)
        });
        starts.map(|start| Fault::read(&self.means[start..]))
    }

    /// Writes all ranks' means to the gradients.
    ///
    /// # Errors
    /// The errors of gradients that do not fit their layers.
    pub(super) fn deliver(
        &mut self,
        layers: &[Layer],
        gradients: &mut [ValuesMut<'_>],
        topology: &Topology,
    ) -> Result<(), Error> {
        check(layers, gradients)?;
        let mut means = self.means();
        for local in 0..topology.per_node {
            let _ = take(&mut means, FAULT);
            for (layer, gradient) in layers.iter().zip(&mut *gradients) {
                let words = take(&mut means, layer.words(local));
                let range = layer.range(local);
                match (view(layer, words, local), gradient) {
                    (ValuesMut::F32(from), ValuesMut::F32(to)) => to[range].copy_from_slice(from),
                    (ValuesMut::F16(from), ValuesMut::F16(to)) => to[range].copy_from_slice(from),
                    (ValuesMut::Bf16(from), ValuesMut::Bf16(to)) => to[range].copy_from_slice(from),
                    // `check` has compared the types.
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn check(layers: &[Layer], gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
    expect_len("gradients, one per layer", layers.len(), gradients.len())?;
    let mut both = layers.iter().zip(gradients);
    both.try_for_each(|(layer, gradient)| check_layer(layer.index, layer.shape, layer.dtype, gradient.values()))
}

/// This rank's part of the means.
fn own_means<'a>(bytes: &[u64], means: &'a mut [u64], topology: &Topology) -> &'a mut [u64] {
    let local = topology.local as usize;
    let start = bytes[..local].iter().sum::<u64>() as usize / 8;
    &mut means[start..][..bytes[local] as usize / 8]
}

/// A shard's values in these words.
fn view<'a>(layer: &Layer, words: &'a mut [u64], local: u32) -> ValuesMut<'a> {
    let len = layer.len(local);
    match layer.dtype {
        Dtype::F32 => ValuesMut::F32(&mut bytemuck::cast_slice_mut(words)[..len]),
        Dtype::F16 => ValuesMut::F16(&mut bytemuck::cast_slice_mut::<u64, F16>(words)[..len]),
        Dtype::Bf16 => ValuesMut::Bf16(&mut bytemuck::cast_slice_mut::<u64, Bf16>(words)[..len]),
    }
}
