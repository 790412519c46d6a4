//! Tests PowerSGD: shapes that many blocks share, properties of the factors, and planted bugs.

use super::simt::{Edit, Flavour, Simt, flavour};
use super::{ROWS, backend};
use crate::CudaBackend;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::kernels::Module;
use crate::powersgd::{Layer, errors, measure, result_words};
use crate::tensor::Tensor;
use lgreco::backend::{Backend, Job, JobError, Portable};
use lgreco::compress::wire::HEADER_LEN;
use lgreco::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor as CoreTensor, check_decode, check_encode, check_powersgd, check_rows};
use lgreco_testing::powersgd::{low_rank, uniform};

fn setting(rank: u32) -> Setting {
    Setting::PowerSgd(PowerSgd { rank, iterations: 1 })
}

fn encode(backend: &mut dyn Backend, rank: u32, gradient: &Gradient<'_>) -> Result<Vec<u8>, lgreco::Error> {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let mut payload = vec![0; setting(rank).payload_len(shape, dtype)?];
    let mut workspace = vec![0; setting(rank).encode_workspace_len(shape, dtype)];
    backend.encode(&setting(rank), gradient, Stream::default(), &mut workspace, &mut payload)?;
    Ok(payload)
}

/// Returns the columns of both factors of a payload.
fn columns(payload: &[u8], rows: usize, cols: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let words = payload[HEADER_LEN..].as_chunks::<4>().0;
    let values: Vec<f32> = words.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let (p, q) = values.split_at(values.len() / (rows + cols) * rows);
    let of = |factor: &[f32], len| factor.chunks(len).map(<[f32]>::to_vec).collect();
    (of(p, rows), of(q, cols))
}

#[test]
fn shapes_that_many_blocks_share() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    for (rows, cols) in [(3, 9001), (9001, 3), (300, 201), (1, 5000), (5000, 1)] {
        let tensor = CoreTensor::new(&uniform(rows * cols, 1), rows, cols);
        let gradient = tensor.gradients()[0];
        let ranks = [1, 2, 3, 5, 8, 13, 21, 34, 55, 60];
        let below = rows.min(cols) as u32;
        // At full rank, the squared error consists only of rounding errors, which have no relative bound.
        let ranks: Vec<u32> = ranks.into_iter().filter(|&rank| rank < below).collect();
        let candidates = Candidates::PowerSgd { iterations: 1, ranks: &ranks };
        check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        let payload = encode(&mut backend, below.min(20), &gradient).unwrap();
        check_decode(&mut backend, &payload, rows * cols);
    }
}

#[test]
fn columns_are_orthonormal_and_do_not_depend_on_later_ones() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let (rows, cols) = (500, 70);
    let tensor = CoreTensor::new(&uniform(rows * cols, 2), rows, cols);
    let (p, q) = columns(&encode(&mut backend, 40, &tensor.gradients()[0]).unwrap(), rows, cols);
    let (fewer_p, fewer_q) = columns(&encode(&mut backend, 7, &tensor.gradients()[0]).unwrap(), rows, cols);
    assert!(p.starts_with(&fewer_p) && q.starts_with(&fewer_q));
    for (i, a) in p.iter().enumerate() {
        for (j, b) in p.iter().enumerate() {
            let product: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((product - f64::from(u8::from(i == j))).abs() < 1e-6, "{i}, {j}: {product}");
        }
    }
}

