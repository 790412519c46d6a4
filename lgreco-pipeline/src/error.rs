//! Errors at a cut.

use crate::CoreError;

/// An error at a cut. The error states what is wrong, with the numbers found and expected, and holds no allocated
/// strings.
///
/// [`Error::code`] is permanent and shared with the C API.
///
/// ```
/// use lgreco_pipeline::Error;
/// let error = Error::OutOfStep { what: "sequence number", expected: 4, found: 5 };
/// assert_eq!((error.code(), error.to_string().as_str()), (120, "the ends of the cut are out of step: sequence number is 5, expected 4"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the core.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// An error of `lgreco-train`, from error feedback.
    #[error(transparent)]
    Train(lgreco_train::Error),
    /// A memory or a codec does not fit the other parts of the setting, or a call does not work with this memory.
    #[error("feedback by {rule} needs {needs}")]
    FeedbackRule {
        /// The rule.
        rule: &'static str,
        /// The requirement of the rule.
        needs: &'static str,
    },
    /// The two ends of a cut have not seen the same messages. A message was lost, repeated or reordered, or belongs to
    /// another run.
    #[error("the ends of the cut are out of step: {what} is {found}, expected {expected}")]
    OutOfStep {
        /// Name of the number that differs.
        what: &'static str,
        /// This end's number.
        expected: u64,
        /// The message's number.
        found: u64,
    },
    /// The two ends of a cut differ in their memory of one sample.
    #[error("the ends of the cut differ in sample {id}: {what}")]
    SampleOutOfStep {
        /// The sample's id.
        id: u64,
        /// What differs.
        what: &'static str,
    },
    /// A sample occurs twice in a batch.
    #[error("sample {id} is in the batch twice")]
    DuplicateSample {
        /// The sample's id.
        id: u64,
    },
    /// The number of micro-batches in flight has reached the limit of the setting.
    #[error("{limit} micro-batches are in flight already, as many as the setting of the cut allows")]
    TooManyInFlight {
        /// Limit of the setting.
        limit: u32,
    },
    /// No micro-batch in flight has this ticket.
    #[error("no micro-batch with ticket {ticket} is in flight")]
    NotInFlight {
        /// The ticket.
        ticket: u64,
    },
    /// A saved cut has another setting.
    #[error("the cut was saved under another setting: {what} differs")]
    OtherSetting {
        /// Name of the first field that differs.
        what: &'static str,
    },
    /// A call is not allowed before the end of the step.
    #[error("{what} in the middle of a step: {pending} updates or tickets are pending")]
    MidStep {
        /// Name of the call.
        what: &'static str,
        /// Number of pending updates and tickets in flight.
        pending: usize,
    },
}

impl Error {
    /// Permanent numeric code of this kind of error. The code is never 0 and never reused.
    pub const fn code(&self) -> u32 {
        match self {
            Error::Core(error) => error.code(),
            Error::Train(error) => error.code(),
            Error::FeedbackRule { .. } => 61,
            Error::OutOfStep { .. } => 120,
            Error::SampleOutOfStep { .. } => 121,
            Error::DuplicateSample { .. } => 122,
            Error::TooManyInFlight { .. } => 123,
            Error::NotInFlight { .. } => 124,
            Error::MidStep { .. } => 125,
            Error::OtherSetting { .. } => 126,
        }
    }
}

impl From<lgreco_train::Error> for Error {
    fn from(error: lgreco_train::Error) -> Error {
        match error {
            lgreco_train::Error::Core(error) => Error::Core(error),
            error => Error::Train(error),
        }
    }
}
