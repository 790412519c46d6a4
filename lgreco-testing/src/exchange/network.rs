//! A network that records the bytes that this rank sends, and damages the bytes that it gathers.

use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::exchange::{Collective, CollectiveError, Slip};
use lgreco_train::gradient::Bf16;

const GATHERED: &str = "all-gather";
const SUMMED: &str = "all-reduce";
const SUMMED_BF16: &str = "all-reduce of bf16";
const SENT_TO_ALL: &str = "all-to-all";
const SCATTERED: &str = "reduce-scatter";
const SCATTERED_BF16: &str = "reduce-scatter of bf16";

/// The bytes that a rank sent in a collective.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) call: &'static str,
    pub(super) bytes: Vec<u8>,
    /// Length of each rank's part; empty if all ranks get everything.
    lens: Vec<usize>,
}

impl Sent {
    /// Returns the name of this collective, and the position of the first byte that differs from `other`, if any.
    pub(super) fn differs(&self, other: &Sent) -> (&'static str, Option<usize>) {
        let same = (self.call, self.bytes.len(), &self.lens) == (other.call, other.bytes.len(), &other.lens);
        let at = self.bytes.iter().zip(&other.bytes).position(|(a, b)| a != b);
        (self.call, if same { at } else { Some(self.bytes.len()) })
    }

    /// The content without fingerprints. `message` reads a gathered message, or a message for a single rank, and
    /// returns whether the header reports success, and the payloads. A sum reports success if this rank's status record
    /// reports success, and if the other ranks' records are zeros.
    pub(super) fn content(&self, place: Place, message: impl Fn(Option<u32>, &[u8]) -> (bool, Vec<u8>)) -> Content {
        let of_sum = |bytes: &[u8]| place.of_sum::<f32, 1>(bytes, |[sum]| Slip::of_sum(sum));
        let of_bf16_sum = |bytes: &[u8]| place.of_sum::<Bf16, 3>(bytes, Slip::of_bf16_sum);
        let (fares_well, bytes) = match self.call {
            GATHERED => message(None, &self.bytes),
            SUMMED => of_sum(&self.bytes),
            SUMMED_BF16 => of_bf16_sum(&self.bytes),
            SENT_TO_ALL => {
                self.parts(|owner, bytes| if bytes.is_empty() { (true, vec![]) } else { message(Some(owner), bytes) })
            }
            SCATTERED => self.parts(|_, bytes| of_sum(bytes)),
            SCATTERED_BF16 => self.parts(|_, bytes| of_bf16_sum(bytes)),
            _ => (true, self.bytes.clone()),
        };
        Content { call: self.call, fares_well, bytes }
    }

    /// The status and content of each rank's part, one after the other.
    fn parts(&self, content: impl Fn(u32, &[u8]) -> (bool, Vec<u8>)) -> (bool, Vec<u8>) {
        let (mut rest, mut fares_well, mut all) = (&self.bytes[..], true, Vec::new());
        for (owner, &len) in (0..).zip(&self.lens) {
            let part;
            (part, rest) = rest.split_at(len);
            let (well, held) = content(owner, part);
            fares_well &= well;
            all.extend(held);
        }
        (fares_well, all)
    }
}

/// The content that a rank sent in a collective, without status records.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content {
    pub(super) call: &'static str,
    pub(super) fares_well: bool,
    pub(super) bytes: Vec<u8>,
}

/// A rank, and the number of ranks.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) world: usize,
}

impl Place {
    /// Returns whether the status records after a sum report success, and the bytes before these records.
    fn of_sum<T: bytemuck::Pod, const LEN: usize>(
        self,
        bytes: &[u8],
        slip: impl FnOnce([T; LEN]) -> Slip,
    ) -> (bool, Vec<u8>) {
        let len = LEN * size_of::<T>();
        let (values, slips) = bytes.split_at(bytes.len() - len * self.world);
        let (before, own) = slips.split_at(len * self.rank);
        let (own, after) = own.split_at(len);
        let alone = before.iter().chain(after).all(|&byte| byte == 0);
        let own =
            core::array::from_fn(|at| bytemuck::pod_read_unaligned(&own[at * size_of::<T>()..][..size_of::<T>()]));
        (alone && slip(own).code == 0, values.to_vec())
    }
}

