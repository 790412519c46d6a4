//! Tests why PowerSGD's residual subtracts the worker's own reconstruction.

use super::*;
use lgreco_train::compress::powersgd::{
    back_project, orthonormalise, project, reconstruct, start_matrix, steps_workspace_len,
};
use lgreco_train::compress::{Compressor, decode};

const WORKERS: usize = 4;
const RANK: u32 = 2;

struct Run {
    /// The update that the workers apply, step by step.
    updates: Vec<Vec<f32>>,
    /// Largest norm of a worker's memory, step by step.
    norms: Vec<f64>,
    /// Norm of the workers' mean memory at the end.
    mean_norm: f64,
}

/// Runs PowerSGD on noisy gradients with a common mean, with two simulated all-reduces. Memories subtract the worker's
/// own reconstruction if `own`, and the average of all reconstructions if not.
fn run(own: bool, steps: u64) -> Run {
    let shape = Shape::new(12, 10).unwrap();
    let classic = Residual::CLASSIC;
    let mut memories: Vec<_> = (0..WORKERS).map(|_| Memory::owned(classic, shape).unwrap()).collect();
    let mut workspace = vec![!0; steps_workspace_len(shape, RANK)];
    let mut start = vec![0.0; 20];
    start_matrix(Stream::default(), 10, RANK, &mut start).unwrap();
    let mean = noise(120, 999_999);
    let mut run = Run { updates: Vec::new(), norms: Vec::new(), mean_norm: 0.0 };
    for t in 0..steps {
        let seed = |w| 1_000_000 + t * WORKERS as u64 + w as u64;
        let gradients: Vec<Vec<f32>> =
            (0..WORKERS).map(|w| mean.iter().zip(noise(120, seed(w))).map(|(m, x)| 0.2 * m + x).collect()).collect();
        let (mut p_sum, mut q_mean) = (vec![0.0f32; 24], vec![0.0f32; 20]);
        let (mut p, mut own_q) = (vec![0.0; 24], vec![vec![0.0; 20]; WORKERS]);
        let mut compensated = vec![vec![0.0; 120]; WORKERS];
        for w in 0..WORKERS {
            memories[w].compensate(&gradient(&gradients[w], shape), &mut compensated[w]).unwrap();
            project(&gradient(&compensated[w], shape), RANK, &start, &mut workspace, &mut p).unwrap();
            p_sum.iter_mut().zip(&p).for_each(|(sum, x)| *sum += x);
        }
        orthonormalise(shape, RANK, &mut workspace, &mut p_sum).unwrap();
        for w in 0..WORKERS {
            back_project(&gradient(&compensated[w], shape), RANK, &p_sum, &mut workspace, &mut own_q[w]).unwrap();
            q_mean.iter_mut().zip(&own_q[w]).for_each(|(mean, x)| *mean += x / WORKERS as f32);
        }
        let mut update = vec![0.0; 120];
        reconstruct(shape, RANK, &p_sum, &q_mean, &mut update).unwrap();
        let mut decoded = vec![0.0; 120];
        for w in 0..WORKERS {
            let q = if own { &own_q[w] } else { &q_mean };
            reconstruct(shape, RANK, &p_sum, q, &mut decoded).unwrap();
            memories[w].update(&gradient(&gradients[w], shape), &decoded, Stream::default()).unwrap();
        }
        run.norms.push(memories.iter().map(|m| m.squared_norm()).fold(0.0, f64::max).sqrt());
        run.updates.push(update);
        start = q_mean;
    }
    let mut sum = vec![0.0f64; 120];
    for memory in &memories {
        let mut values = vec![0.0; 120];
        memory.values(&mut values).unwrap();
        sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x as f64 / WORKERS as f64);
    }
    run.mean_norm = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    run
}

#[test]
fn own_reconstructions_keep_memories_bounded() {
    let (own, average) = (run(true, 4000), run(false, 4000));
    // Both runs have the same updates at first. Later, rounding errors are amplified.
    for (a, b) in own.updates.iter().zip(&average.updates).take(10) {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3));
    }
    assert!((own.mean_norm / average.mean_norm - 1.0).abs() < 0.5, "{} {}", own.mean_norm, average.mean_norm);
    // With own reconstructions, norms are bounded. With averages, norms grow like the square root of the number of
    // steps.
    let largest = |run: &Run, from: usize, to: usize| run.norms[from..to].iter().copied().fold(0.0, f64::max);
    assert!(largest(&own, 2000, 4000) < 1.2 * largest(&own, 200, 1000));
    let growth = average.norms[3999] / average.norms[249];
    assert!((2.8..5.6).contains(&growth), "16 times the steps, norms grew by {growth}");
    assert!(average.norms[3999] > 8.0 * largest(&own, 0, 4000));
}

/// Norm of the memory after `steps` steps on a constant gradient. If `fresh`, each step draws a new start matrix.
fn norm_after(steps: u32, fresh: bool) -> f64 {
    let (shape, values) = (Shape::new(12, 10).unwrap(), noise(120, 7));
    let (g, setting) = (gradient(&values, shape), Setting::PowerSgd(PowerSgd { rank: RANK, iterations: 1 }));
    let mut memory = Memory::owned(Residual::CLASSIC, shape).unwrap();
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, Dtype::F32)];
    let (mut payload, mut values) = (vec![0; setting.payload_len(shape, Dtype::F32).unwrap()], vec![0.0; 120]);
    for step in 0..steps {
        let stream = Stream { step, ..Stream::default() };
        memory.compensate(&g, &mut values).unwrap();
        let stream = if fresh { payload_stream(&setting, stream) } else { stream };
        setting.encode(&gradient(&values, shape), stream, &mut workspace, &mut payload).unwrap();
        decode(&payload, &mut values).unwrap();
        memory.update(&g, &values, stream).unwrap();
    }
    memory.squared_norm().sqrt()
}

#[test]
fn one_start_matrix_for_all_steps_starves_the_rest() {
    assert!(norm_after(200, false) > 9.9 * norm_after(20, false));
    assert!(norm_after(200, true) < 3.0 * norm_after(20, true));
}
