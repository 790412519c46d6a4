//! Runs the shared exchange suite (`lgreco_testing::exchange`) on buckets in device memory.

use super::memory::Memory;
use lgreco::compress::eden::Eden;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Compressor, Setting, powersgd::PowerSgd, topk::TopK};
use lgreco::gradient::{Bf16, Dtype, Element, F16, Shape};
use lgreco::rng::Stream;
use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, ExchangeConfig, ExchangeFault, ExchangeOutcome};
use lgreco_testing::exchange::{Bucket, Member, members, parts, shards};
use lgreco_train::exchange::{Agreement, Collective, Moment, Request, Route, Slip};
use lgreco_train::{CoreError, Error};

/// Length of a message's header in bytes. Payloads begin at multiples of this length.
const HEAD: usize = 16;

/// Returns the suite's layers in one type: if `has_factors`, only the layers under PowerSGD, and otherwise all other
/// layers. QSGD's bucket sizes are changed to sizes that the device supports.
fn split(dtype: Dtype, has_factors: bool) -> Vec<Member> {
    let fitting = |setting| match setting {
        Setting::Qsgd(qsgd) => Setting::Qsgd(Qsgd { bucket: qsgd.bucket.next_power_of_two().max(64), ..qsgd }),
        other => other,
    };
    let members = members().into_iter().filter(|of| matches!(of.setting, Setting::PowerSgd(_)) == has_factors);
    members.map(|member| Member { setting: fitting(member.setting), dtype, ..member }).collect()
}

/// Returns the suite's layers in one type, without those under PowerSGD. PowerSGD is left out for two reasons. Sharded
/// exchanges refuse PowerSGD. Also, the suite changes the seed, which needs a new bucket on the device, and the new
/// bucket would not have the old bucket's factors.
pub fn members_of(dtype: Dtype) -> Vec<Member> {
    split(dtype, false)
}

/// Returns all of the suite's layers in one type. For bf16, use this function only with sums in f32. With sums in bf16,
/// the rounding errors of factors and means may together exceed the suite's tolerance.
pub fn all_members_of(dtype: Dtype) -> Vec<Member> {
    [split(dtype, true), split(dtype, false)].concat()
}

fn few_of(layers: &[(Setting, usize, usize)]) -> Vec<Member> {
    let member = |(index, &(setting, rows, cols))| {
        let shape = Shape::new(rows, cols).unwrap();
        Member { index, setting, shape, dtype: Dtype::F32 }
    };
    (0..).zip(layers).map(member).collect()
}

/// Returns layers under QSGD for tests of damaged messages, with one or two scales per bucket and with several buckets.
/// No layer fills its last byte. The bodies of all payloads have even lengths, so a test that damages every second byte
/// also damages the last byte of each scale and body.
pub fn damaged_qsgd() -> Vec<Member> {
    let base = Qsgd { bits: 3, bucket: 64, ..Qsgd::default() };
    let min_max = Qsgd { bits: 5, scale: Scale::MinMax, rounding: Rounding::Nearest, ..base };
    few_of(&[
        (Setting::Qsgd(base), 69, 1),
        (Setting::Qsgd(min_max), 67, 1),
        (Setting::Qsgd(Qsgd { bits: 1, rounding: Rounding::Nearest, ..base }), 73, 1),
    ])
}

/// Returns layers of all methods for tests of damaged messages. TopK, with full values and in few bits, has every
/// encoding of positions and also payloads without positions. The list includes summed layers, because summed layers
/// must not get a mean if a message is damaged. PowerSGD has full rank, so that it leaves no residual. In failed steps,
/// a residual would grow.
pub fn damaged() -> Vec<Member> {
    few_of(&[
        (Setting::TopK(TopK { keep: 20, values: Dtype::F32 }), 290, 1),
        (Setting::Dense, 70, 1),
        (Setting::Qsgd(Qsgd { bits: 3, bucket: 64, ..Qsgd::default() }), 69, 1),
        (Setting::TopK(TopK { keep: 23, values: Dtype::F16 }), 70, 1),
        (Setting::PowerSgd(PowerSgd { rank: 7, iterations: 1 }), 40, 7),
        (Setting::QuantisedTopK(QuantisedTopK { keep: 21, bits: 3 }), 90, 1),
        (Setting::TopK(TopK { keep: 9, values: Dtype::Bf16 }), 9, 1),
        (Setting::Eden(Eden { bits: 3, ..Eden::default() }), 70, 1),
    ])
}

/// Returns the position in the device's message that corresponds to byte `byte` of the host's message. `parts` are the
/// layers in the message.
fn place_of(parts: &[Member], byte: usize) -> usize {
    let (mut own, mut of_host) = (HEAD, Slip::LEN);
    for Member { setting, shape, dtype, .. } in parts {
        let len = setting.payload_len(*shape, *dtype).unwrap();
        if byte < of_host + len {
            return own + byte - of_host;
        }
        own += len.next_multiple_of(HEAD);
        of_host += len;
    }
    panic!("byte {byte} of {of_host}")
}

