//! Tests that need a device say so when there is none; `LGRECO_REQUIRE=wgpu` makes that a failure.

mod conformance;
mod shaders;

use crate::WgpuBackend;

/// Rows are within this of the core's.
const ROWS: f64 = 1e-4;

/// A backend, or `None` after saying why there is none.
fn backend() -> Option<WgpuBackend> {
    backend_with(|adapter| adapter)
}

/// A backend whose device has limits below its adapter's.
fn backend_with(limit: impl FnOnce(wgpu::Limits) -> wgpu::Limits) -> Option<WgpuBackend> {
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
    let descriptor = wgpu::DeviceDescriptor { required_limits: limit(adapter.limits()), ..Default::default() };
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
