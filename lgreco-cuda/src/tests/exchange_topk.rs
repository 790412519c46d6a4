//! Compares exchanges of layers under TopK, alone and among other layers, with the core.

use super::exchange::{Memory, Rank, WORLD, bits, config, gathered, ranks, spoiled_step, steps_of, told};
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, is_full, planted, some};
use crate::kernels::Module;
use crate::{CudaBackend, ExchangeConfig, ExchangeFault, OnFault};
use lgreco::backend::{Backend, Portable};
use lgreco::compress::qsgd::Qsgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;

fn top(rows: usize, cols: usize, keep: u32, values: Dtype) -> (Shape, Setting) {
    (Shape::new(rows, cols).unwrap(), Setting::TopK(TopK { keep, values }))
}

fn few(rows: usize, cols: usize, keep: u32, bits: u8) -> (Shape, Setting) {
    (Shape::new(rows, cols).unwrap(), Setting::QuantisedTopK(QuantisedTopK { keep, bits }))
}

/// Returns layers with every layout of positions and every type of values. Some layers have room for gathered values,
/// and others do not. There are layers of several spans, layers whose last span is incomplete, layers without elements,
/// and layers that keep all elements. The last three layers are so large that the memory for gathered values cannot
/// hold all of their values. Other layers lie between these three.
pub(super) fn layers() -> Vec<(Shape, Setting)> {
    let mut layers = vec![
        top(130, 97, 126, Dtype::F32),
        top(0, 5, 0, Dtype::F32),
        top(100, 101, 3001, Dtype::F16),
        top(7, 1, 7, Dtype::F16),
        top(5000, 4, 1, Dtype::Bf16),
        top(64, 64, 501, Dtype::Bf16),
        top(97, 211, 5, Dtype::F32),
        top(1, 1, 1, Dtype::F32),
        top(20, 1, 5, Dtype::F16),
        top(8192, 1, 4000, Dtype::F32),
        few(100, 101, 301, 5),
        few(4100, 3, 1, 8),
        few(0, 7, 0, 2),
        few(64, 65, 2001, 2),
        few(31, 3, 93, 7),
        few(301, 29, 8700, 3),
        few(77, 51, 203, 1),
        top(33_001, 1, 15_000, Dtype::F32),
        few(331, 100, 12_000, 3),
        top(3300, 10, 300, Dtype::F16),
    ];
    layers.insert(3, (Shape::new(61, 147).unwrap(), Setting::Qsgd(Qsgd::default())));
    layers
}

pub(super) fn of(layers: &[(Shape, Setting)]) -> usize {
    WORLD * layers.iter().map(|(shape, _)| shape.elements()).sum::<usize>()
}

#[test]
fn payloads_residuals_and_means_are_the_cores() {
    let layers = layers();
    for (dtype, gain, order) in [(Dtype::F32, 1.0, 0), (Dtype::Bf16, 0.6, 1), (Dtype::F16, 1.0, 2)] {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let compared = steps_of(&mut backend, &layers, config(dtype, gain), 3, uniform);
        assert_eq!(compared, Ok(3 * of(&layers)), "{dtype:?}, {gain}");
    }
}

/// Payloads begin at multiples of 16. The bytes between payloads must be zeros, so that no uninitialised bytes are
/// sent.
#[test]
fn every_byte_of_a_message_is_written() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    check_bytes(&mut backend, &layers());
}

pub(super) fn check_bytes(backend: &mut CudaBackend, layers: &[(Shape, Setting)]) {
    let mut rank = Rank::new(backend, layers, ExchangeConfig { world: 1, ..config(Dtype::F32, 1.0) });
    let values = uniform(rank.expected.len(), 1);
    let (payloads, _) = rank.encode(backend, (layers, config(Dtype::F32, 1.0)), &values).unwrap();
    backend.synchronise().unwrap();
    let mut rest = &rank.message.bytes()[16..];
    for (payload, (_, setting)) in payloads.iter().zip(layers) {
        let (own, next) = rest.split_at(payload.len().next_multiple_of(16));
        let (found, padding) = own.split_at(payload.len());
        assert!(found == payload, "{setting}");
        assert!(padding.iter().all(|&byte| byte == 0), "{setting}: {padding:?}");
        rest = next;
    }
    assert!(rest.is_empty());
}

