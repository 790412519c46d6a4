//! The adapters of this machine.

use crate::Error;
use crate::compiler::check_compiler;
use crate::gpu::check_limits;

/// Describes an adapter, and says whether the backend can use it.
///
/// ```
/// for adapter in lgreco_wgpu::adapters() {
///     println!("{}: {:?}", adapter.info.name, adapter.usable);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Name, kind, driver and graphics interface.
    pub info: wgpu::AdapterInfo,
    /// The adapter's limits.
    pub limits: wgpu::Limits,
    /// `Ok` if the backend can use the adapter, otherwise the reason why not.
    pub usable: Result<(), Error>,
}

/// Returns all adapters that wgpu finds, in wgpu's order. The list is empty if there is no driver.
///
/// ```
/// let usable = lgreco_wgpu::adapters().iter().filter(|adapter| adapter.usable.is_ok()).count();
/// println!("{usable} adapters can be used");
/// ```
pub fn adapters() -> Vec<Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let adapter = |adapter: wgpu::Adapter| {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let usable = check_limits(&limits).and_then(|()| match info.backend {
            wgpu::Backend::Dx12 => check_device_of(&adapter),
            _ => Ok(()),
        });
        Adapter { info, limits, usable }
    };
    found.into_iter().map(adapter).collect()
}

/// Opens a device of this adapter, and checks its shader compiler.
fn check_device_of(adapter: &wgpu::Adapter) -> Result<(), Error> {
    let device = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()));
    let (device, _) = device.map_err(|error| Error::NoAdapter(error.to_string()))?;
    check_compiler(&device)
}
