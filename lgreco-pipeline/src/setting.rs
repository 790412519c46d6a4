//! The setting of a cut, as a value that is saved with the model.

use super::codec::{Codec, Tile};
use crate::feedback::{Residual, Storage};
use crate::gradient::Shape;
use crate::{CoreError, Error};
use lgreco::checksum;
use lgreco::error::expect_len;

/// How AQ-SGD stores the samples' rows in memory. Values are rounded to nearest, so that both ends hold the same bits.
///
/// ```
/// use lgreco_pipeline::{CutSetting, LinkMemory, RowStorage, Upstream};
/// use lgreco_pipeline::gradient::Values;
/// let bytes = |storage| {
///     let mut setting = CutSetting::new(0, 1, 1024);
///     setting.forward.memory = LinkMemory::Samples { capacity: 20_000, storage };
///     let mut upstream = Upstream::new(setting, 0)?;
///     let (mut workspace, mut message) = (vec![0; upstream.workspace_len()], vec![0; upstream.message_len()]);
///     upstream.send(Values::F32(&[0.5; 1024]), &[Some(1)], &mut workspace, &mut message)?;
///     Ok::<u64, lgreco_pipeline::Error>(upstream.memory_bytes())
/// };
/// assert_eq!(bytes(RowStorage::F32)?, 4096); // per sample in memory, at both ends
/// assert_eq!(bytes(RowStorage::Bf16)?, 2048);
/// assert_eq!(bytes(RowStorage::Quantised { bits: 4 })?, 512 + 8 * 4);
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowStorage {
    /// Exact f32; 4 bytes per value.
    F32,
    /// bfloat16; 2 bytes per value. This format has the range of f32, whereas f16 would overflow at 65504.
    #[default]
    Bf16,
    /// Codes of 2 to 8 bits on a grid symmetric about zero, and one f32 scale per 128 values. Rows are quantised again
    /// at every visit.
    Quantised {
        /// Bits per value.
        bits: u8,
    },
}

/// The memory that the two ends keep between messages of one direction. According to [Rudakov et
/// al.](https://arxiv.org/abs/2401.07788), models trained with error feedback or EF21 at a cut are not better than
/// models trained with plain compression. But error feedback and EF21 reduce the difference between evaluation with and
/// without compression.
///
/// ```
/// use lgreco_pipeline::{CutSetting, LinkMemory};
/// use lgreco_pipeline::feedback::Residual;
/// let mut setting = CutSetting::new(0, 8, 64);
/// setting.forward.memory = LinkMemory::Ef21;
/// setting.backward.memory = LinkMemory::Residual(Residual::CLASSIC);
/// assert_eq!(setting.check(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkMemory {
    /// No memory: every message is independent.
    None,
    /// Error feedback: the sender adds its earlier compression errors to each batch, by position in the batch.
    Residual(Residual),
    /// EF-mixed on each sample, for TopK only. EF-mixed differs from error feedback in the choice of the `k` entries.
    /// Let x be the new values, e the residuals, and p = x + e. The sender chooses the ⌈k/2⌉ entries with the largest
    /// abs x and the ⌊k/2⌋ entries with the largest abs e. If these two sets share entries, the sender fills up to `k`
    /// entries with the largest abs p among the remaining entries. The sender sends p of the chosen entries. So large
    /// new values cannot suppress old residuals, and old residuals cannot suppress new values.
    Mixed(Residual),
    /// EF21: both ends hold an estimate of the batch, by position. Each message corrects the estimate.
    Ef21,
    /// AQ-SGD: both ends hold the last reconstruction of each *sample*, by its id. The first visit of a sample is sent
    /// uncompressed; later visits send the compressed change. Forward only.
    Samples {
        /// Maximum number of samples in memory, at least 1. If this number is exceeded, the least recently updated
        /// sample is evicted.
        capacity: u32,
        /// Number format of each sample's stored activations.
        storage: RowStorage,
    },
}

/// Codec and memory of one direction.
///
/// ```
/// use lgreco_pipeline::{Codec, CutSetting, Link, LinkMemory};
/// use lgreco_pipeline::gradient::Dtype;
/// // A tenth of the activations, and gradients at the same positions.
/// let forward = Codec::top_k(0.1, 1000, Dtype::Bf16)?;
/// let backward = Codec::SharedIndex { keep: 100, values: Dtype::Bf16 };
/// let [forward, backward] = [forward, backward].map(|codec| Link { codec, memory: LinkMemory::None });
/// CutSetting { forward, backward, ..CutSetting::new(0, 8, 1000) }.check()?;
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The compressor.
    pub codec: Codec,
    /// The memory.
    pub memory: LinkMemory,
}

