use lgreco::Error;
use lgreco::compress::hard_threshold::HardThreshold;
use lgreco::compress::{Compressor, Setting, decode};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::hard_threshold::{check, check_all_types, check_bytes};
use proptest::prelude::*;

fn vector(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

fn encoded(values: &[f32], hard: HardThreshold) -> Result<Vec<u8>, Error> {
    let gradient = vector(values);
    let mut workspace = vec![!0; hard.encode_workspace_len(gradient.shape(), Dtype::F32)];
    let mut payload = vec![0xff; hard.payload_len(gradient.shape(), Dtype::F32)?];
    let len = hard.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
    payload.truncate(len);
    Ok(payload)
}

#[test]
fn payload_bytes_are_fixed() {
    let header = |variant, keep, rows| [b'L', 1, 2, variant, keep, 0, 0, 0, rows, 0, 0, 0, 1, 0, 0, 0];
    let hard = |lambda| HardThreshold { lambda, values: Dtype::Bf16 };
    let values = [0.0, 2.0, -1.0, 0.5, -2.0];
    // No value reaches the threshold, so the payload is only a header.
    assert_eq!(encoded(&values, hard(2.5)).unwrap(), header(2 | 2 << 2, 0, 5));
    // Values equal to the threshold are sent.
    let two = encoded(&values, hard(2.0)).unwrap();
    assert_eq!(two, [&header(2 | 1 << 2, 2, 5)[..], &[0x00, 0x40, 0x00, 0xc0, 0b10010]].concat());
    // Four of five values take 8 + 1 bytes, less than the 10 bytes of all five. But 16 of 17 values take 32 + 3 bytes,
    // more than the 34 bytes of all 17, so all 17 are sent.
    assert_eq!(encoded(&values, hard(0.5)).unwrap().len(), 16 + 9);
    let many = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.25];
    let all = encoded(&many, hard(0.5)).unwrap();
    assert_eq!((all.len(), all[3], all[4]), (16 + 17 * 2, 2, 17));
    let mut decoded = [f32::NAN; 17];
    decode(&all, &mut decoded).unwrap();
    assert_eq!(decoded, many);
}

#[test]
fn small_tensors_exhaustively() {
    const SET: [f32; 5] = [0.0, -0.0, 1.0, -1.0, 1.001];
    for n in 0..=5u32 {
        for code in 0..SET.len().pow(n) {
            let bits: Vec<u32> = (0..n).map(|i| SET[code / SET.len().pow(i) % SET.len()].to_bits()).collect();
            check_all_types(&bits, &[1.0005, 1.0, 1e-45, f32::MAX]);
        }
    }
}

#[test]
fn long_tensors() {
    let stream = Stream { seed: 4, ..Stream::default() };
    for n in [1000, 8191, 8192, 8193, 40_000] {
        let values: Vec<f32> = (0..n).map(|i| (stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect();
        let lambdas: Vec<f32> = (0..=40).map(|i| 1.01 - i as f32 * 0.025).collect();
        [Dtype::F32, Dtype::F16].into_iter().for_each(|dtype| check(&vector(&values), dtype, &lambdas));
    }
}

#[test]
fn parameters_lengths_and_values_are_checked() {
    let values = [1.0, 65520.0, -3.0];
    for lambda in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let refused = encoded(&values, HardThreshold { lambda, values: Dtype::F32 });
        assert!(matches!(refused, Err(Error::Parameter { what: "lambda", .. })));
        let measured = measure(&values, HardThreshold { lambda, values: Dtype::F32 });
        assert!(matches!(measured, Err(Error::Parameter { .. })));
    }
    let hard = HardThreshold { lambda: 2.0, values: Dtype::F16 };
    let overflow = Error::ElementOverflow { index: 1, value: 65520.0 };
    assert_eq!(encoded(&values, hard), Err(overflow));
    assert_eq!(measure(&values, hard), Err(overflow));
    let infinite = [1.0, 2.0, f32::INFINITY, f32::NAN];
    let refused = Err(Error::NonFinite { index: 2, value: f32::INFINITY });
    assert_eq!(encoded(&infinite, hard).map(|_| ()), refused);
    assert_eq!(measure(&infinite, hard).map(|_| ()), refused);

    let encode = |words: usize, bytes: usize| {
        let hard = HardThreshold { lambda: 2.0, values: Dtype::F32 };
        hard.encode(&vector(&values), Stream::default(), &mut vec![0; words], &mut vec![0; bytes])
    };
    assert_eq!(encode(2, 25), Ok(25));
    for (words, bytes) in [(1, 25), (2, 24)] {
        assert!(matches!(encode(words, bytes), Err(Error::Length { .. })));
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_bytes(&bytes);
    }

    #[test]
    fn any_magnitudes(
        bits in prop::collection::vec(any::<u32>().prop_map(|b| b & 0xbf7f_ffff), 1..60),
        lambdas in prop::collection::vec(1u32..0x7f80_0000, 0..6),
    ) {
        let lambdas: Vec<f32> = lambdas.into_iter().map(f32::from_bits).chain([f32::from_bits(bits[0] & 0x7fff_ffff | 1)]).collect();
        check_all_types(&bits, &lambdas);
    }
}

fn measure(values: &[f32], hard: HardThreshold) -> Result<(f64, usize), Error> {
    Setting::HardThreshold(hard).measure(&vector(values), Stream::default(), &mut [])
}
