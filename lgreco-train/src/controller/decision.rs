//! A decision: a setting per layer, and a report on the decision as a whole. Settings and report are encoded as numbers for the
//! measuring rank's broadcast and for saved states.
//!
//! The length of the measuring rank's message does not depend on its contents. The message consists of these 64-bit words,
//! little-endian:
//!
//! | words | |
//! |---|---|
//! | 1 | 0, or the code of the measuring rank's error, or 2^64 − 1: no decision yet |
//! | 1 | the fingerprint of the schedule |
//! | 10 | the [`Decision`] without its timing |
//! | 8 | its [`Timing`] |
//! | 3 per layer | the [`LayerSetting`] |

use super::Timing;
use crate::compress::Setting;
use crate::compress::method::Methods;
use crate::plan::{Proof, Summary};
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Why a layer is sent uncompressed.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # use lgreco_train::controller::Uncompressed;
/// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// assert_eq!(controller.metrics(1).uncompressed, Some(Uncompressed::Small)); // the bias
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Uncompressed {
    /// Nothing has been decided yet, or the layer was not in the saved state.
    WarmUp = 0,
    /// The search does not compress the layer, because it has one dimension or fewer, or too few elements.
    Small = 1,
    /// The setting would have saved no bytes.
    NoSaving = 2,
    /// The plan, or the caller of a [`Policy::Fixed`](super::Policy), chose to send the layer uncompressed.
    Chosen = 3,
    /// Compressing the layer takes longer than sending it uncompressed.
    Slower = 4,
    /// The compressor's error is as large as its input, so error feedback could grow without bound; see
    /// [`require_contraction`](crate::feedback::require_contraction).
    NotContractive = 5,
}

impl Uncompressed {
    /// All reasons, in the order of their codes.
    ///
    /// ```
    /// use lgreco_train::controller::Uncompressed;
    /// assert!(Uncompressed::ALL.iter().enumerate().all(|(code, &reason)| reason as usize == code));
    /// ```
    pub const ALL: [Uncompressed; 6] = [
        Uncompressed::WarmUp,
        Uncompressed::Small,
        Uncompressed::NoSaving,
        Uncompressed::Chosen,
        Uncompressed::Slower,
        Uncompressed::NotContractive,
    ];

    /// The reason in a word or two, for files and messages.
    ///
    /// ```
    /// assert_eq!(lgreco_train::controller::Uncompressed::NotContractive.name(), "not contractive");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Uncompressed::WarmUp => "warm-up",
            Uncompressed::Small => "small",
            Uncompressed::NoSaving => "no saving",
            Uncompressed::Chosen => "chosen",
            Uncompressed::Slower => "slower",
            Uncompressed::NotContractive => "not contractive",
        }
    }
}

/// Why settings changed.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # use lgreco_train::controller::Cause;
/// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// assert_eq!(controller.decision().map(|decision| decision.cause), Some(Cause::Schedule));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The schedule.
    Schedule,
    /// The learning rate fell, and Accordion set all layers to low compression.
    LearningRate,
    /// The caller gave a fixed policy [other settings](super::Planning::set_settings).
    Caller,
}

/// The last decision; the same on every rank.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// let decision = controller.decision().unwrap();
/// assert_eq!((decision.step, decision.uncompressed_size), (2, 8 * (16 + 4 * 4096)));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The first step that uses the decision's settings.
    pub step: u64,
    /// Why the decision was made.
    pub cause: Cause,
    /// Size, error, limit and lower bound of the plan, over the layers that may be compressed. Sizes are bits, or picoseconds if
    /// there is a [`timing`](Decision::timing). `None` under policies that do not plan.
    pub plan: Option<Summary>,
    /// Size of the layers that may be compressed, under the settings that define the budget; 0 under policies that do not plan.
    pub default_size: u64,
    /// Size of the layers that may be compressed if they are sent uncompressed; 0 under policies that do not plan.
    pub uncompressed_size: u64,
    /// Number of layers that are sent uncompressed because that is faster.
    pub slower: u32,
    /// Number of layers that are sent uncompressed because error feedback does not work with the chosen setting.
    pub not_contractive: u32,
    /// Measured and expected seconds under [`Objective::MeasuredSeconds`](super::Objective).
    pub timing: Option<Timing>,
}

impl Decision {
    /// Whether the plan is smaller, or faster, than sending everything uncompressed; `None` under policies that do not plan.
    ///
    /// ```
    /// # use lgreco_train::{controller::{Cause, Decision}, plan::{Proof, Summary}};
    /// let plan = Some(Summary { size: 1000, error: 0.0, proof: Proof::Size { lower_bound: 1000, budget: 1.0 } });
    /// let (step, cause) = (100, Cause::Schedule);
    /// let (default_size, uncompressed_size) = (2000, 1000);
    /// let (slower, not_contractive, timing) = (3, 0, None);
    /// let decision =
    ///     Decision { step, cause, plan, default_size, uncompressed_size, slower, not_contractive, timing };
    /// assert_eq!(decision.pays(), Some(false)); // compression is off
    /// ```
    pub fn pays(&self) -> Option<bool> {
        match (self.timing, self.plan) {
            (Some(timing), Some(_)) => Some(timing.plan < timing.uncompressed),
            (_, plan) => plan.map(|plan| plan.size < self.uncompressed_size),
        }
    }

