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
    pub(crate) count: u32,
    pub(crate) width: u32,
    pub(crate) apart: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["count", "width", "apart"];
}

/// Enqueued: adds up `count` records of `width` f64 each into the `width` f64 of `totals`.
pub(crate) fn add(gpu: &mut Gpu, partials: Part, count: u64, width: u32, totals: Part) -> Result<(), Error> {
    add_each(gpu, partials, 1, Params { count: count as u32, width, apart: 0 }, totals)
}

/// Enqueued: [`add`] for `sets` of records, one after another, into totals that lie `apart` f64 apart.
pub(crate) fn add_each(gpu: &mut Gpu, partials: Part, sets: u64, params: Params, totals: Part) -> Result<(), Error> {
    gpu.launch(Kernel { module: Module::Sums, entry: "add_partials" }, params, &[partials, totals], sets)
}
