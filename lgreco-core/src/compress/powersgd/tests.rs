use super::*;
use crate::compress::wire::Payload;
use crate::gradient::Values;
use alloc::{vec, vec::Vec};

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut q = vec![0.0; n];
    start_matrix(Stream { seed, ..Default::default() }, n, 1, &mut q).unwrap();
    q
}

fn squared_error(values: &[f32], shape: Shape, rank: u32, iterations: u32) -> f64 {
    let gradient = Gradient::new(Values::F32(values), shape).unwrap();
    let compressor = PowerSgd { rank, iterations };
    let mut workspace = vec![!0; compressor.encode_workspace_len(shape, Dtype::F32)];
    let mut payload = vec![0; compressor.payload_len(shape, Dtype::F32).unwrap()];
    compressor.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
    values.iter().zip(&decoded).map(|(&x, &y)| ((x - y) as f64).powi(2)).sum()
}

#[test]
fn rows_are_the_errors_of_real_encodes() {
    for (rows, cols) in [(1, 1), (7, 5), (40, 30), (64, 27), (130, 300)] {
        for iterations in [1, 2, 5] {
            let shape = Shape::new(rows, cols).unwrap();
            let values = noise(rows * cols, 3);
            let gradient = Gradient::new(Values::F32(&values), shape).unwrap();
            let ranks: Vec<u32> = (1..=40).collect();
            let mut workspace = vec![!0; measure_workspace_len(shape, Dtype::F32, 40)];
            let mut errors = vec![0.0; 40];
            measure(&gradient, &ranks, iterations, Stream::default(), &mut workspace, &mut errors).unwrap();
            for (&rank, &error) in ranks.iter().zip(&errors) {
                let real = squared_error(&values, shape, rank, iterations);
                assert!((real - error).abs() <= 1e-5 * real, "{rows}x{cols} rank {rank}: {error:e}, really {real:e}");
            }
        }
    }
}
