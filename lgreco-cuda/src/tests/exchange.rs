//! Compares exchanges on the device with the core, step by step: payloads, residuals and means.
#![allow(unsafe_code)]

use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, planted};
use crate::device::Part;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceExchange, Error, ExchangeConfig, ExchangeFault, ExchangeProgram, OnFault};
use lgreco::backend::{Backend, Portable};
use lgreco::compress::loco::LoCo;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Bf16, Dtype, Element, F16, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Number of ranks. With three ranks, tests can treat one rank differently from the other two.
pub(super) const WORLD: usize = 3;

/// Simulated device memory on the CPU: aligned to 16 bytes, with arbitrary content.
pub(super) struct Memory {
    words: Vec<u128>,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Memory {
        let words = vec![u128::MAX; bytes.div_ceil(16) as usize + 1];
        Memory { words, bytes: bytes as usize }
    }

    pub(super) fn address(&mut self) -> u64 {
        self.words.as_mut_ptr().expose_provenance() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let (own, rest) = bytemuck::cast_slice::<u128, u8>(&self.words).split_at(self.bytes);
        assert!(rest.iter().all(|&byte| byte == u8::MAX), "written behind the memory");
        own
    }

    pub(super) fn fill(&mut self, bytes: &[u8]) {
        bytemuck::cast_slice_mut::<u128, u8>(&mut self.words)[..bytes.len()].copy_from_slice(bytes);
    }
}

/// Returns layers of every kind: with several spans, with an incomplete last bucket, with values at unaligned
/// addresses, and without elements.
pub(super) fn layers() -> Vec<(Shape, Setting)> {
    let base = Qsgd::default();
    let settings = [
        (130, 97, Qsgd { bits: 4, bucket: 512, ..base }),
        (7, 1, Qsgd { bits: 8, bucket: 64, ..base }),
        (0, 5, Qsgd { bits: 3, bucket: 64, ..base }),
        (61, 147, Qsgd { bits: 3, bucket: 4096, scale: Scale::MinMax, ..base }),
        (64, 64, Qsgd { bits: 1, bucket: 128, ..base }),
        (33, 31, Qsgd { bits: 5, bucket: 1024, rounding: Rounding::Nearest, ..base }),
    ];
    settings.map(|(rows, cols, qsgd)| (Shape::new(rows, cols).unwrap(), Setting::Qsgd(qsgd))).to_vec()
}

/// Rounds values to the type `dtype`. Returns the bytes of the rounded values, and the rounded values in f32.
pub(super) fn narrowed(values: &[f32], dtype: Dtype) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        Dtype::F32 => (bytemuck::cast_slice(values).to_vec(), values.to_vec()),
        Dtype::F16 => {
            let narrow: Vec<F16> = values.iter().map(|&x| F16::from_f32(x)).collect();
            (bytemuck::cast_slice(&narrow).to_vec(), narrow.iter().map(|x| x.to_f32()).collect())
        }
        Dtype::Bf16 => {
            let narrow: Vec<Bf16> = values.iter().map(|&x| Bf16::from_f32(x)).collect();
            (bytemuck::cast_slice(&narrow).to_vec(), narrow.iter().map(|x| x.to_f32()).collect())
        }
    }
}

/// A rank: its exchange and memory on the device, and the residuals that the core computes.
pub(super) struct Rank {
    pub(super) exchange: DeviceExchange,
    _memory: Memory,
    _residuals: Memory,
    pub(super) gradients: Memory,
    pub(super) message: Memory,
    pub(super) expected: Vec<f32>,
    pub(super) stream: Stream,
}

impl Rank {
    pub(super) fn new(backend: &mut CudaBackend, layers: &[(Shape, Setting)], config: ExchangeConfig) -> Rank {
        let program = ExchangeProgram::new(layers, config).unwrap();
        let elements: usize = layers.iter().map(|(shape, _)| shape.elements()).sum();
        assert_eq!(program.residual_bytes(), 8 * elements as u64);
        let message = Memory::new(program.message_bytes() as u64);
        let (mut memory, mut residuals) = (Memory::new(program.memory_bytes()), Memory::new(program.residual_bytes()));
        let gradients = Memory::new((elements * config.dtype.bytes()) as u64);
        // SAFETY: the memory lives as long as the exchange, and has the program's sizes.
        let exchange = unsafe { backend.begin_exchange(program, memory.address(), residuals.address()) }.unwrap();
        let (expected, stream) = (vec![0.0; elements], config.stream);
        Rank { exchange, _memory: memory, _residuals: residuals, gradients, message, expected, stream }
    }

