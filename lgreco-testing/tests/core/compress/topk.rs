use lgreco::Error;
use lgreco::backend::Portable;
use lgreco::compress::Compressor;
use lgreco::compress::select;
use lgreco::compress::topk::{TopK, decode, measure, measure_workspace_len};
use lgreco::compress::wire::Payload;
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::golden;
use lgreco_testing::topk::{check_all_types, check_bytes, check_payload, check_round_trip, check_row};
use proptest::prelude::*;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

fn vector(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

fn encoded(values: &[f32], top: TopK) -> Result<Vec<u8>, Error> {
    let gradient = vector(values);
    let mut workspace = vec![0; top.encode_workspace_len(gradient.shape(), Dtype::F32)];
    let mut payload = vec![0; top.payload_len(gradient.shape(), Dtype::F32)?];
    top.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
    Ok(payload)
}

/// Words of a fixed random sequence.
fn words(seed: u64) -> impl Iterator<Item = u32> {
    let stream = Stream { seed, ..Stream::default() };
    (0..).map(move |i| stream.word(i))
}

#[test]
fn payload_bytes_are_fixed() {
    golden::check_topk(&mut Portable);
}

#[test]
fn small_tensors_exhaustively() {
    const SET: [f32; 5] = [0.0, -0.0, 1.0, -1.0, 1.001];
    for n in 1..=5u32 {
        for code in 0..SET.len().pow(n) {
            let bits: Vec<u32> = (0..n).map(|i| SET[code / SET.len().pow(i) % SET.len()].to_bits()).collect();
            check_all_types(&bits, &(1..=n).collect::<Vec<_>>());
        }
    }
    for n in 6..=10u32 {
        for code in 0..1 << n {
            let values: Vec<f32> = (0..n).map(|i| if code >> i & 1 == 0 { 2.0 } else { -1.0 }).collect();
            for keep in 1..=n {
                check_round_trip(&vector(&values), TopK { keep, values: Dtype::F32 });
            }
        }
    }
}

/// Lengths are just below and above those of vector blocks, chunks and the smallest sampled tensor. Magnitudes are
/// clustered, spread, equal or zero.
#[test]
fn hard_distributions() {
    type Make = fn(usize, u32) -> u32;
    let makes: [Make; 8] = [
        |_, _| 1f32.to_bits(),
        |i, _| if i % 3 == 0 { 2f32 } else { -1.0 }.to_bits(),
        |_, word| 1f32.to_bits() | word & 0x8000_03ff,
        |i, _| (2f32.powi((i % 250) as i32 - 126) * 1.3).to_bits(),
        |_, word| word & 0x807f_ffff,
        |_, word| if word % 50 == 0 { word >> 3 } else { word & 0x8000_0000 },
        |i, word| if i == 4000 { 0x7f7f_ffff } else { 0x3c00_0000 | word >> 12 },
        // A sample of one position in 32 sees only zeros or only large numbers.
        |i, word| if i % 64 < 32 { 0 } else { 0x3f80_0000 | word >> 10 },
    ];
    for (seed, make) in makes.into_iter().enumerate() {
        for n in [1, 15, 16, 17, 1000, 1023, 1024, 20_011] {
            let bits: Vec<u32> = words(seed as u64).take(n).enumerate().map(|(i, word)| make(i, word)).collect();
            let values: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
            let keeps: Vec<u32> =
                [1, 2, n / 100, n / 10, n / 7, n / 2, n - 1, n].iter().map(|&k| k.clamp(1, n) as u32).collect();
            let densities: Vec<u32> = (1..=100).map(|i| (i * n / 500).max(1) as u32).rev().collect();
            DTYPES.iter().for_each(|&dtype| check_row(&vector(&values), dtype, &keeps));
            check_row(&vector(&values), Dtype::F32, &densities);
            keeps.iter().for_each(|&keep| check_round_trip(&vector(&values), TopK { keep, values: Dtype::F32 }));
        }
    }
}

/// All large magnitudes are at positions that the sample skips, or all are at positions that it reads. Then the bracket
/// from the sample is wrong, but the result must still be right.
#[test]
fn a_misled_sample_costs_time_only() {
    let n = 1 << 15;
    let seen: Vec<usize> = (0..n / 32).map(|i| select::sampled_position(i, 32)).collect();
    for (at_seen, elsewhere) in [(0.001, 1.0), (1.0, 0.001)] {
        let mut values: Vec<f32> = words(9).take(n).map(|w| elsewhere * (1.0 + (w >> 9) as f32 * 1e-7)).collect();
        seen.iter().for_each(|&i| values[i] = at_seen * (1.0 + i as f32 * 1e-6));
        let keeps = [1, 300, 1024, 1025, 5000, 30_000];
        check_row(&vector(&values), Dtype::F32, &keeps);
        keeps.iter().for_each(|&keep| check_round_trip(&vector(&values), TopK { keep, values: Dtype::F16 }));
    }
}

#[test]
fn sizes_are_exact_and_fano_is_small() {
    for n in [1usize, 2, 7, 8, 9, 63, 64, 100, 1000, 4097] {
        let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        for keep in 1..=n.min(130) as u32 {
            for dtype in DTYPES {
                let top = TopK { keep, values: dtype };
                let payload = encoded(&values, top).unwrap();
                assert_eq!(payload.len(), top.payload_len(Shape::new(n, 1).unwrap(), Dtype::F32).unwrap());
                assert!(payload.len() <= 16 + keep as usize * dtype.bytes() + n.div_ceil(8));
            }
        }
    }
    let million = Shape::new(1000, 1000).unwrap();
    let top = TopK::with_density(0.01, 1_000_000, Dtype::F16).unwrap();
    let position_bits = (top.payload_len(million, Dtype::F32).unwrap() - 16) as f64 * 8.0 / 1e4 - 16.0;
    assert!(position_bits < 8.6, "{position_bits}");
}

#[test]
fn parameters_and_lengths_are_checked() {
    let values = [1.0, 2.0, 3.0];
    for keep in [0, 4] {
        assert!(matches!(encoded(&values, TopK { keep, values: Dtype::F32 }), Err(Error::Parameter { .. })));
        let mut workspace = [0; 200];
        let row = measure(&vector(&values), Dtype::F32, &[1, keep], &mut workspace, &mut [0.0; 2]);
        assert!(matches!(row, Err(Error::Parameter { .. })));
    }
    for density in [0.0, -0.5, 1.5, f64::NAN] {
        assert!(matches!(TopK::with_density(density, 10, Dtype::F32), Err(Error::Parameter { .. })));
    }
    assert_eq!(TopK::with_density(1.0, u32::MAX as usize, Dtype::F32).unwrap().keep, u32::MAX);
    assert_eq!(TopK::with_density(0.5, 0, Dtype::F32).unwrap().keep, 0);

    let top = TopK { keep: 2, values: Dtype::F32 };
    let encode = |words: usize, bytes: usize| {
        top.encode(&vector(&values), Stream::default(), &mut vec![0; words], &mut vec![0; bytes])
    };
    assert_eq!(encode(2, 25), Ok(25));
    assert!(matches!(encode(1, 25), Err(Error::Length { .. })));
    assert!(matches!(encode(2, 24), Err(Error::Length { .. })));
    let words = measure_workspace_len(Shape::new(3, 1).unwrap(), 1);
    let row = measure(&vector(&values), Dtype::F32, &[1], &mut vec![0; words - 1], &mut [0.0]);
    assert!(matches!(row, Err(Error::Length { .. })));
    assert!(matches!(
        measure(&vector(&values), Dtype::F32, &[1], &mut vec![0; words], &mut [0.0; 2]),
        Err(Error::Length { .. })
    ));
}

#[test]
fn empty_tensors_and_empty_rows() {
    check_round_trip(&vector(&[]), TopK { keep: 0, values: Dtype::F32 });
    check_row(&vector(&[]), Dtype::F16, &[0, 0]);
    check_row(&vector(&[1.0, f32::NAN]), Dtype::F16, &[]);
    check_row(&vector(&[1e30]), Dtype::F16, &[]);
}

#[test]
fn values_that_do_not_fit_are_named() {
    let values = [1.0, 65519.0, -65520.0, 1e30];
    assert!(encoded(&values[..2], TopK { keep: 2, values: Dtype::F16 }).is_ok());
    assert_eq!(
        encoded(&values, TopK { keep: 2, values: Dtype::F16 }),
        Err(Error::ElementOverflow { index: 2, value: -65520.0 })
    );
    assert_eq!(
        encoded(&[3.0, f32::INFINITY, f32::NAN], TopK { keep: 3, values: Dtype::F32 }),
        Err(Error::NonFinite { index: 1, value: f32::INFINITY })
    );
}

#[test]
fn positions_must_ascend_inside_the_tensor() {
    let payload = |low: [u8; 3], high: u8| {
        let low = low[0] as u16 | (low[1] as u16) << 5 | (low[2] as u16) << 10;
        let mut bytes = vec![b'L', 1, 2, 10, 3, 0, 0, 0, 100, 0, 0, 0, 1, 0, 0, 0, 0x80, 0x3f, 0x00, 0x40, 0x40, 0x40];
        bytes.extend([low as u8, (low >> 8) as u8, high]);
        check_payload(&bytes);
        decode(&Payload::parse(&bytes).unwrap(), &mut [0.0; 100])
    };
    assert_eq!(payload([3, 2, 3], 0b10_1001), Ok(()));
    assert_eq!(payload([3, 4, 3], 0b10_0011), Ok(()));
    for (low, high) in [([3, 3, 3], 0b10_0011), ([3, 2, 3], 0b10_0011), ([3, 2, 4], 0b10_1001), ([3, 2, 3], 0b100_1001)]
    {
        assert!(matches!(payload(low, high), Err(Error::PayloadBody { .. })), "{low:?} {high:b}");
    }
}

#[test]
fn damaged_payloads_never_panic() {
    let values: Vec<f32> = words(3).take(300).map(|w| w as i32 as f32).collect();
    for (keep, dtype) in [(300, Dtype::F16), (120, Dtype::F32), (9, Dtype::Bf16), (1, Dtype::F32)] {
        let values: Vec<f32> = values.iter().map(|x| x * 1e-6).collect();
        let payload = encoded(&values, TopK { keep, values: dtype }).unwrap();
        for len in 0..payload.len() {
            check_payload(&payload[..len]);
            assert!(Payload::parse(&payload[..len]).and_then(|p| decode(&p, &mut [0.0; 300])).is_err());
        }
        for bit in 0..payload.len() * 8 {
            let mut damaged = payload.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            check_payload(&damaged);
        }
    }
}

proptest! {
    #[test]
    fn any_bits(
        bits in prop::collection::vec(prop_oneof![any::<u32>(), any::<u32>().prop_map(|b| b & 0xc07f_ffff)], 1..80),
        part in 0.0..=1.0f64,
    ) {
        let n = bits.len() as u32;
        check_all_types(&bits, &[1, ((n as f64 * part) as u32).max(1), n]);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_bytes(&bytes);
    }

    #[test]
    fn any_payload(keep in 0..40u32, n in 0..300u32, variant in 0..12u8, body in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = vec![b'L', 1, 2, variant];
        bytes.extend([keep, n, 1].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(body);
        check_payload(&bytes);
    }
}
