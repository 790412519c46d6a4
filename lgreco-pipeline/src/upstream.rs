//! The end of a cut that sends activations and receives gradients.

use super::end::{Above, End};
use super::half::in_step;
use super::message::{HEADER_LEN, Message, Mode};
use crate::Error;
use crate::gradient::Values;

/// How activations are sent when nothing is to be learnt from them. Neither way reads or changes a memory.
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
    /// By the forward codec, without memory. A model trained with TopK only works like this: the codec has become part
    /// of it.
    Compressed,
    /// Uncompressed.
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

/// An activation message that has been written.
///
/// ```
/// # use lgreco_pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
/// # use lgreco_pipeline::gradient::Values;
/// # let setting = CutSetting::new(0, 1, 2);
/// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
/// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
/// let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
/// let message = &forward[..sent.len]; // goes to the other end
/// assert_eq!(sent.ticket, 0);
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The micro-batch's number; its gradients come back under it.
    pub ticket: u64,
    /// Bytes of the message.
    pub len: usize,
}

/// The stage above a cut. How it works together with the one below stands at the [module](super).
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
/// // Saved after the step, when no gradients are outstanding.
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
    /// Compresses the activations of a micro-batch (whole samples, row-major) into `message`, of at least
    /// [`message_len`](Upstream::message_len) bytes. Under [`LinkMemory::Samples`](super::LinkMemory::Samples) every
    /// sample has an id, or `None` if it is deliberately not remembered; otherwise `samples` is not used.
    ///
    /// # Errors
    /// [`CoreError::NonFinite`](crate::CoreError::NonFinite) with the first NaN or infinity;
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) and
    /// [`CoreError::ElementOverflow`](crate::CoreError::ElementOverflow) when values leave the range of a format;
    /// [`CoreError::Length`](crate::CoreError::Length) on activations that are not whole samples or not as many as the
    /// setting says, on missing ids and short buffers; [`Error::DuplicateSample`]; [`Error::TooManyInFlight`];
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). Nothing has changed then.
    ///
    /// # Complexity
    /// Encode; with a memory also decode and about four passes. Allocates only while a memory of samples grows.
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

    /// Writes the message of a micro-batch in flight once more, when it was lost or for another forward pass
    /// of the same step over the same values: the same bytes, however many passes there are. Nothing changes.
    ///
    /// # Errors
    /// Those of [`send`](Upstream::send); [`Error::NotInFlight`]; [`Error::OutOfStep`] when the step has been committed
    /// since; [`Error::FeedbackRule`] under a memory by position, which does not keep what it was.
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

    /// Writes a message of evaluation and returns its length. Nothing changes.
    ///
    /// # Errors
    /// Those of [`send`](Upstream::send) on values and buffers.
    pub fn evaluate(
        &self,
        evaluation: Evaluation,
        activations: Values<'_>,
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<usize, Error> {
        self.forward.evaluate(self.clock, evaluation.mode(), activations, workspace, message)
    }

    /// Number of samples of a micro-batch in flight: its gradients are as many times the features.
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn samples(&self, ticket: u64) -> Result<usize, Error> {
        self.tickets.get(ticket, self.forward.features()).map(|(shape, _)| shape.rows())
    }

    /// Decompresses a message of gradients into `gradients`, and returns its ticket, which is then given back.
    ///
    /// # Errors
    /// Those of [`Message::parse`]; [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message is
    /// another cut's or made under another setting; [`Error::OutOfStep`] when it is not the next one of this
    /// generation, or EF21's ends differ; [`Error::NotInFlight`];
    /// [`CoreError::PayloadBody`](crate::CoreError::PayloadBody) on a body that no cut writes;
    /// [`CoreError::Length`](crate::CoreError::Length); [`CoreError::Overflow`](crate::CoreError::Overflow). Nothing
    /// has changed then, and `gradients` holds nothing of use.
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
