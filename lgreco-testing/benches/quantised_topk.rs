//! Times TopK in few bits on a million values and one core. The unit (floor) is the time of one sum-of-squares pass
//! over the values. TopK in few bits is compared with TopK that sends 1, 3 or 5 % of the values as f32. The f32
//! payloads are at least as long.
//!
//! `cargo bench -p lgreco-testing --bench quantised_topk [-- encode|decode|add]`. With a name, only that operation
//! runs, without timing, to count instructions. Without a name, the bench prints a row per setting, with times relative
//! to the floor and per kept value. Decoded values are checked; times are not.

use lgreco::compress::payload::{Combine, STRETCH, combine, combine_stretch, decode_parsed};
use lgreco::compress::wire::Payload;
use lgreco::compress::{Compressor, Setting, quantised_topk::QuantisedTopK, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::quantised_topk::expected;
use std::hint::black_box;
use std::time::Instant;

const ELEMENTS: usize = 1 << 20;
const ROUNDS: usize = 25;

/// The floor: reads all values once, at the speed of memory.
fn sum_of_squares(values: &[f32]) -> f32 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0f32; 64];
            for block in values.as_chunks::<64>().0 {
                for (lane, x) in lanes.iter_mut().zip(block) {
                    *lane += x * x;
                }
            }
            lanes.iter().sum()
        },
    )
}

/// Normal values whose scale changes every 4096 values, with a few outliers. Like gradients, these values have heavy
/// tails.
fn heavy_tailed() -> Vec<f32> {
    let stream = Stream { seed: 1, ..Stream::default() };
    let unit = |word: u32| (word as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    (0..ELEMENTS)
        .map(|i| {
            let [a, b, c, _] = stream.block(i as u32);
            let normal = (-2.0 * unit(a).ln()).sqrt() * (std::f32::consts::TAU * unit(b)).cos();
            let tail = if unit(c) < 0.01 { 0.3 / unit(c).sqrt() } else { 1.0 };
            normal * tail * ((i / 4096 % 7) as f32 - 3.0).exp2() * 1e-3
        })
        .collect()
}

/// Returns TopK that keeps `percent` % of the values as f32. Also returns TopK in 2, 3 and 4 bits, each with the
/// largest k whose payload takes no more bytes.
fn settings(shape: Shape, percent: usize) -> [Setting; 4] {
    let len = |setting: Setting| setting.payload_len(shape, Dtype::F32).expect("a setting");
    let full = Setting::TopK(TopK { keep: (ELEMENTS * percent / 100) as u32, values: Dtype::F32 });
    let few = |bits| {
        let setting = |keep| Setting::QuantisedTopK(QuantisedTopK { keep, bits });
        let keeps = 1..=ELEMENTS as u32;
        let (mut below, mut above) = (*keeps.start(), *keeps.end());
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if len(setting(middle)) <= len(full) { below = middle } else { above = middle }
        }
        setting(below)
    };
    [full, few(2), few(3), few(4)]
}

/// Runs `tasks` in turn, and returns the shortest time of each in seconds.
fn least<const N: usize>(mut tasks: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (task, best) in tasks.iter_mut().zip(&mut best) {
            let start = Instant::now();
            task();
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

/// Adds a payload to `values`, as an exchange does.
fn add(payload: &Payload<'_>, values: &mut [f32]) {
    let mut place = [0; 2];
    for (start, stretch) in (0..).step_by(STRETCH).zip(values.chunks_mut(STRETCH)) {
        combine_stretch(payload, false, start, &mut place, stretch).expect("a payload");
    }
}

fn run(values: &[f32], setting: Setting, only: Option<&str>) {
    let shape = Shape::new(1024, ELEMENTS / 1024).expect("a shape");
    let gradient = Gradient::new(Values::F32(values), shape).expect("a gradient");
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).expect("a setting")];
    let mut encode = || {
        setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).expect("finite values");
    };
    encode();
    let sent = payload_copy(&setting, &gradient);
    let parsed = Payload::parse(&sent).expect("a payload");
    let (mut decoded, mut sum, mut left) = (vec![f32::NAN; ELEMENTS], vec![0.0; ELEMENTS], values.to_vec());
    let mut decode = || decode_parsed(&parsed, &mut decoded).expect("a payload");
    let mut added = 0;
    let mut add_up = || {
        add(&parsed, &mut sum);
        added += 1;
    };
    let mut take_off = || combine(&setting, &parsed, Combine::Subtract, &mut left, &mut []).expect("a payload");
    match only {
        Some("encode") => return encode(),
        Some("decode") => return decode(),
        Some("add") => return add_up(),
        _ => {}
    }
    let [floor, encode, decode, add_up, take_off] = least([
        &mut || _ = black_box(sum_of_squares(black_box(values))),
        &mut encode,
        &mut decode,
        &mut add_up,
        &mut take_off,
    ]);
    let keep = match setting {
        Setting::QuantisedTopK(top) => {
            assert!(decoded == expected(values, top), "{setting}: not what a full sort gives");
            top.keep
        }
        Setting::TopK(top) => top.keep,
        _ => 0,
    };
    let kept = decoded.iter().filter(|&&x| x != 0.0).count();
    assert!(kept == keep as usize && sum.iter().filter(|&&x| x != 0.0).count() == kept, "{setting}");
    let ratios = [encode, decode, add_up, take_off].map(|time| {
        let nanoseconds = 1e9 * time / keep as f64;
        format!("{:.2} ({nanoseconds:.1})", time / floor)
    });
    let of = 100.0 * keep as f64 / ELEMENTS as f64;
    println!("| {setting} | {} | {of:.1} % | {} |", sent.len(), ratios.join(" | "));
}

fn payload_copy(setting: &Setting, gradient: &Gradient<'_>) -> Vec<u8> {
    let shape = gradient.shape();
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).expect("a setting")];
    setting.encode(gradient, Stream::default(), &mut workspace, &mut payload).expect("finite values");
    payload
}

fn main() {
    let only: Option<String> = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let (values, shape) = (heavy_tailed(), Shape::new(1024, ELEMENTS / 1024).expect("a shape"));
    println!("| | bytes | kept | encode | decode | add | take off |\n|---|--:|--:|--:|--:|--:|--:|");
    for percent in [1, 3, 5] {
        settings(shape, percent).into_iter().for_each(|setting| run(&values, setting, only.as_deref()));
    }
}
