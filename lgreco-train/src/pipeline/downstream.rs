//! The end of a cut that receives activations and sends gradients.

use super::counters::Counters;
use super::end::{End, Role};
use super::message::{Direction, Message, Mode};
use super::setting::CutSetting;
use super::upstream::Evaluation;
use crate::Error;
use crate::gradient::Values;

/// The stage below a cut. How it works together with the one above stands at the [module](super).
///
/// ```
/// use lgreco_train::Error;
/// use lgreco_train::pipeline::{CutSetting, Downstream, Upstream};
/// use lgreco_train::gradient::Values;
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
#[derive(Clone, Debug)]
pub struct Downstream(End);

impl Downstream {
    /// An end without a past, as [`Upstream::new`](super::Upstream::new).
    ///
    /// ```
    /// use lgreco_train::pipeline::{CutSetting, Downstream};
    /// let end = Downstream::new(CutSetting::new(0, 8, 512), 0)?;
    /// assert_eq!(end.setting().batch, 8);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`CutSetting::check`]; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
    pub fn new(setting: CutSetting, generation: u32) -> Result<Downstream, Error> {
        End::new(setting, generation, Role::Downstream).map(Downstream)
    }

    /// The setting.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// assert_eq!(below.setting(), &setting);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub const fn setting(&self) -> &CutSetting {
        &self.0.setting
    }

    /// Words of workspace that any call needs.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// assert!(below.workspace_len() >= 2); // a batch twice, in words of two values
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn workspace_len(&self) -> usize {
        self.0.workspace_len()
    }

    /// Bytes of the longest message that this end writes.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// assert!(below.message_len() > lgreco_train::pipeline::HEADER_LEN);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn message_len(&self) -> usize {
        self.0.backward.message_len()
    }

    /// How many activations a message holds, whatever its mode: at most `batch` × `features` of the setting. What to make
    /// room for before a message is received, since a damaged header may state any number.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// assert_eq!(below.values_len(&forward[..sent.len])?, 2);
    /// forward[24..28].copy_from_slice(&u32::MAX.to_le_bytes()); // features
    /// assert!(below.values_len(&forward[..sent.len]).is_err());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Message::parse`]; [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message is
    /// another cut's or made under another setting; [`Error::OutOfStep`] when it is of another generation.
    pub fn values_len(&self, message: &[u8]) -> Result<usize, Error> {
        self.0.forward.values_len(self.0.clock, message)
    }

    /// Decompresses a message of activations into `activations`, which the stage is to compute with, and returns its
    /// ticket. [`values_len`](Downstream::values_len) tells how many there are.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// let mut values = [0.0; 2];
    /// assert_eq!(below.receive(&forward[..sent.len], &mut workspace, &mut values)?, sent.ticket);
    /// assert!(below.receive(&forward[..sent.len], &mut workspace, &mut values).is_err()); // not the next one
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
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
        let end = &mut self.0;
        let message = Message::parse(message)?;
        let ticket = end.forward.sequence;
        end.forward.check_numbers(end.clock, ticket, &message)?;
        end.tickets.check_room()?;
        end.forward.read(&message, &[], workspace, activations)?;
        end.forward.take_note(&message, activations)?;
        end.tickets.open(ticket, &end.setting, message.header.shape.rows(), message.body)?;
        Ok(ticket)
    }

    /// Decompresses a message that [`Upstream::repeat`](super::Upstream::repeat) wrote, or the first one again: the same
    /// activations, however many passes there are. Nothing changes.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// # let mut values = [0.0; 2];
    /// # let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut values)?;
    /// let mut again = [0.0; 2];
    /// below.repeat(&forward[..sent.len], &mut workspace, &mut again)?;
    /// assert_eq!(again, values);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`receive`](Downstream::receive); [`Error::NotInFlight`]; [`Error::FeedbackRule`] under a memory by
    /// position.
    pub fn repeat(&self, message: &[u8], workspace: &mut [u64], activations: &mut [f32]) -> Result<(), Error> {
        let end = &self.0;
        let message = Message::parse(message)?;
        let ticket = message.header.sequence;
        end.forward.check_numbers(end.clock, ticket, &message)?;
        end.check_repeat(ticket)?;
        end.forward.read(&message, &[], workspace, activations)
    }

    /// Decompresses a message of evaluation and returns which it is. Nothing changes.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let len = above.evaluate(Evaluation::Plain, Values::F32(&[0.1, 0.2]), &mut workspace, &mut forward)?;
    /// let mut values = [0.0; 2];
    /// assert_eq!(below.evaluate(&forward[..len], &mut values)?, Evaluation::Plain);
    /// assert_eq!(values, [0.1, 0.2]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`receive`](Downstream::receive) on messages and buffers.
    pub fn evaluate(&self, message: &[u8], activations: &mut [f32]) -> Result<Evaluation, Error> {
        let message = Message::parse(message)?;
        self.0.forward.read_evaluation(self.0.clock, &message, activations)?;
        Ok(match message.header.mode {
            Mode::EvalPlain => Evaluation::Plain,
            _ => Evaluation::Compressed,
        })
    }

    /// Compresses the gradients of a micro-batch (as many as its activations) into `message`, of at least
    /// [`message_len`](Downstream::message_len) bytes, returns the message's length and gives the ticket back. The
    /// micro-batches' gradients may go back in any order.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// # let mut values = [0.0; 2];
    /// # let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut values)?;
    /// let len = below.send(ticket, Values::F32(&[0.5, -0.5]), &mut workspace, &mut backward)?;
    /// let mut gradients = [0.0; 2];
    /// assert_eq!(above.receive(&backward[..len], &mut workspace, &mut gradients)?, ticket);
    /// assert_eq!(gradients, [0.5, -0.5]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
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
        let end = &mut self.0;
        let (shape, indices) = end.tickets.get(ticket, end.backward.features())?;
        crate::error::expect_len("gradients", shape.elements(), gradients.len())?;
        let sequence = end.backward.sequence;
        let written = end.backward.write(end.clock, sequence, ticket, gradients, &[], indices, workspace, message)?;
        end.backward.remember(&written, gradients, &[], workspace)?;
        end.tickets.close(ticket)?;
        Ok(written.len)
    }

    /// Gives back the ticket of a micro-batch whose gradients will never be sent. The other end must do the same.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// # let mut values = [0.0; 2];
    /// # let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut values)?;
    /// below.forget(sent.ticket)?;
    /// assert!(below.forget(sent.ticket).is_err());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn forget(&mut self, ticket: u64) -> Result<(), Error> {
        self.0.tickets.close(ticket)
    }

    /// Ends an optimiser step, as [`Upstream::commit_step`](super::Upstream::commit_step).
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// assert!(below.commit_step().is_err()); // nothing has gone through the cut
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// # let mut values = [0.0; 2];
    /// # let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut values)?;
    /// below.commit_step()?;
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`](crate::CoreError::Parameter) when no activations went through the cut in this step.
    pub fn commit_step(&mut self) -> Result<(), Error> {
        self.0.commit_step()
    }

    /// Reads what is remembered of a sample into `values`; false, and `values` untouched, when nothing is.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Downstream, LinkMemory, RowStorage, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let mut setting = CutSetting::new(0, 1, 2);
    /// # setting.forward.memory = LinkMemory::Samples { capacity: 10, storage: RowStorage::F32 };
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len()];
    /// # let mut forward = vec![0; above.message_len()];
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[Some(9)], &mut workspace, &mut forward)?;
    /// # below.receive(&forward[..sent.len], &mut workspace, &mut [0.0; 2])?;
    /// below.commit_step()?;
    /// let mut row = [0.0; 2];
    /// assert!(below.remembered(9, &mut row)? && !below.remembered(8, &mut row)?);
    /// assert_eq!(row, [1.0, 2.0]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Length`](crate::CoreError::Length) when `values` has not one place per feature.
    pub fn remembered(&self, sample: u64, values: &mut [f32]) -> Result<bool, Error> {
        self.0.remembered(sample, values)
    }

    /// Ids of the samples remembered, least recently updated first.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Downstream, LinkMemory, RowStorage, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let mut setting = CutSetting::new(0, 1, 2);
    /// # setting.forward.memory = LinkMemory::Samples { capacity: 10, storage: RowStorage::F32 };
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len()];
    /// # let mut forward = vec![0; above.message_len()];
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[Some(9)], &mut workspace, &mut forward)?;
    /// # below.receive(&forward[..sent.len], &mut workspace, &mut [0.0; 2])?;
    /// below.commit_step()?;
    /// assert_eq!(below.remembered_samples().collect::<Vec<_>>(), [9]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn remembered_samples(&self) -> impl Iterator<Item = u64> {
        self.0.remembered_samples()
    }

    /// What this end has done in one direction.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// # let mut values = [0.0; 2];
    /// # let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut values)?;
    /// assert_eq!(below.counters(Direction::Forward).messages, 1);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn counters(&self, direction: Direction) -> &Counters {
        self.0.counters(direction)
    }

    /// Bytes of what this end remembers, without tickets.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Downstream, LinkMemory, RowStorage, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let mut setting = CutSetting::new(0, 1, 2);
    /// # setting.forward.memory = LinkMemory::Samples { capacity: 10, storage: RowStorage::F32 };
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len()];
    /// # let mut forward = vec![0; above.message_len()];
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[Some(9)], &mut workspace, &mut forward)?;
    /// # below.receive(&forward[..sent.len], &mut workspace, &mut [0.0; 2])?;
    /// assert_eq!(below.memory_bytes(), 2 * 4); // a row of two f32
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    /// Exact number of bytes that [`save`](Downstream::save) writes now.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let mut saved = vec![0; below.saved_len()];
    /// assert_eq!(below.save(&mut saved)?, saved.len());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn saved_len(&self) -> usize {
        self.0.saved_len()
    }

    /// Writes the whole end, as [`Upstream::save`](super::Upstream::save).
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let mut saved = vec![0; below.saved_len()];
    /// below.save(&mut saved)?;
    /// assert_eq!(saved[..4], *b"LSE\x02");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MidStep`], [`CoreError::Length`](crate::CoreError::Length).
    pub fn save(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        self.0.save(bytes)
    }

    /// The end that [`save`](Downstream::save) wrote, as [`Upstream::restore`](super::Upstream::restore).
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let mut saved = vec![0; below.saved_len()];
    /// below.save(&mut saved)?;
    /// assert!(Downstream::restore(setting, &saved).is_ok());
    /// assert!(Downstream::restore(CutSetting::new(0, 1, 3), &saved).is_err()); // another number of features
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn restore(setting: CutSetting, bytes: &[u8]) -> Result<Downstream, Error> {
        End::restore(setting, bytes, Role::Downstream).map(Downstream)
    }
}
