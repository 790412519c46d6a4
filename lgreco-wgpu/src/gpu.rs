//! A device, its kernels and its memory.

use crate::Error;
use crate::compiler::check_compiler;
use crate::kernels::Kernels;
use crate::memory::{Largest, Memory, Scratch};
use crate::scopes::Scopes;
use lgreco::compress::eden::BLOCK;
use std::sync::{Arc, Mutex};
use wgpu::{Buffer, BufferDescriptor, BufferUsages};

/// Number of elements that a workgroup processes.
pub(crate) const PER_GROUP: usize = 2048;

/// Smallest limit on the size of a binding that the kernels accept, in bytes. Such a binding can hold the tables of
/// QSGD and TopK, and PowerSGD's tables except for high ranks of long matrices. WebGPU's default is 128 MiB.
const LEAST_BINDING: u64 = 2 << 20;
/// Smallest limit on the number of workgroups per dimension that the kernels accept. WebGPU's default is 65,535.
const LEAST_GROUPS: u64 = 64;

/// Alignment of a dispatch's parameters in bytes, as bindings require.
pub(crate) const SLOT: usize = 256;
/// Largest size of the parameters of all dispatches in a submission, in bytes.
pub(crate) const PARAMETERS: usize = 1 << 20;

/// Returns the approximate limit on the bytes that the commands of a submission read and write. A command above the
/// limit is submitted alone. The limit exists because long submissions trigger the watchdogs of desktops. A lower limit
/// would cost time: each submission takes some tens of microseconds, in which a GPU could read a few MiB.
const fn bytes_of_submission(of: wgpu::DeviceType) -> u64 {
    match of {
        wgpu::DeviceType::DiscreteGpu => 256 << 20,
        // Most devices of other types share the CPU's memory, which is slower.
        _ => 128 << 20,
    }
}

/// A device, with the kernels and memory kept on it.
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) kernels: Kernels,
    pub(crate) parameters: Buffer,
    pub(crate) memory: Memory,
    /// Largest number of bytes of a tensor, a payload or a factor in one dispatch. This is the smaller of two limits:
    /// of a binding, and of a submission. Tests lower it.
    pub(crate) window: u64,
    /// Limit on the bytes that the commands of one submission read or write.
    pub(crate) submission: u64,
    /// Whether the last batch has failed or has not ended.
    pub(crate) unfinished: bool,
    /// Whether batches are only rehearsed: they allocate the memory and compile the kernels that they would use.
    pub(crate) rehearsing: bool,
    #[cfg(test)]
    pub(crate) rehearsed: Vec<crate::part::Rehearsed>,
    /// Dispatches with their inputs and outputs, if a test records them.
    #[cfg(test)]
    pub(crate) recorded: Option<Vec<crate::tests::simt::Recorded>>,
    #[cfg(test)]
    pub(crate) submissions: usize,
    #[cfg(test)]
    pub(crate) waits: usize,
    #[cfg(test)]
    pub(crate) reads: usize,
    #[cfg(test)]
    pub(crate) dispatches: usize,
    /// Number of payloads that the device decoded without help of the core.
    #[cfg(test)]
    pub(crate) decoded: usize,
    /// Number of TopK payloads for which the sample has missed the k-th largest magnitude.
    #[cfg(test)]
    pub(crate) lost_cuts: usize,
    /// Largest size in bytes of a dispatch with more than one task. The size is computed from the number of workgroups.
    #[cfg(test)]
    pub(crate) widest: u64,
    /// The device's kind if several tests share the device, otherwise `None`.
    #[cfg(test)]
    pub(crate) lent: Option<crate::tests::Kind>,
    lost: Arc<Mutex<Option<String>>>,
}

#[cfg(test)]
impl Drop for Gpu {
    fn drop(&mut self) {
        crate::tests::give_back(self);
    }
}

/// `Err` unless the kernels can run with `limits`.
pub(crate) fn check_limits(limits: &wgpu::Limits) -> Result<(), Error> {
    let at_least = |what, needed: u64, found: u64| {
        if found >= needed { Ok(()) } else { Err(Error::Limit { what, needed, found }) }
    };
    let groups = limits.max_compute_workgroups_per_dimension.into();
    at_least("max_buffer_size", LEAST_BINDING, limits.max_buffer_size)?;
    at_least("max_storage_buffer_binding_size", LEAST_BINDING, limits.max_storage_buffer_binding_size)?;
    at_least("max_compute_workgroups_per_dimension", LEAST_GROUPS, groups)?;
    at_least("max_compute_invocations_per_workgroup", 256, limits.max_compute_invocations_per_workgroup.into())?;
    at_least("max_compute_workgroup_size_x", 256, limits.max_compute_workgroup_size_x.into())?;
    at_least("max_compute_workgroup_storage_size", 16384, limits.max_compute_workgroup_storage_size.into())?;
    at_least("max_storage_buffers_per_shader_stage", 8, limits.max_storage_buffers_per_shader_stage.into())
}

