//! Exchanges of buckets on the device: the suite of all spaces, and what is asked of the device.

use super::buffers::buffer;
use super::factors::{check_beyond, of_all_lengths};
use super::poison::filled;
use super::{backend, backend_with, planted, small};
use crate::batch::{Batch, Part};
use crate::kernels::Shader;
use crate::{BufferBucket, BufferGradient, BufferLayer, WgpuBackend};
use lgreco_core::compress::Setting;
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use lgreco_testing::exchange::{Bucket, Member, check_message, damaged_members, members};
use lgreco_testing::exchange::{check_space, check_space_damage, check_space_failures};
use lgreco_testing::powersgd::uniform;
use lgreco_train::Error;
use lgreco_train::exchange::{
    Agreement, Collective, Flight, Moment, Request, Route, threads, threads::ThreadCollective,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wgpu::{Buffer, BufferUsages};

pub(super) const USAGE: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);
/// Where a layer's gradient begins in its buffer.
pub(super) const OFFSET: u64 = 132;

/// Devices that no bucket is on: kernels are compiled once for each.
static IDLE: Mutex<Vec<WgpuBackend>> = Mutex::new(Vec::new());

/// A bucket, its device, and the gradients' buffers.
pub(super) struct OnDevice {
    /// `None` when it is dropped.
    backend: Option<WgpuBackend>,
    /// Whether others may have the device afterwards.
    is_sound: bool,
    pub(super) bucket: BufferBucket,
    members: Vec<Member>,
    pub(super) buffers: Vec<Buffer>,
}

pub(super) fn open(members: &[Member], feedback: bool, world: u32) -> OnDevice {
    let idle = IDLE.lock().unwrap().pop();
    open_on(idle.or_else(backend).expect("the device there was before"), members, feedback, world)
}

pub(super) fn open_on(mut backend: WgpuBackend, members: &[Member], feedback: bool, world: u32) -> OnDevice {
    let (bucket, buffers) = bucket(&mut backend, members, feedback, world);
    let gpu = backend.gpu();
    let is_sound = gpu.kernels.edits.is_empty() && !gpu.kernels.poisoned && gpu.most_groups() > 64;
    OnDevice { backend: Some(backend), is_sound, bucket, members: members.to_vec(), buffers }
}

/// A bucket of these layers, and the gradients' buffers.
fn bucket(backend: &mut WgpuBackend, members: &[Member], feedback: bool, world: u32) -> (BufferBucket, Vec<Buffer>) {
    let bytes = |member: &Member| (member.shape.elements() * member.dtype.bytes()) as u64;
    let buffers: Vec<Buffer> =
        members.iter().map(|member| buffer(backend, OFFSET + bytes(member).next_multiple_of(4), USAGE)).collect();
    let layers: Vec<BufferLayer<'_>> = members
        .iter()
        .zip(&buffers)
        .map(|(&Member { index, setting, shape, dtype }, buffer)| {
            let gradient = BufferGradient { buffer, offset: OFFSET, dtype, shape };
            BufferLayer { index, setting, gradient }
        })
        .collect();
    (BufferBucket::new(backend, &layers, feedback, world).unwrap(), buffers)
}

impl OnDevice {
    pub(super) fn backend(&mut self) -> &mut WgpuBackend {
        self.backend.as_mut().unwrap()
    }

    pub(super) fn parts(&mut self) -> (&mut WgpuBackend, &mut BufferBucket) {
        (self.backend.as_mut().unwrap(), &mut self.bucket)
    }

    /// What shaders find of the last step.
    fn found_inf(&mut self) -> f32 {
        let found = self.bucket.found_inf().clone();
        bytemuck::pod_read_unaligned(&self.read(&found, 0, 4))
    }

    fn read(&mut self, buffer: &Buffer, offset: u64, bytes: usize) -> Vec<u8> {
        let part = Part { buffer: buffer.clone(), offset, size: (bytes as u64).next_multiple_of(4) };
        let mut bytes_read = Batch::new(self.backend().gpu()).unwrap().read(&[part]).unwrap();
        bytes_read.truncate(bytes);
        bytes_read
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        if let (Ok(mut idle), Some(backend), true) = (IDLE.lock(), self.backend.take(), self.is_sound) {
            idle.push(backend);
        }
    }
}

