//! The adapters of this machine.

use crate::Error;
use crate::gpu::check_limits;

/// An adapter and whether the backend can use it.
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
    /// What it can do at most.
    pub limits: wgpu::Limits,
    /// Why the backend cannot use it, if it cannot.
    pub usable: Result<(), Error>,
}

/// All adapters that wgpu finds, in its order; none without a driver.
///
/// ```
/// let usable = lgreco_wgpu::adapters().iter().filter(|adapter| adapter.usable.is_ok()).count();
/// println!("{usable} adapters can be used");
/// ```
pub fn adapters() -> Vec<Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let adapter = |adapter: wgpu::Adapter| {
        let limits = adapter.limits();
        Adapter { info: adapter.get_info(), usable: check_limits(&limits), limits }
    };
    found.into_iter().map(adapter).collect()
}