/// Returns the size of the largest binding in bytes. The size is at most the largest u32, because some drivers report a
/// wrong length of longer bindings to shaders.
fn largest_binding(limits: &wgpu::Limits) -> u64 {
    limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(u32::MAX.into()) / 4 * 4
}

impl Gpu {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, Error> {
        let limits = device.limits();
        check_limits(&limits)?;
        check_compiler(&device)?;
        let lost = Arc::new(Mutex::new(None));
        let told = Arc::clone(&lost);
        device.set_device_lost_callback(move |_, message| {
            if let Ok(mut told) = told.lock() {
                *told = Some(message);
            }
        });
        let scopes = Scopes::new(&device);
        let parameters = device.create_buffer(&BufferDescriptor {
            label: Some("parameters"),
            size: PARAMETERS as u64,
            usage: BufferUsages::UNIFORM | BufferUsages::STORAGE | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        scopes.end()?;
        let submission = bytes_of_submission(device.adapter_info().device_type);
        Ok(Gpu {
            window: largest_binding(&limits).min(submission),
            submission,
            device,
            queue,
            limits,
            kernels: Kernels::default(),
            parameters,
            memory: Memory::default(),
            unfinished: false,
            rehearsing: false,
            #[cfg(test)]
            rehearsed: Vec::new(),
            #[cfg(test)]
            recorded: None,
            #[cfg(test)]
            submissions: 0,
            #[cfg(test)]
            waits: 0,
            #[cfg(test)]
            reads: 0,
            #[cfg(test)]
            dispatches: 0,
            #[cfg(test)]
            decoded: 0,
            #[cfg(test)]
            lost_cuts: 0,
            #[cfg(test)]
            widest: 0,
            #[cfg(test)]
            lent: None,
            lost,
        })
    }

    /// Largest number of elements of a tensor in one dispatch, for any type. The number is a multiple of [`PER_GROUP`]
    /// and of the length of EDEN's blocks.
    pub(crate) fn piece_len(&self) -> usize {
        let groups = ((self.window - 256) / 4) as usize / PER_GROUP;
        groups.min(self.most_groups()) * PER_GROUP / BLOCK * BLOCK
    }

    /// Largest number of workgroups in each dimension of a dispatch.
    pub(crate) fn most_groups(&self) -> usize {
        self.limits.max_compute_workgroups_per_dimension as usize
    }

    /// Size of the largest binding in bytes.
    pub(crate) fn largest_binding(&self) -> u64 {
        largest_binding(&self.limits)
    }

    pub(crate) fn check_lost(&self) -> Result<(), Error> {
        match self.lost.lock().ok().and_then(|lost| lost.clone()) {
            Some(message) => Err(Error::Lost(message)),
            None => Ok(()),
        }
    }

    /// Waits for all submitted work.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        #[cfg(test)]
        {
            self.waits += 1;
        }
        let waited = self.device.poll(wgpu::PollType::wait_indefinitely());
        waited.map(drop).map_err(|error| Error::Refused(error.to_string()))
    }

    /// Returns a scratch buffer of at least `bytes` bytes, which may exceed a binding. Its content is lost.
    pub(crate) fn scratch(&mut self, name: Scratch, bytes: u64) -> Result<Buffer, Error> {
        self.memory.scratch(&self.device, self.largest(), name, bytes)
    }

    /// Returns a buffer of at least `bytes` bytes, for use until the batch ends. Its content is arbitrary.
    pub(crate) fn take(&mut self, bytes: u64, usage: BufferUsages) -> Result<Buffer, Error> {
        self.memory.take(&self.device, self.largest(), bytes, usage)
    }

    fn largest(&self) -> Largest {
        Largest { binding: self.largest_binding(), buffer: self.limits.max_buffer_size }
    }
}

#[cfg(test)]
mod tests {
    use super::bytes_of_submission;
    use wgpu::DeviceType;

    #[test]
    fn submissions_are_of_256_mib_at_most() {
        assert_eq!(bytes_of_submission(DeviceType::DiscreteGpu), 256 << 20);
        for of in [DeviceType::IntegratedGpu, DeviceType::VirtualGpu, DeviceType::Cpu, DeviceType::Other] {
            assert_eq!(bytes_of_submission(of), 128 << 20, "{of:?}");
        }
    }
}