impl Bucket for OnDevice {
    fn exchange(
        &mut self,
        gradients: &[Vec<u8>],
        moment: Moment,
        agreement: Agreement,
        collective: &mut impl Collective,
    ) -> Result<(), Error> {
        let backend = self.backend.as_mut().unwrap();
        for (buffer, bytes) in self.buffers.iter().zip(gradients) {
            let mut padded = bytes.clone();
            // What comes behind the last value of 16 bits is nobody's.
            padded.resize(bytes.len().next_multiple_of(4), 0x5a);
            backend.queue().write_buffer(buffer, OFFSET, &padded);
        }
        let mut flight = Flight::begin(&mut self.bucket.on(backend), moment, agreement, None)?;
        // Made anew for each call, as by who has other buckets on the same device.
        while let Some(request) = flight.next(&mut self.bucket.on(backend))? {
            request.perform(collective)?;
        }
        LOST.fetch_add(std::mem::take(&mut backend.gpu().lost_cuts), Relaxed);
        self.bucket.finish(backend)?;
        self.bucket.check(backend)
    }

    fn means(&mut self) -> Vec<Vec<u8>> {
        let members = self.members.clone();
        let buffers = self.buffers.clone();
        let mean = |(member, buffer): (&Member, &Buffer)| {
            let bytes = member.shape.elements() * member.dtype.bytes();
            let all = self.read(buffer, OFFSET, bytes.next_multiple_of(4));
            assert!(all[bytes..].iter().all(|&byte| byte == 0x5a), "written behind the last value");
            all[..bytes].to_vec()
        };
        members.iter().zip(&buffers).map(mean).collect()
    }

    fn residuals(&mut self) -> Option<Vec<Vec<f32>>> {
        self.bucket.residual(0)?;
        let layers = self.members.len();
        let residual = |layer: usize| {
            let (buffer, offset) = self.bucket.residual(layer).map(|(buffer, at)| (buffer.clone(), at)).unwrap();
            bytemuck::pod_collect_to_vec(&self.read(&buffer, offset, 4 * self.members[layer].shape.elements()))
        };
        Some((0..layers).map(residual).collect())
    }
}

/// Flights in which cuts were lost.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Whether there is a device.
pub(super) fn is_there() -> bool {
    let found = backend();
    let there = found.is_some();
    IDLE.lock().unwrap().extend(found);
    there
}

#[test]
fn means_residuals_and_messages_are_the_hosts() {
    if is_there() {
        check_space(&members(), true, open);
        // Slips and fingerprints, too, which differ where PowerSGD's factors do.
        let exact: Vec<Member> =
            members().into_iter().filter(|member| !matches!(member.setting, Setting::PowerSgd(_))).collect();
        check_space(&exact, true, open);
    }
}

#[test]
fn failures_are_the_hosts() {
    if is_there() {
        check_space_failures(&members(), open);
    }
}

/// Where samples mislead, cuts of all layers that keep some are lost, in every step.
#[test]
fn steps_with_lost_cuts_are_the_hosts() {
    if !is_there() {
        return;
    }
    let misled = |members: &[Member], feedback, world| {
        // With rubbish in the workgroups' memory, too.
        let other = if feedback { backend() } else { filled(wgpu::Features::SUBGROUP) };
        let mut backend = other.expect("the device there was before");
        let mislead = (Shader::Exchange, "BIN_COUNTS, 64u, params.most, lane)", "BIN_COUNTS, 64u, 1u, lane)");
        backend.gpu().kernels.edits.push(mislead);
        open_on(backend, members, feedback, world)
    };
    LOST.store(0, Relaxed);
    check_space(&few()[..9], true, misled);
    assert!(LOST.load(Relaxed) > 10);
}

#[test]
fn damage_is_found_as_by_the_host() {
    if is_there() {
        check_space_damage(&damaged_members(), 0, 3, open);
    }
}

