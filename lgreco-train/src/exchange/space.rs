//! The memory in which an exchange computes: on the host, or on a device.
//!
//! Adding gradients to a window's mean is not an op, because a window has many steps and a flight belongs to one. On a GPU,
//! lgreco-cuda's `window.rs` keeps the mean, and `device_rows.rs` enqueues the measurement of rows.

use super::layer::Spec;
use super::program::{Op, Part, Program};
use super::request::Request;
use crate::Error;

/// One rank's memory of one bucket: its layers, the buffers of its message [parts](Part), and whatever else the [ops](Op) need. `Host`
/// is the host's.
///
/// A `Flight` is the same for every kind of memory. It calls [`run`](Space::run) for each op, and [`request`](Space::request) for each
/// collective, whose memory it passes on unread. It never reads a result between ops. So a space may do an op at once, as the host
/// does, or enqueue it behind earlier ops and collectives.
///
/// # On a device
/// * `run` enqueues one or a few launches for all layers of the bucket, and returns `Ok` unless that fails. `request` returns pointers.
///   Neither waits. Only `Op::Judge` of [`Part::Greetings`] may, which comes when settings change. It reads lengths that depend on
///   values, and reports a disagreement at once.
/// * The device keeps an error in a status word. While it is set, most ops do nothing. `Op::PutSlip` writes its code in place of 0, and
///   `Op::Judge` sets it if slips have an error or differ. All collectives still take place, so that all ranks make the same ones and
///   have a status in the end. A trainer reads it once per step, or later.
/// * The state for the next step changes only if the status allows it: factors by `Op::Remember`, which comes last, and residuals at
///   the end of the flight.
/// * Payloads and random bits are the same on all spaces that use [`Moment::stream`](super::Moment::stream),
///   [`Moment::piece_stream`](super::Moment::piece_stream) and [`Program::pieces`]. [`Slip`](super::Slip) defines how slips are
///   written.
///
/// # Why the trait is so small
/// A space is the memory of one bucket, not a factory of tensors and workspaces. It manages its layers and buffers itself, so the trait
/// needs types only for the memory of collectives. A space that borrows, like the host's, is made for each call. A space that owns
/// its memory stays.
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

    /// A checksum of PowerSGD's factors, which all ranks must have alike. 0 if that would need waiting for a device.
    fn remembered(&self) -> u64 {
        0
    }

    /// `Err` unless the memory is large enough for this program, and fits the layers.
    ///
    /// # Errors
    /// The space's.
    fn check(&self, program: &Program) -> Result<(), Error>;

    /// Does an op, or enqueues it.
    ///
    /// # Errors
    /// An error of this rank's part, or of some rank's for [`Op::Judge`]. On devices, an error of enqueuing.
    fn run(&mut self, op: Op, program: &Program) -> Result<(), Error>;

    /// The collective of this part, as [`Program::round`] defines it, on the space's memory. [`Program::part_len`] gives lengths per
    /// rank, except those of [`Part::Payloads`] that depend on values.
    ///
    /// # Errors
    /// The space's.
    fn request(&mut self, part: Part, program: &Program) -> Result<RequestOf<'_, Self>, Error>;
}

/// A [`Request`] on a space's memory.
pub type RequestOf<'a, S> = Request<'a, <S as Space>::Values<'a>, <S as Space>::Halves<'a>, <S as Space>::Bytes<'a>>;
