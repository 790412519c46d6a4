//! Golden payloads, byte by byte. No change of the code may change these bytes. Every backend must encode a few values
//! to the golden bytes, and decode these bytes.

use lgreco::backend::Backend;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;

fn encoded(backend: &mut dyn Backend, setting: Setting, values: &[f32], shape: Shape) -> Vec<u8> {
    let gradient = Gradient::new(Values::F32(values), shape).expect("as many values as elements");
    let mut payload = vec![0xa5; setting.payload_len(shape, Dtype::F32).expect("a setting for the shape")];
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, Dtype::F32)];
    let len = backend.encode(&setting, &gradient, Stream::default(), &mut workspace, &mut payload);
    assert_eq!(len, Ok(payload.len()), "{setting:?}");
    payload
}

fn check_decoded(backend: &mut dyn Backend, payload: &[u8], expected: &[f32]) {
    let mut decoded = vec![f32::NAN; expected.len()];
    assert_eq!(backend.decode(payload, &mut decoded), Ok(()));
    let near = decoded.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6);
    assert!(near, "{payload:x?} decode to {decoded:?}, not {expected:?}");
}

/// Asserts that `values`, as one column, are encoded to this header and body, and that this payload decodes to
/// `decoded`.
fn check(
    backend: &mut dyn Backend,
    setting: Setting,
    values: &[f32],
    (header, body): (&[u8; 16], &[&[u8]]),
    decoded: &[f32],
) {
    let expected = [&header[..], &body.concat()].concat();
    let shape = Shape::new(values.len(), 1).expect("a small shape");
    let found = encoded(backend, setting, values, shape);
    assert!(found == expected, "{setting:?}: {found:x?}, not {expected:x?}");
    check_decoded(backend, &expected, decoded);
}

/// Checks QSGD: both scales, both roundings, 1, 2 and 4 bits.
///
/// # Panics
/// Panics if a byte or a value differs.
pub fn check_qsgd(backend: &mut dyn Backend) {
    let [zero, fifth, one, three] = [0.0f32, 0.2, 1.0, 3.0].map(f32::to_le_bytes);
    let nearest = Qsgd { rounding: Rounding::Nearest, ..Qsgd::default() };
    // In units of 1/7, the values are 7, -3.5, 1.75 and 0. The values are rounded to 7, -4, 2 and 0.
    let header = b"L\x01\x01\x03\x00\x02\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00";
    let decoded = [1.0, -4.0 / 7.0, 2.0 / 7.0, 0.0];
    check(backend, Setting::Qsgd(nearest), &[1.0, -0.5, 0.25, 0.0], (header, &[&one, &[0xc7, 0x02]]), &decoded);
    // Rounding adds the random numbers 0.399, 0.880, 0.735 and 0.605.
    let two = Setting::Qsgd(Qsgd { bits: 2, bucket: 3, ..Qsgd::default() });
    let header = b"L\x01\x01\x01\x03\0\0\0\x04\0\0\0\x01\0\0\0";
    let body: &[&[u8]] = &[&one, &fifth, &[0b01_00_11_01]];
    check(backend, two, &[1.0, -0.5, 0.25, 0.2], (header, body), &[1.0, -1.0, 0.0, 0.2]);
    let min_max = Setting::Qsgd(Qsgd { bits: 2, scale: Scale::MinMax, ..nearest });
    let header = b"L\x01\x01\x09\0\x02\0\0\x04\0\0\0\x01\0\0\0";
    let body: &[&[u8]] = &[&zero, &three, &[0b11_01_11_00]];
    check(backend, min_max, &[-0.0, 3.0, 1.0, 2.75], (header, body), &[0.0, 3.0, 1.0, 3.0]);
    // The probability of code 1, (1 + x/N)/2, is 1, 0.25, 0.625 and 0.5 for the first gradient. For the second, it is
    // 1, 0.1, 0.775 and 0.35.
    let one_bit = Setting::Qsgd(Qsgd { bits: 1, ..Qsgd::default() });
    let header = b"L\x01\x01\x00\x00\x02\0\0\x04\0\0\0\x01\0\0\0";
    check(backend, one_bit, &[1.0, -0.5, 0.25, 0.0], (header, &[&one, &[0b1111]]), &[1.0; 4]);
    check(backend, one_bit, &[1.0, -0.8, 0.55, -0.3], (header, &[&one, &[0b0101]]), &[1.0, -1.0, 1.0, -1.0]);
}