#[test]
fn no_workgroup_memory_is_read_before_it_is_written() {
    if is_there() {
        let members: Vec<Member> = few().into_iter().chain(of_all_lengths()).collect();
        check_space(&members, false, |members, feedback, world| {
            // With subgroups, and without.
            let features = if feedback { wgpu::Features::SUBGROUP } else { wgpu::Features::empty() };
            open_on(filled(features).expect("the device there was before"), members, feedback, world)
        });
    }
}

#[test]
fn buckets_beyond_a_dispatch_are_refused() {
    let Some(mut backend) = backend_with(wgpu::Features::empty(), small) else { return };
    let most = backend.gpu().most_groups();
    let held = buffer(&backend, 4 * 2048 * most as u64 + 4, USAGE);
    for (values, fits) in [(2048 * most, true), (2048 * most + 1, false)] {
        let shape = Shape::new(values, 1).unwrap();
        let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        let layer = BufferLayer { index: 0, setting: Setting::Dense, gradient };
        match BufferBucket::new(&mut backend, &[layer], true, 2) {
            Ok(_) => assert!(fits),
            Err(error) => assert!(!fits && matches!(error, crate::Error::TooLarge { .. }), "{error}"),
        }
    }
}

/// Some of the suite's layers, one of each kind with more than one workgroup; those under PowerSGD come last.
fn few() -> Vec<Member> {
    members()
        .into_iter()
        .enumerate()
        .filter(|(layer, _)| [0, 6, 7, 14, 16, 17, 18, 19, 22, 23, 24].contains(layer))
        .map(|(_, member)| member)
        .collect()
}

/// Which check finds it.
#[derive(Clone, Copy, Debug)]
enum Check {
    Steps,
    Failures,
    Damage,
    /// Of layers under PowerSGD alone.
    Beyond,
}