#[test]
fn zero_and_dependent_columns_become_zeros() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let (rows, cols) = (90, 60);
    let (left, right) = (uniform(2 * rows, 3), uniform(2 * cols, 4));
    let of_rank_2 = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        left[row] * right[col] + left[rows + row] * right[cols + col]
    };
    for (rank, values) in [(0, vec![0.0; rows * cols]), (2, (0..rows * cols).map(of_rank_2).collect())] {
        let tensor = CoreTensor::new(&values, rows, cols);
        let payload = encode(&mut backend, 9, &tensor.gradients()[0]).unwrap();
        let (p, q) = columns(&payload, rows, cols);
        let zeros = |column: &Vec<f32>| column.iter().all(|&x| x == 0.0);
        assert_eq!(p.iter().position(zeros), Some(rank));
        assert!(p[rank..].iter().all(zeros) && q[rank..].iter().all(zeros));
        let mut decoded = vec![f32::NAN; rows * cols];
        backend.decode(&payload, &mut decoded).unwrap();
        assert!(values.iter().zip(&decoded).all(|(x, y)| (x - y).abs() < 1e-5));
    }
}

/// Tests matrices whose products with random columns are nearly linearly dependent, or become so after some iterations.
/// Rows must equal the core's up to rounding errors of 1e-10 of the squared norm.
#[test]
fn ill_conditioned_matrices_have_the_cores_rows() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let shape = Shape::new(90, 64).unwrap();
    let fading = |fade: f64| low_rank(shape, &std::array::from_fn::<_, 64, _>(|c| 10f64.powf(-fade * c as f64)), 9);
    let of_element =
        |element: &dyn Fn(i32, i32) -> f32| -> Vec<f32> { (0..90 * 64).map(|at| element(at / 64, at % 64)).collect() };
    let noise = uniform(90 * 64, 11);
    for (name, values) in [
        ("fading", fading(0.05)),
        ("fading", fading(0.2)),
        ("fading", fading(1.0)),
        ("of rank 9", low_rank(shape, &[1.0; 9], 10)),
        ("Hilbert's", of_element(&|row, col| 1.0 / (1 + row + col) as f32)),
        ("Vandermonde's", of_element(&|row, col| (row as f32 / 90.0).powi(col))),
        ("all but equal columns", of_element(&|row, col| 1.0 + row as f32 + 1e-3 * noise[(64 * row + col) as usize])),
    ] {
        let tensor = CoreTensor::new(&values, 90, 64);
        let norm: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        let candidates = Candidates::PowerSgd { iterations: 2, ranks: &[1, 2, 4, 8, 16, 32] };
        let jobs = [Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() }];
        let (mut found, mut expected) = ([f64::NAN; 6], [f64::NAN; 6]);
        backend.measure(&jobs, &mut [], &mut found).unwrap();
        Portable.measure(&jobs, &mut vec![0; Portable.workspace_len(&jobs)], &mut expected).unwrap();
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= ROWS * b + 1e-10 * norm;
        assert!(found.iter().zip(&expected).all(near), "{name}: {found:?}, not {expected:?}; norm {norm}");
    }
}

/// Tests values near the largest and the smallest f32, and payloads that no encoder writes.
#[test]
fn what_leaves_the_range_is_refused_as_in_the_core() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    for largest in [f32::MAX, 1e20, 1e-38, 1e-44] {
        let values: Vec<f32> = uniform(40 * 30, 5).into_iter().map(|x| x.signum() * largest).collect();
        let tensor = CoreTensor::new(&values, 40, 30);
        let gradient = tensor.gradients()[0];
        let (found, expected) = (encode(&mut backend, 3, &gradient), encode(&mut Portable, 3, &gradient));
        assert_eq!(found.as_ref().err(), expected.as_ref().err(), "{largest}");
        let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[1, 3] };
        if largest > 1e-37 {
            check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
    let tensor = CoreTensor::new(&uniform(40 * 30, 6), 40, 30);
    check_encode(&mut backend, &setting(0), &tensor.gradients()[0], Stream::default());
    let payload = encode(&mut Portable, 3, &tensor.gradients()[0]).unwrap();
    let damage = [(2, 1), (3, 1), (4, 1), (8, 1), (19, 0x7f), (payload.len() - 1, 0x7f), (payload.len() - 2, 0xff)];
    for (at, bits) in damage {
        let mut damaged = payload.clone();
        damaged[at] |= bits;
        check_decode(&mut backend, &damaged, 40 * 30);
    }
    let mut infinite = payload.clone();
    infinite[16..20].copy_from_slice(&f32::INFINITY.to_le_bytes());
    check_decode(&mut backend, &infinite, 40 * 30);
    check_decode(&mut backend, &payload[..payload.len() - 1], 40 * 30);
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    check_powersgd(&mut backend, ROWS);
}