    /// The decision of a policy that does not plan.
    pub(super) const fn without_plan(step: u64, cause: Cause) -> Decision {
        let (default_size, uncompressed_size) = (0, 0);
        let (plan, slower, not_contractive, timing) = (None, 0, 0, None);
        Decision { step, cause, plan, default_size, uncompressed_size, slower, not_contractive, timing }
    }

    /// Length of [`encode`](Decision::encode)'s result.
    const WORDS: usize = 10;

    /// The decision without its timing, as numbers.
    pub(super) fn encode(&self) -> [u64; Self::WORDS] {
        let (planned, lower_bound, limit) = match self.plan.map(|plan| plan.proof) {
            None => (0, 0, 0),
            Some(Proof::Size { lower_bound, budget }) => (1, lower_bound, budget.to_bits()),
            Some(Proof::Error { lower_bound, size_limit }) => (2, lower_bound.to_bits(), size_limit),
        };
        let (size, error) = self.plan.map_or((0, 0.0), |plan| (plan.size, plan.error));
        [
            self.step,
            self.cause as u64 | planned << 8 | if self.timing.is_some() { IN_PICOSECONDS } else { 0 },
            size,
            lower_bound,
            error.to_bits(),
            limit,
            self.default_size,
            self.uncompressed_size,
            self.slower as u64,
            self.not_contractive as u64,
        ]
    }

    /// Decodes a decision; `Err` unless the decision encodes to exactly these words.
    pub(super) fn decode(words: &[u64; Self::WORDS]) -> Result<Decision, Error> {
        let [step, kind, size, lower_bound, error, limit, default_size, uncompressed_size, slower, not_contractive] =
            *words;
        let proof = match (kind >> 8) as u8 {
            0 => None,
            1 => Some(Proof::Size { lower_bound, budget: f64::from_bits(limit) }),
            _ => Some(Proof::Error { lower_bound: f64::from_bits(lower_bound), size_limit: limit }),
        };
        let plan = proof.map(|proof| Summary { size, error: f64::from_bits(error), proof });
        let decision = Decision {
            step,
            cause: match kind as u8 {
                0 => Cause::Schedule,
                1 => Cause::LearningRate,
                _ => Cause::Caller,
            },
            plan,
            default_size,
            uncompressed_size,
            slower: slower as u32,
            not_contractive: not_contractive as u32,
            timing: None,
        };
        let numbers = plan.is_none_or(|plan| {
            plan.error.is_finite()
                && match plan.proof {
                    Proof::Size { budget, .. } => budget.is_finite(),
                    Proof::Error { lower_bound, .. } => lower_bound.is_finite(),
                }
        });
        let mut expected = decision.encode();
        expected[1] |= kind & IN_PICOSECONDS;
        Ok(CoreError::require_saved(numbers && expected == *words, "the decision", kind).map(|()| decision)?)
    }
}

/// The bit of a decision's second word that is set if the decision's sizes are picoseconds.
const IN_PICOSECONDS: u64 = 2 << 16;

/// One line for a log: sizes or seconds, and refused settings.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// let line = controller.decision().unwrap().to_string();
/// assert_eq!(line, "step 2: 1792 bits of 131200 uncompressed, 1792 by default");
/// # Ok::<(), lgreco_train::Error>(())
/// ```
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        match (self.timing, self.plan) {
            (Some(timing), _) => timing.fmt(f)?,
            (None, Some(plan)) => {
                let (size, uncompressed, default) = (plan.size, self.uncompressed_size, self.default_size);
                write!(f, "{size} bits of {uncompressed} uncompressed, {default} by default")?;
            }
            (None, None) => f.write_str("settings without a plan")?,
        }
        match self.not_contractive {
            0 => Ok(()),
            refused => write!(f, "; feedback does not suit {refused}"),
        }
    }
}

/// A layer's setting and, if the layer is uncompressed, the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerSetting {
    pub setting: Setting,
    pub uncompressed: Option<Uncompressed>,
}

impl LayerSetting {
    /// Length of [`encode`](LayerSetting::encode)'s result.
    const WORDS: usize = 3;

    pub(super) const fn dense(why: Uncompressed) -> LayerSetting {
        LayerSetting { setting: Setting::Dense, uncompressed: Some(why) }
    }

    /// A setting that the caller or a plan has chosen.
    pub(super) fn chosen(setting: Setting) -> LayerSetting {
        LayerSetting { setting, uncompressed: (setting == Setting::Dense).then_some(Uncompressed::Chosen) }
    }