#[test]
fn faults_in_the_shaders_are_found() {
    if !is_there() {
        return;
    }
    let in_bucket = [
        (Check::Steps, "residual[params.start + i]", "(residual[params.start + i] & SIGN)"),
        (Check::Steps, "let image = rank * moment.image;", "let image = (moment.world - 1u - rank) * moment.image;"),
        (Check::Steps, "var upper = means[at] >> 16u;", "var upper = 0u;"),
        (Check::Steps, "in_image(params.starts + block)", "0u"),
        (Check::Steps, "params.high_word + word, params.high_bit,", "params.high_word + word, 0u,"),
        (Check::Steps, "Picked(bin, rank - before);", "Picked(bin, rank);"),
        (Check::Steps, "see(x & MAGNITUDE);", "see(x);"),
        (Check::Steps, "&& bin_in_interval(magnitude) == bin", ""),
        (Check::Steps, "sender = ranks + lane;", "sender = 0u;"),
        (Check::Steps, "if (bucket * params.bucket >= first) {", "if (false) {"),
        (Check::Steps, "first / ROW * params.bits + i", "i"),
        (Check::Steps, "cut.magnitude == 0u), high)", "true), high)"),
        (Check::Steps, "raise_counter(params.counters + HIGHEST, atomicLoad(&own_ends[5]));", ""),
        (Check::Steps, "max(magnitude >> 23u, 1u)", "(magnitude >> 23u)"),
        (Check::Steps, "min(before.y, ties), params.first", "before.y, params.first"),
        (Check::Steps, "plus_wide(vec2<u32>(before, sum.y), sum.x).y", "sum.y"),
        (Check::Steps, "u32(lower < word)", "0u"),
        (Check::Steps, "digits >> (9u - exponent)", "digits"),
        (Check::Steps, "(bits >> 31u) << (params.bits - 1u)", "0u"),
        (Check::Steps, "bits_from(at.x, at.y, params.bits);", "bits_from(at.x, 0u, params.bits);"),
        (Check::Failures, "fault(0u, i);", "fault(0u, i & 63u);"),
        (Check::Failures, "max(params.largest, cut.magnitude)", "SIGN"),
        (Check::Failures, "if (!is_finite(left)) {", "if (false) {"),
        (Check::Damage, "low_bits_of(index - 1u) >= low_bits_of(index)", "false"),
        (Check::Damage, "if (!is_finite(bits)) {", "if (false) {"),
        (Check::Beyond, "if (!is_finite(mean)) {", "if (!is_finite(mean) && params.method != POWER_SGD) {"),
    ];
    let in_factors = [
        (Check::Steps, "let afresh = largest_of(lane, 256u, largest) == 0u;", "let afresh = true;"),
        (Check::Steps, "params.step = 0u;", "params.step = 1u;"),
        (Check::Steps, "scaled(bitcast<u32>(product[first + i]), e)", "scaled(bitcast<u32>(product[first + i]), 0)"),
        (Check::Steps, "chunk * CHUNK < shape.inner", "chunk < 1u"),
        (Check::Steps, "job.transposed != 0u && job.halves != 0u", "false"),
        (Check::Steps, "held.bits ^ SIGN", "held.bits"),
        (Check::Steps, "col < params.all_cols;", "true;"),
        (Check::Beyond, "if (!is_finite(left)) {", "if (false) {"),
        (Check::Failures, "if (!is_finite(bitcast<u32>(sum))) {", "if (false) {"),
    ];
    let faults = in_bucket.map(|fault| (Shader::Exchange, fault)).into_iter();
    let faults = faults.chain(in_factors.map(|fault| (Shader::ExchangeFactors, fault)));
    for (shader, (check, text, fault)) in planted(faults) {
        let open = |members: &[Member], feedback, world| {
            let mut backend = backend().expect("the device there was before");
            backend.gpu().kernels.edits.push((shader, text, fault));
            open_on(backend, members, feedback, world)
        };
        let found = std::panic::catch_unwind(|| match check {
            Check::Steps if shader == Shader::ExchangeFactors => check_space(&few()[9..], true, open),
            Check::Steps => check_space(&few()[..9], false, open),
            Check::Failures => check_space_failures(&members(), open),
            Check::Damage => check_space_damage(&damaged_members(), 0, 3, open),
            Check::Beyond => check_beyond(open),
        });
        let message = found.expect_err(&format!("not found: {text}"));
        let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(!message.contains("Device") && !message.contains("nothing to edit"), "{text}: {message}");
    }
}

/// A rank alone, whose network brings what the others would: sums, and slips like its own.
#[test]
fn means_are_rounded_as_on_the_host() {
    let Some(mut backend) = backend() else { return };
    let stream = Stream { seed: 3, ..Stream::default() };
    // Of all magnitudes, subnormal numbers among them, and of few.
    let bits = (0..1 << 14).map(|i| stream.word(i) % if i % 4 == 0 { 0x80_0000 } else { 0xff80_0000 });
    let values: Vec<f32> = bits.map(f32::from_bits).filter(|x| x.is_finite()).collect();
    let shape = Shape::new(values.len(), 1).unwrap();
    let held = buffer(&backend, 4 * values.len() as u64, USAGE);
    let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    let layer = BufferLayer { index: 0, setting: Setting::Dense, gradient };
    for world_size in [1, 2, 3, 7, 10, 255, 4096, 40_001, 65_535] {
        backend.queue().write_buffer(&held, 0, bytemuck::cast_slice(&values));
        let mut bucket = BufferBucket::new(&mut backend, &[layer], false, world_size).unwrap();
        let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
        let moment = Moment { rank: 0, world_size, route, reduce_dtype, seed: 7, step: 0, terms: 0 };
        let mut space = bucket.on(&mut backend);
        let mut flight = Flight::begin(&mut space, moment, Agreement::Reached, None).unwrap();
        while let Some(request) = flight.next(&mut space).unwrap() {
            let Request::AllReduceSum { values: sums } = request else { panic!("{request:?}") };
            assert_eq!(sums[..values.len()], values);
            let slip = sums[values.len()];
            sums[values.len()..].fill(slip);
        }
        bucket.finish(&mut backend).unwrap();
        let part = Part { buffer: held.clone(), offset: 0, size: held.size() };
        let found: Vec<u32> = bytemuck::pod_collect_to_vec(&Batch::new(backend.gpu()).unwrap().read(&[part]).unwrap());
        for (&found, x) in found.iter().zip(&values) {
            let expected = (x / world_size as f32).to_bits();
            assert_eq!(found, expected, "{x:e} / {world_size}: {found:x}, not {expected:x}");
        }
    }
}

