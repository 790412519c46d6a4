//! Tests damaged payloads under QSGD. Before they write a mean, the kernels must find every payload that the core's
//! decoder refuses.

use super::backend;
use super::exchange::{Memory, Rank, bits, config, gathered};
use super::exchange_topk::{means_of, place_of};
use super::simt::{Edit, Flavour, Simt, flavour};
use crate::kernels::Module;
use crate::{CudaBackend, ExchangeConfig, ExchangeFault};
use lgreco::compress::Setting;
use lgreco::compress::qsgd::{Qsgd, Scale};
use lgreco::gradient::Shape;
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;

/// Returns four layers. The first layer has two spans of one scale each, and the second layer has two scales per
/// bucket. The third layer has no elements. The fourth layer fills the last byte of its payload.
fn layers() -> Vec<(Shape, Setting)> {
    let base = Qsgd { bucket: 64, ..Qsgd::default() };
    let settings = [
        (4099, 1, Qsgd { bits: 3, bucket: 4096, ..base }),
        (77, 1, Qsgd { bits: 5, scale: Scale::MinMax, ..base }),
        (0, 5, base),
        (70, 3, Qsgd { bits: 8, ..base }),
    ];
    settings.map(|(rows, cols, qsgd)| (Shape::new(rows, cols).unwrap(), Setting::Qsgd(qsgd))).to_vec()
}

/// A change of a layer's payload: the layer, the position of the first changed byte, and the new bytes.
pub(super) type Damage = (usize, usize, Vec<u8>);

fn float(x: f32) -> Vec<u8> {
    x.to_le_bytes().to_vec()
}

/// Returns changes of scales. Each element of `places` is a layer's number and the position of a scale in the layer's
/// payload.
pub(super) fn scales(places: &[(usize, usize)]) -> Vec<Damage> {
    let scales = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1e30, 1e38];
    scales.iter().flat_map(|&x| places.iter().map(move |&(layer, at)| (layer, at, float(x)))).collect()
}

fn of_qsgd() -> Vec<Damage> {
    // The list has positions of scales. In layer 0, they are the positions of the scales of both spans. In layer 1,
    // they are the positions of the two scales of a bucket: its smallest and its largest value. In layer 3, there is
    // one position of a scale. A smallest value may be negative.
    let mut all = scales(&[(0, 16), (0, 20), (1, 24), (1, 28), (3, 24)]);
    all.push((1, 16, [float(f32::NEG_INFINITY), float(f32::INFINITY)].concat()));
    all.push((1, 16, [float(2.0), float(2.0)].concat()));
    all
}

/// Returns the changes in `of_scales`, followed by changes of every header byte and of the last byte of each payload.
fn damages(of_scales: &[Damage], layers: usize, payload: impl Fn(usize) -> Vec<u8>) -> Vec<Damage> {
    let mut all = of_scales.to_vec();
    for layer in 0..layers {
        let sound = payload(layer);
        all.extend((0..16).map(|at| (layer, at, vec![sound[at] ^ 1])));
        for change in [0x80, 0x01] {
            all.push((layer, sound.len() - 1, vec![sound[sound.len() - 1] ^ change]));
        }
    }
    all
}