    /// The setting and the reason as numbers. The first word has the method's id, the reason and the first parameter. The other
    /// parameters follow.
    pub(super) fn encode(&self) -> [u64; Self::WORDS] {
        let (id, [a, b, c, d]) = self.setting.data();
        let reason = self.uncompressed.map_or(0, |why| why as u64 + 1);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [u64::from(id) | reason << 8 | u64::from(a) << 32, pair(b, c), d.into()]
    }

    /// Decodes a setting; `Err` unless the setting encodes to exactly these words. The setting's method is one of `methods` or
    /// of lgreco's own methods.
    ///
    /// # Errors
    /// [`CoreError::UnknownMethod`]; [`CoreError::SavedState`].
    pub(super) fn decode(words: [u64; Self::WORDS], methods: &Methods) -> Result<LayerSetting, Error> {
        let wrong = CoreError::SavedState { what: "a layer's setting", found: words[0] };
        let high = |word: u64| (word >> 32) as u32;
        let parameters = [high(words[0]), words[1] as u32, high(words[1]), words[2] as u32];
        let setting = match Setting::from_data(words[0] as u8, parameters, methods) {
            Err(error @ CoreError::UnknownMethod { .. }) => return Err(error.into()),
            found => found.map_err(|_| wrong)?,
        };
        let uncompressed = match (words[0] >> 8) as u8 {
            0 => None,
            reason => Some(*Uncompressed::ALL.get(reason as usize - 1).ok_or(wrong)?),
        };
        let found = LayerSetting { setting, uncompressed };
        let has_reason = uncompressed.is_some() == (setting == Setting::Dense);
        if has_reason && found.encode() == words { Ok(found) } else { Err(wrong.into()) }
    }
}

/// A decision with the setting of every layer.
pub(super) struct Decided {
    pub decision: Decision,
    pub choices: Vec<LayerSetting>,
    /// Norms of the window's mean gradients by layer, on the rank that has measured them; empty on other ranks.
    pub norms: Vec<f64>,
}

/// Sent instead of an error code if the measuring rank has decided nothing yet. This number is larger than all error codes.
const NOT_YET: u64 = u64::MAX;

/// The measuring rank's message to all ranks.
pub(super) fn write(layers: usize, fingerprint: u64, decided: Option<&Result<Decided, Error>>) -> Vec<u64> {
    let mut words = vec![0; 2 + Decision::WORDS + Timing::WORDS + LayerSetting::WORDS * layers];
    words[1] = fingerprint;
    match decided {
        None => words[0] = NOT_YET,
        Some(Err(error)) => words[0] = error.code() as u64,
        Some(Ok(decided)) => {
            let (decision, rest) = words[2..].split_at_mut(Decision::WORDS);
            let (timing, rest) = rest.split_at_mut(Timing::WORDS);
            decision.copy_from_slice(&decided.decision.encode());
            timing.copy_from_slice(&Timing::encode(decided.decision.timing.as_ref()));
            let rest = rest.as_chunks_mut::<{ LayerSetting::WORDS }>().0;
            rest.iter_mut().zip(&decided.choices).for_each(|(to, choice)| *to = choice.encode());
        }
    }
    words.iter_mut().for_each(|word| *word = word.to_le());
    words
}

/// Reads the broadcast of rank `rank`; `None` if that rank has decided nothing yet.
///
/// # Errors
/// [`Error::Peer`] with the code of that rank's error; [`Error::PeerPlan`] when the broadcast is about another decision;
/// [`Error::PeerMessage`].
pub(super) fn read(rank: u32, fingerprint: u64, words: &[u64], methods: &Methods) -> Result<Option<Decided>, Error> {
    let refused = |error: Error| Error::PeerMessage { rank, code: error.code() };
    let short = Error::PeerMessage { rank, code: 1 };
    let words: Vec<u64> = words.iter().map(|&word| u64::from_le(word)).collect();
    let ([code, told], rest) = words.split_first_chunk().ok_or(short)?;
    if !matches!(*code, 0 | NOT_YET) {
        return Err(Error::of_peer(rank, *code));
    }
    if *told != fingerprint {
        return Err(Error::PeerPlan { rank });
    }
    if *code == NOT_YET {
        return Ok(None);
    }
    let (decision, rest) = rest.split_first_chunk().ok_or(short)?;
    let (timing, choices) = rest.split_first_chunk().ok_or(short)?;
    let timing = Timing::decode(timing).map_err(refused)?;
    let decision = Decision { timing, ..Decision::decode(decision).map_err(refused)? };
    let choices = choices.as_chunks::<{ LayerSetting::WORDS }>().0.iter();
    let choices = choices.map(|&words| LayerSetting::decode(words, methods));
    let choices = choices.collect::<Result<_, _>>().map_err(refused)?;
    Ok(Some(Decided { decision, choices, norms: vec![] }))
}
