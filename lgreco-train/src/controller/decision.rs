//! What was decided.

use super::Timing;
use crate::{CoreError, Error};
use crate::plan::{Proof, Summary};
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
    /// The search leaves it alone: it has one dimension or fewer, or too few elements.
    Small = 1,
    /// The setting would have saved no bytes.
    NoSaving = 2,
    /// It was chosen: by the plan, or by the caller of [`Policy::Fixed`](super::Policy).
    Chosen = 3,
    /// Compressing it would take longer than sending it does.
    Slower = 4,
    /// The compressor loses as much as it is given, so that feedback might amplify errors instead of repaying them; see
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

    /// A word for files and messages.
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

/// What made the settings change.
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
    /// The learning rate fell, and Accordion put all layers to low compression.
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
    /// The first step under it.
    pub step: u64,
    /// What made it.
    pub cause: Cause,
    /// Of policies that plan: size, error, limit and lower bound of the layers that may be compressed. Sizes are bits, or
    /// picoseconds where there is a [`timing`](Decision::timing).
    pub plan: Option<Summary>,
    /// Size of the same layers under the settings that the budget comes from; 0 of policies that do not plan.
    pub default_size: u64,
    /// Size of the same layers uncompressed; 0 of policies that do not plan.
    pub uncompressed_size: u64,
    /// Layers that are sent uncompressed because that is faster.
    pub slower: u32,
    /// Layers that are sent uncompressed because feedback would not work with what was chosen.
    pub not_contractive: u32,
    /// Under [`Objective::MeasuredSeconds`](super::Objective), what was measured and what is expected.
    pub timing: Option<Timing>,
}

impl Decision {
    /// Whether the plan is smaller, or faster, than sending everything uncompressed; `None` for policies that do not
    /// plan.
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

    /// By a policy that does not plan.
    pub(super) const fn without_plan(step: u64, cause: Cause) -> Decision {
        let (default_size, uncompressed_size) = (0, 0);
        let (plan, slower, not_contractive, timing) = (None, 0, 0, None);
        Decision { step, cause, plan, default_size, uncompressed_size, slower, not_contractive, timing }
    }

    pub(super) const WORDS: usize = 10;

    /// All but the timing.
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

/// Set in the second word of a decision whose sizes are picoseconds.
const IN_PICOSECONDS: u64 = 2 << 16;

/// One line for a log: what was decided and why.
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