/// The flight of a rank that begins with this failure.
pub(super) fn fly(
    on: &mut OnDevice,
    network: &mut impl Collective,
    step: u32,
    failure: Option<Error>,
) -> Result<(), Error> {
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    let (rank, world_size) = (network.rank(), network.world_size());
    let moment = Moment { rank, world_size, route, reduce_dtype, seed: 7, step, terms: 0 };
    let mut space = on.bucket.on(on.backend.as_mut().unwrap());
    let mut flight = Flight::begin(&mut space, moment, Agreement::Reached, failure)?;
    while let Some(request) = flight.next(&mut space)? {
        request.perform(network)?;
    }
    on.bucket.finish(on.backend.as_mut().unwrap())?;
    on.bucket.check(on.backend.as_mut().unwrap())
}

#[test]
fn all_ranks_hear_of_one_that_has_failed_or_lost_its_device() {
    if !is_there() {
        return;
    }
    let results = threads::run(2, |mut network| {
        let mut on = open(&few(), true, 2);
        on.is_sound = false;
        let is_last = network.rank() == 1;
        let mut fly = |on: &mut OnDevice, step, failure| {
            let result = fly(on, &mut network, step, failure);
            (result, if on.bucket.failure().is_none() { on.found_inf() } else { f32::NAN })
        };
        assert_eq!(on.found_inf(), 0.0);
        let sound = fly(&mut on, 0, None);
        // What was wrong in one step is not told in the next.
        let gradient = on.buffers[0].clone();
        let write = |on: &mut OnDevice, value: f32| {
            on.backend().queue().write_buffer(&gradient, OFFSET, &value.to_le_bytes());
        };
        write(&mut on, if is_last { f32::NAN } else { 0.0 });
        let spoilt = fly(&mut on, 1, None);
        write(&mut on, 0.0);
        let told = fly(&mut on, 1, is_last.then_some(Error::NotFixed));
        let again = fly(&mut on, 1, None);
        if is_last {
            on.backend().device().destroy();
        }
        let lost = fly(&mut on, 2, None);
        assert_eq!(on.bucket.failure().is_some(), is_last);
        [sound, spoilt, told, again, lost]
    });
    let of_peer = |code| Err(Error::Peer { rank: 1, code });
    let not_finite = lgreco_core::Error::NonFinite { index: 0, value: 0.0 }.code();
    let [first, last] = [&results[0], &results[1]].map(|of| of.map(|(result, _)| result));
    assert_eq!(first, [Ok(()), of_peer(not_finite), of_peer(Error::NotFixed.code()), Ok(()), of_peer(9)]);
    assert!(last[0].is_ok() && last[1].is_err(), "{last:?}");
    assert_eq!(last[2..4], [Err(Error::NotFixed), Ok(())]);
    assert!(matches!(last[4], Err(Error::Core(lgreco_core::Error::Device { .. }))), "{:?}", last[4]);
    // What shaders find: on a device that is lost nothing.
    for (steps, found) in [(5, results[0]), (4, results[1])] {
        assert_eq!(found.map(|(_, found_inf)| found_inf)[..steps], [0.0, 1.0, 1.0, 0.0, 1.0][..steps]);
    }
}