    /// Encodes gradients on the device. Returns the payloads and the residuals that the core makes from these
    /// gradients.
    pub(super) fn encode(
        &mut self,
        backend: &mut CudaBackend,
        (layers, config): (&[(Shape, Setting)], ExchangeConfig),
        values: &[f32],
    ) -> Result<(Vec<Vec<u8>>, Vec<f32>), lgreco::Error> {
        let (bytes, values) = narrowed(values, config.dtype);
        self.gradients.fill(&bytes);
        // SAFETY: gradients and message are large enough, and no other work uses them.
        unsafe { backend.encode_exchange(&self.exchange, self.gradients.address(), self.message.address()) }.unwrap();
        let offered: Vec<f32> = self.expected.iter().zip(&values).map(|(residual, x)| residual + x).collect();
        let (mut payloads, mut residuals, mut at) = (Vec::new(), Vec::new(), 0);
        for (&(shape, setting), number) in layers.iter().zip(0..) {
            // The core adds no residual to uncompressed values, so that -0 stays -0.
            let own = if setting == Setting::Dense { &values } else { &offered };
            let own = &own[at..at + shape.elements()];
            let stream = Stream { layer: self.stream.layer + number, ..self.stream };
            let mut payload = vec![0; setting.payload_len(shape, Dtype::F32)?];
            let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
            let tensor = Tensor::new(own, shape.rows(), shape.cols());
            Portable.encode(&setting, &tensor.gradients()[0], stream, &mut workspace, &mut payload)?;
            let mut decoded = vec![0.0; own.len()];
            Portable.decode(&payload, &mut decoded)?;
            let before = &self.expected[at..at + own.len()];
            let stays = own.iter().zip(&decoded).zip(before);
            residuals.extend(stays.map(|((x, sent), r)| (1.0 - config.gain) * r + config.gain * (x - sent)));
            payloads.push(payload);
            at += own.len();
        }
        Ok((payloads, residuals))
    }

    pub(super) fn finish(&mut self, backend: &mut CudaBackend, messages: &mut Memory) {
        // SAFETY: `messages` has one message per rank, and the means may replace the gradients.
        unsafe { backend.finish_exchange(&self.exchange, messages.address(), self.gradients.address()) }.unwrap();
        self.stream.step += 1;
    }

    /// The valid half of the residuals.
    pub(super) fn residuals(&self, backend: &mut CudaBackend) -> Vec<f32> {
        let address = backend.exchange_outcome(&self.exchange).unwrap().residuals;
        backend.gpu_mut().read(Part { address, bytes: 4 * self.expected.len() as u64 }).unwrap()
    }

    pub(super) fn found_inf(&self, backend: &mut CudaBackend) -> f32 {
        backend.gpu_mut().read(Part { address: self.exchange.found_inf_address(), bytes: 4 }).unwrap()[0]
    }
}

pub(super) fn ranks(backend: &mut CudaBackend, layers: &[(Shape, Setting)], config: ExchangeConfig) -> Vec<Rank> {
    let rank = |rank| Stream { rank, ..config.stream };
    (0..config.world).map(|of| Rank::new(backend, layers, ExchangeConfig { stream: rank(of), ..config })).collect()
}

