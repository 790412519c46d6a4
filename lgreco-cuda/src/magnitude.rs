//! Finds the largest magnitude, and the first element that is too large, by launches of `magnitude.cu`.

use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_blocks};
use crate::kernels::{Kernel, Module};
use crate::tensor::{Input, Tensor};
use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};

/// Bits of f32 infinity. Magnitudes of finite numbers have smaller bits.
pub(crate) const INFINITY: u32 = 0x7f80_0000;

/// The struct `Params` in `magnitude.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    count: u32,
    least: u32,
    header_0: u32,
    header_1: u32,
    header_2: u32,
    header_3: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] =
        &["dtype", "count", "least", "header_0", "header_1", "header_2", "header_3"];
}

fn launch(gpu: &mut Gpu, tensor: &Tensor, entry: &'static str, least: u32, result: Part) -> Result<()> {
    let params = Params { dtype: tensor.dtype as u32, count: tensor.elements, least, ..Params::default() };
    let blocks = looping_blocks(u64::from(tensor.elements).div_ceil(4));
    gpu.launch(Kernel { module: Module::Magnitude, entry }, params, &[tensor.part, result], blocks)
}

/// Enqueued: the first word of `result` becomes the maximum of itself and the bits of the largest magnitude.
pub(crate) fn largest(gpu: &mut Gpu, tensor: &Tensor, result: Part) -> Result<()> {
    launch(gpu, tensor, "largest", 0, result)
}

/// Enqueued: writes the header of `payload`. The first word of `status` has the largest magnitude. If the largest
/// magnitude is at least `least`, the kernel also writes the position and the value of the first such element to
/// `fault`. The part `fault` has eight bytes, which must be zeros before the call. [`told`] decodes these bytes.
pub(crate) fn end_payload(
    gpu: &mut Gpu,
    tensor: &Tensor,
    least: u32,
    [status, fault]: [Part; 2],
    ([header_0, header_1, header_2, header_3], payload): ([u32; 4], Part),
) -> Result<()> {
    let (dtype, count) = (tensor.dtype as u32, tensor.elements);
    let params = Params { dtype, count, least, header_0, header_1, header_2, header_3 };
    let (kernel, parts) =
        (Kernel { module: Module::Magnitude, entry: "end_payload" }, [tensor.part, status, fault, payload]);
    gpu.launch(kernel, params, &parts, looping_blocks(u64::from(tensor.elements)))
}

/// Decodes the position and the value of the element that [`end_payload`] found.
pub(crate) fn told([low, high]: [u32; 2]) -> (usize, f32) {
    (!high as usize, f32::from_bits(low))
}

/// Done: returns the position and the value of the first element whose magnitude is at least `least`, if any.
pub(crate) fn first_from(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Option<(usize, f32)>> {
    let tensor = input.tensor(gpu)?;
    let result = gpu.scratch(Scratch::Results, 4)?;
    gpu.clear(result)?;
    launch(gpu, &tensor, "position", least, result)?;
    let found = !gpu.read::<u32>(result)?[0];
    if found == u32::MAX {
        return Ok(None);
    }
    Ok(Some((found as usize, tensor.value(gpu, found as usize)?)))
}

/// If the largest magnitude is not finite, returns `Err` with the first element that is not finite.
pub(crate) fn check_finite(gpu: &mut Gpu, input: &Input<'_>, largest: u32) -> Result<()> {
    if largest < INFINITY {
        return Ok(());
    }
    match first_from(gpu, input, INFINITY)? {
        Some((index, value)) => Err(lgreco::Error::NonFinite { index, value }.into()),
        None => Err(changed()),
    }
}

/// Returns the error for the first element of magnitude `least` or more, which is too large for the type of sent
/// values.
pub(crate) fn overflow(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Error> {
    match first_from(gpu, input, least)? {
        Some((index, value)) => Ok(lgreco::Error::ElementOverflow { index, value }.into()),
        None => Err(changed()),
    }
}

fn changed() -> Error {
    Error::Memory { what: "of a gradient was written while it was in use" }
}