/// Returns two results: whether the header of a message reports no fault, and the message's payloads. `parts` are the
/// layers in the message.
fn read(parts: &[Member], message: &[u8]) -> (bool, Vec<u8>) {
    let (mut at, mut payloads) = (HEAD, Vec::new());
    for Member { setting, shape, dtype, .. } in parts {
        let len = setting.payload_len(*shape, *dtype).unwrap();
        payloads.extend_from_slice(&message[at..at + len]);
        at += len.next_multiple_of(HEAD);
    }
    assert_eq!(at, message.len());
    (message[..4] == [0; 4], payloads)
}

/// A rank's bucket. The first step creates the bucket, because the rank is unknown until then.
pub struct OnDevice<M, const SHARDED: bool> {
    cuda: CudaBackend,
    members: Vec<Member>,
    gradients: M,
    made: Option<(DeviceBucket, M, ExchangeConfig)>,
}

impl<M: Memory, const SHARDED: bool> OnDevice<M, SHARDED> {
    /// Describes a bucket of these layers, in memory that the backend can access.
    pub fn new(cuda: CudaBackend, members: &[Member]) -> Self {
        let bytes: usize = members.iter().map(|member| member.shape.elements() * member.dtype.bytes()).sum();
        OnDevice { cuda, members: members.to_vec(), gradients: M::new(bytes as u64), made: None }
    }

    fn make(&mut self, moment: Moment) {
        let Moment { rank, world_size, reduce_dtype, seed, step, .. } = moment;
        let stream = Stream { seed, step, layer: 0, rank };
        let dtype = self.members[0].dtype;
        let config = ExchangeConfig { dtype, reduce_dtype, world: world_size, stream, ..ExchangeConfig::default() };
        let shards = shards(&self.members, Self::ROUTE, world_size);
        let layer = |(&Member { index, shape, setting, .. }, shards)| DeviceLayer { index, shape, setting, shards };
        let layers: Vec<DeviceLayer> = self.members.iter().zip(shards.iter().map(Vec::as_slice)).map(layer).collect();
        let mut memory = M::new(DeviceBucket::bytes(&layers, config).unwrap());
        // SAFETY: the memory lives as long as the bucket, and is large enough.
        let mut bucket = unsafe { DeviceBucket::new(&mut self.cuda, &layers, config, memory.address()) }.unwrap();
        if let Some((before, ..)) = &self.made {
            // SAFETY: both buckets belong to this backend.
            unsafe { bucket.take_over(&mut self.cuda, before) }.unwrap();
        }
        self.made = Some((bucket, memory, config));
    }

    fn world(&self) -> u32 {
        self.made.as_ref().unwrap().2.world
    }

    fn outcome(&mut self) -> ExchangeOutcome {
        let (bucket, ..) = self.made.as_ref().unwrap();
        bucket.outcome(&mut self.cuda).unwrap()
    }

    /// Reads a value of a layer's gradient.
    fn value(&self, bytes: &[u8], layer: usize, index: usize) -> f32 {
        let dtype = self.members[layer].dtype;
        let at = &bytes[index * dtype.bytes()..];
        let half = || u16::from_le_bytes([at[0], at[1]]);
        match dtype {
            Dtype::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
            Dtype::F16 => F16(half()).to_f32(),
            Dtype::Bf16 => Bf16(half()).to_f32(),
        }
    }
}

impl<M: Memory, const SHARDED: bool> Bucket for OnDevice<M, SHARDED> {
    const ROUTE: Route = if SHARDED { Route::Sharded } else { Route::AllGather };
    const FORGETS: bool = false;
    const SENDS_AS_HOST: bool = false;
    const TELLS_OF_REST: bool = true;