/// Tests magnitudes that are equal, few, far apart, adjacent, or tiny. In some cases, there is not enough memory for
/// all gathered values. The k-th largest value may be at any position among equal values.
#[test]
fn so_they_are_of_magnitudes_of_any_kind() {
    let layers = layers();
    let kinds: [fn(usize, f32) -> f32; 7] = [
        |_, _| 0.25,
        |_, x| if x < 0.0 { -1.0 } else { 1.0 },
        |i, x| if i.is_multiple_of(100) { x } else { 0.0 },
        |_, x| (8.0 * x) as i32 as f32 * 1e-3,
        |i, x| x * 2f32.powi(i as i32 % 40 - 30),
        |_, x| f32::from_bits(0x3f80_0000 | (x.to_bits() & 0x3ff)),
        |_, x| if x < 0.0 { -0.0 } else { f32::from_bits(x.to_bits() & 0xffff) },
    ];
    for (number, kind) in some(kinds.into_iter().enumerate()) {
        let Some(mut backend) = backend(flavour(), number as i32 % 3) else { return };
        let values = |count: usize, seed: u64| {
            uniform(count, seed).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect::<Vec<_>>()
        };
        let gain = if number.is_multiple_of(2) { 0.3 } else { 1.0 };
        let compared = steps_of(&mut backend, &layers, config(Dtype::F32, gain), 2, values);
        assert_eq!(compared, Ok(2 * of(&layers)), "{number}");
    }
}

/// There are more ranks than a warp has lanes. The kernel fetches the values of a fixed number of ranks together. The
/// number of ranks is not a multiple of that number.
#[test]
fn means_of_many_ranks_are_the_cores() {
    let layers = [top(130, 97, 126, Dtype::F32), few(97, 21, 301, 5), top(7, 1, 7, Dtype::F16), few(64, 65, 2001, 2)];
    let steps = |world: u32, edit| {
        let mut backend = CudaBackend::on(Box::new(Simt::new(flavour(), 1, edit)?));
        let config = ExchangeConfig { world, ..config(Dtype::F32, 1.0) };
        Some(steps_of(&mut backend, &layers, config, 1, uniform))
    };
    for world in if is_full() { vec![1, 5, 32, 35, 65] } else { vec![5, 35] } {
        let Some(compared) = steps(world, None) else { return };
        assert_eq!(compared, Ok(of(&layers) / WORLD * world as usize), "{world} ranks");
    }
    let edit = Edit { module: Module::Selection, from: "if (from % 32 == 0) {", to: "if (from == 0) {" };
    assert!(steps(35, Some(edit)).unwrap().is_err());
}

#[test]
fn faults_of_one_rank_change_nothing_on_any() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    spoiled_steps(&mut backend);
}

fn spoiled_steps(backend: &mut CudaBackend) {
    let layers = layers();
    let config = ExchangeConfig { on_fault: OnFault::Nan, ..config(Dtype::F32, 1.0) };
    let mut ranks = ranks(backend, &layers, config);
    // The last two faults are in layers in which the kernels do not gather all values.
    let steps: [(&[usize], usize, f32); 7] = [
        (&[], 0, 0.0),
        (&[1], 12_613, f32::NAN),
        (&[0, 2], 40_000, f32::INFINITY),
        (&[0, 1, 2], 5, 3e38),
        (&[], 0, 0.0),
        (&[1], 130_000, f32::NAN),
        (&[2], 160_000, f32::INFINITY),
    ];
    for ((spoiled, at, value), seed) in steps.into_iter().zip((0..).step_by(10)) {
        spoiled_step(backend, &mut ranks, (&layers, config, seed), (spoiled, at, value));
    }
}

#[test]
fn values_too_large_for_what_they_are_sent_in_are_faults() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let layers = [top(100, 50, 7, Dtype::F32), top(100, 101, 301, Dtype::F16)];
    let config = ExchangeConfig { world: 1, ..config(Dtype::F32, 1.0) };
    let mut rank = Rank::new(&mut backend, &layers, config);
    let mut values = uniform(rank.expected.len(), 1);
    values[0] = 70_000.0;
    for (at, fault) in [(5001, Some(ExchangeFault::Overflow { layer: 1, index: 1 })), (1, None)] {
        values[5001..].fill(0.0);
        values[at] = -70_000.0;
        let refused = rank.encode(&mut backend, (&layers, config), &values).map(drop);
        assert_eq!(refused.is_err(), fault.is_some(), "{refused:?}");
        rank.finish(&mut backend, &mut gathered(std::slice::from_ref(&rank)));
        let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
        assert_eq!((outcome.rank, outcome.fault, outcome.failed), (fault.map(|_| 0), fault, 1));
    }
}