/// Returns the messages of all ranks, one after another, as after an all-gather.
pub(super) fn gathered(ranks: &[Rank]) -> Memory {
    let bytes: Vec<u8> = ranks.iter().flat_map(|rank| rank.message.bytes().to_vec()).collect();
    let mut messages = Memory::new(bytes.len() as u64);
    messages.fill(&bytes);
    messages
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs steps of exchanges on the device and in the core. Returns the number of compared values.
fn steps(backend: &mut CudaBackend, config: ExchangeConfig, steps: u64) -> Result<usize, String> {
    steps_of(backend, &layers(), config, steps, uniform)
}

/// Like [`steps`], but for the given layers. `values` makes the requested number of values from a seed.
pub(super) fn steps_of(
    backend: &mut CudaBackend,
    layers: &[(Shape, Setting)],
    config: ExchangeConfig,
    steps: u64,
    values: impl Fn(usize, u64) -> Vec<f32>,
) -> Result<usize, String> {
    let mut ranks = ranks(backend, layers, config);
    let mut compared = 0;
    for step in 0..steps {
        let (mut all, mut remembered) = (Vec::new(), Vec::new());
        for (rank, seed) in ranks.iter_mut().zip(1..) {
            let values = values(rank.expected.len(), 100 * step + seed);
            let (payloads, residuals) = rank.encode(backend, (layers, config), &values).unwrap();
            backend.synchronise().unwrap();
            let mut at = 16;
            for (payload, number) in payloads.iter().zip(0..) {
                let found = &rank.message.bytes()[at..at + payload.len()];
                if found != payload {
                    return Err(format!("payload of layer {number}, step {step}"));
                }
                at += payload.len().next_multiple_of(16);
            }
            all.push(payloads);
            remembered.push(residuals);
        }
        let mut messages = gathered(&ranks);
        let mut means = Vec::new();
        for (number, &(shape, setting)) in layers.iter().enumerate() {
            let mut sum = vec![0.0; shape.elements()];
            // Under TopK, the sum begins with zeros.
            let begins = !matches!(setting, Setting::TopK(_) | Setting::QuantisedTopK(_));
            for (rank, payloads) in all.iter().enumerate() {
                let first = begins && rank == 0;
                let mut decoded = vec![0.0; sum.len()];
                Portable.decode(&payloads[number], &mut decoded).unwrap();
                sum.iter_mut().zip(decoded).for_each(|(sum, x)| *sum = if first { x } else { *sum + x });
            }
            means.extend(sum.into_iter().map(|x| x / config.world as f32));
        }
        let (means, _) = narrowed(&means, config.dtype);
        for (rank, residuals) in ranks.iter_mut().zip(remembered) {
            rank.finish(backend, &mut messages);
            rank.expected = residuals;
            let found = rank.residuals(backend);
            if rank.gradients.bytes() != means {
                return Err(format!("means of step {step}"));
            }
            if bits(&found) != bits(&rank.expected) {
                return Err(format!("residuals of step {step}"));
            }
            let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
            assert_eq!((outcome.step, outcome.failed), (config.stream.step + step as u32 + 1, 0));
            assert_eq!((outcome.rank, outcome.fault, rank.found_inf(backend)), (None, None, 0.0));
            compared += found.len();
        }
    }
    Ok(compared)
}

pub(super) fn config(dtype: Dtype, gain: f32) -> ExchangeConfig {
    let stream = Stream { seed: 0x1234_5678_9abc, step: 5, layer: 3, rank: 0 };
    ExchangeConfig { dtype, world: WORLD as u32, stream, gain, ..ExchangeConfig::default() }
}

#[test]
fn payloads_residuals_and_means_are_the_cores() {
    let elements: usize = layers().iter().map(|(shape, _)| shape.elements()).sum();
    for (dtype, gain, order) in [(Dtype::F32, 1.0, 0), (Dtype::Bf16, 0.6, 1), (Dtype::F16, 1.0, 2)] {
        let Some(mut backend) = backend(flavour(), order) else { return };
        assert_eq!(steps(&mut backend, config(dtype, gain), 3), Ok(3 * WORLD * elements), "{dtype:?}, {gain}");
    }
}

/// The kernel adds four ranks at a time; in this test, the number of ranks is not a multiple of four. Codes have all
/// widths, and may begin at any bit of a word. Values are usual or subnormal.
#[test]
fn means_of_many_ranks_are_the_cores() {
    let sides = [(9, 119), (3, 7), (65, 64)];
    let layer = |(bits, (rows, cols))| {
        let qsgd = Qsgd { bits, bucket: 64, ..Qsgd::default() };
        (Shape::new(rows, cols).unwrap(), Setting::Qsgd(qsgd))
    };
    let mut layers: Vec<_> = (2..=8).flat_map(|bits| sides.map(|side| layer((bits, side)))).collect();
    layers.push((Shape::new(9, 119).unwrap(), Setting::Qsgd(Qsgd { scale: Scale::MinMax, ..Qsgd::default() })));
    let elements: usize = layers.iter().map(|(shape, _)| shape.elements()).sum();
    let tiny = |n, seed| uniform(n, seed).into_iter().map(|x| x * 3e-45).collect();
    for (dtype, world) in [(Dtype::F32, 4), (Dtype::F32, 7), (Dtype::Bf16, 9)] {
        let Some(mut backend) = backend(flavour(), 1) else { return };
        let config = ExchangeConfig { world, ..config(dtype, 1.0) };
        let compared = world as usize * elements;
        assert_eq!(steps_of(&mut backend, &layers, config, 1, uniform), Ok(compared), "{dtype:?}, {world}");
        assert_eq!(steps_of(&mut backend, &layers, config, 1, tiny), Ok(compared), "{dtype:?}, {world}, tiny");
    }
}

#[test]
#[ignore = "slow"]
fn faults_in_the_means_of_many_ranks_are_found() {
    let edits = [
        ("layer.sign_magnitude && level != 0 && code > level", "layer.sign_magnitude && code > level"),
        ("third = bytes > 8;", "third = false;"),
        ("byte % 4 * 8;", "0;"),
        ("ranks -= 2;", "ranks = 0;"),
    ];
    let of_bits = |bits| Setting::Qsgd(Qsgd { bits, bucket: 64, ..Qsgd::default() });
    // With 2 bits, all ranks send a zero with a sign for some elements.
    let layers = [(Shape::new(9, 119).unwrap(), of_bits(7)), (Shape::new(65, 64).unwrap(), of_bits(2))];
    let config = ExchangeConfig { world: 5, ..config(Dtype::F32, 1.0) };
    for (from, to) in edits {
        let edit = Edit { module: Module::Exchange, from, to };
        let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
        let mut backend = CudaBackend::on(Box::new(device));
        assert!(steps_of(&mut backend, &layers, config, 1, uniform).is_err(), "{from}");
    }
}

/// Runs a step in which the value at position `at` is `value` on the ranks `spoiled`, and checks the outcome.
pub(super) fn spoiled_step(
    backend: &mut CudaBackend,
    ranks: &mut [Rank],
    (layers, config, seed): (&[(Shape, Setting)], ExchangeConfig, u64),
    (spoiled, at, value): (&[usize], usize, f32),
) {
    let before: Vec<_> = ranks.iter().map(|rank| backend.exchange_outcome(&rank.exchange).unwrap()).collect();
    let mut remembered = Vec::new();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let mut values = uniform(rank.expected.len(), seed + number as u64);
        if spoiled.contains(&number) {
            values[at] = value;
        }
        remembered.push(rank.encode(backend, (layers, config), &values).map(|(_, residuals)| residuals));
    }
    backend.synchronise().unwrap();
    let mut messages = gathered(ranks);
    let (fails, is_finite) = (!spoiled.is_empty(), value.is_finite());
    for (((rank, before), residuals), number) in ranks.iter_mut().zip(before).zip(remembered).zip(0..) {
        rank.finish(backend, &mut messages);
        let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
        assert_eq!((outcome.step, outcome.failed), (before.step + 1, before.failed + u32::from(fails)));
        assert_eq!(rank.found_inf(backend), if fails { 1.0 } else { 0.0 });
        assert_eq!(outcome.rank, spoiled.first().filter(|_| !is_finite).map(|&rank| rank as u32));
        let fault = outcome.fault.map(|fault| match fault {
            ExchangeFault::NonFinite { layer, index } => (false, layer, index),
            ExchangeFault::Overflow { layer, index } => (true, layer, index),
            ExchangeFault::Factor { .. } | ExchangeFault::Payload { .. } => panic!("{outcome:?}"),
        });
        let told = fault.map(|(overflow, layer, index)| {
            (overflow, layers[..layer].iter().map(|(shape, _)| shape.elements()).sum::<usize>() + index)
        });
        // Every rank detects a mean that exceeds the range of its type. Only a rank itself detects that its value is
        // not finite.
        assert_eq!(told, spoiled.contains(&number).then_some((is_finite, at)), "{outcome:?}");
        if fails {
            let means = bytemuck::cast_slice::<u8, u32>(rank.gradients.bytes());
            let fill = if config.on_fault == OnFault::Nan { f32::NAN.to_bits() } else { 0 };
            assert!(is_finite || means.iter().all(|&mean| mean == fill));
        } else {
            rank.expected = residuals.unwrap();
        }
        assert_eq!(bits(&rank.residuals(backend)), bits(&rank.expected), "rank {number}");
    }
}

