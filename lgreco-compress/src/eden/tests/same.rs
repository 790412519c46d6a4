//! Tests that combining, all instruction sets and any number of threads give the same values. Also tests settings as
//! text and as data.

use super::super::encode::{encode, encode_chunk};
use super::super::measure::{measure_all, measure_chunk};
use super::*;
use crate::Setting;
use crate::combine::Combine;
use crate::setting::combine;
use lgreco_core::method::Methods;

const LENGTHS: [usize; 6] = [1, 31, 1000, BLOCK, 2 * BLOCK + 100, 5 * BLOCK + 4095];

#[test]
fn combining_is_decoding_and_adding() {
    for (elements, eden) in LENGTHS.into_iter().flat_map(|n| all().map(move |eden| (n, eden))) {
        let mut values = gaussian(elements, 0);
        values.iter_mut().skip(BLOCK).take(BLOCK).for_each(|x| *x = 0.0);
        let payload = encoded(&column(&values), eden, stream(1)).unwrap();
        let decoded = decoded(&payload).unwrap();
        let payload = Payload::parse(&payload).unwrap();
        for (how, sign) in [(Combine::Add, 1.0), (Combine::Subtract, -1.0)] {
            let mut sum = gaussian(elements, 2);
            let expected: Vec<f32> = sum.iter().zip(&decoded).map(|(a, b)| a + sign * b).collect();
            combine(&Setting::Eden(eden), &payload, how, &mut sum, &mut []).unwrap();
            assert_eq!(bits_of(&sum), bits_of(&expected), "{elements} elements, {eden:?}, {how:?}");
        }
    }
}

#[test]
fn the_baseline_instructions_give_the_same_bits() {
    for (elements, eden) in LENGTHS.into_iter().flat_map(|n| all().map(move |eden| (n, eden))) {
        let values = gaussian(elements, 0);
        let payload = encoded(&column(&values), eden, stream(1)).unwrap();
        let mut again = payload.clone();
        again[HEADER_LEN + SEED_LEN..].fill(0);
        let (scales, codes) = again[HEADER_LEN + SEED_LEN..].split_at_mut(eden.body_lens(elements).unwrap().0);
        let part = ((Start(0), &values[..]), Per(scales, 0, 1), Per(codes, 0, 1));
        encode(part, (eden, seed(stream(1))), encode_chunk).unwrap();
        assert!(payload == again, "{elements} elements, {eden:?}");

        let decoded = decoded(&payload).unwrap();
        let mut values_again = vec![0.0; elements];
        decode::decode_baseline(&Payload::parse(&payload).unwrap(), &mut values_again).unwrap();
        assert_eq!(bits_of(&decoded), bits_of(&values_again), "{elements} elements, {eden:?}");

        let (mut row, mut row_again) = ([0.0], [0.0]);
        measure(&column(&values), eden.scale, &[eden.bits], stream(1), &mut row).unwrap();
        measure_all((eden.scale, &[eden.bits], seed(stream(1))), &values, &mut row_again, measure_chunk).unwrap();
        assert_eq!(row[0].to_bits(), row_again[0].to_bits());
    }
}

#[cfg(feature = "rayon")]
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let values = gaussian(70 * BLOCK + 1234, 0);
    for eden in all() {
        let in_pool = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let payload = encoded(&column(&values), eden, stream(1)).unwrap();
                let decoded = bits_of(&decoded(&payload).unwrap());
                (payload, decoded)
            })
        };
        let alone = in_pool(1);
        assert!([2, 3, 8].into_iter().all(|threads| in_pool(threads) == alone), "{eden:?}");
    }
}

#[test]
fn settings_are_written_and_read() {
    for (text, eden) in [
        ("eden 1", Eden { bits: 1, scale: Scale::Unbiased }),
        ("eden 4 least-squares", Eden { bits: 4, scale: Scale::LeastSquares }),
    ] {
        let setting = Setting::Eden(eden);
        assert_eq!((std::format!("{setting}").as_str(), text.parse()), (text, Ok(setting)));
        let (id, parameters) = setting.data();
        assert_eq!((id, Setting::from_data(id, parameters, &Methods::NONE)), (10, Ok(setting)));
        // The ranks of a run may use different scales.
        let other = Setting::Eden(Eden { scale: Scale::LeastSquares, ..eden });
        assert_eq!(setting.agreed(), other.agreed());
    }
    assert_eq!("eden 3 unbiased".parse(), Ok(Setting::Eden(Eden::default())));
    for wrong in ["eden", "eden 0", "eden 9", "eden 3 4", "eden 3 biased", "eden 3 unbiased least-squares"] {
        assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
    }
    assert!(Setting::from_data(10, [3, 2, 0, 0], &Methods::NONE).is_err());
}