/// If the core decodes a damaged payload, the means must equal the core's. If the core refuses the payload, the device
/// must report the rank that sent the payload. All other results must stay the same.
#[test]
fn damaged_payloads_are_decoded_as_by_the_core_or_their_ranks_fault() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let layers = [
        top(110, 97, 126, Dtype::F32),
        top(0, 5, 0, Dtype::F32),
        top(70, 101, 1801, Dtype::F16),
        top(7, 1, 7, Dtype::F16),
        top(4, 4000, 2, Dtype::Bf16),
        top(64, 64, 3001, Dtype::F32),
        few(90, 101, 301, 3),
        few(7, 9, 63, 6),
        few(33, 9, 20, 1),
        (Shape::new(13, 7).unwrap(), Setting::Qsgd(Qsgd { bucket: 64, ..Qsgd::default() })),
    ];
    let config = ExchangeConfig { world: 2, ..config(Dtype::F32, 1.0) };
    let mut ranks = [0, 1].map(|rank| {
        let stream = Stream { rank, ..config.stream };
        Rank::new(&mut backend, &layers, ExchangeConfig { stream, ..config })
    });
    for (rank, seed) in ranks.iter_mut().zip(1..) {
        rank.encode(&mut backend, (&layers, config), &uniform(rank.expected.len(), seed)).unwrap();
    }
    let original = gathered(&ranks).bytes().to_vec();
    let apart = original.len() / 2;
    let (mut good, mut broken) = (0, 0);
    for step in 0..if flavour() == Flavour::Plain && is_full() { 250 } else { 60 } {
        let mut bytes = original.clone();
        let random = Stream { seed: 23, step, ..Stream::default() };
        let culprit = random.word(0) as usize % 2;
        let number = random.word(2) as usize % layers.len();
        for flip in 0..1 + random.word(1) as u64 % 3 {
            // All changes are in one payload. So two changes can clear one bit of the coded positions and set another
            // bit, which leaves the number of positions right.
            let within = random.word(3 + flip) as usize;
            let (at, len) = place_of(&layers, number);
            bytes[apart * culprit + at + within / 8 % len] ^= 1 << (within % 8);
        }
        for rank in 0..2 {
            bytes[apart * rank + 4..][..4].copy_from_slice(&(config.stream.step + step).to_le_bytes());
        }
        let before = backend.exchange_outcome(&ranks[0].exchange).unwrap();
        let mut messages = Memory::new(bytes.len() as u64);
        messages.fill(&bytes);
        ranks[0].finish(&mut backend, &mut messages);
        let outcome = backend.exchange_outcome(&ranks[0].exchange).unwrap();
        let means = bytemuck::cast_slice::<u8, f32>(ranks[0].gradients.bytes()).to_vec();
        match means_of(&layers, &bytes, &original, apart) {
            Some(expected) => {
                assert_eq!((outcome.rank, outcome.fault, outcome.failed), (None, None, before.failed), "{step}");
                assert!(bits(&means) == bits(&expected), "means of step {step}");
                assert_ne!(outcome.residuals, before.residuals);
                good += 1;
            }
            None => {
                assert_eq!((outcome.rank, outcome.failed), (Some(culprit as u32), before.failed + 1), "{step}");
                assert_eq!(outcome.fault, Some(ExchangeFault::Payload { layer: number }), "{step}");
                assert!(means.iter().all(|&mean| mean.to_bits() == 0), "means of step {step}");
                assert_eq!(outcome.residuals, before.residuals);
                broken += 1;
            }
        }
    }
    assert!(good > 10 && broken > 20, "{good} decoded, {broken} broken");
}

/// Returns the position and the length of a layer's payload in a message.
pub(super) fn place_of(layers: &[(Shape, Setting)], number: usize) -> (usize, usize) {
    let len = |(shape, setting): &(Shape, Setting)| setting.payload_len(*shape, Dtype::F32).unwrap();
    let before = layers[..number].iter().map(|layer| len(layer).next_multiple_of(16));
    (16 + before.sum::<usize>(), len(&layers[number]))
}

