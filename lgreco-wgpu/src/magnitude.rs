//! The largest magnitude, and the first element that is too large: `magnitude.wgsl`.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::gpu::Gpu;
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::params::params;
use crate::tensor::{Input, Tensor};
use wgpu::Buffer;

/// Bits of f32 infinity; magnitudes of finite numbers are smaller.
pub(crate) const INFINITY: u32 = 0x7f80_0000;

params! {
    /// `Params` of `magnitude.wgsl`.
    offset, dtype, first, count, least, result,
}

fn dispatch(batch: &mut Batch<'_>, tensor: &Tensor, entry: &'static str, least: u32, results: &Buffer, result: usize) {
    for piece in tensor.all(batch) {
        let params = Params {
            offset: piece.skip,
            dtype: tensor.dtype as u32,
            first: piece.first as u32,
            count: piece.count as u32,
            least,
            result: result as u32,
        };
        let bindings = [(1, piece.part.clone()), (2, results.into())];
        batch.dispatch(Kernel { shader: Shader::Magnitude, entry }, params, &bindings, piece.groups());
    }
}

/// Word `result` becomes at least the bits of the largest magnitude.
pub(crate) fn largest(batch: &mut Batch<'_>, tensor: &Tensor, results: &Buffer, result: usize) {
    dispatch(batch, tensor, "largest", 0, results, result);
}

/// The first element whose magnitude is not below `least`, if there is one, and its f32 value.
pub(crate) fn first_from(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Option<(usize, f32)>, Error> {
    let mut batch = Batch::new(gpu)?;
    let tensor = input.tensor(&mut batch)?;
    let results = batch.scratch(Scratch::Results, 4)?;
    batch.clear(&results, 4);
    dispatch(&mut batch, &tensor, "position", least, &results, 0);
    let bytes = batch.read(&[Part { buffer: results, offset: 0, size: 4 }])?;
    let found = !bytemuck::pod_read_unaligned::<u32>(&bytes);
    if found == u32::MAX {
        return Ok(None);
    }
    let batch = Batch::new(gpu)?;
    let bytes = batch.read(&[tensor.word_of(found as usize)])?;
    let word: u32 = bytemuck::pod_read_unaligned(&bytes);
    Ok(Some((found as usize, tensor.value_in(word, found as usize))))
}

/// `Err` with the first offender when the largest magnitude is not finite.
pub(crate) fn check_finite(gpu: &mut Gpu, input: &Input<'_>, largest: u32) -> Result<(), Error> {
    if largest < INFINITY {
        return Ok(());
    }
    match first_from(gpu, input, INFINITY)? {
        Some((index, value)) => Err(lgreco_core::Error::NonFinite { index, value }.into()),
        None => Err(Error::Refused("it found a value that is not finite, then found none".into())),
    }
}

/// What is wrong with the first element from `least` on: it is too large for the type it is sent in.
pub(crate) fn overflow(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Error, Error> {
    match first_from(gpu, input, least)? {
        Some((index, value)) => Ok(lgreco_core::Error::ElementOverflow { index, value }.into()),
        None => Err(Error::Refused("it found a value that is too large, then found none".into())),
    }
}
