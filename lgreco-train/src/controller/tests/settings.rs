//! Settings the caller has fixed: every compressor goes through the controller.

use super::*;
use crate::compress::Compressor;
use crate::compress::hard_threshold::HardThreshold;
use crate::compress::wire::HEADER_LEN;
use crate::testing::controller::SETTINGS;

#[test]
fn every_setting_has_words_of_its_own() {
    for setting in SETTINGS {
        let uncompressed = (setting == Setting::Dense).then_some(Uncompressed::Chosen);
        let choice = codes::Choice { setting, uncompressed };
        assert_eq!(codes::Choice::decode(choice.encode()), Ok(choice));
    }
    let mut methods = SETTINGS.map(|setting| codes::Choice { setting, uncompressed: None }.encode()[0] as u8);
    methods.sort_unstable();
    assert_eq!(methods, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

/// Where the values decide, the report tells what was sent, not what might have been.
#[test]
fn reports_tell_the_bytes_of_payloads_whose_length_the_values_decide() {
    for setting in SETTINGS.into_iter().filter(|setting| !setting.has_fixed_len()) {
        on_all(2, |mut worker| {
            let fixed = Policy::Fixed(vec![setting, setting, Setting::Dense]);
            let mut controller = Controller::new(config(Method::TopK, fixed), model(), &worker).unwrap();
            let mut bytes = vec![];
            for scale in [1.0, 1.0, 1.0, 0.0] {
                bytes.push(take_step(&mut controller, &mut worker, scale, 0.1).unwrap().0.bytes_out);
            }
            let dense = |layer: usize| model()[layer].bytes();
            let bound = |layer: usize| setting.payload_len(model()[layer].shape(), Dtype::F32).unwrap() as u64;
            assert_eq!(bytes[0], dense(0) + dense(1) + dense(2));
            assert!(bytes[2] > 2 * HEADER_LEN as u64 + dense(2));
            assert!(bytes[2] < bound(0) + bound(1) + dense(2));
            let total = |layer| controller.metrics(layer).bytes_out;
            assert_eq!(total(0) + total(1) + total(2), bytes.iter().sum::<u64>());
        });
    }
}

/// Below λ a hard threshold leaves a gradient out whole, and the memory stays below λ: no reason to refuse it.
#[test]
fn a_hard_threshold_above_all_gradients_waits_for_its_memory() {
    let hard = Setting::HardThreshold(HardThreshold { lambda: 0.125, values: Dtype::F32 });
    let mut worker = ThreadCollective::group(1).remove(0);
    let fixed = Policy::Fixed(vec![Setting::Dense, Setting::Dense, hard]);
    let mut controller = Controller::new(config(Method::TopK, fixed), model(), &worker).unwrap();
    let mut sent = 0;
    for _ in 0..60 {
        let (_, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap(); // magnitudes up to 1/16
        if controller.steps() > 3 {
            sent += means[2].iter().filter(|&&x| x != 0.0).count();
            assert!(residual(&controller, 2).iter().all(|x| x.abs() < 0.125));
        }
    }
    assert_eq!(controller.setting(2), hard);
    assert!((1..60 * 320 / 4).contains(&sent), "{sent}");
}
