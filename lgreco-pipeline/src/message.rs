//! Self-contained messages of a cut. All fields are little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `LC` |
//! | 2 | version, 1 |
//! | 3 | [`Direction`] |
//! | 4 | [`Mode`] |
//! | 5 | memory: 0 none, 1 error feedback, 2 EF-mixed, 3 EF21, 4 AQ-SGD |
//! | 6 | the sender's element type, in which uncompressed values are sent |
//! | 7 | 0 |
//! | 8..16 | codec, as [`Codec::to_bytes`] |
//! | 16..20 | cut |
//! | 20..24 | samples |
//! | 24..28 | features |
//! | 28..32 | generation |
//! | 32..40 | sequence number in this direction, 0 in evaluation |
//! | 40..48 | ticket of the micro-batch, 0 in evaluation |
//! | 48..56 | activations in training: number of committed steps; else 0 |
//! | 56..60 | EF21: checksum of the estimate before this message, else 0 |
//! | 60..64 | 0 |
//!
//! The body is usually the output of the codec. In [`Mode::EvalPlain`], the body has the values in the sender's element
//! type. Under AQ-SGD, a body in training has three parts. First come 16 bytes per sample: the id (8 bytes), the
//! checksum of the sample's row in memory, or 0 (4 bytes), the kind (1 byte), and 3 zero bytes. The kind is 0 for a
//! first visit, 1 for a change and 2 for a sample without id. Then come the rows of first visits in the sender's
//! element type, and then the codec's body for all other samples.

use super::codec::Codec;
use crate::gradient::{Dtype, Shape};
use crate::{CoreError, Error};
use lgreco::error::{expect_len, expect_room};

/// Number of bytes before the body.
pub const HEADER_LEN: usize = 64;
/// Bytes per sample in AQ-SGD's messages, in addition to its values.
///
/// ```
/// use lgreco_pipeline::{CutSetting, LinkMemory, RowStorage, SAMPLE_ENTRY_LEN, Upstream};
/// let mut setting = CutSetting::new(0, 8, 64);
/// let plain = Upstream::new(setting, 0)?.message_len();
/// setting.forward.memory = LinkMemory::Samples { capacity: 10, storage: RowStorage::F32 };
/// assert_eq!(Upstream::new(setting, 0)?.message_len(), plain + 8 * SAMPLE_ENTRY_LEN);
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
pub const SAMPLE_ENTRY_LEN: usize = 16;
const MAGIC: u16 = u16::from_le_bytes(*b"LC");
const VERSION: u8 = 1;

/// The direction of a message. The discriminants are part of messages.
///
/// ```
/// use lgreco_pipeline::Direction;
/// assert_eq!((Direction::Forward as u8, Direction::Backward as u8), (0, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// Activations.
    Forward = 0,
    /// Gradients.
    Backward = 1,
}

/// The purpose of a message. The discriminants are part of messages.
///
/// ```
/// use lgreco_pipeline::Mode;
/// assert_eq!([Mode::Train, Mode::EvalCompressed, Mode::EvalPlain].map(|mode| mode as u8), [0, 1, 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Training: memories are used and updated.
    Train = 0,
    /// Evaluation of the model with compression, but without memory. A model trained with TopK must be evaluated in
    /// this mode.
    EvalCompressed = 1,
    /// Evaluation without compression.
    EvalPlain = 2,
}

/// How a sample is sent under AQ-SGD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// The sample is sent uncompressed, and added to the memory.
    First,
    /// The sample is sent as a change of its row in memory, which has this checksum.
    Change { checksum: u32 },
    /// The sample is compressed without memory.
    Unremembered,
}

/// A message's header.
///
/// ```
/// # use lgreco_pipeline::{CutSetting, Direction, Downstream, Evaluation, Upstream};
/// # use lgreco_pipeline::gradient::Values;
/// # let setting = CutSetting::new(0, 1, 2);
/// # let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
/// # let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
/// # let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
/// # let sent = above.send(Values::F32(&[1.0, 2.0]), &[], &mut workspace, &mut forward)?;
/// let header = lgreco_pipeline::Message::parse(&forward[..sent.len])?.header;
/// assert_eq!((header.sequence, header.shape.cols()), (0, 2));
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Direction of the message.
    pub direction: Direction,
    /// Purpose of the message.
    pub mode: Mode,
    /// Kind of memory: 0 none, 1 error feedback, 2 EF-mixed, 3 EF21, 4 AQ-SGD.
    pub memory: u8,
    /// The sender's element type.
    pub values: Dtype,
    /// Codec that compressed the values.
    pub codec: Codec,
    /// Number of the cut.
    pub cut: u32,
    /// Samples × features.
    pub shape: Shape,
    /// Generation of the cut. A run that resumes without saved ends must use a new generation.
    pub generation: u32,
    /// Number of earlier messages in this direction.
    pub sequence: u64,
    /// Ticket of the micro-batch: the sequence number of its forward message.
    pub ticket: u64,
    /// Number of steps committed before this message; 0 for gradients.
    pub step: u64,
    /// Checksum of EF21's estimate; else 0.
    pub checksum: u32,
}

