//! What can go wrong at a cut.

use crate::CoreError;

/// Everything that can go wrong at a cut, with the place and the numbers; no strings are built.
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
    /// What the core refuses.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// What error feedback refuses.
    #[error(transparent)]
    Train(lgreco_train::Error),
    /// A memory used where it does not work.
    #[error("feedback by {rule} needs {needs}")]
    FeedbackRule {
        /// The rule.
        rule: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// The two ends of a cut have not seen the same messages: one was lost, repeated, reordered or is another run's.
    #[error("the ends of the cut are out of step: {what} is {found}, expected {expected}")]
    OutOfStep {
        /// Which number.
        what: &'static str,
        /// The number this end is at.
        expected: u64,
        /// The number in the message.
        found: u64,
    },
    /// The two ends of a cut remember different things of one sample.
    #[error("the ends of the cut differ in sample {id}: {what}")]
    SampleOutOfStep {
        /// The sample's id.
        id: u64,
        /// What differs.
        what: &'static str,
    },
    /// A batch holds a sample twice.
    #[error("sample {id} is in the batch twice")]
    DuplicateSample {
        /// The sample's id.
        id: u64,
    },
    /// More micro-batches on their way than a cut keeps tickets for.
    #[error("{limit} micro-batches are in flight already, as many as the setting of the cut allows")]
    TooManyInFlight {
        /// The setting's limit.
        limit: u32,
    },
    /// A ticket that no micro-batch in flight has.
    #[error("no micro-batch with ticket {ticket} is in flight")]
    NotInFlight {
        /// The ticket.
        ticket: u64,
    },
    /// A saved cut that was set otherwise.
    #[error("the cut was saved under another setting: {what} differs")]
    OtherSetting {
        /// The first field that differs.
        what: &'static str,
    },
    /// A call that has to wait for the end of the step.
    #[error("{what} in the middle of a step: {pending} updates or tickets are pending")]
    MidStep {
        /// The call.
        what: &'static str,
        /// Staged updates and tickets in flight.
        pending: usize,
    },
}

impl Error {
    /// The permanent numeric code of this kind of error; never 0, never reused.
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
