//! Compares exchanges of layers under EDEN, alone and among other layers, with the core.

use super::exchange::{self, WORLD, check_faults, config, steps_of, told};
use super::exchange_damage::{damaged, scales};
use super::exchange_topk::{self, check_bytes, of};
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, planted};
use crate::kernels::Module;
use crate::{CudaBackend, ExchangeConfig};
use lgreco::compress::Setting;
use lgreco::compress::eden::{Eden, Scale};
use lgreco::gradient::{Dtype, Shape};
use lgreco_testing::powersgd::uniform;

fn eden(bits: u8, scale: Scale) -> Setting {
    Setting::Eden(Eden { bits, scale })
}

/// Returns layers with several chunks, with short blocks, with one value and without values. The layers have the same
/// lengths as the layers of [`exchange::layers`].
pub(super) fn layers() -> Vec<(Shape, Setting)> {
    let settings = [
        eden(4, Scale::Unbiased),
        eden(8, Scale::LeastSquares),
        eden(3, Scale::Unbiased),
        eden(1, Scale::LeastSquares),
        eden(2, Scale::Unbiased),
        eden(5, Scale::Unbiased),
    ];
    exchange::layers().into_iter().zip(settings).map(|((shape, _), setting)| (shape, setting)).collect()
}

#[test]
fn payloads_residuals_and_means_are_the_cores() {
    for (dtype, gain, order) in [(Dtype::F32, 1.0, 0), (Dtype::Bf16, 0.6, 1), (Dtype::F16, 1.0, 2)] {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let compared = steps_of(&mut backend, &layers(), config(dtype, gain), 3, uniform);
        assert_eq!(compared, Ok(3 * of(&layers())), "{dtype:?}, {gain}");
    }
}

/// Mixes layers under EDEN with layers under TopK with full values, TopK in few bits, and QSGD.
#[test]
fn so_they_are_among_other_layers() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let mut all = exchange_topk::layers();
    for (at, layer) in layers().into_iter().enumerate() {
        all.insert(3 * at, layer);
    }
    assert_eq!(steps_of(&mut backend, &all, config(Dtype::F32, 0.6), 2, uniform), Ok(2 * of(&all)));
}

/// With some of the tested bit widths, codes may begin at any bit of a word. Tests even and odd numbers of ranks, and
/// values of all kinds.
#[test]
fn means_of_many_ranks_are_the_cores() {
    let sides = [(9, 119), (65, 64), (1, 1)];
    let layer = |(bits, (rows, cols))| (Shape::new(rows, cols).unwrap(), eden(bits, Scale::Unbiased));
    let layers: Vec<_> = (1..=8).flat_map(|bits| sides.map(|side| layer((bits, side)))).collect();
    let elements = of(&layers) / WORLD;
    for (dtype, world) in [(Dtype::F32, 4), (Dtype::Bf16, 7)] {
        let config = ExchangeConfig { world, ..config(dtype, 1.0) };
        for (number, value) in kinds().into_iter().enumerate() {
            let Some(mut backend) = backend(flavour(), 1) else { return };
            let values = |count, seed| uniform(count, seed).into_iter().enumerate().map(value).collect();
            let compared = steps_of(&mut backend, &layers, config, 1, values);
            assert_eq!(compared, Ok(world as usize * elements), "{dtype:?}, {world}, kind {number}");
        }
    }
}

/// Returns functions that each make values of one kind, from a position and a value between -1 and 1. The kinds are
/// usual values, scales that round to 0, subnormal numbers, and values that may overflow when decoded. Further kinds
/// are blocks of zeros of both signs, and one nonzero value among zeros.
fn kinds() -> [fn((usize, f32)) -> f32; 6] {
    [
        |(_, x)| x,
        |(i, x)| if i % 911 == 0 { 1e-45f32.copysign(x) } else { 0f32.copysign(x) },
        |(_, x)| x * 1e-41,
        |(_, x)| x * 1e36,
        |(i, x)| if i / 4096 % 2 == 0 { 0f32.copysign(x) } else { x },
        |(i, x)| if i % 1000 == 7 { x } else { 0f32.copysign(x) },
    ]
}

