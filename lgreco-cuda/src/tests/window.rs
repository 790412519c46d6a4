//! Tests the mean of a model's last gradients on the device.
#![allow(unsafe_code)]

use super::exchange::Memory;
use super::launches::{Calls, Counted};
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{backend, is_full, planted};
use crate::checks::window::check_window;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceWindow, Error};
use lgreco::gradient::{Dtype, Shape};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn means_norms_and_rows_are_the_hosts() {
    for order in if is_full() { 0..3 } else { 2..3 } {
        let Some(mut backend) = backend(flavour(), order) else { return };
        check_window::<Memory>(&mut backend);
    }
}

/// The race check must find no race in the kernels, and must find a planted race.
#[test]
fn no_races_are_found_until_one_is_planted() {
    let run = |edit| {
        let mut backend = CudaBackend::on(Box::new(Simt::new(Flavour::Races, 2, edit)?));
        Some(catch_unwind(AssertUnwindSafe(|| check_window::<Memory>(&mut backend))))
    };
    let Some(outcome) = run(None) else { return };
    outcome.expect("no races");
    for (from, to) in
        planted([("u64 stride = u64(layer.blocks) * BLOCK * 4;", "u64 stride = u64(layer.blocks) * BLOCK * 2;")])
    {
        let said = run(Some(Edit { module: Module::Window, from, to })).unwrap().unwrap_err();
        let said = said.downcast_ref::<String>().expect("a text");
        assert!(said.contains("race"), "{said}");
    }
}

#[test]
fn what_is_no_window_is_refused() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let layers = [(Shape::new(4, 4).unwrap(), Dtype::F32)];
    let mut memory = Memory::new(DeviceWindow::bytes(&layers));
    // SAFETY: the memory has the window's size; refused calls use no memory.
    unsafe {
        let address = memory.address();
        let misplaced = backend.begin_window(&layers, address + 8).unwrap_err();
        assert!(matches!(misplaced, Error::Memory { .. }), "{misplaced}");
        let window = backend.begin_window(&layers, address).unwrap();
        for (seen, steps) in
            [(&[(1, 16)][..], 1), (&[(0, 16), (0, 32)], 1), (&[(0, 16)], 0), (&[(0, 0)], 1), (&[(0, 18)], 1)]
        {
            assert!(backend.observe(&window, seen, steps).is_err(), "{seen:?}, {steps}");
        }
        backend.observe(&window, &[], 1).unwrap();
        assert!(window.gradient(1).is_none());
        assert!(backend.window_mean(&window, 1, &mut []).is_err());
        assert!(backend.window_mean(&window, 0, &mut [0.0; 15]).is_err());
        let mut mean = [1.0; 16];
        backend.window_mean(&window, 0, &mut mean).unwrap();
        assert_eq!(mean, [0.0; 16]);
    }
}

/// Observing several layers in one call takes one launch, and closing the window takes two, for any number of layers.
#[test]
fn a_window_takes_one_launch_per_bucket_and_two_to_close() {
    let calls = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(calls.clone())));
    let shape = Shape::new(768, 768).unwrap();
    let layers = [(shape, Dtype::F32); 150];
    let counted = || [0, 2].map(|kind| calls.kinds[kind].load(Ordering::Relaxed));
    // SAFETY: a counting device accesses no memory.
    unsafe {
        let window = backend.begin_window(&layers, 4096).unwrap();
        assert_eq!(counted(), [0, 0]);
        let seen: Vec<(usize, u64)> = (0..150).map(|layer| (layer, 4096)).collect();
        backend.observe(&window, &seen, 1).unwrap();
        assert_eq!(counted(), [1, 0]);
        backend.close_window(&window).unwrap();
        assert_eq!(counted(), [3, 0]);
    }
    assert_eq!(calls.allocations.load(Ordering::Relaxed), 0);
    assert!(calls.launched.get().iter().all(|kernel| calls.prepared.get().contains(kernel)));
}