/// Checks TopK: every coding of positions, every type of values.
///
/// # Panics
/// Panics if a byte or a value differs.
pub fn check_topk(backend: &mut dyn Backend) {
    let header = |variant, keep, rows| [b'L', 1, 2, variant, keep, 0, 0, 0, rows, 0, 0, 0, 1, 0, 0, 0];
    let top = |keep, values| Setting::TopK(TopK { keep, values });
    // Everything is kept, so there are no positions.
    let all = [0x80, 0x3f, 0x00, 0xc0];
    check(backend, top(2, Dtype::Bf16), &[1.0, -2.0], (&header(2, 2, 2), &[&all]), &[1.0, -2.0]);
    // Positions are a bitmap. The first of the two equal values 1 is kept.
    let bitmap = [0x00, 0x3c, 0x00, 0xc0, 0b01010];
    let values = [0.0, 1.0, 1.0, -2.0, 0.5];
    check(backend, top(2, Dtype::F16), &values, (&header(5, 2, 5), &[&bitmap]), &[0.0, 1.0, 0.0, -2.0, 0.0]);
    // Positions 3, 66 and 99 of 100 elements, in Elias–Fano coding with 5 low bits. The low bits are 3, 2 and 3,
    // packed. The high bits are 0, 2 and 3, which set bits 0, 3 and 5.
    let mut sparse = [0.0; 100];
    (sparse[3], sparse[66], sparse[99]) = (1.0, 2.0, 3.0);
    let low = 3 | 2 << 5 | 3 << 10u32;
    let positions = [low as u8, (low >> 8) as u8, 0b10_1001];
    let brain = [0x80, 0x3f, 0x00, 0x40, 0x40, 0x40];
    check(backend, top(3, Dtype::Bf16), &sparse, (&header(10, 3, 100), &[&brain, &positions]), &sparse);
    let single: [[u8; 4]; 3] = [1f32, 2.0, 3.0].map(f32::to_le_bytes);
    let body: &[&[u8]] = &[single.as_flattened(), &positions];
    check(backend, top(3, Dtype::F32), &sparse, (&header(8, 3, 100), body), &sparse);
}

/// Checks TopK in few bits: every coding of positions, two and three bits.
///
/// # Panics
/// Panics if a byte or a value differs.
pub fn check_quantised_topk(backend: &mut dyn Backend) {
    let header = |variant, keep, rows| [b'L', 1, 6, variant, keep, 0, 0, 0, rows, 0, 0, 0, 1, 0, 0, 0];
    let top = |keep, bits| Setting::QuantisedTopK(QuantisedTopK { keep, bits });
    let [zero, one, three_quarters, six, four] = [0f32, 1.0, 1.75, 6.0, 4.0].map(f32::to_le_bytes);
    // The bit patterns of 1.5 and 4 have the middle 2.5, so 1.5 and 2 are in the lower bin. The codes are 1, 2 and 0.
    let values = [4.0, -1.5, 2.0];
    let body: &[&[u8]] = &[&three_quarters, &four, &[0b00_10_01]];
    check(backend, top(3, 2), &values, (&header(2, 3, 3), body), &[4.0, -1.75, 1.75]);
    // Positions are a bitmap. The first of the two equal values 1 is kept. The bins begin at 1, 1.75, 3 and 5.
    let values = [0.0, 1.0, 1.0, -8.0, 4.0, 0.5, 8.0, 0.0];
    let [eight] = [8f32].map(f32::to_le_bytes);
    let body: &[&[u8]] = &[&one, &zero, &four, &eight, &[0b10_111_000, 0b0110], &[0b0101_1010]];
    let decoded = [0.0, 1.0, 0.0, -8.0, 4.0, 0.0, 8.0, 0.0];
    check(backend, top(4, 3), &values, (&header(3 | 1 << 4, 4, 8), body), &decoded);
    // Positions are in Elias–Fano coding, as in TopK's payloads.
    let mut sparse = [0.0; 100];
    (sparse[3], sparse[66], sparse[99]) = (1.0, -5.0, 7.0);
    let low = 3 | 2 << 5 | 3 << 10u32;
    let positions = [low as u8, (low >> 8) as u8, 0b10_1001];
    let body: &[&[u8]] = &[&one, &six, &[0b01_11_00], &positions];
    (sparse[66], sparse[99]) = (-5.0, 7.0);
    let mut decoded = sparse;
    (decoded[66], decoded[99]) = (-6.0, 6.0);
    check(backend, top(3, 2), &sparse, (&header(2 | 2 << 4, 3, 100), body), &decoded);
}

/// Checks PowerSGD: the rank in the header, and factors read column by column.
///
/// # Panics
/// Panics if a byte of the header or a value differs.
pub fn check_powersgd(backend: &mut dyn Backend) {
    let header = b"L\x01\x03\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00";
    let shape = Shape::new(2, 3).expect("a small shape");
    let payload = encoded(
        backend,
        Setting::PowerSgd(PowerSgd { rank: 5, iterations: 1 }),
        &[4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        shape,
    );
    assert_eq!((payload.len(), &payload[..16]), (16 + 4 * 2 * (2 + 3), &header[..]));
    let (p, q) = ([[1f32, 2.0], [0.5, -1.0]], [[1f32, 2.0, 3.0], [2.0, 4.0, -2.0]]);
    let factors = p.as_flattened().iter().chain(q.as_flattened());
    let payload: Vec<u8> = header.iter().copied().chain(factors.flat_map(|value| value.to_le_bytes())).collect();
    check_decoded(backend, &payload, &[2.0, 4.0, 2.0, 0.0, 0.0, 8.0]);
}
