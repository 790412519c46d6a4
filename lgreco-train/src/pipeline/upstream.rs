//! The end of a cut that sends activations and receives gradients.

use super::counters::Counters;
use super::end::{End, Role};
use super::half::in_step;
use super::message::{Direction, HEADER_LEN, Message, Mode};
use super::setting::CutSetting;
use crate::Error;
use crate::gradient::Values;

/// How activations are sent when nothing is to be learnt from them. Neither way reads or changes a memory.
///
/// ```
/// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
/// # use lgreco_train::gradient::Values;
/// # let setting = CutSetting::new(0, 1, 2);
/// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
/// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
/// let len = above.evaluate(Evaluation::Compressed, Values::F32(&[0.1, 0.2]), &mut workspace, &mut forward)?;
/// assert_eq!(below.evaluate(&forward[..len], &mut [0.0; 2])?, Evaluation::Compressed);
/// # Ok::<(), lgreco_train::Error>(())
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
/// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
/// # use lgreco_train::gradient::Values;
/// # let setting = CutSetting::new(0, 1, 2);
/// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
/// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
/// let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
/// let message = &forward[..sent.len]; // goes to the other end
/// assert_eq!(sent.ticket, 0);
/// # Ok::<(), lgreco_train::Error>(())
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
/// use lgreco_train::Error;
/// use lgreco_train::pipeline::{CutSetting, LinkMemory, RowStorage, Upstream};
/// use lgreco_train::gradient::Values;
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
#[derive(Clone, Debug)]
pub struct Upstream(End);

impl Upstream {
    /// An end without a past. Both ends must be made with the same setting and `generation`; a run that resumes without
    /// [saved](Upstream::save) ends takes a generation it has not used, so that an old end is noticed.
    ///
    /// ```
    /// use lgreco_train::pipeline::{CutSetting, Upstream};
    /// let end = Upstream::new(CutSetting::new(0, 8, 512), 0)?;
    /// assert_eq!(end.setting().batch, 8);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`CutSetting::check`]; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
    pub fn new(setting: CutSetting, generation: u32) -> Result<Upstream, Error> {
        End::new(setting, generation, Role::Upstream).map(Upstream)
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
    /// assert_eq!(above.setting(), &setting);
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
    /// assert!(above.workspace_len() >= 2); // a batch twice, in words of two values
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
    /// assert!(above.message_len() > lgreco_train::pipeline::HEADER_LEN);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn message_len(&self) -> usize {
        self.0.forward.message_len()
    }

