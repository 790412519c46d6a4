//! Tests the mean of gradients of more than 2^31 values, and the norm of the mean, in sparse memory as in the tests of
//! `beyond`.
#![allow(unsafe_code)]

use super::beyond::{ALL, FEW, filled, sparse};
use super::exchange::{bits, narrowed};
use super::simt::Sparse;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceWindow};
use lgreco::gradient::{Dtype, Shape};
use lgreco_testing::powersgd::uniform;

/// Checks a window with a layer of `ALL` values and a small layer after it.
fn check_window(backend: &mut CudaBackend, dtype: Dtype) -> Result<(), String> {
    let tails = [6, 7].map(|seed| narrowed(&uniform(FEW, seed), dtype).1);
    let layers = [(Shape::new(ALL, 1).unwrap(), dtype), (Shape::new(3, 1).unwrap(), dtype)];
    let memory = Sparse::new(DeviceWindow::bytes(&layers));
    let (mut mean, mut of_small) = (vec![0.0; FEW], [9.0; 3]);
    // SAFETY: the memory has the window's size, and the gradients live while the calls run.
    let (window, norms) = unsafe {
        let window = backend.begin_window(&layers, memory.part().address).unwrap();
        for (tail, step) in tails.iter().zip(1u64..) {
            let (large, small) = (filled(ALL, dtype, tail), filled(3, dtype, &tail[..3]));
            let seen = [(1, small.part().address), (0, large.part().address)];
            backend.observe(&window, &seen, step).unwrap();
            let (old, own) = ((step - 1) as f32 / step as f32, 1.0 / step as f32);
            mean.iter_mut().zip(tail).for_each(|(mean, x)| *mean = *mean * old + x * own);
        }
        backend.close_window(&window).unwrap();
        let norms = backend.window_norms(&window).unwrap();
        (window, norms)
    };
    let mean = narrowed(&mean, dtype).1;
    backend.window_mean(&window, 1, &mut of_small).unwrap();
    let part = memory.part();
    // SAFETY: the memory has this many values, and all work that writes them is done.
    let values =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<f32>(part.address as usize), ALL) };
    let (squares, found) = (mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>(), bits(&values[ALL - FEW..]));
    let near = (norms[0] - squares).abs() <= 1e-12 * squares && norms[1] > 0.0;
    match (found == bits(&mean) && of_small.iter().all(|&x| x != 9.0 && x != 0.0), near) {
        (true, true) => Ok(()),
        (is_mean, is_norm) => Err(format!("{dtype:?}: means {is_mean}, norms {is_norm}")),
    }
}

#[test]
#[ignore = "slow"]
fn windows_and_places_of_31_bits_are_found() {
    let Some(mut backend) = sparse([]) else { return };
    for dtype in [Dtype::F32, Dtype::Bf16] {
        check_window(&mut backend, dtype).unwrap();
    }
    for (from, to) in [
        ("store4(mean, 0, i, here, bits);", "store4(mean, 0, u32(i) & MAGNITUDE, here, bits);"),
        (
            "load4(gradient, layer.dtype, i, layer.count, own)",
            "load4(gradient, layer.dtype, u32(i) & MAGNITUDE, layer.count, own)",
        ),
        ("load4(mean, 0, i, layer.count, own)", "load4(mean, 0, u32(i) & MAGNITUDE, layer.count, own)"),
    ] {
        let mut backend = sparse([(Module::Window, from, to)]).unwrap();
        assert!(check_window(&mut backend, Dtype::F32).is_err(), "not found: {from}");
    }
}