#[test]
fn faults_of_one_rank_change_nothing_on_any() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    check_faults(&mut backend, &layers());
}

/// Checks faults in exchanges of the given layers, whose lengths must be those of the function [`layers`].
pub(super) fn check_faults(backend: &mut CudaBackend, layers: &[(Shape, Setting)]) {
    for on_fault in [OnFault::Zeros, OnFault::Nan] {
        let config = ExchangeConfig { on_fault, ..config(Dtype::F32, 1.0) };
        let mut ranks = ranks(backend, layers, config);
        let steps: [(&[usize], usize, f32); 8] = [
            (&[], 0, 0.0),
            (&[1], 12_613, f32::NAN),
            (&[2, 0], 25_000, f32::INFINITY),
            (&[1], 12_620, f32::NAN),
            (&[], 0, 0.0),
            (&[0, 1, 2], 5, 3e38),
            (&[0], 5, f32::NEG_INFINITY),
            (&[], 0, 0.0),
        ];
        for (step, seed) in steps.into_iter().zip((0..).step_by(10)) {
            let (mut spoiled, at, value) = (step.0.to_vec(), step.1, step.2);
            spoiled.sort_unstable();
            spoiled_step(backend, &mut ranks, (layers, config, seed), (&spoiled, at, value));
        }
    }
}

