//! Times each pass of a step with error feedback, on one rank of two, for a transformer's layers under TopK. At equal
//! bytes, the benchmark compares TopK in few bits with TopK that sends f32 values. The unit is the time to read and
//! write the same number of f32 values once.
//!
//! `cargo bench -p lgreco-train --bench passes [-- once] [PERCENT]`. For each layer, the passes run in turn, 15 times.
//! The shortest time of each pass is used, so that other programs on the machine disturb little. With `once`, each pass
//! runs only once, for tools that count instructions. Means and residuals are compared with the decoded payloads.

use lgreco::compress::payload::{Combine, STRETCH, combine, combine_stretch};
use lgreco::compress::select::{kth_largest_magnitude, workspace_len};
use lgreco::simd::{Kernel, dispatch};
use lgreco_train::compress::wire::Payload;
use lgreco_train::compress::{Compressor, Setting, decode};
use lgreco_train::feedback::{Memory, Residual};
use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use std::hint::black_box;
use std::time::Instant;

mod transformer;

const PASSES: [&str; 6] = ["read and write once", "select", "compensate", "encode", "mean", "take off"];

/// Reads and writes each value once. The time of this pass shows the speed of memory, which limits every other pass.
struct Once<'a>(&'a mut [f32]);

impl Kernel for Once<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0);
    }
}

/// One layer on one rank, with the other rank's payload.
struct Layer {
    shape: Shape,
    setting: Setting,
    gradient: Vec<f32>,
    residual: Memory<Vec<u64>>,
    compensated: Vec<f32>,
    workspace: Vec<u64>,
    payloads: [Vec<u8>; 2],
    mean: Vec<f32>,
}

impl Layer {
    fn new(setting: Setting, shape: Shape, own: &[f32], other: &[f32]) -> Layer {
        let mut residual = Memory::owned(Residual::CLASSIC, shape).expect("room");
        let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32).max(workspace_len(own.len()))];
        let mut payloads = [(); 2].map(|()| vec![0; setting.payload_len(shape, Dtype::F32).expect("a setting")]);
        let values = Gradient::new(Values::F32(other), shape).expect("a gradient");
        setting.encode(&values, Stream::default(), &mut workspace, &mut payloads[1]).expect("finite values");
        residual.set(&own.iter().rev().map(|x| 0.5 * x).collect::<Vec<f32>>(), Stream::default()).expect("finite");
        let (compensated, mean) = (vec![0.0; own.len()], vec![0.0; own.len()]);
        Layer { shape, setting, gradient: own.to_vec(), residual, compensated, workspace, payloads, mean }
    }

    fn pass(&mut self, pass: usize) {
        let Layer { shape, setting, gradient, residual, compensated, workspace, payloads, mean } = self;
        match pass {
            0 => dispatch(Once(mean)),
            1 => {
                let keep = match setting {
                    Setting::TopK(top) => top.keep,
                    Setting::QuantisedTopK(top) => top.keep,
                    _ => unreachable!("rows are of TopK"),
                };
                kth_largest_magnitude(compensated, keep, workspace).expect("finite values");
            }
            2 => {
                let gradient = Gradient::new(Values::F32(gradient), *shape).expect("a gradient");
                residual.compensate(&gradient, compensated).expect("finite values");
            }
            3 => {
                let values = Gradient::new(Values::F32(compensated), *shape).expect("a gradient");
                setting.encode(&values, Stream::default(), workspace, &mut payloads[0]).expect("finite values");
            }
            4 => {
                let payloads = [0, 1].map(|rank| Payload::parse(&payloads[rank]).expect("a payload"));
                let mut places = [[0; 2]; 2];
                for (start, stretch) in (0..).step_by(STRETCH).zip(mean.chunks_mut(STRETCH)) {
                    for (rank, payload) in payloads.iter().enumerate() {
                        combine_stretch(payload, rank == 0, start, &mut places[rank], stretch).expect("a payload");
                    }
                    stretch.iter_mut().for_each(|x| *x /= 2.0);
                }
            }
            _ => {
                let payload = Payload::parse(&payloads[0]).expect("a payload");
                combine(setting, &payload, Combine::Subtract, compensated, &mut []).expect("a payload");
            }
        }
    }

    /// Checks the mean and the residual after all passes.
    fn check(&self) {
        let decoded = [0, 1].map(|rank| {
            let mut decoded = vec![0.0; self.gradient.len()];
            decode(&self.payloads[rank], &mut decoded).expect("a payload");
            decoded
        });
        let mut residual = vec![0.0; self.gradient.len()];
        self.residual.values(&mut residual).expect("as many");
        for i in 0..self.gradient.len() {
            assert_eq!(self.mean[i], (decoded[0][i] + decoded[1][i]) / 2.0, "{}", self.setting);
            let left = residual[i] + self.gradient[i] - decoded[0][i];
            assert_eq!(self.compensated[i], left, "{}", self.setting);
        }
    }
}

fn main() {
    let percents: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let percents = if percents.is_empty() { vec![1, 3, 5] } else { percents };
    let rounds = if std::env::args().any(|argument| argument == "once") { 1 } else { 15 };
    let shapes = transformer::shapes();
    let elements = shapes.iter().map(|shape| shape.elements()).sum::<usize>();
    let (own, other) = (transformer::noise(0, elements), transformer::noise(1, elements));
    println!("a transformer of {} layers and {elements} elements of f32", shapes.len());
    println!("| | bytes | kept | {} | all but select | ms | once, ms |", PASSES[1..].join(" | "));
    println!("|---|--:|--:|{}--:|--:|--:|", "--:|".repeat(PASSES.len() - 1));
    for row in transformer::rows(&shapes, &percents) {
        let mut at = 0;
        let mut seconds = [0.0; PASSES.len()];
        for (setting, shape) in row.settings.iter().zip(&shapes) {
            let here = at..at + shape.elements();
            at = here.end;
            let mut layer = Layer::new(*setting, *shape, &own[here.clone()], &other[here]);
            let mut least = [f64::INFINITY; PASSES.len()];
            for _ in 0..rounds {
                // Pass 1, selection, reads the compensated gradient of pass 2. Pass 3, encoding, contains a selection,
                // too.
                for pass in [0, 2, 1, 3, 4, 5] {
                    let start = Instant::now();
                    layer.pass(pass);
                    black_box(&mut layer);
                    least[pass] = least[pass].min(start.elapsed().as_secs_f64());
                }
            }
            layer.check();
            seconds.iter_mut().zip(least).for_each(|(all, least)| *all += least);
        }
        let whole = seconds[2..].iter().sum::<f64>();
        let of = |x: f64| format!("{:.1}", x / seconds[0]);
        let each: Vec<String> = seconds[1..].iter().map(|&x| of(x)).collect();
        println!(
            "| {} | {} | {:.1} % | {} | {} | {:.2} | {:.2} |",
            row.name,
            row.bytes,
            100.0 * row.share,
            each.join(" | "),
            of(whole),
            1e3 * whole,
            1e3 * seconds[0]
        );
    }
}
