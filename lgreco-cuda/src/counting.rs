//! A device that only records requests. Rehearsing a call on this device shows which workspace and kernels the call
//! needs.

use crate::Result;
use crate::device::{Device, Launch, Part};
use crate::kernels::Kernel;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Kernels in the order of their first launch.
#[derive(Clone, Default)]
pub(crate) struct Kernels(Arc<Mutex<Vec<Kernel>>>);

impl Kernels {
    pub(crate) fn add(&self, kernel: Kernel) {
        let mut kernels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }

    pub(crate) fn get(&self) -> Vec<Kernel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The recording device. A download does not change the caller's bytes.
#[derive(Default)]
pub(crate) struct Counting {
    pub(crate) kernels: Kernels,
    /// Host bytes that were uploaded to the device.
    pub(crate) uploaded: Arc<AtomicUsize>,
}

impl Device for Counting {
    fn allocate(&mut self, bytes: u64) -> Result<Part> {
        Ok(Part { address: 0, bytes })
    }

    fn free(&mut self, _: Part) {}

    fn prepare(&mut self, kernel: Kernel) -> Result<()> {
        self.kernels.add(kernel);
        Ok(())
    }

    fn set(&mut self, _: Part, _: u32) -> Result<()> {
        Ok(())
    }

    fn upload(&mut self, bytes: &[u8], _: Part) -> Result<()> {
        self.uploaded.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(())
    }

    fn clear(&mut self, _: Part) -> Result<()> {
        Ok(())
    }

    fn copy(&mut self, _: Part, _: Part) -> Result<()> {
        Ok(())
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<()> {
        self.prepare(launch.kernel)
    }

    fn download(&mut self, _: Part, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn synchronise(&mut self) -> Result<()> {
        Ok(())
    }
}
