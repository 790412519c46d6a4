//! Checks the shader compiler of a device.
//!
//! wgpu's DirectX 12 backend uses FXC if DXC is neither linked nor found. FXC refuses barriers after a return that
//! depends on data. The kernels have such barriers, because a workgroup without a task returns (`tasks.wgsl`). The API
//! of wgpu does not tell which compiler a device has. So this module compiles a small kernel with such a barrier.

use crate::Error;
use crate::kernels::{module_of, pipeline_of};
use crate::scopes::Scopes;
use wgpu::{Backend, Device};

/// A kernel that FXC refuses: a barrier follows a return that depends on data. The data are the same for all lanes of a
/// workgroup.
pub(crate) const PROBE: &str = "
@group(0) @binding(0) var<storage, read> tasks: array<u32>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;
var<workgroup> shared_words: array<u32, 64>;
@compute @workgroup_size(64)
fn probe(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (tasks[group.x] == 0u) {
        return;
    }
    shared_words[lane] = tasks[group.x + lane];
    workgroupBarrier();
    results[group.x * 64u + lane] = shared_words[63u - lane];
}
";

/// `Err`, with a remedy, if the device's compiler refuses a construct that the kernels use.
pub(crate) fn check_compiler(device: &Device) -> Result<(), Error> {
    match device.adapter_info().backend {
        Backend::Dx12 => compiles(device, PROBE),
        _ => Ok(()),
    }
}

/// `Err` unless the device's compiler accepts this kernel. The kernel's entry point must be named `probe`.
pub(crate) fn compiles(device: &Device, source: &str) -> Result<(), Error> {
    let scopes = Scopes::new(device);
    pipeline_of(device, &module_of(device, source.into()), "probe");
    scopes.end().map_err(|error| Error::Compiler(error.to_string()))
}