/// All parameters of a cut. Both ends must have equal settings. Compression at a cut becomes part of the model. So save
/// [`to_bytes`](CutSetting::to_bytes) with the model, and call [`compare`](CutSetting::compare) before evaluating.
///
/// ```
/// use lgreco_pipeline::{Codec, Compatibility, CutSetting, Link, LinkMemory};
/// use lgreco_pipeline::gradient::Dtype;
/// let trained = CutSetting::new(0, 128, 64 * 32 * 32);
/// let mut other = CutSetting::from_bytes(&trained.to_bytes())?;
/// assert_eq!(other.compare(&trained), Compatibility::Same);
/// other.backward.memory = LinkMemory::Ef21;
/// assert_eq!(other.compare(&trained), Compatibility::TrainsDifferently { what: "backward memory" });
/// other.forward.codec = Codec::top_k(0.1, other.features as usize, Dtype::F32)?;
/// assert_eq!(other.compare(&trained), Compatibility::EvaluatesDifferently { what: "forward codec" });
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutSetting {
    /// Number of the cut in the model. A cut has the number of the stage above, counted from 0.
    pub cut: u32,
    /// Samples per message, at least 1. If either direction has a memory by position ([`LinkMemory::Residual`],
    /// [`LinkMemory::Mixed`], [`LinkMemory::Ef21`]), every training message has exactly this number of samples. Without
    /// such a memory, this number is the maximum.
    pub batch: u32,
    /// Values per sample, at least 1.
    pub features: u32,
    /// Maximum number of micro-batches in flight, at least 1. A micro-batch is in flight until its gradients have been
    /// sent.
    pub in_flight: u32,
    /// Compression of activations.
    pub forward: Link,
    /// Compression of gradients, which need milder compression than activations (arXiv 2401.07788).
    pub backward: Link,
}

/// Whether a model trained with one setting of a cut may run with another setting.
///
/// ```
/// use lgreco_pipeline::{Compatibility, CutSetting};
/// let (trained, now) = (CutSetting::new(0, 8, 64), CutSetting::new(0, 16, 64));
/// assert_eq!(now.compare(&trained), Compatibility::TrainsDifferently { what: "batch" });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Compatibility {
    /// The settings are equal.
    Same,
    /// Evaluation gives the same numbers, but training continues differently.
    TrainsDifferently {
        /// Name of the first field that differs.
        what: &'static str,
    },
    /// Evaluation gives other numbers than with the setting that was used in training.
    EvaluatesDifferently {
        /// Name of the first field that differs.
        what: &'static str,
    },
}

const MAGIC: [u8; 4] = *b"LSC\x02";
const LINK_BYTES: usize = Codec::BYTES + 16;

impl CutSetting {
    /// Number of bytes that [`to_bytes`](CutSetting::to_bytes) returns.
    pub const BYTES: usize = CutSetting::PART_BYTES + checksum::LEN;

    /// Number of bytes without the checksum, as in a saved end.
    pub(crate) const PART_BYTES: usize = 20 + 2 * LINK_BYTES;

    /// The default setting. Neither direction has a memory. The codecs are min–max with tiles of 128 values, with 4
    /// bits forward and 8 bits backward, as in AQ-SGD's experiments. Up to 8 micro-batches may be in flight.
    pub const fn new(cut: u32, batch: u32, features: u32) -> CutSetting {
        const fn tiles(bits: u8) -> Link {
            Link { codec: Codec::MinMax { bits, tile: Tile::Elements(128) }, memory: LinkMemory::None }
        }
        CutSetting { cut, batch, features, in_flight: 8, forward: tiles(4), backward: tiles(8) }
    }

    /// Returns an error unless every parameter is in range and fits the other parameters. All constructors that take a
    /// setting call this check.
    ///
    /// # Errors
    /// [`CoreError::Parameter`] and [`CoreError::TooManyElements`] on parameters out of range. [`Error::FeedbackRule`]
    /// when a memory does not fit its codec or its direction.
    pub fn check(&self) -> Result<(), Error> {
        Shape::new(self.batch as usize, self.features as usize)?;
        CoreError::require(self.batch > 0, "batch", 0.0, "at least 1")?;
        CoreError::require(self.in_flight > 0, "micro-batches in flight", 0.0, "at least 1")?;
        for link in [&self.forward, &self.backward] {
            link.codec.body_len(self.batch as usize, self.features as usize)?;
            link.memory.check(&link.codec)?;
        }
        if let LinkMemory::Samples { .. } = self.backward.memory {
            return Err(Error::FeedbackRule { rule: "AQ-SGD", needs: "the forward direction" });
        }
        if let Codec::SharedIndex { .. } = self.forward.codec {
            return Err(Error::FeedbackRule { rule: "shared-index", needs: "the backward direction" });
        }
        if let Codec::SharedIndex { keep: shared, .. } = self.backward.codec {
            let Codec::TopK { keep, .. } = self.forward.codec else {
                return Err(Error::FeedbackRule { rule: "shared-index", needs: "TopK forward" });
            };
            if let LinkMemory::Ef21 | LinkMemory::Samples { .. } = self.forward.memory {
                let needs = "a forward memory under which activations are what TopK kept";
                return Err(Error::FeedbackRule { rule: "shared-index", needs });
            }
            CoreError::require(
                keep == shared,
                "shared indices per sample",
                shared.into(),
                "those of the forward TopK",
            )?;
        }
        Ok(())
    }

