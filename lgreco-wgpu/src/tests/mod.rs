//! Tests that need a device say so when there is none; `LGRECO_REQUIRE=wgpu` makes that a failure.

mod buffers;
mod conformance;
mod device;
mod feedback;
mod large;
mod memory;
mod shaders;
mod splitting;

use crate::{Error, WgpuBackend};
use lgreco_core::backend::{Backend, Portable};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::Gradient;
use lgreco_core::rng::Stream;

/// Rows are within this of the core's.
const ROWS: f64 = 1e-4;

/// A backend, or `None` after saying why there is none.
fn backend() -> Option<WgpuBackend> {
    backend_with(wgpu::Features::SUBGROUP, |adapter| adapter)
}

/// A backend whose device has limits below its adapter's, and those of the features that the adapter has.
fn backend_with(features: wgpu::Features, limit: impl FnOnce(wgpu::Limits) -> wgpu::Limits) -> Option<WgpuBackend> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()));
    let adapter = match adapter {
        Ok(adapter) => adapter,
        Err(error) => {
            let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "wgpu"), "no wgpu adapter, but LGRECO_REQUIRE: {error}");
            eprintln!("SKIP: no wgpu adapter: {error}");
            return None;
        }
    };
    let descriptor = wgpu::DeviceDescriptor {
        required_features: adapter.features() & features,
        required_limits: limit(adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).expect("a device of the adapter");
    Some(WgpuBackend::with_device(device, queue).expect("limits that are enough"))
}

/// WebGPU's defaults, but for bindings and dispatches as small as the kernels can do with.
fn small(adapter: wgpu::Limits) -> wgpu::Limits {
    wgpu::Limits {
        max_storage_buffer_binding_size: 2 << 20,
        max_compute_workgroups_per_dimension: 64,
        ..wgpu::Limits::default().or_worse_values_from(&adapter)
    }
}

/// Asserts that a payload is Portable's, bit for bit, and that decoding it gives the same or is refused as too large.
fn check_payload(backend: &mut WgpuBackend, setting: &Setting, gradient: &Gradient<'_>) {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let len = setting.payload_len(shape, dtype).unwrap();
    let mut workspace = vec![0; setting.encode_workspace_len(shape, dtype)];
    let (mut found, mut expected) = (vec![0; len], vec![0; len]);
    backend.encode(setting, gradient, Stream::default(), &mut [], &mut found).unwrap();
    Portable.encode(setting, gradient, Stream::default(), &mut workspace, &mut expected).unwrap();
    assert!(found == expected, "{setting:?}");
    let (mut values, mut right) = (vec![0.0; shape.elements()], vec![0.0; shape.elements()]);
    Portable.decode(&expected, &mut right).unwrap();
    match backend.decode(&found, &mut values) {
        Ok(()) => assert!(values == right, "{setting:?}"),
        Err(_) => assert!(matches!(backend.failure(), Some(Error::TooLarge { .. })), "{:?}", backend.failure()),
    }
}

/// Asserts that PowerSGD's own payload decodes to what Portable's does, within [`ROWS`] of its norm.
fn check_low_rank(backend: &mut WgpuBackend, powersgd: PowerSgd, gradient: &Gradient<'_>, stream: Stream) {
    let setting = Setting::PowerSgd(powersgd);
    let run = |backend: &mut dyn Backend| {
        let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
        let mut payload = vec![0; setting.payload_len(shape, dtype).unwrap()];
        let mut workspace = vec![0; setting.encode_workspace_len(shape, dtype)];
        backend.encode(&setting, gradient, stream, &mut workspace, &mut payload).unwrap();
        let mut values = vec![f32::NAN; shape.elements()];
        backend.decode(&payload, &mut values).unwrap();
        values
    };
    let (found, expected) = (run(backend), run(&mut Portable));
    let squared = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = found.iter().zip(&expected).map(|(a, b)| squared(a - b)).sum();
    let norm: f64 = expected.iter().map(|&x| squared(x)).sum();
    assert!(apart <= ROWS * ROWS * norm, "{powersgd:?}: {apart:e} apart, norm {norm:e}");
}