#[test]
fn ranks_that_disagree_fail_on_all() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let layers = layers();
    let mut others = layers.clone();
    others[4].1 = Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() });
    let at_home = config(Dtype::F32, 1.0);
    let late = ExchangeConfig { stream: Stream { step: 6, ..at_home.stream }, ..at_home };
    for (second, config) in [(&layers, late), (&others, at_home)] {
        // Messages of different exchanges differ in length, so the memory has room for the longer message.
        let mut ranks = [Rank::new(&mut backend, &layers, ExchangeConfig { world: 2, ..at_home })];
        let mut peer = Rank::new(&mut backend, second, ExchangeConfig { world: 2, ..config });
        let values = uniform(peer.expected.len(), 1);
        ranks[0].encode(&mut backend, (&layers, at_home), &values).unwrap();
        peer.encode(&mut backend, (second, config), &values).unwrap();
        backend.synchronise().unwrap();
        let own = ranks[0].message.bytes();
        let mut theirs = peer.message.bytes().to_vec();
        theirs.resize(own.len(), 0);
        let mut messages = Memory::new(2 * own.len() as u64);
        messages.fill(&[own, &theirs].concat());
        ranks[0].finish(&mut backend, &mut messages);
        let outcome = backend.exchange_outcome(&ranks[0].exchange).unwrap();
        assert_eq!((outcome.rank, outcome.failed, outcome.fault), (Some(1), 1, None));
        assert_eq!(bits(&ranks[0].residuals(&mut backend)), bits(&ranks[0].expected));
    }
}

