//! Tests the cut of a layer, its k-th largest magnitude, for many kinds of magnitudes and samples. Also counts the
//! reads that are needed to find the cut.

use super::bins::check_each;
use super::is_full;
use super::{backend, cut as in_pieces};
use crate::WgpuBackend;
use crate::batch::{Batch, Part};
use crate::blocks::BINS;
use crate::cut::Sample;
use crate::kernels::Shader;
use crate::memory::Scratch;
use lgreco::backend::Backend;
use lgreco::compress::Compressor;
use lgreco::compress::Setting;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::gradient::{Bf16, Dtype, Element, Gradient, Shape, Values};
use lgreco::rng::Stream;

type Case = (Vec<f32>, Setting);

/// Returns values of both signs. `of` makes a magnitude from a value's index and a random number from 0 to 1.
fn numbers(len: usize, of: impl Fn(usize, f32) -> f32) -> Vec<f32> {
    let word = |i: usize| Stream::default().word(i as u64);
    let one = |i: usize| (word(2 * i) >> 8) as f32 / (1 << 24) as f32;
    (0..len).map(|i| if word(2 * i + 1) & 1 == 0 { of(i, one(i)) } else { -of(i, one(i)) }).collect()
}

/// Returns lists of values that resemble gradients. The lists are normally distributed, with long tails, in 16 bits,
/// with many zeros, clipped above, or growing from row to row.
fn natural(len: usize) -> Vec<Vec<f32>> {
    let normal = |x: f32| (-2.0 * (1.0 - x).ln()).sqrt();
    vec![
        numbers(len, |_, x| normal(x)),
        numbers(len, |_, x| (1.0 - x).max(1e-7).powf(-0.8)),
        numbers(len, |_, x| Bf16::from_f32(normal(x)).to_f32()),
        numbers(len, |i, x| if i % 8 == 3 { normal(x) } else { 0.0 }),
        numbers(len, |_, x| normal(x).min(1.5)),
        numbers(len, |i, x| normal(x) * (i / 512) as f32),
    ]
}

/// Returns lists of unusual values. The values of a list are equal, of two or ten magnitudes, adjacent, sorted, over
/// the whole range, or of a thousand pairs of adjacent magnitudes.
fn odd(len: usize) -> Vec<Vec<f32>> {
    vec![
        numbers(len, |_, _| 0.3),
        numbers(len, |_, x| if x < 0.3 { 1.0 } else { 0.125 }),
        numbers(len, |_, x| (10.0 * x).floor()),
        numbers(len, |_, x| f32::from_bits(0x3fff_ffff + (4.0 * x) as u32)),
        numbers(len, |i, _| f32::from_bits(0x3000_0000 + i as u32)),
        numbers(len, |_, x| f32::from_bits((x * 2_130_706_432.0) as u32)),
        numbers(len, |i, x| f32::from_bits(0x3f80_0000 + 8192 * (1000.0 * x) as u32 + (i % 2) as u32)),
    ]
}

/// Returns values of which one in `every` is nonzero.
fn sparse(len: usize, every: usize) -> Vec<f32> {
    let normal = |x: f32| (-2.0 * (1.0 - x).ln()).sqrt();
    numbers(len, |i, x| if i % every == 7 { normal(x) } else { 0.0 })
}

/// Returns values of which half are small and half are large. Nearly all small values are equal, and the other small
/// values are close to these.
pub(super) fn apart(len: usize) -> Vec<f32> {
    let small = |x: f32| if x < 0.9 { 1.03e-20 } else { 1e-20 * (1.0 + 0.6 * (x - 0.9)) };
    numbers(len, |i, x| if i % 2 == 0 { 1e20 * (1.0 + x) } else { small(x) })
}

fn full(keep: usize) -> Setting {
    Setting::TopK(TopK { keep: keep as u32, values: Dtype::F32 })
}

fn few(keep: usize, bits: u8) -> Setting {
    Setting::QuantisedTopK(QuantisedTopK { keep: keep as u32, bits })
}

