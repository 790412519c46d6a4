//! The end of a cut that sends activations and receives gradients.

use super::end::{Above, End};
use super::half::in_step;
use super::message::{HEADER_LEN, Message, Mode};
use crate::Error;
use crate::gradient::Values;

/// How activations are sent in evaluation. Neither way reads or changes a memory.
///
/// ```
/// # use lgreco_pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
/// # use lgreco_pipeline::gradient::Values;
/// # let setting = CutSetting::new(0, 1, 2);
/// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
/// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
/// let len = above.evaluate(Evaluation::Compressed, Values::F32(&[0.1, 0.2]), &mut workspace, &mut forward)?;
/// assert_eq!(below.evaluate(&forward[..len], &mut [0.0; 2])?, Evaluation::Compressed);
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evaluation {
    /// The forward codec compresses the activations, without memory. A model trained with TopK works only with this
    /// kind of evaluation, because the codec has become part of the model.
    Compressed,
    /// The activations are sent without compression.
    Plain,
}

impl Evaluation {
    const fn mode(self) -> Mode {
        match self {
            Evaluation::Compressed => Mode::EvalCompressed,
            Evaluation::Plain => Mode::EvalPlain,
        }
    }
}

/// Ticket and length of a written activation message.
///
/// ```
/// # use lgreco_pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
/// # use lgreco_pipeline::gradient::Values;
/// # let setting = CutSetting::new(0, 1, 2);
/// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
/// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
/// let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
/// let message = &forward[..sent.len]; // send this to the other end
/// assert_eq!(sent.ticket, 0);
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Ticket of the micro-batch. The message with the micro-batch's gradients has the same ticket.
    pub ticket: u64,
    /// Bytes of the message.
    pub len: usize,
}

/// The stage above a cut. The [crate documentation](super) describes how the two ends work together.
///
/// ```
/// use lgreco_pipeline::Error;
/// use lgreco_pipeline::{CutSetting, LinkMemory, RowStorage, Upstream};
/// use lgreco_pipeline::gradient::Values;
/// let mut setting = CutSetting::new(0, 1, 4);
/// setting.forward.memory = LinkMemory::Samples { capacity: 10, storage: RowStorage::F32 };
/// let mut upstream = Upstream::new(setting, 0)?;
/// let (mut workspace, mut message) = (vec![0; upstream.workspace_len()], vec![0; upstream.message_len()]);
/// let activations = Values::F32(&[1.0, 2.0, 3.0, 4.0]);
/// let sent = upstream.send(activations, &[Some(9)], &mut workspace, &mut message)?;
///
/// // Another pass of the step makes the same message.
/// let mut again = vec![0; upstream.message_len()];
/// assert_eq!(upstream.repeat(sent.ticket, activations, &[Some(9)], &mut workspace, &mut again)?, sent.len);
/// assert_eq!(again, message);
///
/// // Saving is possible after the step, when no gradients are outstanding.
/// let mut saved = vec![0; upstream.saved_len()];
/// assert_eq!(upstream.save(&mut saved), Err(Error::MidStep { what: "saving", pending: 2 }));
/// upstream.forget(sent.ticket)?;
/// upstream.commit_step()?;
/// saved.resize(upstream.saved_len(), 0);
/// upstream.save(&mut saved)?;
/// let restored = Upstream::restore(setting, &saved)?;
/// assert_eq!(restored.remembered_samples().collect::<Vec<_>>(), [9]);
/// # Ok::<(), Error>(())
/// ```
pub type Upstream = End<Above>;

