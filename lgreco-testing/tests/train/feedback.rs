mod formats;
mod powersgd;
mod refusals;
mod rules;
mod saved;
mod suits;
mod variable;

use lgreco_testing::feedback::*;
use lgreco_testing::noise;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_train::compress::sidco::{Fit, Sidco};
use lgreco_train::compress::{Setting, topk::TopK};
use lgreco_train::feedback::*;
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::rng::Stream;

fn vector(n: usize) -> Shape {
    Shape::new(n, 1).unwrap()
}

fn top(keep: u32) -> Setting {
    Setting::TopK(TopK { keep, values: Dtype::F32 })
}

fn quantised(bits: u8, bucket: u32) -> Setting {
    Setting::Qsgd(Qsgd { bits, bucket, scale: Scale::MaxNorm, rounding: Rounding::Stochastic })
}

/// Settings of several methods. All are contractions on the values of [`noise`].
fn settings(n: u32) -> Vec<Setting> {
    let nearest = Qsgd { bits: 3, bucket: 64, scale: Scale::MinMax, rounding: Rounding::Nearest };
    [Setting::Dense, top(n.div_ceil(5)), quantised(4, 100), Setting::Qsgd(nearest)]
        .into_iter()
        .chain([Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 }), Setting::LoCo(LoCo { group: 32 })])
        .chain([Setting::CltK(CltK { keep: n.div_ceil(5) })])
        .chain([Setting::Sidco(Sidco { density: 0.2, fit: Fit::Exponential, stages: 1, values: Dtype::F32 })])
        .collect()
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    noise::bell_shaped(Stream { seed, ..Stream::default() }, n)
}

/// Gradients of `count` steps: a common vector plus noise.
fn steps(n: usize, count: u64) -> Vec<Vec<f32>> {
    let mean = noise(n, 1000);
    (0..count).map(|t| mean.iter().zip(noise(n, t)).map(|(m, x)| 0.3 * m + x).collect()).collect()
}
