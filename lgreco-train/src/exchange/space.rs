//! The memory in which an exchange computes, on the host or on a device.
//!
//! Adding gradients to a window's mean is not an op, because a window has many steps and a flight belongs to one step. On a GPU,
//! lgreco-cuda's `window.rs` keeps the mean, and `device_rows.rs` enqueues the measurement of rows.

use super::program::{Op, Part, Program};
use super::request::Request;
use super::spec::Spec;
use crate::Error;

/// One rank's memory of one bucket: its layers, the buffers of its message [parts](Part), and everything else that the [ops](Op)
/// need. An implementation is called a *space*. [`Host`](super::Host) is the space in host memory.
///
/// A `Flight` is the same for every kind of memory. A flight calls [`run`](Space::run) for each op, and [`request`](Space::request)
/// for each collective. A flight passes the collective's memory on without reading it, and reads no results between ops. So a space
/// may execute an op immediately, as the host does, or enqueue it after earlier ops and collectives.
///
/// # On a device
/// * `run` enqueues one or a few launches for all layers of the bucket, and returns `Ok` unless enqueuing fails. `request` returns
///   pointers. Neither waits. Only `Op::Judge` of [`Part::Greetings`] may wait. This op is part of an exchange when settings have
///   changed or lengths depend on values. The op reads these lengths, and reports a disagreement at once.
/// * The device keeps an error in a status word. While the word is set, most ops do nothing. `Op::PutSlip` writes the word's error
///   code instead of 0. `Op::Judge` sets the word if status records have an error or differ. All collectives still take place, so
///   that all ranks perform the same collectives and know the status in the end. A trainer reads the status once per step, or
///   later.
/// * The state for the next step changes only if no error is set. `Op::Remember`, which comes last, changes factors. Residuals
///   change at the end of the flight.
/// * Payloads and random bits are the same on all spaces that use [`Moment::stream`](super::Moment::stream),
///   [`Moment::piece_stream`](super::Moment::piece_stream) and [`Program::pieces`]. [`Slip`](super::Slip) defines how status
///   records are written.
///
/// # Why the trait is so small
/// A space is the memory of one bucket, not a factory of tensors and workspaces. A space manages its layers and buffers itself, so
/// the trait needs types only for the memory of collectives. A space that borrows its memory, like `Host`, is created for each
/// call. A space that owns its memory lives longer.
pub trait Space {
    /// f32 to be summed: `&mut [f32]` on the host, a pointer and a length on a device.
    type Values<'a>
    where
        Self: 'a;
    /// bf16 to be summed.
    type Halves<'a>
    where
        Self: 'a;
    /// Bytes to be sent.
    type Bytes<'a>
    where
        Self: 'a;

    /// The layers, in the bucket's order.
    fn layers(&self) -> impl Iterator<Item = Spec<'_>> + Clone;

    /// A checksum of PowerSGD's factors, which must be the same on all ranks. 0 if computing it would require waiting for a device.
    fn remembered(&self) -> u64 {
        0
    }

    /// `Err` unless the memory is large enough for this exchange, and fits the layers.
    ///
    /// # Errors
    /// Errors of the space.
    fn check(&self, program: &Program) -> Result<(), Error>;

    /// Executes an op, or enqueues it.
    ///
    /// # Errors
    /// An error of this rank's part or, for [`Op::Judge`], of any rank's part. On a device, an error of enqueuing the op.
    fn run(&mut self, op: Op, program: &Program) -> Result<(), Error>;

    /// The collective of this part, as [`Program::round`] defines it, on the space's memory. [`Program::part_len`]
    /// returns the lengths per rank. If lengths of [`Part::Payloads`] depend on values, they are not known before this
    /// call.
    ///
    /// # Errors
    /// Errors of the space.
    fn request(&mut self, part: Part, program: &Program) -> Result<RequestOf<'_, Self>, Error>;
}

/// A [`Request`] on a space's memory.
pub type RequestOf<'a, S> = Request<'a, <S as Space>::Values<'a>, <S as Space>::Halves<'a>, <S as Space>::Bytes<'a>>;
