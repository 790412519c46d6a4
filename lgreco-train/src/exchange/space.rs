//! Where an exchange computes: memory of one kind, and the ops that are done in it.
//!
//! Collecting gradients for a plan is not an op: a plan is about the steps of a window, not about one bucket's flight. On a GPU
//! lgreco-cuda's `window.rs` keeps the mean, and `device_rows.rs` enqueues its rows.

use super::layer::Spec;
use super::program::{Op, Part, Program};
use super::request::Request;
use crate::Error;

/// One rank's memory of one bucket, and what an exchange does in it: its layers, what the [parts](Part) of its messages
/// are made in, and whatever else the [ops](Op) need. `Host` is the host's.
///
/// A `Flight` is the same for every kind of memory: it calls [`run`](Space::run) for one op after the
/// other and [`request`](Space::request) where a collective comes, whose memory it passes on without looking at it. It
/// never reads a result between ops. So a space may do an op at once, as the host does, or enqueue it behind those
/// before, where the collectives are enqueued too.
///
/// # On a device
/// * `run` enqueues one or a few launches for all layers of the bucket, and returns `Ok` unless that fails. `request`
///   hands out pointers. Neither waits; only `Op::Judge` of [`Part::Greetings`] may, which comes when settings change:
///   for the lengths in it, where the values decide them, and to report a disagreement at once.
/// * What goes wrong on the device is kept there, in a status word. While it is set, ops do nothing, but `Op::PutSlip`
///   tells its code in place of 0, and `Op::Judge` sets it where slips tell of failures or differ. The collectives come
///   all the same: so all ranks make the same ones, and all have a status in the end. A trainer reads it once per step
///   or later.
/// * What is remembered for the next step changes where the status allows it: factors by `Op::Remember`, which comes
///   last; residuals when the flight has ended.
/// * Payloads and random bits are the same on all spaces if they take [`Moment::stream`](super::Moment::stream),
///   [`Moment::piece_stream`](super::Moment::piece_stream) and [`Program::pieces`]; [`Slip`](super::Slip) says how
///   slips are written.
///
/// # Why it is so plain
/// A space is the memory of one bucket on its way, not a factory of tensors and workspaces: its layers and buffers are
/// its own business, so the trait needs types for nothing but what collectives are handed. A space that borrows, like
/// the host's, is made anew for each call from what it borrows; one that owns its memory stays.
pub trait Space {
    /// f32 that are summed: `&mut [f32]` on the host, a pointer and a length on a device.
    type Values<'a>
    where
        Self: 'a;
    /// bf16 that are summed.
    type Halves<'a>
    where
        Self: 'a;
    /// Bytes that travel as they are.
    type Bytes<'a>
    where
        Self: 'a;

    /// The layers, in the bucket's order.
    fn layers(&self) -> impl Iterator<Item = Spec<'_>> + Clone;

    /// A checksum of what layers remember of the last step and all ranks must have alike: PowerSGD's factors. 0 where
    /// that takes waiting for a device.
    fn remembered(&self) -> u64 {
        0
    }

    /// Whether the memory suffices for this program, and belongs to the layers.
    ///
    /// # Errors
    /// The space's.
    fn check(&self, program: &Program) -> Result<(), Error>;

    /// Does an op, or enqueues it.
    ///
    /// # Errors
    /// What is wrong with this rank's part, or for [`Op::Judge`] with some rank's; on devices what hinders the
    /// enqueuing.
    fn run(&mut self, op: Op, program: &Program) -> Result<(), Error>;

    /// The collective on this part: which it is says [`Program::round`], its memory is the space's. Where lengths per
    /// rank are asked for, [`Program::part_len`] tells them; but for [`Part::Payloads`] whose lengths the values
    /// decide.
    ///
    /// # Errors
    /// The space's.
    fn request(&mut self, part: Part, program: &Program) -> Result<RequestOf<'_, Self>, Error>;
}

/// A [`Request`] on a space's memory.
pub type RequestOf<'a, S> = Request<'a, <S as Space>::Values<'a>, <S as Space>::Halves<'a>, <S as Space>::Bytes<'a>>;
