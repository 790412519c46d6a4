//! Exchanges of layers beyond 2^24 values, which f32 counts no further than, and of layers that fill a binding.

use super::backend;
use super::bins::check_bucket;
use super::exchange::{is_there, open};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::{Qsgd, Rounding};
use lgreco_core::compress::{Setting, quantised_topk::QuantisedTopK, topk::TopK};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use lgreco_testing::exchange::{Member, check_space};

fn topk(elements: usize) -> [Setting; 2] {
    let keep = elements as u32 / 100;
    [Setting::TopK(TopK { keep, values: Dtype::F32 }), Setting::QuantisedTopK(QuantisedTopK { keep, bits: 4 })]
}

#[test]
fn layers_beyond_what_f32_counts_are_the_hosts() {
    if !is_there() {
        return;
    }
    // 2^24 + 2051, and a matrix of more.
    let (rows, cols) = (5_593_089, 3);
    let [_, few] = topk(rows * cols);
    let powersgd = Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 });
    for (setting, rows, cols) in [
        (Setting::Dense, rows, cols),
        (Setting::Qsgd(Qsgd::default()), rows, cols),
        (few, rows, cols),
        (powersgd, 4099, 4097),
    ] {
        let member = |index, setting, rows, cols| Member {
            index,
            setting,
            shape: Shape::new(rows, cols).unwrap(),
            dtype: Dtype::F32,
        };
        // What comes behind such a layer, too.
        let behind = Setting::TopK(TopK { keep: 50, values: Dtype::F32 });
        check_space(&[member(0, setting, rows, cols), member(1, behind, 50, 60)], false, open);
    }
}

#[test]
fn layers_that_fill_a_binding_are_the_cores() {
    let Some(mut backend) = backend() else { return };
    let elements = (backend.gpu().largest_binding() / 4).min(1 << 25) as usize - 1999;
    let word = |i: usize| Stream::default().word(i as u64);
    let values: Vec<f32> = (0..elements).map(|i| f32::from_bits(word(i) & 0xbfff_ffff)).collect();
    let nearest = |bucket| Setting::Qsgd(Qsgd { bucket, rounding: Rounding::Nearest, ..Qsgd::default() });
    for setting in [nearest(512), nearest(1000)].into_iter().chain(topk(elements)) {
        check_bucket(&mut backend, &[(values.clone(), setting)]);
    }
}