fn edited(flavour: Flavour, from: &'static str, to: &'static str) -> Option<CudaBackend> {
    let edit = Edit { module: Module::PowerSgd, from, to };
    Some(CudaBackend::on(Box::new(Simt::new(flavour, 0, Some(edit))?)))
}

fn row(backend: &mut dyn Backend) -> Result<Vec<f64>, JobError> {
    let tensor = CoreTensor::new(&uniform(100 * 130, 7), 100, 130);
    let candidates = Candidates::PowerSgd { iterations: 2, ranks: &[1, 5, 40] };
    let job = Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() };
    let mut row = vec![0.0; 3];
    let mut workspace = vec![0; backend.workspace_len(&[job])];
    backend.measure(&[job], &mut workspace, &mut row).map(|()| row)
}

#[test]
#[ignore = "slow"]
fn missing_barriers_are_found() {
    for (from, to) in [
        ("    __syncthreads();\n    found = warp_max", "    found = warp_max"),
        ("                __syncthreads();\n            }\n        } else", "            }\n        } else"),
        ("    __syncthreads();\n    partial +=", "    partial +="),
        ("    // The next piece needs the room.\n    __syncthreads();\n", ""),
        ("        __syncthreads();\n#pragma unroll 1\n        for (u32 at", "        for (u32 at"),
        ("        __syncthreads();\n        double part", "        double part"),
        ("        sum += part;\n        __syncthreads();", "        sum += part;"),
        ("    __syncthreads();\n    double least", "    double least"),
        (
            "            }\n        }\n        __syncthreads();\n    }\n    for",
            "            }\n        }\n    }\n    for",
        ),
        (
            "    }\n    __syncthreads();\n    for (u32 at = threadIdx.x; at < columns",
            "    }\n    for (u32 at = threadIdx.x; at < columns",
        ),
    ] {
        let Some(mut backend) = edited(Flavour::Races, from, to) else { return };
        assert!(row(&mut backend).is_err(), "{from}");
        let said = backend.failure().expect("a failure").to_string();
        assert!(said.contains("race (") && said.contains("shared memory"), "{from}: {said}");
    }
}

/// Edits of a kernel's computation must change the numbers that the suite compares.
#[test]
#[ignore = "slow"]
fn wrong_numbers_are_found() {
    let expected = row(&mut Portable).unwrap();
    for (from, to) in [
        ("piece < p.columns; piece += gridDim.x", "piece < p.columns; piece += 2 * gridDim.x"),
        ("u32(at / 4), 0, layer", "u32(at / 4), 1, layer"),
        ("sum += part;", "sum = part;"),
        ("triangle[at] = k == c ? norms[k] : g[at] * norms[k];", "triangle[at] = k == c ? norms[k] : g[at];"),
        ("k < first; k++", "k + 1 < first; k++"),
        ("j + 32 * step < end ?", "j + 32 * step + 1 < end ?"),
        ("i + step < end ?", "i + step + 1 < end ?"),
        ("min(row + k, f.rows - 1)", "min(row, f.rows - 1)"),
        ("u32 own = unit % sets * FEW;", "u32 own = 0;"),
        ("turn == 0 ? sums[at] : sum + sums[at]", "sums[at]"),
        ("at < min(first + RUN, tiles)", "at + 1 < min(first + RUN, tiles)"),
        ("sum * unit * unit", "sum * unit"),
    ] {
        let Some(mut backend) = edited(Flavour::Plain, from, to) else { return };
        let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= ROWS * expected;
        let right = row(&mut backend).is_ok_and(|row| row.iter().zip(&expected).all(near));
        assert!(!right, "{from}");
    }
}

