//! Exchanges of layers under TopK on the device, alone and among others, against the core.

use super::backend;
use super::exchange::{WORLD, config, steps_of};
use super::simt::flavour;
use lgreco_core::compress::Setting;
use lgreco_core::compress::qsgd::Qsgd;
use lgreco_core::compress::topk::TopK;
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::testing::powersgd::uniform;

fn top(rows: usize, cols: usize, keep: u32, values: Dtype) -> (Shape, Setting) {
    (Shape::new(rows, cols).unwrap(), Setting::TopK(TopK { keep, values }))
}

/// Layers of every layout of positions and type of values: gathered and not, several spans, odd ends, none at all, all of it;
/// among others.
fn layers() -> Vec<(Shape, Setting)> {
    let mut layers = vec![
        top(130, 97, 126, Dtype::F32),
        top(0, 5, 0, Dtype::F32),
        top(100, 101, 3001, Dtype::F16),
        top(7, 1, 7, Dtype::F16),
        top(5000, 4, 1, Dtype::Bf16),
        top(64, 64, 501, Dtype::Bf16),
        top(97, 211, 5, Dtype::F32),
        top(1, 1, 1, Dtype::F32),
        top(8192, 1, 4000, Dtype::F32),
    ];
    layers.insert(3, (Shape::new(61, 147).unwrap(), Setting::Qsgd(Qsgd::default())));
    layers
}

fn of(layers: &[(Shape, Setting)]) -> usize {
    WORLD * layers.iter().map(|(shape, _)| shape.elements()).sum::<usize>()
}

#[test]
fn payloads_residuals_and_means_are_the_cores() {
    let layers = layers();
    for (dtype, gain, order) in [(Dtype::F32, 1.0, 0), (Dtype::Bf16, 0.6, 1), (Dtype::F16, 1.0, 2)] {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let compared = steps_of(&mut backend, &layers, config(dtype, gain), 3, uniform);
        assert_eq!(compared, Ok(3 * of(&layers)), "{dtype:?}, {gain}");
    }
}

/// Magnitudes that are equal, few, far apart, next to each other or next to nothing: some leave no room for what is
/// gathered, and ties end everywhere.
#[test]
fn so_they_are_of_magnitudes_of_any_kind() {
    let layers = layers();
    let kinds: [fn(usize, f32) -> f32; 7] = [
        |_, _| 0.25,
        |_, x| if x < 0.0 { -1.0 } else { 1.0 },
        |i, x| if i.is_multiple_of(100) { x } else { 0.0 },
        |_, x| (8.0 * x) as i32 as f32 * 1e-3,
        |i, x| x * 2f32.powi(i as i32 % 40 - 30),
        |_, x| f32::from_bits(0x3f80_0000 | (x.to_bits() & 0x3ff)),
        |_, x| if x < 0.0 { -0.0 } else { f32::from_bits(x.to_bits() & 0xffff) },
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        let Some(mut backend) = backend(flavour(), number as i32 % 3) else { return };
        let values = |count: usize, seed: u64| {
            uniform(count, seed).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect::<Vec<_>>()
        };
        let gain = if number.is_multiple_of(2) { 0.3 } else { 1.0 };
        let compared = steps_of(&mut backend, &layers, config(Dtype::F32, gain), 2, values);
        assert_eq!(compared, Ok(2 * of(&layers)), "{number}");
    }
}