fn keeps(len: usize) -> [usize; 6] {
    [1, len / 1000, len / 100, len / 3, len - 1, len].map(|keep| keep.max(1))
}

/// Returns cases with every third k for each tensor, alternately under TopK with full values and TopK in few bits.
fn cases(all: Vec<Vec<f32>>, first: usize) -> Vec<Case> {
    let of = |(number, values): (usize, Vec<f32>)| {
        let keeps = keeps(values.len()).into_iter().enumerate();
        let some = keeps.filter(move |(which, _)| (which + number + first).is_multiple_of(3));
        let setting = move |(which, keep): (usize, usize)| {
            if (which + number) % 2 == 0 { full(keep) } else { few(keep, [4, 1, 8][which % 3]) }
        };
        some.map(move |some| (values.clone(), setting(some)))
    };
    all.into_iter().enumerate().flat_map(of).collect()
}

/// Lengths of layers with different sampling rates. The first layer has few values, and the last has more workgroups
/// than one partial sum of counts covers.
const LENS: [usize; 3] = [5000, 70_001, 600_000];
/// Lengths of small layers. From these layers, the sample draws no values, few values, or enough values.
const SMALL_LENS: [usize; 8] = [1, 3, 64, 100, 1000, 4096, 9000, 20_000];

/// Returns cases with layers of all these lengths, and with every third k for each layer.
fn of_lens(lens: &[usize], values: fn(usize) -> Vec<Vec<f32>>) -> Vec<Case> {
    lens.iter().enumerate().flat_map(|(first, &len)| cases(values(len), first)).collect()
}

fn natural_cases() -> Vec<Case> {
    let mut all = of_lens(&LENS, natural);
    all.extend(of_lens(&SMALL_LENS, natural));
    if is_full() {
        all.extend(cases(natural(1_100_000).into_iter().take(2).collect(), 1));
    }
    all
}

/// Returns cases of small layers with unusual values. Such layers are so small that workgroups may look through all
/// gathered values.
fn small_odd_cases() -> Vec<Case> {
    let mut all = of_lens(&SMALL_LENS, odd);
    all.extend(next_to_each_other().into_iter().flat_map(|values| [21, 22].map(|keep| (values.clone(), full(keep)))));
    for values in [60, 90, 100, 130, 1000, 1100, 6000].into_iter().flat_map(close).chain([around_the_lowest_bin()]) {
        let len = values.len();
        let keeps = [len / 7, len / 3, len / 2 + 3, len - len / 40, len - 3, len - 2];
        let setting = |(which, keep)| if which % 3 == 1 { few(keep, 2) } else { full(keep) };
        all.extend(keeps.into_iter().enumerate().map(|kept| (values.clone(), setting(kept))));
    }
    all.extend([97, 98, 99].map(|keep| (in_every_round(), full(keep))));
    // The memory for gathered values is smaller than this layer, but its gathered values fit.
    all.push((odd(50_000).swap_remove(3), full(500)));
    all
}

/// Returns tensors with many adjacent magnitudes, so that the sample says little about the k-th largest. Some tensors
/// also have far smaller values, far larger values, or both. In the last tensor, most values are far larger, so that
/// the sample may have none of the adjacent magnitudes.
pub(super) fn close(len: usize) -> Vec<Vec<f32>> {
    let near = |least: u32, among: f32| move |x: f32| f32::from_bits(least + (among * x) as u32);
    let (some, many) = (near(0x3f80_0000, 300.0), near(0x3f80_0000, 5e5));
    let (small, smaller) = (near(0x0d80_0000, 9.0), near(0x0d80_0000, 5e6));
    let of_few = move |i: usize, x| if (i / 10).is_multiple_of(3) { smaller(x) } else { small(x) };
    vec![
        numbers(len, |_, x| some(x)),
        numbers(len, |i, x| if i % 2 == 0 { 1e-30 * x } else { many(x) }),
        numbers(len, |i, x| if i % 2 == 0 { 1e30 * x } else { some(x) }),
        numbers(len, |i, x| if i % 4 == 0 { [1e30, 1e-30][i / 4 % 2] * x } else { some(x) }),
        numbers(len, |i, x| if i % 10 == 7 { of_few(i, x) } else { 1.0 + x }),
    ]
}

