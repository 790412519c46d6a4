//! Partial sums of blocks, added up on the device in a fixed order: `sums.cu`.

use crate::Error;
use crate::device::Part;
use crate::gpu::Gpu;
use crate::kernels::{Kernel, Module};
use bytemuck::{Pod, Zeroable};

/// `Params` of `sums.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    count: u32,
    width: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["count", "width"];
}

/// Enqueued: adds up `count` records of `width` f64 each into the `width` f64 of `totals`.
pub(crate) fn add(gpu: &mut Gpu, partials: Part, count: u64, width: u32, totals: Part) -> Result<(), Error> {
    let params = Params { count: count as u32, width };
    gpu.launch(Kernel { module: Module::Sums, entry: "add_partials" }, params, &[partials, totals], 1)
}
