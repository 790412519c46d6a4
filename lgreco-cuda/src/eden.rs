//! EDEN: launches of `eden.cu`.
//!
//! A thread block takes a chunk of 4096 values: one EDEN block, or the shorter EDEN blocks at the end of a tensor. The
//! thread block holds the chunk in shared memory. The Walsh–Hadamard transform takes three steps of four levels each,
//! in registers. Additions have the same order as in the core, so payloads are bit for bit the core's payloads.

use crate::device::Part;
use crate::gpu::{Gpu, looping_pieces};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};
use lgreco::compress::eden::{BLOCK, Eden, Scale};
use lgreco::compress::wire::HEADER_LEN;
use lgreco::rng::Stream;

/// The struct `Params` in `eden.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    count: u32,
    bits: u32,
    least_squares: u32,
    widths: u32,
    seed_low: u32,
    seed_high: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] =
        &["dtype", "count", "bits", "least_squares", "widths", "seed_low", "seed_high"];
}

impl Params {
    /// Parameters of a launch that measures rows. For rows, the kernel reads the other fields from the table of layers.
    pub(crate) fn of_rows(scale: Scale, widths: u32) -> Self {
        Params { least_squares: least_squares(scale), widths, ..Params::default() }
    }
}

pub(crate) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Eden, entry }
}

fn params(tensor: &Tensor, eden: Eden) -> Params {
    Params {
        dtype: tensor.dtype as u32,
        count: tensor.elements,
        bits: eden.bits.into(),
        least_squares: least_squares(eden.scale),
        ..Params::default()
    }
}

/// Returns 1 for [`Scale::LeastSquares`] and 0 for any other scale, as the kernels expect.
pub(crate) fn least_squares(scale: Scale) -> u32 {
    u32::from(scale == Scale::LeastSquares)
}

/// Number of chunks. A thread block processes one chunk at a time.
pub(crate) fn chunks(elements: u32) -> u64 {
    u64::from(elements).div_ceil(BLOCK as u64)
}

/// The payload's seed, low half first.
pub(crate) fn seed(stream: Stream) -> [u32; 2] {
    let seed = lgreco::compress::eden::seed(stream);
    [seed as u32, (seed >> 32) as u32]
}

/// Enqueued: writes all of `payload` except the header. The two words of `status` must be zeros before the call;
/// [`check`] reads them afterwards.
pub(crate) fn encode(
    gpu: &mut Gpu,
    tensor: &Tensor,
    eden: Eden,
    stream: Stream,
    payload: Part,
    status: Part,
) -> Result<()> {
    let [seed_low, seed_high] = seed(stream);
    let params = Params { seed_low, seed_high, ..params(tensor, eden) };
    let parts = [tensor.part, payload.from(HEADER_LEN as u64), status];
    gpu.launch(kernel("encode_rotated"), params, &parts, looping_pieces(chunks(tensor.elements)))
}

/// Enqueued: decodes a payload with a checked header into `target`. The two words of `status` must be zeros before the
/// call. For a valid payload, `status` stays zero: all scales and decoded values are finite, and unused bits are 0.
pub(crate) fn decode(gpu: &mut Gpu, eden: Eden, payload: Part, target: &Tensor, status: Part) -> Result<()> {
    let parts = [payload.from(HEADER_LEN as u64), target.part, status];
    gpu.launch(kernel("decode_rotated"), params(target, eden), &parts, looping_pieces(chunks(target.elements)))
}

/// Returns the error of a gradient, if any. `found` reports the first gradient value that is not finite. `overflow` is
/// 0 if all blocks decode to finite values. Otherwise `overflow` is `!position`, where `position` is the start of the
/// first block that does not decode to finite values. Of two errors, the error at the earlier position is returned.
pub(crate) fn check(found: Result<()>, overflow: u32) -> Result<()> {
    let comes_later = |index: usize| index as u64 >= u64::from(!overflow);
    match &found {
        Err(Error::Core(lgreco::Error::NonFinite { index, .. })) if !comes_later(*index) => found,
        Ok(()) | Err(Error::Core(lgreco::Error::NonFinite { .. })) if overflow != 0 => {
            Err(lgreco::Error::Overflow { what: "a decoded value" }.into())
        }
        _ => found,
    }
}
