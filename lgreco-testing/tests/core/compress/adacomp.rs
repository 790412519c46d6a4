use lgreco::Error;
use lgreco::compress::adacomp::{AdaComp, decode};
use lgreco::compress::wire::Payload;
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::adacomp::{check, check_bytes, check_payload, expected};
use proptest::prelude::*;

fn vector(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

fn encoded(bin: u32, p: &[f32], w: &[f32]) -> Vec<u8> {
    let ada = AdaComp { bin };
    let mut payload = vec![0xff; ada.payload_len(vector(p).shape(), Dtype::F32).unwrap()];
    let len = ada.encode_compensated(&vector(p), &vector(w), &mut payload).unwrap();
    payload.truncate(len);
    payload
}

fn count(bin: u32, p: &[f32], w: &[f32]) -> u32 {
    Payload::parse(&encoded(bin, p, w)).unwrap().header.parameter
}

/// Normally distributed values.
fn noise(n: usize, step: u32) -> Vec<f32> {
    let stream = Stream { seed: 2, step, ..Stream::default() };
    let draw = |i: usize| {
        let [u, v, ..] = stream.block(i as u32).map(|w| (w as f64 + 0.5) / 4294967296.0);
        ((-2.0 * u.ln()).sqrt() * (2.0 * core::f64::consts::PI * v).cos()) as f32
    };
    (0..n).map(draw).collect()
}

#[test]
fn payload_bytes_are_fixed() {
    let header = |k, rows| [b'L', 1, 4, 0, k, 0, 0, 0, rows, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(encoded(2, &[0.0, -0.0, 0.0], &[1.0; 3]), [&header(0, 3)[..], &[0, 0, 0, 0]].concat());
    // The bins' largest magnitudes are 2, 4 and 3, so the magnitude that is sent is their mean, 3. Elements of equal
    // sign and magnitude are all sent.
    let bytes = encoded(2, &[-2.0, 0.5, 4.0, 4.0, -3.0], &[0.0; 5]);
    assert_eq!(bytes, [&header(4, 5)[..], &[0, 0, 0x40, 0x40, 0b11101, 0b1001]].concat());
    let all = encoded(1, &[1.0, -1.0], &[0.0; 2]);
    assert_eq!(all, [&header(2, 2)[..], &[0, 0, 0x80, 0x3f, 0b10]].concat());
}

/// In a bin of zeros, the largest magnitude is 0, so |p + w| of every element reaches the threshold. Still, nothing is
/// sent.
#[test]
fn bins_of_zeros_send_nothing() {
    assert_eq!(count(4, &[0.0; 100], &[0.0; 100]), 0);
    assert_eq!(count(4, &[0.0; 100], &[1.0; 100]), 0);
    let mut values = [0.0; 100];
    values[50] = 1.0;
    assert_eq!(count(4, &values, &[0.0; 100]), 1);
    assert_eq!(expected(4, &values, &[0.0; 100])[50], 0.04);
}

/// If the fresh gradient has the opposite sign of the compensated one, even the largest element of a bin may not be
/// sent.
#[test]
fn a_bin_may_send_nothing() {
    assert_eq!(count(3, &[2.0, 1.0, 0.5], &[-0.5, 0.0, 0.0]), 0);
}

/// An element whose compensated value p is 0 has no sign. Such an element is not sent, even if |p + w| reaches the
/// threshold.
#[test]
fn zeros_are_never_sent() {
    assert_eq!(count(3, &[0.0, 1.0, -0.0], &[1.5, 0.0, -1.5]), 1);
}

#[test]
fn the_magnitude_may_exceed_what_it_stands_for() {
    let values = [100.0, 0.0, 1.0, 0.6];
    let payload = encoded(2, &values, &values);
    let mut decoded = [f32::NAN; 4];
    decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
    assert_eq!(decoded, [50.5, 0.0, 50.5, 50.5]);
}

/// Covers largest magnitudes near the end of f32, sums p + w beyond it, and means that underflow.
#[test]
fn extremes() {
    let large = [f32::MAX, -f32::MAX, 1e38, 0.0];
    check(1, &vector(&large), &vector(&large));
    check(4, &vector(&large), &vector(&large));
    let mut tiny = [0.0; 8];
    tiny[3] = f32::from_bits(1);
    check(1, &vector(&tiny), &vector(&tiny));
    assert_eq!(count(1, &tiny, &tiny), 0);
    assert_eq!(count(8, &tiny, &tiny), 1);
}

/// In the steady state on white noise, the number of sent elements agrees with a simulation of the published rule.
#[test]
fn about_five_elements_of_a_bin_on_noise() {
    for (bin, low, high) in [(50, 3.8, 5.2), (500, 4.7, 6.4)] {
        let n = 20_000;
        let mut residue = vec![0.0f32; n];
        let (mut sent, mut steps) = (0, 0);
        for step in 0..150 {
            let w = noise(n, step);
            let p: Vec<f32> = residue.iter().zip(&w).map(|(r, w)| r + w).collect();
            let payload = encoded(bin, &p, &w);
            let mut decoded = vec![f32::NAN; n];
            decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
            residue = p.iter().zip(&decoded).map(|(p, d)| p - d).collect();
            if step >= 100 {
                sent += decoded.iter().filter(|&&x| x != 0.0).count();
                steps += 1;
            }
        }
        let per_bin = sent as f64 / steps as f64 / (n as f64 / bin as f64);
        assert!(per_bin > low && per_bin < high, "bins of {bin}: {per_bin}");
    }
}

#[test]
fn noise_in_bins_of_all_lengths() {
    for (n, bin) in [(1, 1), (255, 256), (256, 100), (257, 1000), (3000, 255), (3000, 257), (5000, u32::MAX)] {
        let (p, w) = (noise(n, 1), noise(n, 2));
        check(bin, &vector(&p), &vector(&w));
        check(bin, &vector(&p), &vector(&p));
    }
}

#[test]
fn parameters_and_lengths_are_checked() {
    let values = [1.0, 2.0, 3.0];
    assert!(matches!(
        AdaComp { bin: 0 }.payload_len(vector(&values).shape(), Dtype::F32),
        Err(Error::Parameter { .. })
    ));
    let measured = Setting::AdaComp(AdaComp { bin: 0 }).measure(&vector(&values), Stream::default(), &mut []);
    assert!(matches!(measured, Err(Error::Parameter { .. })));
    // A row has two numbers per setting: its error and its length.
    let row = [Setting::AdaComp(AdaComp { bin: 2 })];
    let measure = |places: usize| {
        Candidates::Each(&row).measure(&vector(&values), Stream::default(), &mut [], &mut vec![0.0; places])
    };
    assert_eq!(measure(2), Ok(()));
    assert!([1, 3].into_iter().all(|places| matches!(measure(places), Err(Error::Length { .. }))));
    let ada = AdaComp { bin: 2 };
    let encode = |bytes: usize| ada.encode(&vector(&values), Stream::default(), &mut [], &mut vec![0; bytes]);
    assert_eq!(encode(16 + 4 + 1), Ok(21));
    assert!(matches!(encode(20), Err(Error::Length { .. })));
    let short = vector(&values[..2]);
    assert!(matches!(ada.encode_compensated(&vector(&values), &short, &mut [0; 99]), Err(Error::Length { .. })));
}

#[test]
fn damaged_payloads_never_panic() {
    let values = noise(300, 3);
    for bin in [1, 7, 300] {
        let payload = encoded(bin, &values, &values);
        for len in 0..payload.len() {
            check_payload(&payload[..len]);
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
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_bytes(&bytes);
    }

    #[test]
    fn any_finite(bin in 0u8..60, bits in prop::collection::vec(any::<u32>().prop_map(|b| b & 0xbf7f_ffff), 1..80)) {
        let bytes: Vec<u8> = [bin].into_iter().chain(bits.iter().flat_map(|b| b.to_le_bytes())).collect();
        check_bytes(&bytes);
    }

    #[test]
    fn any_payload(k in 0..40u32, n in 0..200u32, body in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut bytes = vec![b'L', 1, 4, 0];
        bytes.extend([k, n, 1].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(body);
        check_payload(&bytes);
    }
}
