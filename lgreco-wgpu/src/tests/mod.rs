//! Tests that need a device say so when there is none; `LGRECO_REQUIRE=wgpu` makes that a failure.

mod at_once;
mod beyond;
mod bins;
mod buffers;
mod conformance;
mod counting;
mod cut;
mod device;
mod exchange;
mod exchange_large;
mod exchange_topk;
mod factors;
mod feedback;
mod imagined;
mod large;
mod later;
mod memory;
mod orthonormal;
mod outcome;
mod planted;
mod poison;
mod races;
mod rows;
mod shaders;
pub(crate) mod simt;
mod splitting;
mod strides;
mod tally;

use crate::WgpuBackend;
use lgreco_core::backend::{Backend, Portable};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::Gradient;
use lgreco_core::rng::Stream;
use lgreco_testing::backend::check_encode;
use std::io::Write as _;
use std::sync::Once;

use planted::planted;
pub(crate) use poison::poisoned;

/// Rows are within this of the core's.
const ROWS: f64 = 1e-4;

/// Says what is not checked here: not by `eprintln!`, which libtest keeps to itself.
fn skipped(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
}

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
            static SAID: Once = Once::new();
            SAID.call_once(|| skipped(&format!("no wgpu adapter: {error}")));
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

/// WebGPU's defaults, but for buffers, bindings and dispatches as small as the kernels can do with.
fn small(adapter: wgpu::Limits) -> wgpu::Limits {
    wgpu::Limits {
        max_buffer_size: 2 << 20,
        max_storage_buffer_binding_size: 2 << 20,
        max_compute_workgroups_per_dimension: 64,
        ..wgpu::Limits::default().or_worse_values_from(&adapter)
    }
}

/// A device of [`small`] limits, and tensors, payloads and factors cut as if a binding held a few thousand values.
fn cut() -> Option<WgpuBackend> {
    let mut backend = backend_with(wgpu::Features::empty(), small)?;
    backend.gpu().window = 9 << 10;
    Some(backend)
}

/// Asserts what [`check_encode`] does, and that the device decodes the payload itself.
fn check_payload(backend: &mut WgpuBackend, setting: &Setting, gradient: &Gradient<'_>, stream: Stream) {
    let decoded = backend.gpu().decoded;
    check_encode(backend, setting, gradient, stream);
    assert_eq!(backend.gpu().decoded, decoded + 1, "{setting:?} was left to the core");
}

/// Asserts that PowerSGD's own payload decodes to what Portable's does, within [`ROWS`] of its norm, whichever of both
/// decodes it.
fn check_low_rank(backend: &mut WgpuBackend, powersgd: PowerSgd, gradient: &Gradient<'_>, stream: Stream) {
    let setting = Setting::PowerSgd(powersgd);
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let encode = |backend: &mut dyn Backend| {
        let mut payload = vec![0; setting.payload_len(shape, dtype).unwrap()];
        let mut workspace = vec![0; setting.encode_workspace_len(shape, dtype)];
        backend.encode(&setting, gradient, stream, &mut workspace, &mut payload).unwrap();
        payload
    };
    let decode = |backend: &mut dyn Backend, payload: &[u8]| {
        let mut values = vec![f32::NAN; shape.elements()];
        backend.decode(payload, &mut values).unwrap();
        values
    };
    let (own, cores) = (encode(backend), encode(&mut Portable));
    let expected = decode(&mut Portable, &cores);
    let squared = |x: f32| f64::from(x) * f64::from(x);
    let norm: f64 = expected.iter().map(|&x| squared(x)).sum();
    let decoded = backend.gpu().decoded;
    for found in [decode(backend, &own), decode(&mut Portable, &own), decode(backend, &cores)] {
        let apart: f64 = found.iter().zip(&expected).map(|(a, b)| squared(a - b)).sum();
        assert!(apart <= ROWS * ROWS * norm, "{powersgd:?}: {apart:e} apart, norm {norm:e}");
    }
    assert_eq!(backend.gpu().decoded, decoded + 2, "{powersgd:?} was left to the core");
}