#[test]
fn the_layer_at_fault_is_named() {
    if !is_there() {
        return;
    }
    let members = members();
    let mut on = open(&members, true, 1);
    let mut network = ThreadCollective::group(1).remove(0);
    // Uncompressed layers come first, then those under PowerSGD, as on the host; nothing is wrong in the last round.
    let (dense, qsgd, topk, powersgd) = (1, 9, 17, 27);
    for (layer, other, element) in [
        (Some(dense), Some(powersgd), 2),
        (Some(powersgd), Some(qsgd), 0),
        (Some(qsgd), Some(topk), 0),
        (Some(topk), None, 0),
        (None, None, 0),
    ] {
        for spoiled in [layer, other].into_iter().flatten() {
            assert_eq!(members[spoiled].dtype, Dtype::F32);
            let at = OFFSET + 4 * element;
            let buffer = on.buffers[spoiled].clone();
            on.backend().queue().write_buffer(&buffer, at, &f32::NAN.to_le_bytes());
        }
        let result = fly(&mut on, &mut network, 0, None);
        assert_eq!(on.bucket.faulty_layer(), layer);
        assert_eq!(result.is_err(), layer.is_some(), "{result:?}");
        for buffer in on.buffers.clone() {
            let zeros = vec![0; buffer.size() as usize];
            on.backend().queue().write_buffer(&buffer, 0, &zeros);
        }
    }
}

/// Whatever is under way on the same device, a bucket ends with the same bits.
#[test]
fn buckets_do_not_meet() {
    let Some(mut backend) = backend() else { return };
    let members: Vec<Member> = few().into_iter().filter(|member| member.dtype == Dtype::F32).collect();
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    let moment = |step| Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 7, step, terms: 0 };
    let outcomes = [false, true].map(|interleaved| {
        let mut buckets = [(); 2].map(|()| bucket(&mut backend, &members, true, 1));
        for step in 0..2 {
            for (number, (_, buffers)) in (0..).zip(&buckets) {
                for (buffer, seed) in buffers.iter().zip(10 * number..) {
                    let values = uniform((buffer.size() / 4) as usize, u64::from(step) + seed);
                    backend.queue().write_buffer(buffer, 0, bytemuck::cast_slice(&values));
                }
            }
            if !interleaved {
                for (bucket, _) in &mut buckets {
                    let mut space = bucket.on(&mut backend);
                    let mut flight = Flight::begin(&mut space, moment(step), Agreement::Reached, None).unwrap();
                    while flight.next(&mut space).unwrap().is_some() {}
                    bucket.finish(&mut backend).unwrap();
                }
                continue;
            }
            let mut flights = buckets.each_mut().map(|(bucket, _)| {
                Flight::begin(&mut bucket.on(&mut backend), moment(step), Agreement::Reached, None).unwrap()
            });
            let mut under_way = true;
            while under_way {
                under_way = false;
                for ((bucket, _), flight) in buckets.iter_mut().zip(&mut flights) {
                    under_way |= flight.next(&mut bucket.on(&mut backend)).unwrap().is_some();
                }
            }
            for (bucket, _) in &mut buckets {
                bucket.finish(&mut backend).unwrap();
            }
        }
        let held = buckets.iter().flat_map(|(bucket, buffers)| {
            let (residuals, _) = bucket.residual(0).unwrap();
            buffers.iter().chain([residuals]).cloned()
        });
        let whole = |buffer: Buffer| Part { offset: 0, size: buffer.size(), buffer };
        let parts: Vec<Part> = held.map(whole).collect();
        Batch::new(backend.gpu()).unwrap().read(&parts).unwrap()
    });
    assert!(outcomes[0] == outcomes[1] && outcomes[0].iter().any(|&byte| byte != 0));
}

#[test]
fn forged_messages_are_decoded_or_refused_as_by_the_host() {
    if !is_there() {
        return;
    }
    let mut on = open(&damaged_members(), false, 1);
    let word = |step, i| Stream { seed: 23, step, ..Stream::default() }.word(i);
    let check = |step| {
        // Few bits, anywhere or from one place on.
        let (start, len) = (word(step, 0) as usize % 280, 1 + word(step, 1) as usize % 3);
        let mut bytes = vec![0; start];
        bytes.extend((0..len as u64).map(|i| 1u8 << (word(step, 2 + i) % 8)));
        check_message(&bytes, &mut on)
    };
    let good = (0..300).map(check).filter(|&good| good).count();
    assert!((30..270).contains(&good), "{good} of 300 messages were decoded");
}
