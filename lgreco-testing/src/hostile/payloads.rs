//! Damaged payloads, decoded by a backend and by the core.

use super::Choices;
use lgreco::backend::Backend;
use lgreco::compress::eden::{self, Eden};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::wire::{HEADER_LEN, Method, Payload};
use lgreco::compress::{Compressor, Setting, decode};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;

/// Settings of the methods that devices decode, for tensors of at least 12 elements.
const SETTINGS: [Setting; 15] = [
    Setting::Qsgd(Qsgd { bits: 1, bucket: 16, scale: Scale::MaxNorm, rounding: Rounding::Nearest }),
    Setting::Qsgd(Qsgd { bits: 3, bucket: 7, scale: Scale::MinMax, rounding: Rounding::Stochastic }),
    Setting::Qsgd(Qsgd { bits: 4, bucket: 512, scale: Scale::MaxNorm, rounding: Rounding::Stochastic }),
    Setting::Qsgd(Qsgd { bits: 8, bucket: 64, scale: Scale::MinMax, rounding: Rounding::Nearest }),
    Setting::TopK(TopK { keep: 1, values: Dtype::F32 }),
    Setting::TopK(TopK { keep: 12, values: Dtype::F16 }),
    Setting::TopK(TopK { keep: 7, values: Dtype::Bf16 }),
    Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 }),
    Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 }),
    Setting::Dense,
    Setting::QuantisedTopK(QuantisedTopK { keep: 1, bits: 8 }),
    Setting::QuantisedTopK(QuantisedTopK { keep: 12, bits: 1 }),
    Setting::QuantisedTopK(QuantisedTopK { keep: 7, bits: 3 }),
    Setting::Eden(Eden { bits: 1, scale: eden::Scale::Unbiased }),
    Setting::Eden(Eden { bits: 5, scale: eden::Scale::LeastSquares }),
];

/// Rows and columns of tensors: one column, few elements, more than 64 elements, and more elements than a block of GPU
/// threads.
const SHAPES: [(usize, usize); 6] = [(12, 1), (4, 6), (1, 65), (16, 20), (3, 111), (40, 15)];

/// A sound payload, its setting and shape.
///
/// # Panics
/// Panics if a sound gradient cannot be encoded.
pub fn payload(choices: &mut Choices<'_>) -> (Setting, Shape, Vec<u8>) {
    let (setting, &(rows, cols)) = (*choices.of(&SETTINGS), choices.of(&SHAPES));
    let shape = Shape::new(rows, cols).expect("a small matrix");
    let (step, scale) = (u32::from(choices.byte()), *choices.of(&[1.0, 1e-3, 1e4, 0.0]));
    let stream = Stream { seed: 17, step, ..Stream::default() };
    let value = |i| ((stream.word(i) >> 20) as f32 / 2048.0 - 1.0) * scale;
    let values: Vec<f32> = (0..shape.elements() as u64).map(value).collect();
    let gradient = Gradient::new(Values::F32(&values), shape).expect("as many values as elements");
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).expect("a setting that fits")];
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    setting.encode(&gradient, stream, &mut workspace, &mut payload).expect("a sound gradient");
    (setting, shape, payload)
}

/// How the backend computes PowerSGD's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// With the same bits as the core's products.
    Exact,
    /// In f32 with any rounding; subnormal numbers may be flushed to zero.
    Rounded,
}

/// Decodes a payload, damaged or not, by `backend` and by the core. Both must give the same values, bit for bit except
/// under [`Products::Rounded`], or the same error. Returns whether the payload was decoded.
///
/// # Panics
/// Panics if the results differ.
pub fn check_decoding(bytes: &[u8], backend: &mut dyn Backend, products: Products) -> bool {
    let mut choices = Choices::new(bytes);
    let (setting, shape, mut payload) = payload(&mut choices);
    for _ in 0..choices.byte() % 4 {
        choices.damage_any(&mut payload);
    }
    // The number of values that the damaged header states, or that of the valid payload if the header is invalid or
    // states more than 4096.
    let stated = Payload::parse(&payload).map(|payload| payload.header.shape.elements());
    let elements = stated.ok().filter(|&elements| elements <= 1 << 12).unwrap_or(shape.elements());
    let [mut expected, mut found] = [(); 2].map(|()| vec![-1.0f32; elements]);
    let by_core = decode(&payload, &mut expected).map(drop);
    let by_backend = backend.decode(&payload, &mut found);
    assert_eq!(by_backend, by_core, "{setting} {shape:?}: {payload:02x?}");
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let header = Payload::parse(&payload).map(|payload| payload.header);
    let low_rank = header.ok().filter(|header| header.method == Method::PowerSgd && products == Products::Rounded);
    if let (Ok(()), Some(header)) = (by_core, low_rank) {
        let allowed = rounding(&payload, header.shape);
        let off = |(&a, &b): (&f32, &f32)| (f64::from(a) - f64::from(b)).abs() > allowed;
        let off = expected.iter().zip(&found).position(off);
        assert_eq!(off, None, "more than {allowed:e} off: {setting} {shape:?}: {payload:02x?}");
    } else if by_core.is_ok() {
        assert_eq!(bits(&found), bits(&expected), "{setting} {shape:?}: {payload:02x?}");
    }
    by_core.is_ok()
}

/// Bound on the rounding of an element of the product of a PowerSGD payload's factors.
fn rounding(payload: &[u8], shape: Shape) -> f64 {
    let factors = payload[HEADER_LEN..].as_chunks::<4>().0;
    let rank = factors.len() / (shape.rows() + shape.cols());
    let (left, right) = factors.split_at(rank * shape.rows());
    let largest = |factor: &[[u8; 4]]| factor.iter().fold(0.0, |a: f64, &x| a.max(f32::from_le_bytes(x).abs().into()));
    let (left, right) = (largest(left), largest(right));
    rank as f64 * (1e-6 * left * right + f64::from(f32::MIN_POSITIVE) * (1.0 + left + right))
}