/// Runs steps of one rank of two, with damaged payloads of the other rank. There must be at least four layers. Returns
/// the numbers of decoded and of refused messages.
pub(super) fn damaged(
    backend: &mut CudaBackend,
    layers: &[(Shape, Setting)],
    of_scales: &[Damage],
) -> Result<(usize, usize), String> {
    let config = ExchangeConfig { world: 2, ..config(lgreco::gradient::Dtype::F32, 1.0) };
    let mut ranks = [0, 1].map(|rank| {
        let stream = Stream { rank, ..config.stream };
        Rank::new(backend, layers, ExchangeConfig { stream, ..config })
    });
    for (rank, seed) in ranks.iter_mut().zip(1..) {
        rank.encode(backend, (layers, config), &uniform(rank.expected.len(), seed)).unwrap();
    }
    backend.synchronise().unwrap();
    let original = gathered(&ranks).bytes().to_vec();
    let apart = original.len() / 2;
    let own = &mut ranks[0];
    let mut step = config.stream.step;
    let mut finish = |mut bytes: Vec<u8>| {
        (0..2).for_each(|rank| bytes[apart * rank + 4..][..4].copy_from_slice(&step.to_le_bytes()));
        let mut messages = Memory::new(bytes.len() as u64);
        messages.fill(&bytes);
        own.finish(backend, &mut messages);
        step += 1;
        let outcome = backend.exchange_outcome(&own.exchange).unwrap();
        (outcome, bytemuck::cast_slice::<u8, f32>(own.gradients.bytes()).to_vec())
    };
    let payload = |layer| {
        let (at, len) = place_of(layers, layer);
        original[apart + at..][..len].to_vec()
    };
    let (mut decoded, mut refused) = (0, 0);
    for damage @ (layer, at, found) in &damages(of_scales, layers.len(), payload) {
        let mut bytes = original.clone();
        bytes[apart + place_of(layers, *layer).0 + at..][..found.len()].copy_from_slice(found);
        let (outcome, means) = finish(bytes.clone());
        let told = (outcome.rank, outcome.fault);
        match means_of(layers, &bytes, &original, apart) {
            Some(expected) if told == (None, None) && bits(&means) == bits(&expected) => decoded += 1,
            None if told == (Some(1), Some(ExchangeFault::Payload { layer: *layer }))
                && means.iter().all(|mean| mean.to_bits() == 0) =>
            {
                refused += 1;
            }
            expected => return Err(format!("{damage:?}: {outcome:?}, decoded by the core: {}", expected.is_some())),
        }
    }
    // The exchange must report the first faulty layer, whichever rank sent the payload. If a rank itself reports a
    // failure, the exchange must report that rank instead of a faulty payload.
    let mut two = original.clone();
    two[place_of(layers, 3).0] ^= 1;
    two[apart + place_of(layers, 1).0] ^= 1;
    let (outcome, _) = finish(two.clone());
    if (outcome.rank, outcome.fault) != (Some(1), Some(ExchangeFault::Payload { layer: 1 })) {
        return Err(format!("two damages: {outcome:?}"));
    }
    two[apart] = 1;
    let (outcome, _) = finish(two);
    if (outcome.rank, outcome.fault) != (Some(1), None) {
        return Err(format!("a rank that has failed: {outcome:?}"));
    }
    let (outcome, _) = finish(original.clone());
    if (outcome.rank, outcome.fault) != (None, None) {
        return Err(format!("a sound step: {outcome:?}"));
    }
    Ok((decoded, refused))
}

#[test]
fn damaged_payloads_are_decoded_as_by_the_core_or_refused() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let (decoded, refused) = damaged(&mut backend, &layers(), &of_qsgd()).unwrap();
    assert!(decoded > 15 && refused > 80, "{decoded} decoded, {refused} refused");
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    for (from, to) in [
        ("low <= high && ", ""),
        (" && is_finite(low)", ""),
        (" && is_finite(high)", ""),
        ("header[0] == layer.header_low", "true"),
        ("header[1] == layer.header_high", "true"),
        ("used % 8 == 0 || ", "true || "),
        ("u32 first = u32(span) * buckets;", "u32 first = 0;"),
        ("if (span == 0) {", "if (layer.count > 0 && span == 0) {"),
        ("blame(program, rank, layer.number);", "blame(program, rank, 0);"),
        ("check_scales(layers, layer_of, program, messages);", ""),
        (
            "    if (first_failed(*program, messages) < program->world) {\n        return;\n    }\n    check",
            "    check",
        ),
    ] {
        let edit = Edit { module: Module::Selection, from, to };
        let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
        let outcome = damaged(&mut CudaBackend::on(Box::new(device)), &layers(), &of_qsgd());
        assert!(outcome.is_err(), "not found: {from}");
    }
    let edit = Edit { module: Module::Exchange, from: "        fill(*program, p.dtype, means);\n", to: "" };
    let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
    let outcome = damaged(&mut CudaBackend::on(Box::new(device)), &layers(), &of_qsgd());
    assert!(outcome.is_err(), "means of a step that fails");
}