/// Returns values of which the sample has none of the five smallest. The lowest part of the lowest bin then contains
/// the four smallest values, three of which are equal. This part ends at the fifth smallest value.
fn around_the_lowest_bin() -> Vec<f32> {
    let base = 1f32.to_bits() - (1 << 26);
    let bits = |i| match i {
        7 => base - 200_000,
        27 | 47 | 67 => base + 7,
        87 => base + 8,
        _ => [1f32, 1.5][i % 2].to_bits(),
    };
    numbers(100, |i, _| f32::from_bits(bits(i)))
}

/// Like [`around_the_lowest_bin`], but the lowest part spans a large range of magnitudes, and three of the smallest
/// values differ only in their last bits.
fn in_every_round() -> Vec<f32> {
    let bits = |i| match i {
        7 => 1,
        27 => 0x2aaa_aaaa,
        47 => 0x2aaa_aaab,
        67 => 0x2aaa_aaac,
        87 => 0x4000_0006,
        _ => [1e6f32, 1.5e6][i % 2].to_bits(),
    };
    numbers(100, |i, _| f32::from_bits(bits(i)))
}

fn odd_cases() -> Vec<Case> {
    let mut all = of_lens(&LENS, odd);
    // The k-th largest magnitude is close to a wide gap between small and large magnitudes.
    let len = 70_001;
    all.extend([full(len / 2 + 40), full(len / 2 - 40), few(len / 2 + 40, 3)].map(|setting| (apart(len), setting)));
    all.push(too_many());
    all
}

/// Returns a case in which more values are gathered than have room, and in which the k-th largest has adjacent
/// magnitudes.
fn too_many() -> Case {
    let len = 60_000;
    let small = |x: f32| f32::from_bits(0x1e3c_e508 + (2000.0 * x) as u32);
    let values = numbers(len, |i, x| if i % 5 < 2 { 1e20 * (1.0 + x) } else { small(x) });
    (values, full(2 * len / 5 + 40))
}

/// Asserts that payloads equal the core's, and that the sample misses no cut of natural layers and small layers.
fn check_cuts(check: impl Fn(&mut WgpuBackend, &[Case])) {
    let Some(mut backend) = backend() else { return };
    check(&mut backend, &natural_cases());
    assert_eq!(backend.gpu().lost_cuts, 0);
    check(&mut backend, &small_odd_cases());
    assert_eq!(backend.gpu().lost_cuts, 0);
    check(&mut backend, &odd_cases());
}

/// Returns two tensors, each with two adjacent magnitudes, 20 larger values, and smaller values. The bits of the lower
/// adjacent magnitude are even in one tensor and odd in the other. So in one tensor, both adjacent magnitudes lie in
/// the same part of a bin.
fn next_to_each_other() -> [Vec<f32>; 2] {
    [0x3fc0_0000, 0x3fc0_0001].map(|least| {
        numbers(5000, |i, x| match i {
            0..20 => 2.0 + x,
            20..22 => f32::from_bits(least + i as u32 % 2),
            _ => x,
        })
    })
}

#[test]
fn cuts_of_tensors_are_the_cores() {
    check_cuts(check_each);
    let Some(mut backend) = in_pieces() else { return };
    check_each(&mut backend, &cases(natural(70_001), 0));
    check_each(&mut backend, &small_odd_cases());
    assert_eq!(backend.gpu().lost_cuts, 0);
}