/// Returns two distances of a matrix from its decoded payload, relative to the matrix's norm: for the device's payload
/// and for the core's payload. Also returns the device's payload.
fn apart(backend: &mut dyn Backend, rank: u32, magnitude: f32) -> Option<([f64; 2], Vec<u8>)> {
    let (rows, cols) = (301, 77);
    let values: Vec<f32> = uniform(rows * cols, 12).iter().map(|x| x * magnitude).collect();
    let tensor = CoreTensor::new(&values, rows, cols);
    let gradient = tensor.gradients()[0];
    let payload = encode(backend, rank, &gradient).ok()?;
    let square = |x: f64| x * x;
    let norm: f64 = values.iter().map(|&x| square(x.into())).sum();
    let of = |payload: &[u8]| {
        let mut decoded = vec![f32::NAN; rows * cols];
        Portable.decode(payload, &mut decoded).unwrap();
        values.iter().zip(&decoded).map(|(&x, &y)| square(f64::from(x) - f64::from(y))).sum::<f64>() / norm
    };
    Some(([of(&payload), of(&encode(&mut Portable, rank, &gradient).unwrap())], payload))
}

fn is_near([found, expected]: [f64; 2]) -> bool {
    (found - expected).abs() <= ROWS * expected
}

/// Each column must have the same bits for every rank, although the division of columns among warps depends on the
/// rank. Payloads must have the same error as the core's. Tests moderate magnitudes, and magnitudes with which the
/// kernel must make the first product again.
#[test]
fn every_width_has_the_columns_of_the_widest() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let (_, widest) = apart(&mut backend, 40, 1.0).unwrap();
    let (p, q) = columns(&widest, 301, 77);
    for rank in [1, 3, 4, 5, 8, 9, 12, 13, 16, 17, 33] {
        for magnitude in [1.0, 2f32.powi(60), 2f32.powi(-60), 2f32.powi(90), 2f32.powi(-90)] {
            let (far, payload) = apart(&mut backend, rank, magnitude).unwrap();
            assert!(is_near(far), "rank {rank}, {magnitude}: {far:?}");
            let (own_p, own_q) = columns(&payload, 301, 77);
            assert!(p.starts_with(&own_p), "rank {rank}, {magnitude}");
            let own_q: Vec<Vec<f32>> =
                own_q.into_iter().map(|column| column.into_iter().map(|x| x / magnitude).collect()).collect();
            assert!(q.starts_with(&own_q), "rank {rank}, {magnitude}");
        }
    }
}

/// Plants faults in the scaling of matrices. With these magnitudes, each planted fault must make the decoded payload
/// wrong.
#[test]
#[ignore = "slow"]
fn wrong_scales_are_found() {
    let largest = f32::MAX / 16.0;
    for (from, to, magnitude) in [
        ("e < -64 || e > 64 ? e : 0", "0", largest),
        ("if (p.again && e == 0)", "if (p.again)", largest),
        ("int e = p.known ?", "int e = !p.known ?", largest),
        ("atomicMax(results + 2", "atomicMin(results + 2", 1.0),
        ("found = max(found, __float_as_uint(out[k])", "found = min(found, __float_as_uint(out[k])", 1e20),
        ("out[k] *= first;", "", 1e20),
        ("all[first + at] = value * by;", "all[first + at] = value;", 1e20),
    ] {
        let Some(mut backend) = edited(Flavour::Plain, from, to) else { return };
        let right = apart(&mut backend, 5, magnitude).is_some_and(|(far, _)| is_near(far));
        assert!(!right, "{from}");
    }
    let Some(mut backend) = backend(Flavour::Plain, 0) else { return };
    for magnitude in [largest, 1e20, 1.0] {
        assert!(is_near(apart(&mut backend, 5, magnitude).unwrap().0), "{magnitude}");
    }
}