#[test]
fn what_cannot_be_exchanged_is_refused() {
    let shape = Shape::new(64, 64).unwrap();
    let refused =
        |qsgd: Qsgd, config| ExchangeProgram::new(&[(shape, Setting::Qsgd(qsgd))], config).map(drop).unwrap_err();
    let usual = ExchangeConfig::default();
    for bucket in [1, 32, 100, 8192] {
        assert!(matches!(refused(Qsgd { bucket, ..Qsgd::default() }, usual), Error::Method(_)), "{bucket}");
    }
    for config in [
        ExchangeConfig { gain: 0.0, ..usual },
        ExchangeConfig { gain: 1.5, ..usual },
        ExchangeConfig { gain: f32::NAN, ..usual },
        ExchangeConfig { world: 0, ..usual },
    ] {
        let error = refused(Qsgd::default(), config);
        assert!(matches!(error, Error::Core(lgreco::Error::Parameter { .. })), "{error}");
    }
    let loco = Setting::LoCo(LoCo { group: 64 });
    let refused_loco = ExchangeProgram::new(&[(shape, loco)], usual).map(drop);
    assert!(matches!(refused_loco, Err(Error::Method(_))), "{refused_loco:?}");
    for keep in [0, 64 * 64 + 1] {
        let top = Setting::TopK(TopK { keep, values: Dtype::F32 });
        let refused_top = ExchangeProgram::new(&[(shape, top)], usual).map(drop);
        assert!(matches!(refused_top, Err(Error::Core(_))), "{refused_top:?}");
    }
    assert!(matches!(refused(Qsgd { bits: 0, ..Qsgd::default() }, usual), Error::Core(_)));
    let Some(mut backend) = backend(flavour(), 0) else { return };
    for (memory, residuals) in [(0, 4096), (4096, 0), (4104, 8192), (4096, 8196)] {
        let program = ExchangeProgram::new(&[(shape, Setting::Qsgd(Qsgd::default()))], usual).unwrap();
        // SAFETY: nothing uses the exchange.
        let begun = unsafe { backend.begin_exchange(program, memory, residuals) };
        assert!(matches!(begun.map(drop), Err(Error::Memory { .. })), "{memory}, {residuals}");
    }
}

#[test]
fn an_exchange_without_layers_does_nothing() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let mut rank = Rank::new(&mut backend, &[], ExchangeConfig::default());
    rank.encode(&mut backend, (&[], ExchangeConfig::default()), &[]).unwrap();
    backend.synchronise().unwrap();
    let mut messages = gathered(std::slice::from_ref(&rank));
    rank.finish(&mut backend, &mut messages);
    let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
    assert_eq!((outcome.step, outcome.failed, outcome.rank, outcome.fault), (1, 0, None, None));
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    let edits = [
        ("both[j][k] += own[j][k];", "both[j][k] = own[j][k];"),
        ("stays = keep * remembered[k] + stays;", ""),
        ("sums[k] += SIGNED ?", "sums[k] = SIGNED ?"),
        ("program->half ^= !failed;", ""),
        ("p.layer = layer.id;", ""),
        ("p.step = step;", ""),
    ];
    for (from, to) in edits {
        let edit = Edit { module: Module::Exchange, from, to };
        let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
        let mut backend = CudaBackend::on(Box::new(device));
        let outcome = steps(&mut backend, config(Dtype::F32, 0.5), 3);
        assert!(outcome.is_err(), "{from}");
    }
}

/// Returns the result of a check, or the message of its panic as `Err`.
pub(super) fn told(check: impl FnOnce() -> Result<usize, String>) -> Result<usize, String> {
    let said = |panic: Box<dyn Any + Send>| panic.downcast::<String>().map_or_else(|_| String::new(), |said| *said);
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| Err(said(panic)))
}

/// Checks for races with buckets that several warps share, with several spans per block, and with means of three ranks.
#[test]
fn no_race_is_found_until_one_is_planted() {
    let run = |edit| {
        let mut backend = CudaBackend::on(Box::new(Simt::new(Flavour::Races, 2, edit)?));
        Some(told(|| steps(&mut backend, config(Dtype::F32, 1.0), 1)))
    };
    let Some(outcome) = run(None) else { return };
    let elements: usize = layers().iter().map(|(shape, _)| shape.elements()).sum();
    assert_eq!(outcome, Ok(WORLD * elements));
    let from = "        // The next span's buckets may be shared by other warps.\n        __syncthreads();\n";
    for (from, to) in planted([(from, ""), ("held = next;\n            __syncthreads();", "held = next;")]) {
        let edit = Edit { module: Module::Exchange, from, to };
        let found = run(Some(edit)).expect("g++").expect_err("the planted race");
        assert!(found.contains("race ("), "{from}: {found}");
    }
}
