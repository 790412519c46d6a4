mod kind;

use crate::CoreError;
use core::fmt;
use kind::Kind;
use lgreco::error::Number;
use lgreco::gradient::Dtype;

/// All errors of training, with numbers and the layer, option or rank at fault. No error allocates a string.
///
/// Layers are named by index, counted from 0. [`Error::code`] is permanent and shared with the C API.
///
/// ```
/// use lgreco_train::{CoreError, Error};
/// let error = Error::from(CoreError::EmptyTable);
/// assert_eq!((error.code(), error), (CoreError::EmptyTable.code(), Error::Core(CoreError::EmptyTable)));
/// assert_eq!(Error::Peer { rank: 2, code: error.code() }.to_string(), "rank 2 failed with error code 20: a table without layers");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the core.
    #[error(transparent)]
    Core(#[from] CoreError),

    /// No plan is within the time limit. For tables of seconds, this error replaces [`CoreError::SizeInfeasible`], and
    /// it has the same code.
    #[error(
        "infeasible: the time limit is {} seconds, the smallest achievable time is {} seconds",
        Number(.limit),
        Number(.smallest)
    )]
    TimeInfeasible {
        /// The limit in seconds.
        limit: f64,
        /// Seconds of the plan in which every layer has its fastest option.
        smallest: f64,
    },
    /// A compressor under which residuals may grow without bound.
    #[error(
        "the compressor's squared error is {} of the gradient's squared norm: error feedback needs less than 1, or residuals \
         outgrow the gradients; compress more mildly, or do without error feedback",
        Number(.relative)
    )]
    NotContractive {
        /// The compressor's squared error divided by the gradient's squared norm.
        relative: f64,
    },
    /// A feedback rule that does not work with this setting.
    #[error("feedback by {rule} needs {needs}")]
    FeedbackRule {
        /// The rule.
        rule: &'static str,
        /// What the rule requires of the setting.
        needs: &'static str,
    },
    /// A collective of the caller's network failed.
    #[error("a collective call failed{}", OfEmbedder(*.code))]
    Collective {
        /// The network's own code.
        code: i32,
    },
    /// Another worker has failed.
    #[error("rank {rank} failed with error code {code}{}", Kind(*.code))]
    Peer {
        /// The rank of the worker that has failed.
        rank: u32,
        /// The [`code`](Error::code) of that worker's error.
        code: u32,
    },
    /// Workers have different layers or settings in one bucket. The agreement of the next step names the difference
    /// ([`Error::PeerOption`]).
    #[error(
        "rank {rank} and rank 0 differ: in the layers of a bucket, in settings, or in warm-start factors of PowerSGD; or only \
         some ranks have loaded a state, set settings or asked for a plan"
    )]
    PeerPlan {
        /// The first rank whose fingerprint differs from rank 0's.
        rank: u32,
    },
    /// Workers have different options, or are at different steps.
    #[error("{what}: {found} on rank {rank}, {expected} on rank 0; all ranks need the same")]
    PeerOption {
        /// The first rank with an option that differs from rank 0's.
        rank: u32,
        /// The name of the first option that differs.
        what: &'static str,
        /// The option's value on rank `rank`.
        found: OptionValue,
        /// The option's value on rank 0.
        expected: OptionValue,
    },
    /// A rank's part of an all-gather has no message of lgreco.
    #[error(
        "rank {rank} has sent no message: its part of the all-gather is zeros; check that the all-gather fills the parts of all \
         ranks, and that no two workers have the same rank"
    )]
    NoMessage {
        /// The first rank without a message.
        rank: u32,
    },
    /// The collective has another rank or number of workers than the controller.
    #[error(
        "the collective reports rank {rank} of {world}, but this controller was created as rank {own_rank} of {own_world}"
    )]
    OtherPlace {
        /// The rank of the collective.
        rank: u32,
        /// The collective's number of workers.
        world: u32,
        /// The rank of the controller.
        own_rank: u32,
        /// The controller's number of workers.
        own_world: u32,
    },
    /// The trainer of this rank has failed, or made an invalid call.
    #[error("the trainer of this rank has failed{}", Kind(*.code))]
    Trainer {
        /// The trainer's code, from 1 to 999. For any other number, [`Error::code`] returns 103.
        code: u32,
    },
    /// A layer index that the model lacks.
    #[error("there is no layer {layer}: layers are counted from 0, and the model has {layers}")]
    NoSuchLayer {
        /// The index.
        layer: usize,
        /// Number of layers.
        layers: usize,
    },
    /// A layer that is not in the bucket.
    #[error("layer {layer}: {}", Unplaced(self))]
    NotInBucket {
        /// The index.
        layer: usize,
    },
    /// A gradient with another element type than its layer.
    #[error("layer {layer}: {}", Unplaced(self))]
    LayerDtype {
        /// Index of the layer.
        layer: usize,
        /// The element type of the gradient.
        found: Dtype,
        /// The element type of the layer.
        expected: Dtype,
    },
    /// A gradient that does not fit its layer.
    #[error("layer {layer}: {}", Unplaced(self))]
    LayerMismatch {
        /// Index of the layer.
        layer: usize,
        /// The quantity that does not fit.
        what: &'static str,
        /// The expected number.
        expected: usize,
        /// The number found.
        found: usize,
    },
    /// A layer's gradient contains NaN or infinity.
    #[error("layer {layer}: {}", Unplaced(self))]
    NonFiniteGradient {
        /// Index of the layer.
        layer: usize,
        /// Position of the first such element.
        index: usize,
        /// The element.
        value: f32,
    },
    /// An error of the core about a layer's values or payload. For example, a residual overflows, or an outside method fails.
    #[error("layer {layer}: {error}")]
    OfLayer {
        /// Index of the layer.
        layer: usize,
        /// The error.
        error: CoreError,
    },
    /// A layer is in a bucket that is being exchanged.
    #[error("layer {layer}: {}", Unplaced(self))]
    InFlight {
        /// Index of the layer.
        layer: usize,
    },
    /// A call at the wrong point of a step.
    #[error("{what}, expected {expected}")]
    StepOrder {
        /// The present point of the step.
        what: &'static str,
        /// The call or state that was expected.
        expected: &'static str,
    },
    /// Settings were given to a controller whose policy chooses them itself.
    #[error("settings can be set only under a fixed policy: this controller's policy chooses them itself")]
    NotFixed,
    /// A message of another worker cannot be decoded.
    #[error("the message of rank {rank} cannot be decoded, error code {code}{}", Kind(*.code))]
    PeerMessage {
        /// The rank of the worker that sent the message.
        rank: u32,
        /// The [`code`](Error::code) of the decoder's error.
        code: u32,
    },
}