/// Layers that are measured together must have the same rows, bit for bit, as if each were measured alone. The size of
/// the workspace must not matter.
#[test]
fn rows_do_not_depend_on_other_layers() {
    let ranks = [3, 1, 2, 4, 5, 6, 7, 8, 9, 40, 17];
    let shapes = [(90, 300), (130, 20), (7, 5), (300, 33)];
    let values: Vec<_> = shapes.iter().zip(1..).map(|(&(rows, cols), seed)| uniform(rows * cols, seed)).collect();
    let stream = |layer: usize| Stream { seed: 5, layer: layer as u32, ..Stream::default() };
    let measured = |together: u64, chosen: &[usize]| {
        let mut gpu = Gpu::new(Box::new(Simt::new(flavour(), 1, None)?));
        let tensor = |&layer: &usize| {
            let (own, (rows, cols)) = (&values[layer], shapes[layer]);
            let part = Part { address: own.as_ptr().expose_provenance() as u64, bytes: 4 * own.len() as u64 };
            (Tensor::of_part(part), Shape::new(rows, cols).unwrap(), layer)
        };
        let tensors: Vec<_> = chosen.iter().map(tensor).collect();
        let layers =
            tensors.iter().map(|(tensor, shape, layer)| Layer { tensor, shape: *shape, stream: stream(*layer) });
        let words = result_words(ranks.len());
        let results = gpu.scratch(Scratch::Results, 8 * (words * chosen.len()) as u64).unwrap();
        gpu.clear(results).unwrap();
        measure(&mut gpu, &layers.collect::<Vec<_>>(), (2, &ranks), together, results).unwrap();
        Some(gpu.read::<u64>(results).unwrap().chunks(words).map(<[u64]>::to_vec).collect::<Vec<_>>())
    };
    let Some(together) = measured(u64::MAX, &[0, 1, 2, 3]) else { return };
    for (layer, row) in together.iter().enumerate() {
        assert_eq!(measured(u64::MAX, &[layer]).unwrap()[0], *row, "layer {layer}");
        let tensor = CoreTensor::new(&values[layer], shapes[layer].0, shapes[layer].1);
        let candidates = Candidates::PowerSgd { iterations: 2, ranks: &ranks };
        let jobs = [Job { gradient: tensor.gradients()[0], candidates, stream: stream(layer) }];
        let (mut found, mut expected) = ([f64::NAN; 11], [f64::NAN; 11]);
        errors(tensor.gradients()[0].shape(), &ranks, row, &mut found);
        Portable.measure(&jobs, &mut vec![0; Portable.workspace_len(&jobs)], &mut expected).unwrap();
        let norm: f64 = values[layer].iter().map(|&x| f64::from(x).powi(2)).sum();
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= ROWS * b + 1e-10 * norm;
        assert!(found.iter().zip(&expected).all(near), "layer {layer}: {found:?}, not {expected:?}");
    }
    // With the first limit on the workspace, layers are measured one at a time. With the second limit, layers are
    // measured two at a time.
    assert_eq!(measured(1, &[0, 1, 2, 3]).unwrap(), together);
    assert_eq!(measured(400_000, &[3, 2, 1, 0]).unwrap(), together.into_iter().rev().collect::<Vec<_>>());
}

/// The test's values are exact in f16, bf16 and f32, so their payloads must be the same in all types.
#[test]
fn all_types_make_the_same_payload() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let values: Vec<f32> = uniform(70 * 50, 8).into_iter().map(|x| (64.0 * x).round() / 64.0).collect();
    let tensor = CoreTensor::new(&values, 70, 50);
    let payloads = tensor.gradients().map(|gradient| encode(&mut backend, 4, &gradient).unwrap());
    assert!(payloads.iter().all(|payload| *payload == payloads[Dtype::F32 as usize]));
}
