//! Devices that tests share, so that most tests need not compile kernels again. This file also has the changes that
//! tests make to shaders.

use super::{poisoned, skipped};
use crate::WgpuBackend;
use crate::gpu::Gpu;
use crate::kernels::{Kernel, Kernels, Shader};
use std::collections::HashMap;
use std::sync::{Mutex, Once};

/// A kind of device. Of `features`, the device has all that the adapter supports. Its limits are the adapter's, or
/// [`small`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind {
    pub(super) features: wgpu::Features,
    pub(super) is_small: bool,
}

struct Idle {
    kind: Kind,
    device: wgpu::Device,
    queue: wgpu::Queue,
    kernels: Kernels,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// Makes a device available to other tests, with the compiled forms of unchanged shaders.
pub(crate) fn give_back(gpu: &mut Gpu) {
    if let (Some(kind), Ok(mut idle)) = (gpu.lent.take(), IDLE.lock()) {
        let (device, queue, kernels) = (gpu.device.clone(), gpu.queue.clone(), gpu.kernels.unchanged());
        idle.push(Idle { kind, device, queue, kernels });
    }
}

/// Returns a backend with the adapter's limits. If no adapter can be used, reports the reason and returns `None`.
pub(super) fn backend() -> Option<WgpuBackend> {
    with(wgpu::Features::SUBGROUP)
}

/// Returns a backend with a device that no other test has used or will use.
pub(super) fn alone() -> Option<WgpuBackend> {
    let (device, queue) = new_device(Kind { features: wgpu::Features::SUBGROUP, is_small: false })?;
    Some(WgpuBackend::with_device(device, queue).expect("limits that are enough"))
}

/// Returns a backend whose device has all of `features` that the adapter supports.
pub(super) fn with(features: wgpu::Features) -> Option<WgpuBackend> {
    of_kind(Kind { features, is_small: false })
}

/// Returns a backend whose device has the lowest limits and no optional features.
pub(super) fn small_backend() -> Option<WgpuBackend> {
    of_kind(Kind { features: wgpu::Features::empty(), is_small: true })
}

fn of_kind(kind: Kind) -> Option<WgpuBackend> {
    let idle = {
        let mut idle = IDLE.lock().unwrap();
        idle.iter().position(|idle| idle.kind == kind).map(|at| idle.swap_remove(at))
    };
    let (device, queue, kernels) = match idle {
        Some(Idle { device, queue, kernels, .. }) => (device, queue, kernels),
        None => {
            let (device, queue) = new_device(kind)?;
            (device, queue, Kernels::default())
        }
    };
    let mut backend = WgpuBackend::with_device(device, queue).expect("limits that are enough");
    (backend.gpu().kernels, backend.gpu().lent) = (kernels, Some(kind));
    Some(backend)
}

fn new_device(kind: Kind) -> Option<(wgpu::Device, wgpu::Queue)> {
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
        required_features: adapter.features() & kind.features,
        required_limits: if kind.is_small { small(adapter.limits()) } else { adapter.limits() },
        ..Default::default()
    };
    Some(pollster::block_on(adapter.request_device(&descriptor)).expect("a device of the adapter"))
}

/// Returns WebGPU's default limits, but with the smallest buffers, bindings and dispatches that the kernels accept.
pub(super) fn small(adapter: wgpu::Limits) -> wgpu::Limits {
    wgpu::Limits {
        max_buffer_size: 2 << 20,
        max_storage_buffer_binding_size: 2 << 20,
        max_compute_workgroups_per_dimension: 64,
        ..wgpu::Limits::default().or_worse_values_from(&adapter)
    }
}

/// Returns a backend with [`small`] limits. The backend cuts tensors, payloads and factors as if a binding could have
/// only a few thousand values.
pub(super) fn cut() -> Option<WgpuBackend> {
    let mut backend = small_backend()?;
    backend.gpu().window = 17 << 10;
    Some(backend)
}

/// Changes in shaders, and the compiled forms of the unchanged shaders.
#[derive(Default)]
pub(crate) struct Changes {
    /// Whether workgroup memory is first filled with arbitrary values.
    pub(crate) poisoned: bool,
    /// Shaders, texts in them, and the replacements of these texts. Most replacements are faults that tests must find.
    pub(crate) edits: Vec<(Shader, &'static str, &'static str)>,
    pub(crate) modules: HashMap<Shader, wgpu::ShaderModule>,
    pub(crate) pipelines: HashMap<Kernel, wgpu::ComputePipeline>,
}

impl Changes {
    /// Whether the changes concern this shader.
    pub(crate) fn concern(&self, shader: Shader) -> bool {
        self.poisoned || self.edits.iter().any(|edit| edit.0 == shader)
    }

    /// Returns the shader's source with all changes.
    pub(crate) fn applied(&self, shader: Shader, source: String) -> String {
        let edited = self.edits.iter().filter(|edit| edit.0 == shader).fold(source, |source, edit| {
            assert!(source.contains(edit.1), "nothing to edit: {}", edit.1);
            source.replace(edit.1, edit.2)
        });
        if self.poisoned { poisoned(&edited) } else { edited }
    }
}
