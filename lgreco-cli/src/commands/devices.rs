//! `lgreco devices`: lists the backends that work on this machine.

use std::thread::available_parallelism;

pub fn report() -> String {
    let cores =
        available_parallelism().map_or_else(|error| format!("cores unknown ({error})"), |n| format!("{n} cores"));
    let instructions = match format!("{:?}", pulp::Arch::new()).split('(').next() {
        Some("V4") => "AVX-512",
        Some("V3") => "AVX2",
        Some("Neon") => "NEON",
        _ => "the target's baseline",
    };
    format!(
        "cpu    available: {cores}, {}, vector instructions: {instructions}\n\
         {}{}",
        std::env::consts::ARCH,
        wgpu(),
        cuda()
    )
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> String {
    format!("wgpu   not available: {}\n", crate::args::not_in_build("wgpu"))
}

/// Describes each wgpu adapter on one line.
#[cfg(feature = "wgpu")]
fn wgpu() -> String {
    let line = |adapter: lgreco_wgpu::Adapter| {
        let usable = match &adapter.usable {
            Ok(()) => "available:".into(),
            Err(error) => format!("not available: {error}:"),
        };
        let mib = |bytes: u64| bytes >> 20;
        let (info, limits) = (adapter.info, adapter.limits);
        let line = format!(
            "wgpu   {usable} {} ({}, {:?}, driver {} {}); bindings up to {} MiB, buffers up to {} MiB, {} workgroups",
            info.name,
            info.backend,
            info.device_type,
            info.driver,
            info.driver_info,
            mib(limits.max_storage_buffer_binding_size),
            mib(limits.max_buffer_size),
            limits.max_compute_workgroups_per_dimension
        );
        crate::failure::printable(&line) + "\n"
    };
    let lines: String = lgreco_wgpu::adapters().into_iter().map(line).collect();
    if lines.is_empty() {
        return "wgpu   not available: no adapter found; is a Vulkan, Metal or DirectX 12 driver installed?\n".into();
    }
    lines
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> String {
    format!("cuda   not available: {}\n", crate::args::not_in_build("cuda"))
}

/// Describes each CUDA device on one line, or says what is missing.
#[cfg(feature = "cuda")]
fn cuda() -> String {
    let devices = match lgreco_cuda::devices() {
        Ok(devices) => devices,
        Err(error) => {
            return crate::failure::printable(&format!("cuda   not available: {error}")) + "\n";
        }
    };
    let line = |device: lgreco_cuda::DeviceInfo| {
        let about = format!(
            "{} (compute capability {}, {} MiB), driver for CUDA {}",
            device.name,
            device.capability,
            device.memory >> 20,
            device.driver
        );
        let line = match device.usable {
            Ok(compiler) => format!("cuda   available: {about}, {compiler}"),
            Err(error) => format!("cuda   not available: {about}: {error}"),
        };
        crate::failure::printable(&line) + "\n"
    };
    devices.into_iter().map(line).collect()
}