    /// Compresses the activations of a micro-batch (whole samples, row-major) into `message`, of at least
    /// [`message_len`](Upstream::message_len) bytes. Under [`LinkMemory::Samples`](super::LinkMemory::Samples) every
    /// sample has an id, or `None` if it is deliberately not remembered; otherwise `samples` is not used.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// let mut values = [0.0; 2];
    /// assert_eq!(below.receive(&forward[..sent.len], &mut workspace, &mut values)?, sent.ticket);
    /// assert_eq!(values, [1.0, 2.0]); // the ends of a min–max grid are exact
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
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
        let end = &mut self.0;
        end.tickets.check_room()?;
        let ticket = end.forward.sequence;
        let written = end.forward.write(end.clock, ticket, ticket, activations, samples, &[], workspace, message)?;
        end.forward.remember(&written, activations, samples, workspace)?;
        let body = &message[HEADER_LEN..written.len];
        end.tickets.open(ticket, &end.setting, written.header.shape.rows(), body)?;
        Ok(Sent { ticket, len: written.len })
    }

    /// Writes the message of a micro-batch in flight once more, when it was lost or for another forward pass
    /// of the same step over the same values: the same bytes, however many passes there are. Nothing changes.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let activations = Values::F32(&[1.0, 2.0]);
    /// let sent = above.send(activations, &[], &mut workspace, &mut forward)?;
    /// let mut again = vec![0; above.message_len()];
    /// let len = above.repeat(sent.ticket, activations, &[], &mut workspace, &mut again)?;
    /// assert_eq!(again[..len], forward[..sent.len]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
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
        let end = &self.0;
        end.check_repeat(ticket)?;
        let written = end.forward.write(end.clock, ticket, ticket, activations, samples, &[], workspace, message)?;
        Ok(written.len)
    }

    /// Writes a message of evaluation and returns its length. Nothing changes.
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
    /// Those of [`send`](Upstream::send) on values and buffers.
    pub fn evaluate(
        &self,
        evaluation: Evaluation,
        activations: Values<'_>,
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<usize, Error> {
        self.0.forward.evaluate(self.0.clock, evaluation.mode(), activations, workspace, message)
    }

    /// Number of samples of a micro-batch in flight: its gradients are as many times the features.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// assert_eq!(above.samples(sent.ticket)?, 1);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn samples(&self, ticket: u64) -> Result<usize, Error> {
        self.0.tickets.get(ticket, self.0.forward.features()).map(|(shape, _)| shape.rows())
    }

    /// How many gradients a message holds: at most `batch` × `features` of the setting. What to make room for before a
    /// message is received, since a damaged header may state any number.
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
    /// assert_eq!(above.values_len(&backward[..len])?, 2);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Message::parse`]; [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message is
    /// another cut's or made under another setting; [`Error::OutOfStep`] when it is of another generation.
    pub fn values_len(&self, message: &[u8]) -> Result<usize, Error> {
        self.0.backward.values_len(self.0.clock, message)
    }

    /// Decompresses a message of gradients into `gradients`, and returns its ticket, which is then given back.
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
    /// Those of [`Message::parse`]; [`CoreError::PayloadHeader`](crate::CoreError::PayloadHeader) when the message is
    /// another cut's or made under another setting; [`Error::OutOfStep`] when it is not the next one of this
    /// generation, or EF21's ends differ; [`Error::NotInFlight`];
    /// [`CoreError::PayloadBody`](crate::CoreError::PayloadBody) on a body that no cut writes;
    /// [`CoreError::Length`](crate::CoreError::Length); [`CoreError::Overflow`](crate::CoreError::Overflow). Nothing
    /// has changed then, and `gradients` holds nothing of use.
    pub fn receive(&mut self, message: &[u8], workspace: &mut [u64], gradients: &mut [f32]) -> Result<u64, Error> {
        let end = &mut self.0;
        let message = Message::parse(message)?;
        end.backward.check_numbers(end.clock, end.backward.sequence, &message)?;
        let ticket = message.header.ticket;
        let (shape, indices) = end.tickets.get(ticket, end.backward.features())?;
        in_step("number of samples", shape.rows() as u64, message.header.shape.rows() as u64)?;
        end.backward.read(&message, indices, workspace, gradients)?;
        end.backward.take_note(&message, gradients)?;
        end.tickets.close(ticket)?;
        Ok(ticket)
    }

    /// Gives back the ticket of a micro-batch whose gradients will never come. The other end must do the same.
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
    /// above.forget(sent.ticket)?;
    /// assert!(above.forget(sent.ticket).is_err());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn forget(&mut self, ticket: u64) -> Result<(), Error> {
        self.0.tickets.close(ticket)
    }

    /// Ends an optimiser step: what the step's messages made of the samples is remembered from now on. Both ends must
    /// commit between the same two activation messages.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// assert!(above.commit_step().is_err()); // nothing has gone through the cut
    /// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
    /// # let mut values = [0.0; 2];
    /// # let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut values)?;
    /// above.commit_step()?;
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`](crate::CoreError::Parameter) when no activations went through the cut in this step: it
    /// is configured, but not in use.
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
    /// above.commit_step()?;
    /// let mut row = [0.0; 2];
    /// assert!(above.remembered(9, &mut row)? && !above.remembered(8, &mut row)?);
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
    /// above.commit_step()?;
    /// assert_eq!(above.remembered_samples().collect::<Vec<_>>(), [9]);
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
    /// assert_eq!(above.counters(Direction::Forward).messages, 1);
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
    /// assert_eq!(above.memory_bytes(), 2 * 4); // a row of two f32
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    /// Exact number of bytes that [`save`](Upstream::save) writes now.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let mut saved = vec![0; above.saved_len()];
    /// assert_eq!(above.save(&mut saved)?, saved.len());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn saved_len(&self) -> usize {
        self.0.saved_len()
    }

    /// Writes the whole end to `bytes[..saved_len]` and returns that length. Both ends must be saved after the same
    /// step.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let mut saved = vec![0; above.saved_len()];
    /// above.save(&mut saved)?;
    /// assert_eq!(saved[..4], *b"LSE\x02");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MidStep`] when updates wait for [`commit_step`](Upstream::commit_step) or tickets are in flight;
    /// [`CoreError::Length`](crate::CoreError::Length).
    pub fn save(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        self.0.save(bytes)
    }

    /// The end that [`save`](Upstream::save) wrote, continuing bit for bit; any bytes may be given.
    ///
    /// ```
    /// # use lgreco_train::pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
    /// # use lgreco_train::gradient::Values;
    /// # let setting = CutSetting::new(0, 1, 2);
    /// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
    /// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
    /// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
    /// let mut saved = vec![0; above.saved_len()];
    /// above.save(&mut saved)?;
    /// assert!(Upstream::restore(setting, &saved).is_ok());
    /// assert!(Upstream::restore(CutSetting::new(0, 1, 3), &saved).is_err()); // another number of features
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OtherSetting`] when it was saved under another setting;
    /// [`CoreError::Checksum`](crate::CoreError::Checksum) when an end was saved but is not as it was;
    /// [`CoreError::SavedState`](crate::CoreError::SavedState), [`CoreError::Length`](crate::CoreError::Length),
    /// [`CoreError::Parameter`](crate::CoreError::Parameter), [`Error::FeedbackRule`] and
    /// [`CoreError::TooManyElements`](crate::CoreError::TooManyElements) on bytes that no end writes;
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
    pub fn restore(setting: CutSetting, bytes: &[u8]) -> Result<Upstream, Error> {
        End::restore(setting, bytes, Role::Upstream).map(Upstream)
    }
}