impl End<Above> {
    /// Compresses the activations of a micro-batch into `message`. Activations are whole samples, row-major. `message`
    /// has at least [`message_len`](Upstream::message_len) bytes. Under
    /// [`LinkMemory::Samples`](super::LinkMemory::Samples), `samples` has an id for every sample, or `None` to keep the
    /// sample out of the memory. Under other memories, `samples` is not used.
    ///
    /// # Errors
    /// [`CoreError::NonFinite`](crate::CoreError::NonFinite) with the first NaN or infinity.
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) and
    /// [`CoreError::ElementOverflow`](crate::CoreError::ElementOverflow) when values leave the range of a format.
    /// [`CoreError::Length`](crate::CoreError::Length) when activations are not whole samples, when the setting does
    /// not allow their number, when ids are missing, or when buffers are too short. [`Error::DuplicateSample`] when an
    /// id occurs twice. [`Error::TooManyInFlight`] when no ticket is free.
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory) when memory cannot be allocated. After an error, the
    /// end is unchanged.
    ///
    /// # Complexity
    /// The time of one encoding. With a memory, a decoding and about four passes over the values are added. Allocates
    /// only while a memory of samples grows.
    pub fn send(
        &mut self,
        activations: Values<'_>,
        samples: &[Option<u64>],
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<Sent, Error> {
        self.tickets.check_room()?;
        let ticket = self.forward.sequence;
        let written = self.forward.write(self.clock, ticket, ticket, activations, samples, &[], workspace, message)?;
        self.forward.remember(&written, activations, samples, workspace)?;
        let body = &message[HEADER_LEN..written.len];
        self.tickets.open(ticket, &self.setting, written.header.shape.rows(), body)?;
        Ok(Sent { ticket, len: written.len })
    }

    /// Writes the message of a micro-batch in flight again. Use this call when the message was lost, or for another
    /// forward pass of the same step with the same values. The call gives the same bytes every time, and changes
    /// nothing.
    ///
    /// # Errors
    /// The errors of [`send`](Upstream::send). [`Error::NotInFlight`] when the ticket is unknown. [`Error::OutOfStep`]
    /// when the step has been committed since the message. [`Error::FeedbackRule`] under a memory by position, because
    /// the first message has changed that memory.
    pub fn repeat(
        &self,
        ticket: u64,
        activations: Values<'_>,
        samples: &[Option<u64>],
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<usize, Error> {
        self.check_repeat(ticket)?;
        let written = self.forward.write(self.clock, ticket, ticket, activations, samples, &[], workspace, message)?;
        Ok(written.len)
    }

    /// Writes a message of evaluation and returns its length in bytes. Changes nothing.
    ///
    /// # Errors
    /// The errors of [`send`](Upstream::send) that concern values and buffers.
    pub fn evaluate(
        &self,
        evaluation: Evaluation,
        activations: Values<'_>,
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<usize, Error> {
        self.forward.evaluate(self.clock, evaluation.mode(), activations, workspace, message)
    }

    /// Number of samples of a micro-batch in flight. The micro-batch has samples × features gradients.
    ///
    /// # Errors
    /// [`Error::NotInFlight`] when the ticket is unknown.
    pub fn samples(&self, ticket: u64) -> Result<usize, Error> {
        self.tickets.get(ticket, self.forward.features()).map(|(shape, _)| shape.rows())
    }

    /// Decompresses a message of gradients into `gradients`. Closes the micro-batch's ticket and returns this ticket.
    ///
    /// # Errors
    /// The errors of [`Message::parse`]. [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message
    /// belongs to another cut or another setting. [`Error::OutOfStep`] when the message is not the next one of this
    /// generation, or when the EF21 estimates of the two ends differ. [`Error::NotInFlight`] when the message's ticket
    /// is unknown. [`CoreError::PayloadBody`](crate::CoreError::PayloadBody) on a body that no cut writes.
    /// [`CoreError::Length`](crate::CoreError::Length) on a buffer of the wrong length.
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) when values leave the range of f32. After an error, the end
    /// is unchanged, and `gradients` must not be used.
    pub fn receive(&mut self, message: &[u8], workspace: &mut [u64], gradients: &mut [f32]) -> Result<u64, Error> {
        let message = Message::parse(message)?;
        self.backward.check_numbers(self.clock, self.backward.sequence, &message)?;
        let ticket = message.header.ticket;
        let (shape, indices) = self.tickets.get(ticket, self.backward.features())?;
        in_step("number of samples", shape.rows() as u64, message.header.shape.rows() as u64)?;
        self.backward.read(&message, indices, workspace, gradients)?;
        self.backward.take_note(&message, gradients)?;
        self.tickets.close(ticket)?;
        Ok(ticket)
    }
}