    /// Whether a model trained with `trained` may run with this setting. Evaluation uses no memory, so it depends only
    /// on cut, features and forward codec.
    ///
    /// ```
    /// # use lgreco_pipeline::{Compatibility, CutSetting};
    /// let setting = CutSetting::new(0, 8, 64);
    /// assert_eq!(setting.compare(&setting), Compatibility::Same);
    /// assert_eq!(setting.compare(&CutSetting::new(1, 8, 64)), Compatibility::EvaluatesDifferently { what: "cut" });
    /// ```
    pub fn compare(&self, trained: &CutSetting) -> Compatibility {
        let evaluation = [
            ("cut", self.cut == trained.cut),
            ("features", self.features == trained.features),
            ("forward codec", self.forward.codec == trained.forward.codec),
        ];
        if let Some((what, _)) = evaluation.into_iter().find(|(_, same)| !same) {
            return Compatibility::EvaluatesDifferently { what };
        }
        let training = [
            ("forward memory", self.forward.memory == trained.forward.memory),
            ("backward codec", self.backward.codec == trained.backward.codec),
            ("backward memory", self.backward.memory == trained.backward.memory),
            ("batch", self.batch == trained.batch),
            ("micro-batches in flight", self.in_flight == trained.in_flight),
        ];
        match training.into_iter().find(|(_, same)| !same) {
            Some((what, _)) => Compatibility::TrainsDifferently { what },
            None => Compatibility::Same,
        }
    }

    /// Whether either direction has a memory by position, which requires batches of equal size.
    pub(super) fn by_position(&self) -> bool {
        self.forward.memory.by_position() || self.backward.memory.by_position()
    }

    /// The setting in bytes, little-endian: `LSC`, version 2, cut, batch, features, micro-batches in flight, codec and
    /// memory of both directions, and a checksum.
    pub fn to_bytes(&self) -> [u8; CutSetting::BYTES] {
        let mut bytes = [0; CutSetting::BYTES];
        bytes[..CutSetting::PART_BYTES].copy_from_slice(&self.to_part());
        checksum::seal(&mut bytes);
        bytes
    }