/// One rank's value of an option that must be the same on all ranks.
///
/// ```
/// use lgreco_train::{Error, OptionValue};
/// let [found, expected] = [500, 1000].map(OptionValue::Whole);
/// let error = Error::PeerOption { rank: 1, what: "period", found, expected };
/// assert_eq!(error.to_string(), "period: 500 on rank 1, 1000 on rank 0; all ranks need the same");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptionValue {
    /// A whole number.
    Whole(u64),
    /// A real number.
    Real(f64),
    /// One of several choices.
    Name(&'static str),
    /// A name, as little-endian bytes, padded with zeros.
    Text([u64; 4]),
    /// The checksum of a value that is too long for a message, such as the names of all layers.
    Checksum(u64),
    /// No value.
    None,
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionValue::Whole(value) => value.fmt(f),
            OptionValue::Real(value) => Number(value).fmt(f),
            OptionValue::Name(name) => f.write_str(name),
            OptionValue::Text(words) => {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0);
                bytes.into_iter().try_for_each(|byte| write!(f, "{}", char::from(byte).escape_default()))
            }
            OptionValue::Checksum(value) => write!(f, "checksum {value:016x}"),
            OptionValue::None => f.write_str("none"),
        }
    }
}

/// An error without the index of its layer, for callers that put the layer's name before it.
struct Unplaced<'a>(&'a Error);

impl fmt::Display for Unplaced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            Error::LayerMismatch { what, expected, found, .. } => {
                write!(f, "{what} is {found}, expected {expected}")
            }
            Error::LayerDtype { found, expected, .. } => {
                write!(f, "the gradient is {}, but the layer was declared as {}", found.name(), expected.name())
            }
            Error::NonFiniteGradient { index, value, .. } => {
                write!(f, "element {index} is {value}: gradients must be finite")
            }
            Error::OfLayer { error, .. } => error.fmt(f),
            Error::NotInBucket { .. } => f.write_str("the layer is not in this bucket"),
            Error::InFlight { .. } => f.write_str("the layer is in a bucket that is being exchanged"),
            ref error => error.fmt(f),
        }
    }
}

/// The text for a failed collective.
struct OfEmbedder(i32);

impl fmt::Display for OfEmbedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            i32::MIN => {
                f.write_str(": the caller's network has no such collective, which these settings or this route need")
            }
            code => write!(f, " with the caller's code {code}"),
        }
    }
}

impl Error {
    /// Adds the layer to an error of the core that names none.
    pub(crate) fn of_layer(self, layer: u32) -> Error {
        let layer = layer as usize;
        match self {
            Error::Core(CoreError::NonFinite { index, value }) => Error::NonFiniteGradient { layer, index, value },
            Error::Core(error) if error.layer().is_none() => Error::OfLayer { layer, error },
            error => error,
        }
    }

    /// Adds `first` to the indices of layers: from indices in a part of the model to indices in the model.
    pub(crate) fn layers_after(mut self, first: usize) -> Error {
        match &mut self {
            Error::LayerMismatch { layer, .. }
            | Error::LayerDtype { layer, .. }
            | Error::NonFiniteGradient { layer, .. }
            | Error::OfLayer { layer, .. }
            | Error::NotInBucket { layer }
            | Error::InFlight { layer } => *layer += first,
            Error::Core(CoreError::DuplicateName { layer, first: earlier }) => {
                *layer += first;
                *earlier += first;
            }
            _ => {}
        }
        self
    }