#[test]
fn every_byte_of_a_message_is_written() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    check_bytes(&mut backend, &layers());
}

#[test]
fn faults_of_one_rank_change_nothing_on_any() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    check_faults(&mut backend, &layers());
}

/// Damages headers, last bytes, and scales of a full block and of short blocks. One of the last bytes is full, and
/// another has unused bits.
fn damage(backend: &mut CudaBackend) -> Result<(usize, usize), String> {
    let sides = [(4099, 1), (77, 1), (0, 5), (70, 3)];
    let settings = [3, 5, 1, 8].map(|bits| eden(bits, Scale::Unbiased));
    let layers = sides.map(|(rows, cols)| Shape::new(rows, cols).unwrap()).into_iter().zip(settings);
    let mut scales = scales(&[(0, 24), (0, 28), (0, 32), (1, 24), (3, 36)]);
    // With this scale, decoded values exceed the range of f32.
    scales.push((0, 24, f32::MAX.to_le_bytes().to_vec()));
    damaged(backend, &layers.collect::<Vec<_>>(), &scales)
}

#[test]
fn damaged_payloads_are_decoded_as_by_the_core_or_refused() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let (decoded, refused) = damage(&mut backend).unwrap();
    assert!(decoded > 10 && refused > 80, "{decoded} decoded, {refused} refused");
}

fn edited(flavour: Flavour, from: &'static str, to: &'static str) -> Option<CudaBackend> {
    let edit = Edit { module: Module::ExchangeEden, from, to };
    Some(CudaBackend::on(Box::new(Simt::new(flavour, 2, Some(edit))?)))
}

/// Runs steps with nonzero residuals and with blocks of zeros.
fn steps(backend: &mut CudaBackend, number: u64) -> Result<usize, String> {
    let values = |count, seed| uniform(count, seed).into_iter().enumerate().map(kinds()[4]).collect();
    told(|| steps_of(backend, &layers(), config(Dtype::F32, 0.5), number, values))
}

#[test]
fn no_race_is_found_until_one_is_planted() {
    let Some(mut backend) = backend(Flavour::Races, 2) else { return };
    assert_eq!(steps(&mut backend, 1), Ok(of(&layers())));
    for (from, to) in planted([
        ("        __syncthreads();  // the block before may still be read\n", ""),
        ("            __syncthreads();  // the block before may still be read\n", ""),
        ("        __syncthreads();\n        auto point", "        auto point"),
        ("    __syncthreads();\n    pack(", "    pack("),
    ]) {
        let Some(mut backend) = edited(Flavour::Races, from, to) else { return };
        let found = steps(&mut backend, 1).expect_err("the planted race");
        assert!(found.contains("race ("), "{from}: {found}");
    }
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    for (from, to) in [
        ("float both = before[i] + own;", "float both = own;"),
        ("keep * remembered + stays;", "stays;"),
        ("gain * (remembered + ", "gain * ("),
        ("layer.id, layer.rank", "layer.rank, layer.rank"),
        ("philox(0, program->step", "philox(0, 0"),
        ("(1 - program->half) * program->elements", "program->half * program->elements"),
        ("scale == 0.0f ? 0.0f : x", "x"),
        ("sums[k] += values[k]", "sums[k] = values[k]"),
        ("of_short[j - at] += values[0]", "of_short[j] += values[0]"),
        ("layer.least_squares != 0", "false"),
    ] {
        let Some(mut backend) = edited(Flavour::Plain, from, to) else { return };
        assert!(steps(&mut backend, 3).is_err(), "{from}");
    }
    for (from, to) in [
        ("header[0] == layer.header_low", "true"),
        ("header[1] == layer.header_high", "true"),
        ("good && scales[number++] < INFINITE", "good && scales[number] < INFINITE"),
        ("used == 0 || codes[bytes() - 1] >> used == 0", "true"),
        ("if (!fits || !is_written) {", "if (!is_written) {"),
        ("blame(program, rank, layer.number);", "blame(program, 0, layer.number);"),
    ] {
        let Some(mut backend) = edited(Flavour::Plain, from, to) else { return };
        assert!(damage(&mut backend).is_err(), "{from}");
    }
}