    /// [`to_bytes`](CutSetting::to_bytes) without the checksum.
    pub(crate) fn to_part(self) -> [u8; CutSetting::PART_BYTES] {
        let mut bytes = [0; CutSetting::PART_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        for (at, word) in [self.cut, self.batch, self.features, self.in_flight].into_iter().enumerate() {
            bytes[4 + 4 * at..8 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        for (link, bytes) in [&self.forward, &self.backward].into_iter().zip(bytes[20..].chunks_exact_mut(LINK_BYTES)) {
            bytes[..Codec::BYTES].copy_from_slice(&link.codec.to_bytes());
            bytes[Codec::BYTES..].copy_from_slice(&link.memory.to_bytes());
        }
        bytes
    }

    /// Reads the setting that [`to_bytes`](CutSetting::to_bytes) wrote. Any bytes may be given.
    ///
    /// # Errors
    /// [`CoreError::Length`] on a wrong number of bytes. [`CoreError::Checksum`] when the bytes of a saved setting have
    /// changed. On other bytes, [`CoreError::SavedState`] and the errors of [`check`](CutSetting::check).
    pub fn from_bytes(bytes: &[u8]) -> Result<CutSetting, Error> {
        expect_len("bytes of a cut's setting", CutSetting::BYTES, bytes.len())?;
        check_version(bytes)?;
        CutSetting::from_part(checksum::open(bytes)?)
    }

    /// Reads the bytes that [`to_part`](CutSetting::to_part) wrote.
    pub(crate) fn from_part(bytes: &[u8]) -> Result<CutSetting, Error> {
        expect_len("bytes of a cut's setting", CutSetting::PART_BYTES, bytes.len())?;
        check_version(bytes)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let link = |at: usize| {
            let codec = bytes[at..].first_chunk().and_then(|&codec| Codec::from_bytes(codec));
            let memory = bytes[at + Codec::BYTES..].first_chunk().and_then(|&memory| LinkMemory::from_bytes(memory));
            let codec = codec.ok_or(CoreError::SavedState { what: "codec of a cut", found: word(at) as u64 })?;
            let found = word(at + Codec::BYTES) as u64;
            let memory = memory.ok_or(CoreError::SavedState { what: "memory of a cut", found })?;
            Ok::<_, Error>(Link { codec, memory })
        };
        let setting = CutSetting {
            cut: word(4),
            batch: word(8),
            features: word(12),
            in_flight: word(16),
            forward: link(20)?,
            backward: link(20 + LINK_BYTES)?,
        };
        setting.check()?;
        Ok(setting)
    }
}

fn check_version(bytes: &[u8]) -> Result<(), Error> {
    let found = [bytes[0], bytes[1], bytes[2], bytes[3]];
    let (what, found_magic) = ("magic or version of a cut's setting", u32::from_le_bytes(found).into());
    Ok(CoreError::require_saved(found == MAGIC, what, found_magic)?)
}

impl LinkMemory {
    /// The number of this memory in messages and saved settings.
    pub(super) const fn code(&self) -> u8 {
        match self {
            LinkMemory::None => 0,
            LinkMemory::Residual(_) => 1,
            LinkMemory::Mixed(_) => 2,
            LinkMemory::Ef21 => 3,
            LinkMemory::Samples { .. } => 4,
        }
    }

    pub(super) const fn by_position(&self) -> bool {
        matches!(self, LinkMemory::Residual(_) | LinkMemory::Mixed(_) | LinkMemory::Ef21)
    }

    fn check(&self, codec: &Codec) -> Result<(), Error> {
        match *self {
            LinkMemory::None | LinkMemory::Ef21 => Ok(()),
            LinkMemory::Mixed(_) if !matches!(codec, Codec::TopK { .. }) => {
                Err(Error::FeedbackRule { rule: "EF-mixed", needs: "TopK" })
            }
            LinkMemory::Residual(residual) | LinkMemory::Mixed(residual) => Ok(residual.check()?),
            LinkMemory::Samples { capacity, storage } => {
                CoreError::require(capacity > 0, "capacity for samples", 0.0, "at least 1")?;
                let RowStorage::Quantised { bits } = storage else { return Ok(()) };
                Ok(CoreError::require((2..=8).contains(&bits), "bits of remembered samples", bits.into(), "2 to 8")?)
            }
        }
    }

    /// The memory in bytes: kind, storage, bits, 0, gain, reset period, capacity.
    fn to_bytes(self) -> [u8; 16] {
        let (storage, bits, gain, reset_every, capacity) = match self {
            LinkMemory::None | LinkMemory::Ef21 => (0, 0, 0.0, 0, 0),
            LinkMemory::Residual(r) | LinkMemory::Mixed(r) => (r.storage as u8, 0, r.gain, r.reset_every, 0),
            LinkMemory::Samples { capacity, storage: RowStorage::F32 } => (0, 0, 0.0, 0, capacity),
            LinkMemory::Samples { capacity, storage: RowStorage::Bf16 } => (1, 0, 0.0, 0, capacity),
            LinkMemory::Samples { capacity, storage: RowStorage::Quantised { bits } } => (2, bits, 0.0, 0, capacity),
        };
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[self.code(), storage, bits, 0]);
        bytes[4..8].copy_from_slice(&f32::to_le_bytes(gain));
        bytes[8..12].copy_from_slice(&u32::to_le_bytes(reset_every));
        bytes[12..].copy_from_slice(&u32::to_le_bytes(capacity));
        bytes
    }

    fn from_bytes(bytes: [u8; 16]) -> Option<LinkMemory> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let residual = || {
            let storage = Storage::ALL.into_iter().find(|&storage| storage as u8 == bytes[1])?;
            Some(Residual { gain: f32::from_bits(word(4)), reset_every: word(8), storage })
        };
        let memory = match (bytes[0], bytes[1]) {
            (0, _) => LinkMemory::None,
            (1, _) => LinkMemory::Residual(residual()?),
            (2, _) => LinkMemory::Mixed(residual()?),
            (3, _) => LinkMemory::Ef21,
            (4, 0) => LinkMemory::Samples { capacity: word(12), storage: RowStorage::F32 },
            (4, 1) => LinkMemory::Samples { capacity: word(12), storage: RowStorage::Bf16 },
            (4, 2) => LinkMemory::Samples { capacity: word(12), storage: RowStorage::Quantised { bits: bytes[2] } },
            _ => return None,
        };
        // Fields that the memory does not use must be zero.
        (memory.to_bytes() == bytes).then_some(memory)
    }
}