    fn exchange(
        &mut self,
        gradients: &[Vec<u8>],
        moment: Moment,
        agreement: Agreement,
        collective: &mut impl Collective,
    ) -> Result<(), Error> {
        assert_eq!(agreement, Agreement::Reached);
        // The seed and the type of sums are fixed per bucket, so a new seed needs a new bucket.
        if self.made.as_ref().is_none_or(|(_, _, config)| config.stream.seed != moment.seed) {
            self.make(moment);
        }
        let before = self.outcome();
        assert_eq!(before.step, moment.step);
        self.gradients.fill(&gradients.concat());
        let (bucket, ..) = self.made.as_mut().unwrap();
        // SAFETY: the memory is large enough, and no other work uses it until the step has ended.
        unsafe { bucket.submit(&mut self.cuda, self.gradients.address()) }.unwrap();
        // SAFETY: the previously requested collective is done.
        while let Some(request) = unsafe { bucket.next(&mut self.cuda) }.unwrap() {
            self.cuda.synchronise().unwrap();
            // SAFETY: all enqueued work is done.
            let performed = unsafe {
                match request {
                    Request::AllGather { buffer } => M::lend(buffer, |bytes| collective.all_gather(bytes)),
                    Request::AllReduceSum { values } => M::lend(values, |values| collective.all_reduce_sum(values)),
                    Request::AllReduceSumBf16 { values } => {
                        M::lend(values, |values| collective.all_reduce_sum_bf16(values))
                    }
                    Request::AllToAll { send, send_lens, received, received_lens } => M::lend(send, |send| {
                        M::lend(received, |received| collective.all_to_all(send, send_lens, received, received_lens))
                    }),
                    Request::ReduceScatterSum { lens, values } => {
                        M::lend(values, |values| collective.reduce_scatter_sum(lens, values))
                    }
                    Request::ReduceScatterSumBf16 { lens, values } => {
                        M::lend(values, |values| collective.reduce_scatter_sum_bf16(lens, values))
                    }
                    other => panic!("{other:?}"),
                }
            };
            performed?;
        }
        let after = self.outcome();
        if after.failed == before.failed {
            assert!(!after.alone);
            return Ok(());
        }
        if after.alone {
            assert!(SHARDED && after.fault.is_some());
        }
        Err(match (after.fault, after.rank) {
            (Some(ExchangeFault::Payload { layer }), Some(rank)) => {
                assert!(!matches!(self.members[layer].setting, Setting::Dense | Setting::PowerSgd(_)));
                assert!(self.gradients.bytes().iter().all(|&byte| byte == 0), "means, though a payload is broken");
                Error::PeerMessage { rank, code: 0 }
            }
            (Some(ExchangeFault::NonFinite { layer, index }), _) => {
                let value = self.value(&gradients[layer], layer, index);
                Error::NonFiniteGradient { layer: self.members[layer].index as usize, index, value }
            }
            (Some(_), _) => Error::Core(CoreError::Overflow { what: "" }),
            (None, Some(rank)) if rank != moment.rank => Error::Peer { rank, code: 0 },
            (None, rank) => panic!("rank {}: {rank:?} is at fault, but with nothing", moment.rank),
        })
    }

    fn message(&self, message: &[u8]) -> (bool, Vec<u8>) {
        read(&parts(&self.members, Self::ROUTE, self.world(), 0), message)
    }

    fn message_for(&self, owner: u32, message: &[u8]) -> (bool, Vec<u8>) {
        read(&parts(&self.members, Self::ROUTE, self.world(), owner), message)
    }

    fn place_of(&self, byte: usize) -> usize {
        // Tests of damaged messages have two ranks.
        place_of(&parts(&self.members, Self::ROUTE, 2, 0), byte)
    }

    /// Describes an error. Omits details that devices do not report: the layer of an overflow, and another rank's fault
    /// unless that rank's payload is broken.
    fn tells(error: &Error) -> String {
        match error {
            Error::OfLayer { error: CoreError::ElementOverflow { .. } | CoreError::Overflow { .. }, .. }
            | Error::Core(CoreError::Overflow { .. }) => "too large".into(),
            Error::Peer { .. } | Error::PeerPlan { .. } => "another rank".into(),
            Error::PeerMessage { rank, .. } => format!("a payload of rank {rank}"),
            other => format!("{other:?}"),
        }
    }

    fn means(&mut self) -> Vec<Vec<u8>> {
        let rank = self.made.as_ref().unwrap().2.stream.rank as usize;
        let shards = shards(&self.members, Self::ROUTE, self.world());
        let bytes = self.gradients.bytes();
        let mut rest = &bytes[..];
        let cut = |(member, shards): (&Member, &Vec<u64>)| {
            let (len, bytes) = (member.shape.elements(), member.dtype.bytes());
            let end = |rank: usize| shards.get(rank).map_or(len, |&end| end as usize);
            let start = if SHARDED && rank > 0 { end(rank - 1) } else { 0 };
            rest.split_off(..len * bytes).unwrap()[bytes * start..bytes * end(rank)].to_vec()
        };
        self.members.iter().zip(&shards).map(cut).collect()
    }

    fn residuals(&mut self) -> Option<Vec<Vec<f32>>> {
        let mut values = vec![0.0; self.members.iter().map(|member| member.shape.elements()).sum()];
        let (bucket, ..) = self.made.as_ref().unwrap();
        bucket.residuals(&mut self.cuda, &mut values).unwrap();
        let mut rest = &values[..];
        let cut = |member: &Member| rest.split_off(..member.shape.elements()).unwrap().to_vec();
        Some(self.members.iter().map(cut).collect())
    }
}