/// A change to one byte of a rank's messages. All receivers get the changed byte, even if each receiver gets a separate
/// message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Damage {
    /// The sender's rank.
    pub(super) rank: usize,
    /// Index of the byte; shorter messages stay as they are.
    pub(super) at: usize,
    /// The bits that change.
    pub(super) change: u8,
}

/// The network of one worker.
pub(super) struct Network {
    worker: ThreadCollective,
    pub(super) damage: Option<Damage>,
    sent: Vec<Sent>,
}

impl Network {
    pub(super) fn new(worker: ThreadCollective) -> Network {
        Network { worker, damage: None, sent: Vec::new() }
    }

    /// Takes the record of the bytes sent since the last call.
    pub(super) fn sent(&mut self) -> Vec<Sent> {
        core::mem::take(&mut self.sent)
    }

    fn remember(&mut self, call: &'static str, bytes: &[u8]) {
        self.sent.push(Sent { call, bytes: bytes.to_vec(), lens: vec![] });
    }

    /// Records a collective in which each rank has a part. `lens` has the parts' lengths in elements.
    fn remember_parts<T: bytemuck::NoUninit>(&mut self, call: &'static str, elements: &[T], lens: &[u64]) {
        let lens = lens.iter().map(|&len| len as usize * size_of::<T>()).collect();
        self.sent.push(Sent { call, bytes: bytemuck::cast_slice(elements).to_vec(), lens });
    }
}

impl Collective for Network {
    fn rank(&self) -> u32 {
        self.worker.rank()
    }

    fn world_size(&self) -> u32 {
        self.worker.world_size()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.remember(SUMMED, bytemuck::cast_slice(values));
        self.worker.all_reduce_sum(values)
    }

    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.remember(SUMMED_BF16, bytemuck::cast_slice(values));
        self.worker.all_reduce_sum_bf16(values)
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let len = buffer.len() / self.world_size() as usize;
        self.remember(GATHERED, &buffer[self.rank() as usize * len..][..len]);
        self.worker.all_gather(buffer)?;
        if let Some(Damage { rank, at, change }) = self.damage.filter(|damage| damage.at < len) {
            buffer[rank * len + at] ^= change;
        }
        Ok(())
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let own = self.rank() as usize;
        let before = lens[..own].iter().sum::<u64>() as usize;
        self.remember("all-gather of different lengths", &buffer[before..][..lens[own] as usize]);
        self.worker.all_gather_each(lens, buffer)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.remember("broadcast", if root == self.rank() { bytes } else { &[] });
        self.worker.broadcast(root, bytes)
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        self.remember_parts(SENT_TO_ALL, send, send_lens);
        self.worker.all_to_all(send, send_lens, received, received_lens)?;
        let lens: Vec<usize> = received_lens.iter().map(|&len| len as usize).collect();
        if let Some(Damage { rank, at, change }) = self.damage.filter(|damage| damage.at < lens[damage.rank]) {
            received[lens[..rank].iter().sum::<usize>() + at] ^= change;
        }
        Ok(())
    }

    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        self.remember_parts(SCATTERED, values, lens);
        self.worker.reduce_scatter_sum(lens, values)
    }

    fn reduce_scatter_sum_bf16(&mut self, lens: &[u64], values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.remember_parts(SCATTERED_BF16, values, lens);
        self.worker.reduce_scatter_sum_bf16(lens, values)
    }
}

/// The network of a single rank. In gathered messages, the network flips the bits that are set in this field, beginning
/// after the status record.
pub(super) struct Forger<'a>(pub(super) &'a [u8]);

impl Collective for Forger<'_> {
    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        1
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        buffer[Slip::LEN..].iter_mut().zip(self.0).for_each(|(byte, change)| *byte ^= change);
        Ok(())
    }

    fn all_gather_each(&mut self, _: &[u64], _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
        Ok(())
    }
}