impl Header {
    /// Whether the body begins with one entry per sample.
    pub(super) fn has_samples(&self) -> bool {
        self.memory == 4 && self.mode == Mode::Train
    }

    /// Writes the header to the first [`HEADER_LEN`] bytes of `message`. With this call and [`Codec::encode`], programs
    /// without an allocator can make messages of a cut without memory. The ends of a cut write headers themselves.
    ///
    /// ```
    /// use lgreco_pipeline::{CutSetting, Direction, Evaluation, HEADER_LEN, Header, Message, Mode, Upstream};
    /// use lgreco_pipeline::gradient::{Dtype, Shape, Values};
    /// let (setting, values) = (CutSetting::new(0, 1, 4), [1.0, 2.0, 3.0, 4.0]);
    /// let codec = setting.forward.codec;
    /// let header = Header {
    ///     direction: Direction::Forward,
    ///     mode: Mode::EvalCompressed,
    ///     memory: 0,
    ///     values: Dtype::F32,
    ///     codec,
    ///     cut: 0,
    ///     shape: Shape::new(1, 4)?,
    ///     generation: 0,
    ///     sequence: 0,
    ///     ticket: 0,
    ///     step: 0,
    ///     checksum: 0,
    /// };
    /// let mut message = vec![0; HEADER_LEN + codec.body_len(1, 4)?];
    /// header.write(&mut message)?;
    /// codec.encode(&values, 4, &[], &mut [], &mut message[HEADER_LEN..])?;
    /// assert_eq!(Message::parse(&message)?.header, header);
    ///
    /// let above = Upstream::new(setting, 0)?;
    /// let (mut workspace, mut same) = (vec![0; above.workspace_len()], vec![0; above.message_len()]);
    /// let len = above.evaluate(Evaluation::Compressed, Values::F32(&values), &mut workspace, &mut same)?;
    /// assert_eq!(same[..len], message);
    /// # Ok::<(), lgreco_pipeline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Length`] when `message` is shorter than a header.
    pub fn write(&self, message: &mut [u8]) -> Result<(), Error> {
        expect_room("message bytes", HEADER_LEN, message.len())?;
        let header = &mut message[..HEADER_LEN];
        header.fill(0);
        header[..2].copy_from_slice(&MAGIC.to_le_bytes());
        let fields = [VERSION, self.direction as u8, self.mode as u8, self.memory, self.values as u8];
        header[2..7].copy_from_slice(&fields);
        header[8..16].copy_from_slice(&self.codec.to_bytes());
        let (samples, features) = (self.shape.rows() as u32, self.shape.cols() as u32);
        for (at, word) in [self.cut, samples, features, self.generation].into_iter().enumerate() {
            header[16 + 4 * at..20 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        for (at, word) in [self.sequence, self.ticket, self.step].into_iter().enumerate() {
            header[32 + 8 * at..40 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        header[56..60].copy_from_slice(&self.checksum.to_le_bytes());
        Ok(())
    }
}

/// A message with a checked header. The message's body has the length that the header implies.
///
/// ```
/// use lgreco_pipeline::{CoreError, Error};
/// use lgreco_pipeline::{CutSetting, Direction, Evaluation, Message, Upstream};
/// use lgreco_pipeline::gradient::Values;
/// let upstream = Upstream::new(CutSetting::new(3, 1, 2), 0)?;
/// let (mut workspace, mut bytes) = (vec![0; upstream.workspace_len()], vec![0; upstream.message_len()]);
/// let len = upstream.evaluate(Evaluation::Plain, Values::F32(&[1.0, 2.0]), &mut workspace, &mut bytes)?;
/// let message = Message::parse(&bytes[..len])?;
/// assert_eq!((message.header.cut, message.header.direction), (3, Direction::Forward));
/// assert_eq!(message.body, [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
/// let cut_off = Message::parse(&bytes[..len - 1]);
/// assert!(matches!(cut_off, Err(Error::Core(CoreError::Length { expected: 8, found: 7, .. }))));
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The header.
    pub header: Header,
    /// The bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Splits bytes into header and body. Any bytes may be given. A damaged header may state 2^32 − 1 elements in a
    /// short message. To allocate memory for a message, use `values_len` of an end, because an end knows the setting.
    ///
    /// # Errors
    /// [`CoreError::Length`] on too few or too many bytes. [`CoreError::PayloadHeader`] and [`CoreError::PayloadField`]
    /// on a header of another version, or on a header that no cut writes. [`CoreError::Parameter`] and
    /// [`CoreError::TooManyElements`] on parameters out of range. [`CoreError::PayloadBody`] on an entry of a sample
    /// that no cut writes.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Error> {
        expect_room("message bytes", HEADER_LEN, bytes.len())?;
        let (head, body) = bytes.split_at(HEADER_LEN);
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| word(at) as u64 | (word(at + 4) as u64) << 32;
        let at_most = |what, largest: u64, found: u8| match u64::from(found) {
            found if found > largest => Err(CoreError::PayloadField { what, largest, found }),
            _ => Ok(()),
        };
        expect("magic", MAGIC as u64, word(0) as u64 & 0xffff)?;
        expect("version", VERSION as u64, head[2] as u64)?;
        expect("reserved field", 0, head[7] as u64 | word(60) as u64)?;
        at_most("direction", 1, head[3])?;
        at_most("mode", 2, head[4])?;
        at_most("memory", 4, head[5])?;
        let codec = head[8..].first_chunk().and_then(|&codec| Codec::from_bytes(codec));
        let shape = Shape::new(word(20) as usize, word(24) as usize)?;
        let header = Header {
            direction: if head[3] == 0 { Direction::Forward } else { Direction::Backward },
            mode: [Mode::Train, Mode::EvalCompressed, Mode::EvalPlain][head[4] as usize],
            memory: head[5],
            values: Dtype::from_code(head[6])?,
            codec: codec.ok_or(Error::Core(CoreError::PayloadField { what: "codec", largest: 5, found: long(8) }))?,
            cut: word(16),
            shape,
            generation: word(28),
            sequence: long(32),
            ticket: long(40),
            step: long(48),
            checksum: word(56),
        };
        expect_room("samples in a message", 1, shape.rows())?;
        let training = header.mode == Mode::Train;
        let gradients = header.direction == Direction::Backward;
        expect("mode of gradients", 0, if gradients { head[4] as u64 } else { 0 })?;
        expect("memory of gradients, AQ-SGD", 0, (gradients && header.memory == 4) as u64)?;
        let shared = matches!(header.codec, Codec::SharedIndex { .. });
        expect("direction of shared-index", 0, (shared && !gradients) as u64)?;
        expect("checksum without EF21", 0, if training && header.memory == 3 { 0 } else { header.checksum as u64 })?;
        let numbers = header.sequence | header.ticket | header.step;
        expect("numbers in evaluation", 0, if training { 0 } else { numbers })?;
        expect("step of gradients", 0, if gradients { header.step } else { 0 })?;
        let message = Message { header, body };
        message.check_body()?;
        Ok(message)
    }

    fn check_body(&self) -> Result<(), Error> {
        let Header { codec, shape, .. } = self.header;
        let (samples, features) = (shape.rows(), shape.cols());
        let (entries, first) = if self.header.has_samples() {
            expect_room("message body bytes", samples.saturating_mul(SAMPLE_ENTRY_LEN), self.body.len())?;
            let firsts = self.visits().try_fold(0, |count, entry| {
                let first = matches!(entry?, (_, Visit::First));
                Ok::<_, Error>(count + first as usize)
            })?;
            (samples * SAMPLE_ENTRY_LEN, firsts)
        } else {
            (0, if self.header.mode == Mode::EvalPlain { samples } else { 0 })
        };
        let plain = Codec::Dense { values: self.header.values }.body_len(first, features)?;
        let coded = codec.body_len(samples - first, features)?;
        let expected = entries.checked_add(plain).and_then(|len| len.checked_add(coded));
        Ok(expect_len("message body bytes", expected.unwrap_or(usize::MAX), self.body.len())?)
    }

    /// Ids and kinds of the samples; empty if the message has no entries of samples.
    pub(super) fn visits(&self) -> impl Iterator<Item = Result<(u64, Visit), Error>> + use<'a> {
        let count = if self.header.has_samples() { self.header.shape.rows() } else { 0 };
        self.body.chunks_exact(SAMPLE_ENTRY_LEN).take(count).map(|entry| {
            let long = |at: usize| entry[at..].first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
            let (id, rest) = (long(0), long(8));
            match (rest >> 32, rest as u32) {
                (0, 0) => Ok((id, Visit::First)),
                (1, checksum) => Ok((id, Visit::Change { checksum })),
                (2, 0) if id == 0 => Ok((id, Visit::Unremembered)),
                _ => Err(Error::Core(CoreError::PayloadBody { what: "an entry of a sample is not one" })),
            }
        })
    }

    /// Splits the body into the bytes of uncompressed rows and the bytes of the codec.
    pub(super) fn parts(&self) -> (&'a [u8], &'a [u8]) {
        let shape = self.header.shape;
        let row = shape.cols() * self.header.values.bytes();
        if self.header.has_samples() {
            let firsts = self.visits().filter(|entry| matches!(entry, Ok((_, Visit::First)))).count();
            self.body[shape.rows() * SAMPLE_ENTRY_LEN..].split_at(firsts * row)
        } else if self.header.mode == Mode::EvalPlain {
            (self.body, &[])
        } else {
            (&[], self.body)
        }
    }
}

/// Returns an error unless a header's field has the expected value.
pub(super) fn expect(what: &'static str, expected: u64, found: u64) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(CoreError::PayloadHeader { what, expected, found }.into()) }
}

/// Writes the entry of a sample.
pub(super) fn write_entry(id: u64, visit: Visit, entry: &mut [u8]) {
    let (kind, checksum) = match visit {
        Visit::First => (0, 0),
        Visit::Change { checksum } => (1, checksum),
        Visit::Unremembered => (2, 0),
    };
    entry[..8].copy_from_slice(&id.to_le_bytes());
    entry[8..16].copy_from_slice(&(checksum as u64 | kind << 32).to_le_bytes());
}