/// Returns the means of two messages. Returns `None` if the core refuses a payload, a header has changed, or a mean is
/// not finite.
pub(super) fn means_of(layers: &[(Shape, Setting)], bytes: &[u8], original: &[u8], apart: usize) -> Option<Vec<f32>> {
    let mut means = Vec::new();
    for (number, &(shape, _)) in layers.iter().enumerate() {
        let (at, len) = place_of(layers, number);
        let mut sum = vec![0.0; shape.elements()];
        for payload in [at, apart + at] {
            let mut decoded = vec![0.0; sum.len()];
            Portable.decode(&bytes[payload..payload + len], &mut decoded).ok()?;
            (bytes[payload..payload + 16] == original[payload..payload + 16]).then_some(())?;
            sum.iter_mut().zip(decoded).for_each(|(sum, x)| *sum += x);
        }
        means.extend(sum.into_iter().map(|x| x / 2.0));
    }
    means.iter().all(|mean| mean.is_finite()).then_some(means)
}

/// Runs steps with an edited kernel.
fn edited(
    flavour: Flavour,
    steps: u64,
    edits: impl IntoIterator<Item = (&'static str, &'static str)>,
) -> Option<Result<usize, String>> {
    let edits = edits.into_iter().map(|(from, to)| Edit { module: Module::Selection, from, to });
    let mut backend = CudaBackend::on(Box::new(Simt::edited(flavour, 2, edits.collect())?));
    let layers = layers();
    // There are more equal magnitudes than the memory for gathered values can hold. In the layer with codes of two
    // bits, magnitudes are far apart.
    let two_bits = layers
        .iter()
        .position(|(_, setting)| matches!(setting, Setting::QuantisedTopK(few) if few.keep > 0 && few.bits == 2));
    let before = layers[..two_bits.unwrap()].iter().map(|(shape, _)| shape.elements()).sum::<usize>();
    let values = |count: usize, seed: u64| {
        let tied = |(i, x): (usize, f32)| if i % 9000 < 5000 { x } else { (4.0 * x).round() };
        let mut values: Vec<_> = uniform(count, seed).into_iter().enumerate().map(tied).collect();
        values[before..before + 4000].iter_mut().step_by(9).for_each(|x| *x *= 2f32.powi(20));
        values
    };
    Some(told(|| steps_of(&mut backend, &layers, config(Dtype::F32, 0.5), steps, values)))
}

#[test]
fn no_race_is_found_until_one_is_planted() {
    let Some(outcome) = edited(Flavour::Races, 1, []) else { return };
    assert_eq!(outcome, Ok(of(&layers())));
    for (from, to) in planted([
        ("        __syncthreads();\n        u32 to = place;", "        u32 to = place;"),
        ("                __syncwarp();\n            }\n        }\n    }\n}", "            }\n        }\n    }\n}"),
        ("atomicAdd(&room[bin_of(magnitude, base)], 1u);", "room[bin_of(magnitude, base)] += 1;"),
        ("index + 1 == top.keep && index % 2 == 0", "false"),
    ]) {
        let Some(Err(said)) = edited(Flavour::Races, 1, [(from, to)]) else { panic!("not found: {from}") };
        assert!(said.contains("race ("), "{from}: {said}");
    }
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    let edits = [
        // With this edit, codes that cross into the next word are written without their upper bits.
        ("atomicOr(&words[at / 32 + 1], bits >> (32 - shift));", ""),
        ("u32 size = fits ? positions.all : ", "u32 size = true ? positions.all : "),
        ("goes || has_all", "goes"),
        ("window = window_of((bit - index) << payload.top.low_bits);", ""),
        ("(first >> top.low_bits) + index", "(first >> top.low_bits)"),
        ("offered.after != nullptr && program->keep != 0.0f && !has_all", "false"),
        ("count += cut.rank;", ""),
        ("atomicExch(&few->exponents[bin], 0u)", "atomicExch(&few->exponents[bin], 200u)"),
        ("exponent_of(bins.low + bins.span - 1)", "exponent_of(bins.low)"),
        ("sum << (ROOM - (exponent - least_exponent(bin)))", "sum << ROOM"),
        ("if (!misses) {", "if (true) {"),
    ];
    for (from, to) in edits {
        // This edit makes the sampled bound so low that gathered values do not fit into their memory.
        let lower = "max(lower.bin << SAMPLE_SHIFT, 2u << 23) - (2u << 23)";
        let no_room = from.contains("fits").then_some(("min(lower.bin << SAMPLE_SHIFT, INFINITE)", lower));
        let Some(outcome) = edited(Flavour::Plain, 2, no_room.into_iter().chain([(from, to)])) else { return };
        assert!(outcome.is_err(), "{from}");
    }
}