/// The number of kept values is about the number of nonzero values, as for an embedding.
#[test]
fn cuts_near_the_last_value_that_is_not_zero_are_not_lost() {
    let Some(mut backend) = backend() else { return };
    for (len, every) in [
        (300usize, 30),
        (1000, 100),
        (5000, 100),
        (70_001, 100),
        (600_000, 100),
        (5000, 1000),
        (70_001, 5000),
        (600_000, 90_000),
    ] {
        let some = len.div_ceil(every);
        let keeps = [some / 2, 9 * some / 10, some - 1, some, some + 1, 5 * some / 4, 3 * some / 2, len - 3];
        let setting = |(i, keep): (usize, usize)| if i % 2 == 0 { full(keep) } else { few(keep, 4) };
        let settings = keeps.into_iter().enumerate().map(setting);
        let cases: Vec<Case> = settings.map(|setting| (sparse(len, every), setting)).collect();
        check_each(&mut backend, &cases);
        assert_eq!(backend.gpu().lost_cuts, 0, "{len}, {every}");
    }
}

/// Edits that make shaders count loads. Each edit has a text of the shader, and a replacement that also counts.
type Counts = &'static [(Shader, &'static str, &'static str)];

/// Edits that count loads of values and of gathered magnitudes in the last words of the counters. Loads by the kernel
/// that writes values are counted in bin 127, which settings of fewer than 8 bits do not use.
const IN_TENSOR: Counts = &[
    (
        Shader::TopK,
        "fn value(i: u32) -> u32 {",
        "fn uncounted(i: u32) -> u32 {\n    return values[params.offset + i];\n}\n
         fn value(i: u32) -> u32 {\n    atomicAdd(&counters[arrayLength(&counters) - 1u], 1u);",
    ),
    (Shader::TopK, "tile[in_tile(i)] = value(first + i);", "tile[in_tile(i)] = uncounted(first + i);"),
    (
        Shader::TopK,
        "fn entry(at: u32) -> u32 {",
        "fn entry(at: u32) -> u32 {\n    atomicAdd(&counters[arrayLength(&counters) - 2u], 1u);",
    ),
    (
        Shader::TopK,
        "load_tile(first, lane.index);\n    if (params.bits",
        "load_tile(first, lane.index);\n    if (lane.index == 0u) {\n
         atomicAdd(&bins_of[0].counts[127], min(PER_GROUP, params.count - min(first, params.count)));\n    }\n    if (params.bits",
    ),
];

/// Bytes before the last bin's count in `Bins`.
const LAST_COUNT: u64 = 8 + 8 * 128 + 4 * 127;

fn counting(counts: Counts) -> WgpuBackend {
    let mut backend = backend().expect("the device there was before");
    counts.iter().for_each(|&(shader, text, counting)| backend.gpu().kernels.edit(shader, text, counting));
    backend
}

fn words(backend: &mut WgpuBackend, parts: &[Part]) -> Vec<usize> {
    let bytes = Batch::new(backend.gpu()).unwrap().read(parts).unwrap();
    bytemuck::pod_collect_to_vec::<u8, u32>(&bytes).into_iter().map(|word| word as usize).collect()
}

/// Returns the number of values and the number of gathered magnitudes that are loaded to encode a tensor.
fn loads_of_tensor(backend: &mut WgpuBackend, case: &Case) -> [usize; 2] {
    let counted = |backend: &mut WgpuBackend| {
        let counters = backend.gpu().scratch(Scratch::Counters, 4).unwrap();
        let buffer = backend.gpu().scratch(Scratch::FewBits, BINS).unwrap();
        let last = Part { offset: counters.size() - 8, size: 8, buffer: counters };
        words(backend, &[last, Part { buffer, offset: LAST_COUNT, size: 4 }])
    };
    // Some counts are not reset between payloads, so the difference of two counts is used.
    check_each(backend, std::slice::from_ref(case));
    let before = counted(backend);
    check_each(backend, std::slice::from_ref(case));
    let after = counted(backend);
    [after[1] - before[1] + after[2], after[0] - before[0]]
}

/// Largest number of values of a layer for which all gathered values always fit.
const MOST_WITH_ROOM: usize = 1 << 15;

/// Indices of the layers with many adjacent magnitudes, in the list of this test. In these layers, all values within a
/// sixteenth of an octave are gathered, and are read again if they do not fit. The sample of these layers may also miss
/// the cut.
const NEXT_TO_EACH_OTHER: [usize; 4] = [9, 10, 11, 12];

#[test]
fn values_are_read_twice() {
    if backend().is_none() {
        return;
    }
    let mut counting = counting(IN_TENSOR);
    let more: &[usize] = if is_full() { &[3, 100, 4096, 5000, 300_000, 1_100_000] } else { &[] };
    for &len in [1, 64, 1000, 9000, 20_000, 70_001].iter().chain(more) {
        for (number, values) in natural(len).into_iter().chain(odd(len)).enumerate() {
            for (which, keep) in keeps(len).into_iter().enumerate().skip(1) {
                let case = (values.clone(), if (which + number) % 2 == 0 { full(keep) } else { few(keep, 5) });
                let drawn = len.div_ceil(1 << Sample::new(keep as u32, len as u32).stratum);
                let [loads, gathered] = loads_of_tensor(&mut counting, &case);
                let told = format!("{number}, {:?}: {loads} and {gathered} of {len}", case.1);
                // A workgroup that keeps no value does not read its values again. The last sampled positions may lie
                // after the last value, so that the sample has fewer values.
                assert!(loads >= len + drawn - drawn / 1000 - 1, "{told}");
                if len <= MOST_WITH_ROOM {
                    // All workgroups may look through the gathered values up to six times. For natural layers, no
                    // workgroup looks through these values.
                    let looking = if number < 6 { 2 } else { 2 + 6 * len.div_ceil(2048) };
                    assert!(loads <= 2 * len + drawn && gathered <= looking * len, "{told}");
                } else {
                    if !NEXT_TO_EACH_OTHER.contains(&number) {
                        assert!(loads <= 2 * len + drawn && gathered <= len / 4, "{told}");
                    }
                    assert!(loads + gathered <= 8 * len, "{told}");
                }
                if which == 2 && number < 3 {
                    assert!(loads >= 2 * len, "all blocks have some of a hundredth: {told}");
                }
            }
        }
    }
}

/// An edit that makes the sample's interval wrong, so that it does not contain the k-th largest.
pub(super) const MISLEADING: (&str, &str) = ("BIN_COUNTS, 64u, params.most, lane)", "BIN_COUNTS, 64u, 1u, lane)");

/// Payloads must depend neither on the sampled values nor on the bounds that come from the sample.
#[test]
fn a_sample_that_misleads_changes_no_bit() {
    if backend().is_none() {
        return;
    }
    let len = 70_001;
    let settings = [full(len / 100), few(len / 3, 4), full(len - 1)];
    let of = |values: Vec<f32>| settings.map(|setting| (values.clone(), setting));
    let mut cases: Vec<Case> = natural(len).into_iter().take(4).flat_map(of).collect();
    cases.push((apart(len), full(len / 2 + 40)));
    // Each edit comes with the least number of tensors for which the sample must miss the cut.
    for (text, instead, lost) in [
        (MISLEADING.0, MISLEADING.1, 9),
        ("BIN_COUNTS, 64u, params.least, lane)", "BIN_COUNTS, 64u, 4000u, lane)", 8),
        (
            "fn add_to_sample(magnitude: u32) {",
            "fn add_to_sample(drawn_magnitude: u32) {\n    let magnitude = 0x3f812345u;",
            4,
        ),
        ("bound = ~counter(BIN_LEAST + lower.bin);", "bound = 0u;", 0),
        ("ceiling = counter(BIN_LARGEST + upper.bin);", "ceiling = MAGNITUDE;", 0),
        ("params.most_entries", "0u", 0),
        // With this edit, the gathered values of some blocks have room, and the gathered values of others have none.
        ("params.most_entries", "1000u", 0),
    ] {
        let mut backend = backend().expect("the device there was before");
        backend.gpu().kernels.edit(Shader::TopK, text, instead);
        check_each(&mut backend, &cases);
        let found = backend.gpu().lost_cuts;
        assert!(found >= lost, "{text}: {found} lost");
    }
}

/// After a missed cut, the error names the first kept value that f16 cannot represent. Earlier values that are too
/// large but not kept must not be named.
#[test]
fn values_too_large_to_be_sent_are_named_after_a_lost_cut() {
    let Some(mut backend) = backend() else { return };
    backend.gpu().kernels.edit(Shader::TopK, MISLEADING.0, MISLEADING.1);
    let len = 70_001;
    let mut values = apart(len);
    // The large values, at even positions, are too large for f16. The second k keeps only some of the large values.
    values.iter_mut().for_each(|x| *x *= 1e-12);
    values.iter_mut().skip(1).step_by(4).for_each(|x| *x = x.signum() * 1e-29);
    let gradient = Gradient::new(Values::F32(&values), Shape::new(len, 1).unwrap()).unwrap();
    for keep in [len / 2 + 40, len / 2 - 40] {
        let setting = Setting::TopK(TopK { keep: keep as u32, values: Dtype::F16 });
        let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
        let expected = setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap_err();
        let found = backend.encode(&setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap_err();
        assert_eq!(found, expected);
    }
    assert!(backend.gpu().lost_cuts > 0);
}

/// Faults in all parts of the search for a cut, including the parts that are needed only for misleading samples.
const FAULTS: &[(&str, &str)] = &[
    ("if (before < rank && before + count >= rank) {", "if (before <= rank && before + count > rank) {"),
    ("picked[0] = Picked(bin, rank - before);", "picked[0] = Picked(bin, rank);"),
    ("return pick_lane(bin, own, share.rank, lane);", "return pick_lane(bin, own, rank, lane);"),
    ("seen[0] += u32(magnitude > interval.ceiling);", "seen[0] += u32(magnitude >= interval.ceiling);"),
    ("magnitude == interval.bound && magnitude < interval.ceiling", "magnitude == interval.bound"),
    ("seen[4] = max(seen[4], magnitude);", "seen[4] = max(seen[4], magnitude / 2u);"),
    ("if (magnitude > 0u) {\n        seen[3]", "if (true) {\n        seen[3]"),
    (
        "if (magnitude > interval.bound && magnitude < interval.ceiling) {",
        "if (magnitude > interval.bound && magnitude <= interval.ceiling) {",
    ),
    ("entries[at + 3u] = (upper << 16u) | lower;", "entries[at + 3u] = lower;"),
    ("add_to_bin_of(interval.ceiling, upper);", ""),
    ("if (times != 0u && bin_in_interval(magnitude) == bin) {", "if (times != 0u) {"),
    ("add_picked(found.bin, interval.ceiling, entries[at + 3u] >> 16u);", ""),
    ("add_picked(found.bin, interval.bound, entries[at + 3u] & 0xffffu);", ""),
    ("sum += vec2<u32>(entries[at + 2u], 0u);", ""),
    ("(ends & 0xffffu) * found(interval.bound, cut)", "vec2<u32>(0u, 0u)"),
    ("together < own / TOGETHER", "together < 0u"),
    ("back < own % TOGETHER", "back < own"),
    ("let start = known.x + min(known.y, ties);", "let start = known.x + known.y;"),
    ("let end = after.x + min(after.y, ties);", "let end = known.x + min(after.y, ties);"),
    ("((counted(OCTAVES + other / 32u) >> (other % 32u)) & 1u) == 0u", "false"),
    ("larger - 1u;", "1u;"),
    ("atomicAdd(&own_bins[own + WITH_LARGER], 1u);", ""),
    ("+ u32(part != 0u)", ""),
    ("if (largest == least || found.rank == 1u) {", "if (true) {"),
    ("return vec2<u32>(least);", "return vec2<u32>(largest);"),
    ("counted(USED) > params.most_entries || ", ""),
    ("return vec2<u32>(least, largest);", "return vec2<u32>(least, largest - 1u);"),
    ("round < 7u", "round < 2u"),
    ("countLeadingZeros(range.y - range.x), 6u) - 6u", "countLeadingZeros(range.y - range.x), 7u) - 7u"),
    (
        "        clear_shares(lane.index);\n        workgroupBarrier();\n        count_between",
        "        workgroupBarrier();\n        count_between",
    ),
    ("cut.ties = found.rank;", ""),
    ("let least = range.x + (found.bin << shift);", "let least = range.x + found.bin;"),
    ("min(least + (1u << shift) - 1u, range.y)", "least + (1u << shift) - 1u"),
    ("let size = counted(USED);", "let size = counted(USED) - 1u;"),
    ("entry(params.first_entry + i)", "entry(i)"),
    ("magnitude >= range.x && magnitude <= range.y", "magnitude <= range.y"),
    ("magnitude >= range.x && magnitude <= range.y", "magnitude >= range.x"),
];
const WHERE_IT_MISLEADS: &[(&str, &str)] = &[
    ("|| cut < interval.bound || cut > interval.ceiling", ""),
    ("bits / level_bins(level) == cut.magnitude", "true"),
    ("level_bins(last) + found.bin, found.rank", "level_bins(last) + found.bin, before.ties"),
    ("own_shares[bin * 64u / level_bins(level)]", "own_shares[bin / 32u]"),
    ("return settled(3u, lane);", "return settled(2u, lane);"),
    ("1024u + 1024u * level, 0u, level == 0u", "1024u * level, 0u, level == 0u"),
];

/// Largest number of cuts of unusual layers that the sample misses without a planted fault.
const MOST_LOST: usize = 4;

#[test]
#[ignore = "slow"]
fn faults_in_the_search_for_a_cut_are_found() {
    if backend().is_none() {
        return;
    }
    let mut cases = [natural_cases(), small_odd_cases(), odd_cases()].concat();
    cases.retain(|(values, _)| values.len() < 300_000);
    cases.extend([full(6000), few(300_000, 4)].map(|setting| (natural(600_000).swap_remove(5), setting)));
    cases.extend([few(2000, 4), few(5000, 3)].map(|setting| (natural(5000).swap_remove(3), setting)));
    // Most of these faults change no bits, but make the sample miss more cuts. The first fault omits the last round of
    // the search, which only few layers reach.
    let costly = [
        ("round < 7u", "round < 6u"),
        ("add_to_bin_of(interval.bound, lower);", ""),
        ("within >> (max(interval.shift, 12u) - 12u)", "within >> interval.shift"),
        ("counted(USED) > params.most_entries || params.most_entries > LOOKED_THROUGH", "true"),
        ("params.most_entries > LOOKED_THROUGH", "params.most_entries > LOOKED_THROUGH - 1u"),
    ];
    let misled = WHERE_IT_MISLEADS.iter().map(|&fault| (fault, true));
    let all = FAULTS.iter().chain(&costly).map(|&fault| (fault, false)).chain(misled);
    for ((text, fault), misleads) in all {
        let found = std::panic::catch_unwind(|| {
            let mut backend = backend().expect("the device there was before");
            if misleads {
                backend.gpu().kernels.edit(Shader::TopK, MISLEADING.0, MISLEADING.1);
            }
            backend.gpu().kernels.edit(Shader::TopK, text, fault);
            check_each(&mut backend, &cases);
            let lost = backend.gpu().lost_cuts;
            assert!(misleads || lost <= MOST_LOST, "{lost} cuts are lost");
        });
        let message = found.err().map(|message| message.downcast_ref::<String>().cloned().unwrap_or_default());
        let message = message.unwrap_or_else(|| panic!("not found: {text}"));
        assert!(!message.contains("Device") && !message.contains("nothing to edit"), "{text}: {message}");
    }
}
