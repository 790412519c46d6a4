//! Finds the largest magnitude and the first element that is too large, and adds up squares, by launches of
//! `magnitude.wgsl`.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::gpu::Gpu;
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::params::params;
use crate::sums::{self, RECORD, Segment};
use crate::tensor::{Input, Piece, Tensor};
use wgpu::Buffer;

/// Bits of f32 infinity. As integers, the bits of finite magnitudes are smaller.
pub(crate) const INFINITY: u32 = 0x7f80_0000;

params! {
    /// The struct `Params` in `magnitude.wgsl`, with the same layout.
    offset, dtype, first, count, least, result, record,
}

/// Returns one task for each piece of a tensor.
fn tasks(
    batch: &Batch<'_>,
    tensor: &Tensor,
    least: u32,
    (results, result): (&Buffer, usize),
) -> impl Iterator<Item = Task<Params>> {
    let (dtype, results) = (tensor.dtype as u32, Part::from(results));
    tensor.all(batch).into_iter().map(move |piece| {
        let params = Params {
            offset: piece.skip,
            dtype,
            first: piece.first as u32,
            count: piece.count as u32,
            least,
            result: result as u32,
            record: 0,
        };
        Task::new(params, &[(1, piece.part.clone()), (2, results.clone())], piece.groups())
    })
}

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::Magnitude, entry }
}

/// Records the search for the largest magnitude of each tensor. Each tensor comes with the index of a word of
/// `results`. The kernel raises this word to at least the bits of the largest magnitude.
pub(crate) fn largest(batch: &mut Batch<'_>, tensors: &[(&Tensor, usize)], results: &Buffer) {
    let tasks = tensors.iter().flat_map(|&(tensor, result)| tasks(batch, tensor, 0, (results, result))).collect();
    batch.run(kernel("largest"), tasks);
}

/// Returns the position and the f32 value of the first element whose magnitude is at least `least`, if any.
pub(crate) fn first_from(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Option<(usize, f32)>, Error> {
    let mut batch = Batch::new(gpu)?;
    let tensor = input.tensor(&mut batch)?;
    let results = batch.scratch(Scratch::Results, 4)?;
    batch.clear(&results, 4);
    let tasks = tasks(&batch, &tensor, least, (&results, 0)).collect();
    batch.run(kernel("position"), tasks);
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

/// If the largest magnitude is not finite, returns `Err` with the first element that is not finite.
pub(crate) fn check_finite(gpu: &mut Gpu, input: &Input<'_>, largest: u32) -> Result<(), Error> {
    if largest < INFINITY {
        return Ok(());
    }
    match first_from(gpu, input, INFINITY)? {
        Some((index, value)) => Err(lgreco::Error::NonFinite { index, value }.into()),
        None => Err(Error::Refused("it found a value that is not finite, then found none".into())),
    }
}

/// Returns the error for the first element of magnitude `least` or more, which is too large for the type in which it
/// would be sent.
pub(crate) fn overflow(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Error, Error> {
    match first_from(gpu, input, least)? {
        Some((index, value)) => Ok(lgreco::Error::ElementOverflow { index, value }.into()),
        None => Err(Error::Refused("it found a value that is too large, then found none".into())),
    }
}

/// Records the commands that add up the squares of each tensor: each workgroup writes one record, and the records are
/// added. Each tensor comes with the number of a record of `results`. That record gets the largest magnitude, and the
/// next record gets eight sums.
pub(crate) fn squares(batch: &mut Batch<'_>, tensors: &[(&Tensor, usize)], results: &Buffer) -> Result<(), Error> {
    let groups = |tensor: &Tensor| tensor.all(batch).iter().map(Piece::groups).sum::<usize>();
    let output = sums::bytes(tensors.iter().map(|(tensor, _)| groups(tensor)).sum());
    let output = batch.scratch(Scratch::Output, output)?;
    let (mut all, mut segments, mut record) = (Vec::new(), Vec::new(), 0);
    for &(tensor, result) in tensors {
        let first = record;
        for mut task in tasks(batch, tensor, 0, (results, RECORD * result)) {
            task.params.record = record as u32;
            task.bindings.push((3, (&output).into()));
            record += task.groups[0];
            all.push(task);
        }
        segments.push(Segment { first, count: record - first, target: result + 1 });
    }
    batch.run(kernel("squares"), all);
    sums::finish(batch, output, &segments, results)
}
