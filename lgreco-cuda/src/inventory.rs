//! The devices of this machine.

use crate::driver::{self, Started};
use crate::error::version;
use crate::shipped::{Architecture, capability};
use crate::{Error, Result};

/// Describes a device, and says whether the backend can use it.
///
/// ```
/// for device in lgreco_cuda::devices().unwrap_or_default() {
///     println!("{}: {:?}", device.name, device.usable);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The driver's name for the device.
    pub name: String,
    /// The device's compute capability, such as `9.0`.
    pub capability: String,
    /// The device's memory in bytes.
    pub memory: u64,
    /// The CUDA version that the driver supports, such as `12.4`.
    pub driver: String,
    /// The architecture of the kernels that the device runs, such as `sm_90`. If the backend cannot use the device, the
    /// error that says why.
    pub usable: Result<String>,
}

/// Returns all devices that the driver reports, in the order of their numbers.
///
/// ```
/// match lgreco_cuda::devices() {
///     Ok(devices) => println!("{} devices", devices.len()),
///     Err(missing) => println!("{missing}"),
/// }
/// ```
///
/// # Errors
/// [`Error::NoDriver`], [`Error::TooOld`], [`Error::NoDevice`] if there is no device, [`Error::Driver`].
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let started = driver::start()?;
    let count = started.count()?;
    if count == 0 {
        return Err(Error::NoDevice { ordinal: 0, reason: "the driver shows none".into() });
    }
    (0..count).map(|ordinal| info(started, ordinal)).collect()
}

fn info(started: Started, ordinal: usize) -> Result<DeviceInfo> {
    let device = started.device(ordinal)?;
    let usable = started.architecture(device).map(Architecture::name);
    let (name, memory) = started.name_and_memory(device)?;
    let capability = capability(started.compute_capability(device)?);
    Ok(DeviceInfo { name, capability, memory, driver: version(started.version), usable })
}
