//! The end of a cut that receives activations and sends gradients.

use super::end::{Below, End};
use super::message::{Message, Mode};
use super::upstream::Evaluation;
use crate::Error;
use crate::gradient::Values;
use lgreco::error::expect_len;

/// The stage below a cut. The [crate documentation](super) describes how the two ends work together.
///
/// ```
/// use lgreco_pipeline::Error;
/// use lgreco_pipeline::{CutSetting, Downstream, Upstream};
/// use lgreco_pipeline::gradient::Values;
/// let setting = CutSetting::new(0, 1, 2);
/// let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// let (mut workspace, mut message) = (vec![0; above.workspace_len()], vec![0; above.message_len()]);
/// let mut values = [0.0; 2];
/// above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut message)?; // this message is lost
/// let sent = above.send(Values::F32(&[3.0, 4.0]), &[], &mut workspace, &mut message)?;
/// let found = below.receive(&message[..sent.len], &mut workspace, &mut values);
/// assert_eq!(found, Err(Error::OutOfStep { what: "sequence number", expected: 0, found: 1 }));
/// // The first message can be made again.
/// let len = above.repeat(0, Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut message)?;
/// assert_eq!(below.receive(&message[..len], &mut workspace, &mut values), Ok(0));
/// assert_eq!(values, [1.0, 2.0]);
/// # Ok::<(), Error>(())
/// ```
pub type Downstream = End<Below>;

impl End<Below> {
    /// Decompresses a message of activations into `activations`. The stage computes with these values. Returns the
    /// message's ticket. [`values_len`](Downstream::values_len) returns the number of values.
    ///
    /// # Errors
    /// The errors of [`Message::parse`]. [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message
    /// belongs to another cut or another setting. [`Error::OutOfStep`] when the message is not the next one of this
    /// generation and step, or when the EF21 estimates of the two ends differ. [`Error::SampleOutOfStep`] and
    /// [`Error::DuplicateSample`] under AQ-SGD. [`Error::TooManyInFlight`] when no ticket is free.
    /// [`CoreError::PayloadBody`](crate::CoreError::PayloadBody) on a body that no cut writes.
    /// [`CoreError::Length`](crate::CoreError::Length) on a buffer of the wrong length.
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) when values leave the range of f32.
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory) when memory cannot be allocated. After an error, the
    /// end is unchanged, and `activations` must not be used.
    ///
    /// # Complexity
    /// The time of one decoding. With a memory, about two passes over the values are added. Allocates only while a
    /// memory of samples grows.
    pub fn receive(&mut self, message: &[u8], workspace: &mut [u64], activations: &mut [f32]) -> Result<u64, Error> {
        let message = Message::parse(message)?;
        let ticket = self.forward.sequence;
        self.forward.check_numbers(self.clock, ticket, &message)?;
        self.tickets.check_room()?;
        self.forward.read(&message, &[], workspace, activations)?;
        self.forward.take_note(&message, activations)?;
        self.tickets.open(ticket, &self.setting, message.header.shape.rows(), message.body)?;
        Ok(ticket)
    }

    /// Decompresses a message again: the original message, or a copy that [`Upstream::repeat`](super::Upstream::repeat)
    /// wrote. The call gives the same activations every time, and changes nothing.
    ///
    /// # Errors
    /// The errors of [`receive`](Downstream::receive). [`Error::NotInFlight`] when the ticket is unknown.
    /// [`Error::FeedbackRule`] under a memory by position.
    pub fn repeat(&self, message: &[u8], workspace: &mut [u64], activations: &mut [f32]) -> Result<(), Error> {
        let message = Message::parse(message)?;
        let ticket = message.header.sequence;
        self.forward.check_numbers(self.clock, ticket, &message)?;
        self.check_repeat(ticket)?;
        self.forward.read(&message, &[], workspace, activations)
    }

    /// Decompresses a message of evaluation and returns its kind. Changes nothing.
    ///
    /// # Errors
    /// The errors of [`receive`](Downstream::receive) that concern messages and buffers.
    pub fn evaluate(&self, message: &[u8], activations: &mut [f32]) -> Result<Evaluation, Error> {
        let message = Message::parse(message)?;
        self.forward.read_evaluation(self.clock, &message, activations)?;
        Ok(match message.header.mode {
            Mode::EvalPlain => Evaluation::Plain,
            _ => Evaluation::Compressed,
        })
    }

    /// Compresses the gradients of a micro-batch into `message`, closes the ticket, and returns the message's length in
    /// bytes. The number of gradients must equal the number of activations. `message` has at least
    /// [`message_len`](Downstream::message_len) bytes. The gradients of different micro-batches may be sent in any
    /// order.
    ///
    /// # Errors
    /// [`Error::NotInFlight`] when the ticket is unknown. [`CoreError::NonFinite`](crate::CoreError::NonFinite) with
    /// the first NaN or infinity. [`CoreError::Overflow`](crate::CoreError::Overflow) and
    /// [`CoreError::ElementOverflow`](crate::CoreError::ElementOverflow) when values leave the range of a format.
    /// [`CoreError::Length`](crate::CoreError::Length) on a buffer of the wrong length. After an error, the end is
    /// unchanged.
    ///
    /// # Complexity
    /// The time of one encoding. With a memory, a decoding and about four passes over the values are added.
    pub fn send(
        &mut self,
        ticket: u64,
        gradients: Values<'_>,
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<usize, Error> {
        let (shape, indices) = self.tickets.get(ticket, self.backward.features())?;
        expect_len("gradients", shape.elements(), gradients.len())?;
        let sequence = self.backward.sequence;
        let written = self.backward.write(self.clock, sequence, ticket, gradients, &[], indices, workspace, message)?;
        self.backward.remember(&written, gradients, &[], workspace)?;
        self.tickets.close(ticket)?;
        Ok(written.len)
    }
}
