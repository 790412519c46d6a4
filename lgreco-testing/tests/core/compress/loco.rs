use lgreco::Error;
use lgreco::compress::Compressor;
use lgreco::compress::Setting;
use lgreco::compress::loco::{LoCo, decode};
use lgreco::compress::wire::Payload;
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::loco::{check, check_bytes, check_payload};
use proptest::prelude::*;

fn vector(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

fn encoded(group: u32, values: &[f32]) -> Vec<u8> {
    let mut payload = vec![0xff; LoCo { group }.payload_len(vector(values).shape(), Dtype::F32).unwrap()];
    LoCo { group }.encode(&vector(values), Stream::default(), &mut [], &mut payload).unwrap();
    payload
}

fn round_trip(group: u32, values: &[f32]) -> Vec<f32> {
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&Payload::parse(&encoded(group, values)).unwrap(), &mut decoded).unwrap();
    decoded
}

#[test]
fn payload_bytes_are_fixed() {
    let header = [b'L', 1, 5, 0, 3, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0];
    let bytes = encoded(3, &[-8.0, 3.0, 1.5, 4.0, -4.0]);
    let scales = [0, 0, 0, 0x41, 0, 0, 0x80, 0x40];
    // The codes are −8, 3 and 2 (1.5 is rounded to even), then 7 and −8.
    assert_eq!(bytes, [&header[..], &scales, &[0x38, 0x72, 0x08]].concat());
}

/// At any f32 magnitude `M`, the value `M` decodes to `7/8 M`, which is one step too small. The value `−M` is exact.
#[test]
fn the_ends_of_the_range() {
    for largest in [1.0f32, 3.0, 1e-30, 0.1, 3.3e38, f32::MAX, f32::MIN_POSITIVE, 1e-40] {
        let decoded = round_trip(4, &[largest, -largest, 0.0, -0.0]);
        assert_eq!(decoded[1], -largest);
        assert_eq!(decoded[0], (0.875 * largest as f64) as f32);
        assert_eq!(decoded[2..], [0.0, 0.0]);
    }
    assert_eq!(round_trip(1, &[5.0, -5.0]), [4.375, -5.0]);
}

#[test]
fn halves_go_to_the_even_code() {
    let values: Vec<f32> = (-16..16).map(|i| i as f32 / 2.0).collect();
    let expected: Vec<f32> = values.iter().map(|x| x.round_ties_even().min(7.0)).collect();
    assert_eq!(round_trip(32, &values), expected);
}

#[test]
fn groups_of_all_lengths() {
    let stream = Stream { seed: 6, ..Stream::default() };
    for (n, group) in [(1, 1), (511, 512), (513, 512), (1025, 7), (1500, 700), (2000, u32::MAX), (0, 5)] {
        let values: Vec<f32> = (0..n).map(|i| (stream.word(i) as i32 >> 8) as f32 * 1e-9).collect();
        check(group, &vector(&values));
    }
}

#[test]
fn parameters_and_lengths_are_checked() {
    let values = [1.0, 2.0, 3.0];
    let shape = vector(&values).shape();
    assert!(matches!(LoCo { group: 0 }.payload_len(shape, Dtype::F32), Err(Error::Parameter { .. })));
    let measured = Setting::LoCo(LoCo { group: 0 }).measure(&vector(&values), Stream::default(), &mut []);
    assert!(matches!(measured, Err(Error::Parameter { .. })));
    let encode =
        |bytes: usize| LoCo { group: 2 }.encode(&vector(&values), Stream::default(), &mut [], &mut vec![0; bytes]);
    assert_eq!(encode(16 + 8 + 2), Ok(26));
    assert!(matches!(encode(25), Err(Error::Length { .. })));
    let payload = encoded(2, &values);
    let with = |at: usize, byte: u8| {
        let mut bytes = payload.clone();
        bytes[at] = byte;
        check_payload(&bytes);
        decode(&Payload::parse(&bytes).unwrap(), &mut [0.0; 3])
    };
    assert_eq!(with(16, 1), Ok(()));
    assert!(matches!(with(3, 1), Err(Error::PayloadHeader { .. })));
    assert!(matches!(with(4, 0), Err(Error::Parameter { .. })));
    assert!(matches!(with(4, 1), Err(Error::Length { .. })));
    assert!(matches!(with(19, 0x7f), Err(Error::PayloadBody { .. }) | Ok(())));
    for (at, byte) in [(19, 0xbf), (25, 0x10)] {
        assert!(matches!(with(at, byte), Err(Error::PayloadBody { .. })), "byte {at}");
    }
    let mut infinite = payload.clone();
    infinite[16..20].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(matches!(decode(&Payload::parse(&infinite).unwrap(), &mut [0.0; 3]), Err(Error::PayloadBody { .. })));
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
        check_bytes(&bytes);
    }

    #[test]
    fn any_finite(group in 0u8..60, bits in prop::collection::vec(any::<u32>().prop_map(|b| b & 0xbf7f_ffff), 1..80)) {
        let bytes: Vec<u8> = [group, 0].into_iter().chain(bits.iter().flat_map(|b| b.to_le_bytes())).collect();
        check_bytes(&bytes);
    }

    #[test]
    fn any_payload(group in 0..40u32, n in 0..100u32, body in prop::collection::vec(any::<u8>(), 0..90)) {
        let mut bytes = vec![b'L', 1, 5, 0];
        bytes.extend([group, n, 1].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(body);
        check_payload(&bytes);
    }
}
