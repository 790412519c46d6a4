//! Tests the bins of TopK in few bits, in payloads and rows, for magnitudes that the common suites do not have. Also
//! checks that these tests find faults planted in the shaders.

use super::{ROWS, backend, cut};
use crate::WgpuBackend;
use crate::kernels::Shader;
use lgreco::backend::{Backend, Job};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, decode};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_rows};
use lgreco_testing::powersgd::uniform;

/// Returns values of both signs. `bits` makes a magnitude from a value's index and a random word.
fn of(len: usize, bits: &dyn Fn(u32, u32) -> u32) -> Vec<f32> {
    let word = |i: usize| Stream::default().word(i as u64);
    (0..len).map(|i| f32::from_bits(bits(i as u32, word(i)) | word(i + len) & 0x8000_0000)).collect()
}

/// Returns lists of values of both signs. The magnitudes are zero, equal, adjacent, tiny, far apart, near the largest
/// f32, or sorted.
fn values() -> Vec<Vec<f32>> {
    let largest = f32::MAX.to_bits();
    vec![
        of(100, &|_, _| 0),
        of(2100, &|_, _| 0x4048_f5c3),
        of(70, &|i, _| if i == 33 { 7 } else { 0 }),
        of(5000, &|_, word| 0x3fff_ffff + word % 3),
        of(3000, &|_, word| word % 200),
        of(3000, &|_, word| word % 0x0180_0000),
        of(18_000, &|_, word| word % largest),
        of(9000, &|_, word| largest - word % 1000),
        of(300, &|i, _| if i % 2 == 0 { largest } else { 1 }),
        of(1, &|_, _| 0x3f80_0001),
        // In this list, the largest values come last.
        of(5000, &|i, _| 0x3000_0000 + (i << 16)),
    ]
}

/// Returns lists of adjacent magnitudes, with a few magnitudes far away. Differences of their squares nearly cancel.
/// The adjacent magnitudes lie within a binade, on both sides of its end, or among subnormal numbers.
fn clusters() -> Vec<Vec<f32>> {
    let of = |middle: u32, width: u32| -> Vec<f32> {
        let word = |i: u32| Stream::default().word(u64::from(i + middle));
        let near = |i: u32| f32::from_bits(middle - width / 2 + word(i) % width);
        let mut values: Vec<f32> = (0..5000).map(|i| if i % 2 == 0 { near(i) } else { -near(i) }).collect();
        values.extend([1e-44, 1e-12, -3.0, 1e5, -1e30].map(|far| 3.0 * far));
        values.extend([0.0; 40]);
        values
    };
    vec![of(0x3f2a_aaaa, 2), of(0x3f2a_aaaa, 40), of(0x3f80_0000, 7), of(0x0000_4000, 3), of(0x0080_0000, 100)]
}

/// Returns all these values, each under several settings.
fn cases() -> Vec<(Vec<f32>, Setting)> {
    let mut cases = Vec::new();
    for values in values() {
        let len = values.len() as u32;
        for keep in [1, len.div_ceil(3), len.max(2) - 1, len] {
            for bits in [1, 2, 5, 8] {
                cases.push((values.clone(), Setting::QuantisedTopK(QuantisedTopK { keep, bits })));
            }
        }
    }
    // The last code of a workgroup's values begins in one window and ends in the next, if windows have 4096 words.
    let straddling = (4096 - 4 - 16) * 32 / 5 + 1;
    let large = |i: u32, word: u32| 0x3f80_0000 + i % 16 * 8192 + word % 8192;
    let values = of(32_768, &|i, word| if (straddling..14 * 2048).contains(&i) { i } else { large(i, word) });
    let keep = straddling + 32_768 - 14 * 2048;
    cases.push((values, Setting::QuantisedTopK(QuantisedTopK { keep, bits: 5 })));
    cases
}

/// Returns the core's payload, and its decoded values.
fn of_core(setting: &Setting, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let gradient = Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap();
    let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
    setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
    let mut decoded = vec![0.0; values.len()];
    decode(&payload, &mut decoded).unwrap();
    (payload, decoded)
}

/// Asserts that payloads of TopK in few bits, each of a single tensor, equal the core's.
fn check_payloads(backend: &mut WgpuBackend) {
    let empty = (vec![], Setting::QuantisedTopK(QuantisedTopK { keep: 0, bits: 5 }));
    check_each(backend, &[cases(), vec![empty]].concat());
}

/// Asserts that the payloads of these cases equal the core's.
pub(super) fn check_each(backend: &mut WgpuBackend, cases: &[(Vec<f32>, Setting)]) {
    for (values, setting) in cases {
        let gradient = Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap();
        let mut payload = vec![0xee; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        backend.encode(setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap();
        let (expected, expected_values) = of_core(setting, values);
        assert!(payload == expected, "{setting:?} of {}: another payload", values.len());
        let (mut found, before) = (vec![f32::NAN; values.len()], backend.gpu().decoded);
        backend.decode(&payload, &mut found).unwrap();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&found) == bits(&expected_values), "{setting:?} of {}: another payload's values", values.len());
        let on_device = usize::from(!values.is_empty());
        assert_eq!(backend.gpu().decoded - before, on_device, "{setting:?} was left to the core");
    }
}

