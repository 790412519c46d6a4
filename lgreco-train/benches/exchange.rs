//! Times a whole exchange of two ranks with error feedback, one thread per rank. The unit is a pass: the time in which
//! each thread reads and writes the same number of values once. The benchmark then times bf16 gradients without error
//! feedback.
//!
//! The last measurement is the exchange of a transformer's 76 layers. There, TopK in few bits is compared with TopK that
//! sends f32 values, at equal bytes.
//!
//! `cargo bench -p lgreco-train --bench exchange [-- ELEMENTS|transformer]`. Without arguments, everything is measured,
//! with 2^20 and 2^24 elements.

use lgreco_train::Error;
use lgreco_train::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco_train::controller::{Config, Controller, Feedback, Policy, Tensor};
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::{Collective, Request};
use lgreco_train::feedback::Residual;
use lgreco_train::gradient::{Bf16, Dtype, Element, Shape, ValuesMut};
use lgreco_train::search::{Method, Search};
use std::time::Instant;
use transformer::{Row, noise};

mod transformer;

/// Number of repetitions, of which the fastest is printed.
const TIMES: u32 = 9;

fn shape(elements: usize) -> Shape {
    let rows = 1 << (elements.ilog2() / 2);
    Shape::new(rows, elements / rows).expect("below 2^32")
}

fn settings(elements: usize) -> [(&'static str, Setting); 3] {
    [
        ("topk 1 %", Setting::TopK(TopK { keep: elements as u32 / 100, values: Dtype::F32 })),
        ("qsgd 4", Setting::Qsgd(Qsgd::default())),
        ("powersgd 4", Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 })),
    ]
}

/// Waits for the other rank, so that both start together.
fn meet(worker: &mut ThreadCollective) {
    worker.all_gather(&mut [0; 2]).expect("both are there");
}

/// Performs one exchange, which both ranks start at the same time, and returns its seconds.
fn exchange(
    controller: &mut Controller,
    worker: &mut ThreadCollective,
    values: &mut [ValuesMut<'_>],
) -> Result<f64, Error> {
    let perform = |worker: &mut ThreadCollective, request: Request<'_>| request.perform(worker);
    controller.begin_step(0.1)?;
    while let Some(request) = controller.control()? {
        perform(worker, request)?;
    }
    let layers: Vec<usize> = (0..values.len()).collect();
    let mut bucket = controller.open(&layers)?;
    meet(worker);
    let start = Instant::now();
    bucket.submit(values)?;
    while let Some(request) = bucket.next(values)? {
        perform(worker, request)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    controller.close(bucket)?;
    controller.finish_step()?;
    Ok(seconds)
}

/// Returns the seconds of an exchange, and of a pass over the same number of f32 values, each on the slower rank. Error
/// feedback is on only for f32 gradients.
fn exchanges(layers: &[(Setting, Shape)], dtype: Dtype) -> (f64, f64) {
    let results = threads::run(2, |mut worker| {
        let mut config = Config::new(Search::new(Method::TopK));
        config.policy = Policy::Fixed(layers.iter().map(|layer| layer.0).collect());
        config.feedback = match dtype {
            Dtype::F32 => Feedback::always(Residual::CLASSIC),
            _ => Feedback { qsgd: None, loco: None, others: None },
        };
        (config.schedule.warmup, config.metrics_every) = (2, 0);
        let elements = layers.iter().map(|layer| layer.1.elements()).sum();
        let tensor = |(i, (_, shape)): (usize, &(_, Shape))| {
            Tensor::new(&format!("layer {i}"), &[shape.rows(), shape.cols()], dtype).expect("a shape")
        };
        let tensors = layers.iter().enumerate().map(tensor).collect();
        let mut controller =
            Controller::new(config, tensors, worker.rank(), worker.world_size()).expect("a configuration");
        let gradient = noise(worker.rank(), elements);
        let narrow: Vec<Bf16> = gradient.iter().map(|&x| Bf16::from_f32(x)).collect();
        let (mut values, mut narrow_values) = (gradient.clone(), narrow.clone());
        let mut seconds = f64::INFINITY;
        for step in 0..4 + TIMES {
            values.copy_from_slice(&gradient);
            narrow_values.copy_from_slice(&narrow);
            let (mut wide, mut narrow) = (&mut values[..], &mut narrow_values[..]);
            let mut parts = Vec::new();
            for (_, shape) in layers {
                let (wide_part, narrow_part);
                (wide_part, wide) = wide.split_at_mut(shape.elements());
                (narrow_part, narrow) = narrow.split_at_mut(shape.elements());
                parts.push(match dtype {
                    Dtype::F32 => ValuesMut::F32(wide_part),
                    _ => ValuesMut::Bf16(narrow_part),
                });
            }
            let spent = exchange(&mut controller, &mut worker, &mut parts).expect("a sound step");
            if step >= 4 {
                seconds = seconds.min(spent);
            }
        }
        assert!(layers.iter().enumerate().all(|(i, layer)| controller.setting(i) == layer.0));
        let mut pass = f64::INFINITY;
        for _ in 0..TIMES {
            meet(&mut worker);
            let start = Instant::now();
            values.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0);
            std::hint::black_box(&mut values);
            pass = pass.min(start.elapsed().as_secs_f64());
        }
        (seconds, pass)
    });
    results.into_iter().fold((0.0, 0.0), |(a, b), (x, y)| (f64::max(a, x), f64::max(b, y)))
}

/// Prints a row per setting for the exchange of a transformer's layers. All layers keep the same share of their values.
/// TopK in few bits keeps the largest share that fits into the bytes of TopK with f32 values.
fn transformers() {
    let shapes = transformer::shapes();
    let elements = shapes.iter().map(|shape| shape.elements()).sum::<usize>();
    println!("a transformer of {} layers and {elements} elements of f32", shapes.len());
    println!("| | bytes | kept | exchange, passes | ms | pass, ms |\n|---|--:|--:|--:|--:|--:|");
    for Row { name, share, settings, bytes } in transformer::rows(&shapes, &[1, 3, 5]) {
        let layers: Vec<_> = settings.into_iter().zip(shapes.iter().copied()).collect();
        let (exchange, pass) = exchanges(&layers, Dtype::F32);
        let (share, passes) = (100.0 * share, exchange / pass);
        println!("| {name} | {bytes} | {share:.1} % | {passes:.1} | {:.2} | {:.2} |", 1e3 * exchange, 1e3 * pass);
    }
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    if std::env::args().any(|argument| argument == "transformer") {
        return transformers();
    }
    let sizes = if given.is_empty() { &[1 << 20, 1 << 24] } else { &given[..] };
    for &elements in sizes {
        println!("{elements} elements of f32");
        println!("| | exchange, passes | ms | pass, ms |");
        println!("|---|--:|--:|--:|");
        for (name, setting) in settings(elements) {
            let (exchange, pass) = exchanges(&[(setting, shape(elements))], Dtype::F32);
            println!("| {name} | {:.1} | {:.2} | {:.2} |", exchange / pass, 1e3 * exchange, 1e3 * pass);
        }
        println!("| bf16, no feedback | exchange, passes over f32 | ms | pass, ms |");
        println!("|---|--:|--:|--:|");
        for (name, setting) in settings(elements).into_iter().chain([("dense", Setting::Dense)]) {
            let (exchange, pass) = exchanges(&[(setting, shape(elements))], Dtype::Bf16);
            println!("| {name} | {:.1} | {:.2} | {:.2} |", exchange / pass, 1e3 * exchange, 1e3 * pass);
        }
    }
    if given.is_empty() {
        transformers();
    }
}
