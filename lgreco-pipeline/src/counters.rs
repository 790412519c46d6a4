//! Counters of one direction of a cut, for telemetry.

/// Counters of one end for one direction, in training. Evaluation is not counted.
///
/// ```
/// use lgreco_pipeline::{CutSetting, Direction, LinkMemory, RowStorage, Upstream};
/// use lgreco_pipeline::gradient::Values;
/// let mut setting = CutSetting::new(0, 1, 100);
/// setting.forward.memory = LinkMemory::Samples { capacity: 10, storage: RowStorage::F32 };
/// let mut upstream = Upstream::new(setting, 0)?;
/// let (mut workspace, mut message) = (vec![0; upstream.workspace_len()], vec![0; upstream.message_len()]);
/// for activation in [1.0, 1.5] {
///     upstream.send(Values::F32(&[activation; 100]), &[Some(9)], &mut workspace, &mut message)?;
///     upstream.commit_step()?;
/// }
/// let counters = upstream.counters(Direction::Forward);
/// assert_eq!((counters.messages, counters.hits, counters.misses), (2, 1, 1));
/// assert_eq!(counters.change_ratio(), 0.25 / 2.25);
/// assert_eq!((counters.uncompressed_bytes, counters.bytes), (800, 2 * (64 + 16) + 400 + 58));
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Number of messages compressed or decompressed. If this number is zero after a step, the cut is configured but
    /// not used.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Bytes that the values of these messages take without compression, in the sender's element type.
    pub uncompressed_bytes: u64,
    /// AQ-SGD: number of samples sent as a change.
    pub hits: u64,
    /// AQ-SGD: number of first visits, whose samples were not in memory and were sent uncompressed.
    pub misses: u64,
    /// AQ-SGD: number of samples without an id.
    pub unremembered: u64,
    /// AQ-SGD: number of samples evicted for lack of capacity.
    pub evictions: u64,
    /// AQ-SGD: number of samples dropped because their values do not fit the storage type. The next visit of such a
    /// sample is a miss.
    pub non_finite: u64,
    /// AQ-SGD, sending end: sum over hits of ‖a − m‖², the squared norm of the change.
    pub change_energy: f64,
    /// AQ-SGD, sending end: sum over hits of ‖a‖².
    pub hit_energy: f64,
}

/// Upper limit of saved counts, so that later counts never overflow.
pub(super) const COUNT_LIMIT: u64 = 1 << 63;

impl Counters {
    /// Bytes of the saved form.
    pub(super) const BYTES: usize = 80;

    /// The ratio Σ‖a − m‖² / Σ‖a‖² over the hits; 0 before the first hit. If the ratio is near 0, the memory of samples
    /// pays off. At 1, sending changes is no better than sending values. If the activations of different visits are
    /// unrelated, the ratio is 2.
    pub fn change_ratio(&self) -> f64 {
        if self.hit_energy > 0.0 { self.change_energy / self.hit_energy } else { 0.0 }
    }

    pub(super) fn to_bytes(self) -> [u8; Counters::BYTES] {
        let words = [
            self.messages,
            self.bytes,
            self.uncompressed_bytes,
            self.hits,
            self.misses,
            self.unremembered,
            self.evictions,
            self.non_finite,
            self.change_energy.to_bits(),
            self.hit_energy.to_bits(),
        ];
        let mut bytes = [0; Counters::BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(slot, word)| *slot = word.to_le_bytes());
        bytes
    }

    /// Reads saved counters. `None` if no cut can have such counts or sums.
    pub(super) fn from_bytes(bytes: &[u8; Counters::BYTES]) -> Option<Counters> {
        let mut words = [0; Counters::BYTES / 8];
        words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, &bytes)| *word = u64::from_le_bytes(bytes));
        let [messages, bytes, uncompressed_bytes, hits, misses, unremembered, evictions, non_finite, change, hit] =
            words;
        let [change_energy, hit_energy] = [change, hit].map(f64::from_bits);
        let sums = [change_energy, hit_energy].iter().all(|sum| *sum >= 0.0 && sum.is_finite());
        let counts = words[..8].iter().all(|&count| count < COUNT_LIMIT);
        (sums && counts).then_some(Counters {
            messages,
            bytes,
            uncompressed_bytes,
            hits,
            misses,
            unremembered,
            evictions,
            non_finite,
            change_energy,
            hit_energy,
        })
    }
}