/// Asserts that rows equal the core's.
fn check_all_rows(backend: &mut WgpuBackend) {
    for values in values().into_iter().chain(clusters()) {
        let len = values.len();
        let tensor = Tensor::new(&values, len, 1);
        let keeps = [len.div_ceil(3), 1, len, len.div_ceil(100), len.max(2) - 1, len.max(60) - 50];
        let keeps = keeps.map(|keep| keep.min(len) as u32);
        let candidates = Candidates::QuantisedTopK { keeps: &keeps, bits: &[1, 8, 2, 3, 4, 5, 6, 7] };
        let of = |gradient| Job { gradient, candidates, stream: Stream::default() };
        check_rows(backend, &[of(tensor.gradients()[0])], ROWS);
    }
}

#[test]
fn payloads_of_any_magnitudes_are_the_cores() {
    [backend(), cut()].iter_mut().flatten().for_each(check_payloads);
}

#[test]
fn rows_of_any_magnitudes_are_the_cores() {
    [backend(), cut()].iter_mut().flatten().for_each(check_all_rows);
}

/// The candidates exceed three limits: on workgroups in one dimension, on the workspace, and on the number of k that
/// are selected together.
#[test]
fn rows_of_many_candidates_are_the_cores() {
    let values = uniform(20_000, 3);
    let tensor = Tensor::new(&values, 200, 100);
    let keeps: Vec<u32> = (0..600).rev().map(|i| 1 + 33 * i).collect();
    let candidates = Candidates::QuantisedTopK { keeps: &keeps, bits: &[4, 1] };
    for mut backend in [backend(), cut()].into_iter().flatten() {
        for gradient in tensor.gradients() {
            check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
}

/// Asserts that `check` fails for each fault in a shader, with a message that contains `says`. The tested tensors have
/// several workgroups, or several pieces and windows.
fn check_faults(check: fn(&mut WgpuBackend), says: &str, faults: &[(&'static str, &'static str)]) {
    if backend().is_none() {
        return;
    }
    for (text, fault) in faults.iter().copied() {
        let found = [backend(), cut()].into_iter().flatten().find_map(|mut backend| {
            backend.gpu().kernels.edit(Shader::TopK, text, fault);
            let check = std::panic::AssertUnwindSafe(|| check(&mut backend));
            std::panic::catch_unwind(check).err()
        });
        let message = found.unwrap_or_else(|| panic!("not found: {text}"));
        let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(message.contains(says) && !message.contains("Device"), "{text}: {message}");
    }
}

#[test]
#[ignore = "slow"]
fn faults_in_rows_are_found() {
    let faults = [
        ("let low = max(cut, all.low);", "let low = cut;"),
        ("let low = max(cut, all.low);", "let low = all.low;"),
        ("+ u32((before.x & 127u) != 0u)", ""),
        ("if (before + digits < before)", "if (false)"),
        ("let middle = square.y + u32(low_before + square.x < low_before);", "let middle = square.y;"),
        ("if (middle_before + middle < middle_before)", "if (false)"),
        ("atomicLoad(&own_sums[own + 2u]) + u32(before + sum < before)", "atomicLoad(&own_sums[own + 2u])"),
        ("plus_wide(upper, u32(low_before + low < low_before))", "upper"),
        ("carried.y + u32(middle_before + carried.x < middle_before)", "carried.y"),
        ("for (var i = 0u; i < 3u; i++) {\n        carry", "for (var i = 0u; i < 1u; i++) {\n        carry"),
        (
            "return plus_128(plus_128(vec4<u32>(mul_wide(a.x, a.x), mul_wide(a.y, a.y)), middle), middle);",
            "return vec4<u32>(mul_wide(a.x, a.x), mul_wide(a.y, a.y));",
        ),
        ("plus_128(down(a.sum, less), b.sum)", "plus_128(a.sum, b.sum)"),
        ("down(a.squares, 2u * less)", "down(a.squares, less)"),
        ("own.count += cut.ties;", ""),
        ("let apart = f32(mean & ((1u << lost) - 1u)) +", "let apart ="),
        ("max(max(highest - 23, 9 - i32(bin.exponent)), 0)", "max(highest - 23, 0)"),
        ("let to = params.result + 2u * (8u * group.x", "let to = params.result + 2u * (group.x"),
        ("widen_range(kept.lowest, kept.highest);", "widen_range(0u, kept.highest);"),
    ];
    check_faults(check_all_rows, "expected", &faults);
}

#[test]
#[ignore = "slow"]
fn faults_in_payloads_are_found() {
    let faults = [
        ("return float_of(quotient(sum, count), exponents.y);", "return float_of(quotient(sum, count), exponents.x);"),
        ("if (is_in_window(at.x)) {", "if (true) {"),
        ("if (is_in_window(at.x)) {", "if (params.window == 0u) {"),
        ("|| is_in_window(last_word + 1u)", ""),
        ("is_in_window(word_of(start)) ||", ""),
        (
            "is_in_window(word_of(start)) || is_in_window(last_word) || is_in_window(last_word + 1u)",
            "is_in_window(word_of(start))",
        ),
        ("if (lower < params.positions_len) {", "if (lower + 1u < params.positions_len) {"),
        ("widen_range(~range.low, range.low + range.span - 1u);", "widen_range(0u, range.low + range.span - 1u);"),
        ("put(params.values_word + bin, 0u,", "put(params.values_word, 0u,"),
        ("field(params.codes, 0u, index, params.bits)", "field(params.codes, 0u, index, params.bits - 1u)"),
        ("field(params.codes, params.code_bit, index", "field(params.codes, 0u, index"),
        ("if (at.y + params.bits > 32u) {", "if (false) {"),
        ("kept_part[code & (sign - 1u)] |", "kept_part[0u] |"),
        ("select(0u, SIGN, (code & sign) != 0u)", "0u"),
    ];
    check_faults(check_payloads, "another payload", &faults);
}
