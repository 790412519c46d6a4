//! The devices of this machine.

use crate::compiler::capability;
use crate::{Error, driver};

/// A device and whether the backend can use it.
///
/// ```
/// for device in lgreco_cuda::devices().unwrap_or_default() {
///     println!("{}: {:?}", device.name, device.usable);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The driver's name for it.
    pub name: String,
    /// Its compute capability, such as `9.0`.
    pub capability: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// CUDA's version that the driver supports, such as `12.4`.
    pub driver: String,
    /// Why the backend cannot use it, if it cannot; else what its kernels are compiled for, and by what
    /// unless they come with the crate.
    pub usable: Result<String, Error>,
}

/// All devices that the driver shows, by their numbers.
///
/// ```
/// match lgreco_cuda::devices() {
///     Ok(devices) => println!("{} devices", devices.len()),
///     Err(missing) => println!("{missing}"),
/// }
/// ```
///
/// # Errors
/// [`Error::NoDriver`], [`Error::TooOld`], [`Error::NoDevice`] when there is none, [`Error::Driver`].
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let driver = driver::start()?;
    let count = driver::count()?;
    if count == 0 {
        return Err(Error::NoDevice { ordinal: 0, reason: "the driver shows none".into() });
    }
    (0..count).map(|ordinal| info(ordinal, driver)).collect()
}

fn info(ordinal: usize, driver: (u32, u32)) -> Result<DeviceInfo, Error> {
    let device = driver::device(ordinal)?;
    let usable = driver::code(device, driver).map(|code| code.name());
    let (name, memory) = driver::name_and_memory(device)?;
    let capability = capability(driver::compute_capability(device)?);
    let driver = format!("{}.{}", driver.0, driver.1);
    Ok(DeviceInfo { name, capability, memory, driver, usable })
}