    /// Code of [`Error::LayerMismatch`], and of the more specific errors about a layer that does not fit.
    const LAYER_MISMATCH: u32 = 100;

    /// Code of [`Error::NonFiniteGradient`].
    pub(crate) const NON_FINITE_GRADIENT: u32 = 101;

    /// The error of another rank whose message has this code. Codes are below 1000, so a larger number means that the message is
    /// damaged.
    pub(crate) fn of_peer(rank: u32, code: u64) -> Error {
        let damaged = CoreError::PayloadBody { what: "" }.code();
        match u32::try_from(code).ok().filter(|&code| code < 1000) {
            Some(code) => Error::Peer { rank, code },
            None => Error::PeerMessage { rank, code: damaged },
        }
    }

    /// The permanent numeric code of this kind of error; never 0, never reused. Errors of the core keep the core's code.
    pub const fn code(&self) -> u32 {
        match self {
            Error::Core(error) | Error::OfLayer { error, .. } => error.code(),
            Error::OtherPlace { .. } => CoreError::Parameter { what: "", value: 0.0, expected: "" }.code(),
            Error::Trainer { code: code @ 1..1000 } => *code,
            Error::TimeInfeasible { .. } => CoreError::SizeInfeasible { limit: 0, smallest: 0, error: 0.0 }.code(),
            Error::NotContractive { .. } => 60,
            Error::FeedbackRule { .. } => 61,
            Error::Collective { .. } => 80,
            Error::Peer { .. } => 81,
            Error::PeerPlan { .. } | Error::PeerOption { .. } | Error::NoMessage { .. } => 82,
            Error::PeerMessage { .. } => 83,
            Error::LayerMismatch { .. } => 100,
            Error::LayerDtype { .. } | Error::NoSuchLayer { .. } | Error::NotInBucket { .. } => Error::LAYER_MISMATCH,
            Error::NonFiniteGradient { .. } => Error::NON_FINITE_GRADIENT,
            Error::InFlight { .. } => 102,
            // For other ranks, code 0 would mean that nothing has failed. A code from 1000 on would mean that the
            // message is damaged.
            Error::StepOrder { .. } | Error::Trainer { .. } => 103,
            Error::NotFixed => 104,
        }
    }

    /// The layer at fault, for errors that have one.
    pub const fn layer(&self) -> Option<usize> {
        match *self {
            Error::Core(ref error) => error.layer(),
            Error::LayerMismatch { layer, .. }
            | Error::LayerDtype { layer, .. }
            | Error::NonFiniteGradient { layer, .. }
            | Error::OfLayer { layer, .. }
            | Error::NotInBucket { layer }
            | Error::InFlight { layer } => Some(layer),
            _ => None,
        }
    }

    /// The error as text without the index of its layer, for callers that put the layer's name before it.
    ///
    /// ```
    /// use lgreco_train::Error;
    /// let error = Error::NonFiniteGradient { layer: 1, index: 4, value: f32::INFINITY };
    /// assert_eq!(error.to_string(), "layer 1: element 4 is inf: gradients must be finite");
    /// assert_eq!(error.without_layer().to_string(), "element 4 is inf: gradients must be finite");
    /// ```
    pub fn without_layer(&self) -> impl fmt::Display + '_ {
        Unplaced(self)
    }

    /// The index of the option at fault among the options of its layer; `None` for errors without one.
    pub const fn option(&self) -> Option<usize> {
        match self {
            Error::Core(error) => error.option(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn collectives_that_are_not_there_are_no_failures_of_the_network() {
        use crate::exchange::CollectiveError;
        let text = |error: CollectiveError| Error::from(error).to_string();
        assert_eq!(text(CollectiveError { code: -7 }), "a collective call failed with the caller's code -7");
        let none = "a collective call failed: the caller's network has no such collective, which these settings or this route need";
        assert_eq!(text(CollectiveError::UNSUPPORTED), none);
    }

    #[test]
    fn errors_of_compressors_name_their_layer() {
        let error = Error::from(CoreError::PayloadBody { what: "a sum is odd" });
        let named = error.of_layer(3);
        assert_eq!((named.to_string(), named.layer()), ("layer 3: payload: a sum is odd".into(), Some(3)));
        assert_eq!((named.without_layer().to_string(), named.code()), (error.to_string(), error.code()));
        assert_eq!(named.of_layer(4), named);
    }

    #[test]
    fn large_numbers_are_short() {
        assert!(Error::NotContractive { relative: 1e308 }.to_string().len() < 220);
    }

    #[test]
    fn a_trainers_code_is_one_that_ranks_may_send() {
        let sent = [1, 999, 0, 1000, u32::MAX].map(|code| Error::Trainer { code }.code());
        assert_eq!(sent, [1, 999, 103, 103, 103]);
    }

    #[test]
    fn what_is_no_code_is_a_damaged_message() {
        assert_eq!(Error::of_peer(2, 101), Error::Peer { rank: 2, code: 101 });
        for code in [1000, u64::from(u32::MAX), 1 << 40, u64::MAX] {
            assert_eq!(Error::of_peer(2, code), Error::PeerMessage { rank: 2, code: 41 });
        }
    }
}
