//! The end of a cut that receives activations and sends gradients.

use super::end::{Below, End};
use super::message::{Message, Mode};
use super::upstream::Evaluation;
use crate::Error;
use crate::gradient::Values;
use lgreco::error::expect_len;

/// The stage below a cut. How it works together with the one above stands at the [module](super).
///
/// ```
/// use lgreco_pipeline::Error;
/// use lgreco_pipeline::{CutSetting, Downstream, Upstream};
/// use lgreco_pipeline::gradient::Values;
/// let setting = CutSetting::new(0, 1, 2);
/// let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// let (mut workspace, mut message) = (vec![0; above.workspace_len()], vec![0; above.message_len()]);
/// let mut values = [0.0; 2];
/// above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut message)?; // and is lost
/// let sent = above.send(Values::F32(&[3.0, 4.0]), &[], &mut workspace, &mut message)?;
/// let found = below.receive(&message[..sent.len], &mut workspace, &mut values);
/// assert_eq!(found, Err(Error::OutOfStep { what: "sequence number", expected: 0, found: 1 }));
/// // The first can be made again.
/// let len = above.repeat(0, Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut message)?;
/// assert_eq!(below.receive(&message[..len], &mut workspace, &mut values), Ok(0));
/// assert_eq!(values, [1.0, 2.0]);
/// # Ok::<(), Error>(())
/// ```
pub type Downstream = End<Below>;

impl End<Below> {
    /// Decompresses a message of activations into `activations`, which the stage is to compute with, and returns its
    /// ticket. [`values_len`](Downstream::values_len) tells how many there are.
    ///
    /// # Errors
    /// Those of [`Message::parse`]; [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message is
    /// another cut's or made under another setting; [`Error::OutOfStep`] when it is not the next one of this generation
    /// and step, or EF21's ends differ; [`Error::SampleOutOfStep`] and [`Error::DuplicateSample`] under AQ-SGD;
    /// [`Error::TooManyInFlight`]; [`CoreError::PayloadBody`](crate::CoreError::PayloadBody) on a body that no cut
    /// writes; [`CoreError::Length`](crate::CoreError::Length); [`CoreError::Overflow`](crate::CoreError::Overflow);
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). Nothing has changed then, and `activations` holds
    /// nothing of use.
    ///
    /// # Complexity
    /// Decode; with a memory about two passes. Allocates only while a memory of samples grows.
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

    /// Decompresses a message that [`Upstream::repeat`](super::Upstream::repeat) wrote, or the first one again: the same
    /// activations, however many passes there are. Nothing changes.
    ///
    /// # Errors
    /// Those of [`receive`](Downstream::receive); [`Error::NotInFlight`]; [`Error::FeedbackRule`] under a memory by
    /// position.
    pub fn repeat(&self, message: &[u8], workspace: &mut [u64], activations: &mut [f32]) -> Result<(), Error> {
        let message = Message::parse(message)?;
        let ticket = message.header.sequence;
        self.forward.check_numbers(self.clock, ticket, &message)?;
        self.check_repeat(ticket)?;
        self.forward.read(&message, &[], workspace, activations)
    }

    /// Decompresses a message of evaluation and returns which it is. Nothing changes.
    ///
    /// # Errors
    /// Those of [`receive`](Downstream::receive) on messages and buffers.
    pub fn evaluate(&self, message: &[u8], activations: &mut [f32]) -> Result<Evaluation, Error> {
        let message = Message::parse(message)?;
        self.forward.read_evaluation(self.clock, &message, activations)?;
        Ok(match message.header.mode {
            Mode::EvalPlain => Evaluation::Plain,
            _ => Evaluation::Compressed,
        })
    }

    /// Compresses the gradients of a micro-batch (as many as its activations) into `message`, of at least
    /// [`message_len`](Downstream::message_len) bytes, returns the message's length and gives the ticket back. The
    /// micro-batches' gradients may go back in any order.
    ///
    /// # Errors
    /// [`Error::NotInFlight`]; [`CoreError::NonFinite`](crate::CoreError::NonFinite) with the first NaN or infinity;
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) and
    /// [`CoreError::ElementOverflow`](crate::CoreError::ElementOverflow) when values leave the range of a format;
    /// [`CoreError::Length`](crate::CoreError::Length). Nothing has changed then.
    ///
    /// # Complexity
    /// Encode; with a memory also decode and about four passes.
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
