//! Status codes and what is said about failures.

use core::ffi::{CStr, c_char};
use core::fmt;
use lgreco_train::table::NamedError;
use lgreco_train::{CoreError, Error, file};

/// How a call ended: LGRECO_OK, or why it failed. Codes are permanent.
pub type lgreco_status = u32;

/// Done.
pub const LGRECO_OK: lgreco_status = 0;
/// An array or buffer has not the length the call needs.
pub const LGRECO_LENGTH: lgreco_status = 1;
/// A parameter is outside its range.
pub const LGRECO_PARAMETER: lgreco_status = 2;
/// A tensor with 2^32 rows, columns or elements, or more.
pub const LGRECO_TOO_MANY_ELEMENTS: lgreco_status = 3;
/// A gradient holds NaN or infinity.
pub const LGRECO_NON_FINITE: lgreco_status = 4;
/// A result does not fit the number format it is sent in.
pub const LGRECO_OVERFLOW: lgreco_status = 5;
/// A word that names nothing.
pub const LGRECO_UNKNOWN_NAME: lgreco_status = 6;
/// There is no memory for a workspace.
pub const LGRECO_OUT_OF_MEMORY: lgreco_status = 7;
/// An element is too large for the format it is to be sent in.
pub const LGRECO_ELEMENT_OVERFLOW: lgreco_status = 8;
/// A device failed or cannot do this.
pub const LGRECO_DEVICE: lgreco_status = 9;
/// A word that no setting has there.
pub const LGRECO_SETTING_WORD: lgreco_status = 10;
/// A text that is not a setting, although all words before the place at fault are known.
pub const LGRECO_SETTING_SYNTAX: lgreco_status = 11;
/// A table without layers.
pub const LGRECO_EMPTY_TABLE: lgreco_status = 20;
/// A layer without options.
pub const LGRECO_EMPTY_LAYER: lgreco_status = 21;
/// An option's error is NaN, infinite or negative.
pub const LGRECO_OPTION_ERROR: lgreco_status = 22;
/// The sizes of the largest options do not fit 64 bits in all.
pub const LGRECO_SIZE_OVERFLOW: lgreco_status = 23;
/// A choice names an option its layer does not have.
pub const LGRECO_NO_SUCH_OPTION: lgreco_status = 24;
/// A budget that is NaN, infinite or negative.
pub const LGRECO_BUDGET: lgreco_status = 25;
/// No plan meets the budget.
pub const LGRECO_INFEASIBLE: lgreco_status = 26;
/// A plan's choices cost more error than its budget.
pub const LGRECO_OVER_BUDGET: lgreco_status = 27;
/// A plan's statement about itself does not hold.
pub const LGRECO_PLAN_MISMATCH: lgreco_status = 28;
/// Two layers have one name.
pub const LGRECO_DUPLICATE_NAME: lgreco_status = 29;
/// No plan is within the size limit.
pub const LGRECO_SIZE_INFEASIBLE: lgreco_status = 30;
/// A plan's choices are larger than its size limit.
pub const LGRECO_OVER_SIZE: lgreco_status = 31;
/// Bytes that are not a payload of this version.
pub const LGRECO_PAYLOAD_HEADER: lgreco_status = 40;
/// A payload whose body contradicts its header.
pub const LGRECO_PAYLOAD_BODY: lgreco_status = 41;
/// A header field of a payload beyond what this version defines.
pub const LGRECO_PAYLOAD_FIELD: lgreco_status = 42;
/// A compressor under which feedback may amplify errors.
pub const LGRECO_NOT_CONTRACTIVE: lgreco_status = 60;
/// A feedback rule used where it does not work.
pub const LGRECO_FEEDBACK_RULE: lgreco_status = 61;
/// Bytes that are not a saved state of this version.
pub const LGRECO_SAVED_STATE: lgreco_status = 62;
/// A saved state or a sealed payload that is not as it was written: damaged or cut short.
pub const LGRECO_CHECKSUM: lgreco_status = 63;
/// A collective callback failed.
pub const LGRECO_COLLECTIVE: lgreco_status = 80;
/// Another worker could not take part.
pub const LGRECO_PEER: lgreco_status = 81;
/// Workers want to exchange different things.
pub const LGRECO_PEER_PLAN: lgreco_status = 82;
/// What another worker sent cannot be decoded.
pub const LGRECO_PEER_MESSAGE: lgreco_status = 83;
/// What is handed to a controller is not the layer it was made for.
pub const LGRECO_LAYER_MISMATCH: lgreco_status = 100;
/// A layer's gradient holds NaN or infinity.
pub const LGRECO_NON_FINITE_GRADIENT: lgreco_status = 101;
/// A layer is in a bucket that is being exchanged.
pub const LGRECO_IN_FLIGHT: lgreco_status = 102;
/// A call that does not fit where the step is: before it has begun, say, or twice.
pub const LGRECO_STEP_ORDER: lgreco_status = 103;
/// Settings given to a controller whose policy is not LGRECO_POLICY_FIXED.
pub const LGRECO_NOT_FIXED: lgreco_status = 104;
/// A message of a cut is not the one that comes next.
pub const LGRECO_OUT_OF_STEP: lgreco_status = 120;
/// The two ends of a cut remember different things of a sample.
pub const LGRECO_SAMPLE_OUT_OF_STEP: lgreco_status = 121;
/// A batch holds a sample twice.
pub const LGRECO_DUPLICATE_SAMPLE: lgreco_status = 122;
/// More micro-batches on their way than a cut keeps tickets for.
pub const LGRECO_TOO_MANY_IN_FLIGHT: lgreco_status = 123;
/// A ticket that no micro-batch in flight has.
pub const LGRECO_NOT_IN_FLIGHT: lgreco_status = 124;
/// A call that has to wait for the end of the step.
pub const LGRECO_MID_STEP: lgreco_status = 125;
/// A saved cut that was set otherwise.
pub const LGRECO_OTHER_SETTING: lgreco_status = 126;
/// A pointer is NULL that must not be.
pub const LGRECO_NULL_POINTER: lgreco_status = 200;
/// A pointer is not aligned for its type.
pub const LGRECO_ALIGNMENT: lgreco_status = 201;
/// An output overlaps an input or another output.
pub const LGRECO_OVERLAP: lgreco_status = 202;
/// A struct's struct_size is too small, or fields this version does not know are not zero.
pub const LGRECO_STRUCT_SIZE: lgreco_status = 203;
/// A number that should be one of a list of constants is none of them.
pub const LGRECO_UNKNOWN_CONSTANT: lgreco_status = 204;
/// Text is not UTF-8, or holds a NUL.
pub const LGRECO_TEXT: lgreco_status = 205;
/// Not JSON, or not the JSON expected there.
pub const LGRECO_JSON: lgreco_status = 206;
/// A table or plan file of a version this library does not read.
pub const LGRECO_JSON_VERSION: lgreco_status = 207;
/// Not a handle, or one of another kind.
pub const LGRECO_HANDLE: lgreco_status = 208;
/// The handle is in use by another call.
pub const LGRECO_BUSY: lgreco_status = 209;
/// The device, or what is asked of it, does not exist.
pub const LGRECO_UNAVAILABLE: lgreco_status = 210;
/// The table has no compressor setting for the option, as those that the library did not measure.
pub const LGRECO_NO_SETTINGS: lgreco_status = 211;
/// The call is for the other end of a cut.
pub const LGRECO_OTHER_END: lgreco_status = 212;
/// Devices of this kind were left out of this build of the library.
pub const LGRECO_NOT_BUILT_IN: lgreco_status = 213;
/// A bug in the library. The handle it happened in can only be destroyed.
pub const LGRECO_PANIC: lgreco_status = 255;

/// The name of the constant, such as "LGRECO_INFEASIBLE"; of other numbers "unknown status". Static text.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_status_name(status: lgreco_status) -> *const c_char {
    name(status).unwrap_or(c"unknown status").as_ptr()
}

fn name(status: lgreco_status) -> Option<&'static CStr> {
    Some(match status {
        LGRECO_OK => c"LGRECO_OK",
        LGRECO_LENGTH => c"LGRECO_LENGTH",
        LGRECO_PARAMETER => c"LGRECO_PARAMETER",
        LGRECO_TOO_MANY_ELEMENTS => c"LGRECO_TOO_MANY_ELEMENTS",
        LGRECO_NON_FINITE => c"LGRECO_NON_FINITE",
        LGRECO_OVERFLOW => c"LGRECO_OVERFLOW",
        LGRECO_UNKNOWN_NAME => c"LGRECO_UNKNOWN_NAME",
        LGRECO_OUT_OF_MEMORY => c"LGRECO_OUT_OF_MEMORY",
        LGRECO_ELEMENT_OVERFLOW => c"LGRECO_ELEMENT_OVERFLOW",
        LGRECO_DEVICE => c"LGRECO_DEVICE",
        LGRECO_SETTING_WORD => c"LGRECO_SETTING_WORD",
        LGRECO_SETTING_SYNTAX => c"LGRECO_SETTING_SYNTAX",
        LGRECO_EMPTY_TABLE => c"LGRECO_EMPTY_TABLE",
        LGRECO_EMPTY_LAYER => c"LGRECO_EMPTY_LAYER",
        LGRECO_OPTION_ERROR => c"LGRECO_OPTION_ERROR",
        LGRECO_SIZE_OVERFLOW => c"LGRECO_SIZE_OVERFLOW",
        LGRECO_NO_SUCH_OPTION => c"LGRECO_NO_SUCH_OPTION",
        LGRECO_BUDGET => c"LGRECO_BUDGET",
        LGRECO_INFEASIBLE => c"LGRECO_INFEASIBLE",
        LGRECO_OVER_BUDGET => c"LGRECO_OVER_BUDGET",
        LGRECO_PLAN_MISMATCH => c"LGRECO_PLAN_MISMATCH",
        LGRECO_DUPLICATE_NAME => c"LGRECO_DUPLICATE_NAME",
        LGRECO_SIZE_INFEASIBLE => c"LGRECO_SIZE_INFEASIBLE",
        LGRECO_OVER_SIZE => c"LGRECO_OVER_SIZE",
        LGRECO_PAYLOAD_HEADER => c"LGRECO_PAYLOAD_HEADER",
        LGRECO_PAYLOAD_BODY => c"LGRECO_PAYLOAD_BODY",
        LGRECO_PAYLOAD_FIELD => c"LGRECO_PAYLOAD_FIELD",
        LGRECO_NOT_CONTRACTIVE => c"LGRECO_NOT_CONTRACTIVE",
        LGRECO_FEEDBACK_RULE => c"LGRECO_FEEDBACK_RULE",
        LGRECO_SAVED_STATE => c"LGRECO_SAVED_STATE",
        LGRECO_CHECKSUM => c"LGRECO_CHECKSUM",
        LGRECO_COLLECTIVE => c"LGRECO_COLLECTIVE",
        LGRECO_PEER => c"LGRECO_PEER",
        LGRECO_PEER_PLAN => c"LGRECO_PEER_PLAN",
        LGRECO_PEER_MESSAGE => c"LGRECO_PEER_MESSAGE",
        LGRECO_LAYER_MISMATCH => c"LGRECO_LAYER_MISMATCH",
        LGRECO_NON_FINITE_GRADIENT => c"LGRECO_NON_FINITE_GRADIENT",
        LGRECO_IN_FLIGHT => c"LGRECO_IN_FLIGHT",
        LGRECO_STEP_ORDER => c"LGRECO_STEP_ORDER",
        LGRECO_NOT_FIXED => c"LGRECO_NOT_FIXED",
        LGRECO_OUT_OF_STEP => c"LGRECO_OUT_OF_STEP",
        LGRECO_SAMPLE_OUT_OF_STEP => c"LGRECO_SAMPLE_OUT_OF_STEP",
        LGRECO_DUPLICATE_SAMPLE => c"LGRECO_DUPLICATE_SAMPLE",
        LGRECO_TOO_MANY_IN_FLIGHT => c"LGRECO_TOO_MANY_IN_FLIGHT",
        LGRECO_NOT_IN_FLIGHT => c"LGRECO_NOT_IN_FLIGHT",
        LGRECO_MID_STEP => c"LGRECO_MID_STEP",
        LGRECO_OTHER_SETTING => c"LGRECO_OTHER_SETTING",
        LGRECO_NULL_POINTER => c"LGRECO_NULL_POINTER",
        LGRECO_ALIGNMENT => c"LGRECO_ALIGNMENT",
        LGRECO_OVERLAP => c"LGRECO_OVERLAP",
        LGRECO_STRUCT_SIZE => c"LGRECO_STRUCT_SIZE",
        LGRECO_UNKNOWN_CONSTANT => c"LGRECO_UNKNOWN_CONSTANT",
        LGRECO_TEXT => c"LGRECO_TEXT",
        LGRECO_JSON => c"LGRECO_JSON",
        LGRECO_JSON_VERSION => c"LGRECO_JSON_VERSION",
        LGRECO_HANDLE => c"LGRECO_HANDLE",
        LGRECO_BUSY => c"LGRECO_BUSY",
        LGRECO_UNAVAILABLE => c"LGRECO_UNAVAILABLE",
        LGRECO_NO_SETTINGS => c"LGRECO_NO_SETTINGS",
        LGRECO_OTHER_END => c"LGRECO_OTHER_END",
        LGRECO_NOT_BUILT_IN => c"LGRECO_NOT_BUILT_IN",
        LGRECO_PANIC => c"LGRECO_PANIC",
        _ => return None,
    })
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Core(Error),
    Named(NamedError),
    File(file::Error),
    Null {
        what: &'static str,
    },
    Alignment {
        what: &'static str,
    },
    Overlap {
        what: &'static str,
        with: &'static str,
        /// Index of the layers that both belong to, if they belong to layers.
        layers: [Option<usize>; 2],
    },
    StructSize {
        what: &'static str,
        smallest: usize,
        found: usize,
    },
    UnknownField {
        what: &'static str,
        offset: usize,
    },
    UnknownConstant {
        what: &'static str,
        found: u32,
    },
    Text {
        what: &'static str,
        why: &'static str,
    },
    Handle {
        what: &'static str,
    },
    Busy,
    Unavailable {
        what: &'static str,
    },
    #[cfg_attr(all(feature = "cuda", feature = "wgpu"), expect(dead_code, reason = "every device is built in"))]
    NotBuiltIn,
    #[cfg(feature = "cuda")]
    Cuda(lgreco_cuda::Error),
    /// There is no such GPU, or none that can be used.
    #[cfg(feature = "wgpu")]
    Wgpu(lgreco_wgpu::Error),
    OfLayer {
        name: String,
        failure: Box<Failure>,
    },
    #[cfg(feature = "cuda")]
    OfCall {
        call: usize,
        failure: Box<Failure>,
    },
    /// A callback that a call turned out to need.
    Callback {
        what: &'static str,
    },
    NoSettings,
    NoFeedback,
    OtherFeedback,
    OtherEnd,
    Panicked,
}

#[cfg(feature = "cuda")]
fn of_cuda(error: &lgreco_cuda::Error) -> lgreco_status {
    use lgreco_cuda::Error::{
        Core, Library, Method, NoDevice, NoDriver, NoKernels, NoPools, OutOfMemory, TooOld, Unsupported,
    };
    match error {
        Core(error) => error.code(),
        lgreco_cuda::Error::Train(error) => error.code(),
        NoDriver | NoPools | Library { .. } | NoDevice { .. } => LGRECO_UNAVAILABLE,
        TooOld { .. } | Unsupported { .. } | NoKernels { .. } | Method(_) => LGRECO_UNAVAILABLE,
        OutOfMemory { .. } => LGRECO_OUT_OF_MEMORY,
        _ => LGRECO_DEVICE,
    }
}

impl Failure {
    /// The same, about a layer, if it can be one's fault.
    pub(crate) fn of_layer(self, name: &str) -> Failure {
        if self.is_of_device() { self } else { Failure::OfLayer { name: name.into(), failure: Box::new(self) } }
    }

    /// With the name of the layer at fault, if it is known.
    pub(crate) fn named(error: impl Into<Error>, layer: Option<String>) -> Failure {
        match (error.into(), layer) {
            (Error::Core(error), layer) => Failure::Named(NamedError { error, layer, option: None }),
            (error, None) => Failure::Core(error),
            (error, Some(name)) => Failure::OfLayer { name, failure: Box::new(Failure::Core(error)) },
        }
    }

    /// Whether a device failed, perhaps in what it had been told earlier.
    pub(crate) fn is_of_device(&self) -> bool {
        match self {
            Failure::Core(Error::Core(error)) | Failure::Named(NamedError { error, .. }) => {
                matches!(error, CoreError::Device { .. })
            }
            #[cfg(feature = "cuda")]
            Failure::Cuda(error) => error.is_of_device(),
            _ => false,
        }
    }

    pub(crate) fn status(&self) -> lgreco_status {
        match self {
            Failure::Core(error) => error.code(),
            Failure::Named(named) => named.error.code(),
            Failure::File(file::Error::Table(named)) => named.error.code(),
            Failure::File(file::Error::Setting { error, .. }) => error.code(),
            Failure::File(file::Error::Version { .. }) => LGRECO_JSON_VERSION,
            Failure::File(_) => LGRECO_JSON,
            Failure::Null { .. } => LGRECO_NULL_POINTER,
            Failure::Alignment { .. } => LGRECO_ALIGNMENT,
            Failure::Overlap { .. } => LGRECO_OVERLAP,
            Failure::StructSize { .. } | Failure::UnknownField { .. } => LGRECO_STRUCT_SIZE,
            Failure::UnknownConstant { .. } => LGRECO_UNKNOWN_CONSTANT,
            Failure::Text { .. } => LGRECO_TEXT,
            Failure::Handle { .. } => LGRECO_HANDLE,
            Failure::Busy => LGRECO_BUSY,
            Failure::Unavailable { .. } => LGRECO_UNAVAILABLE,
            Failure::NotBuiltIn => LGRECO_NOT_BUILT_IN,
            #[cfg(feature = "cuda")]
            Failure::Cuda(error) => of_cuda(error),
            #[cfg(feature = "wgpu")]
            Failure::Wgpu(_) => LGRECO_UNAVAILABLE,
            Failure::OfLayer { failure, .. } => failure.status(),
            #[cfg(feature = "cuda")]
            Failure::OfCall { failure, .. } => failure.status(),
            Failure::Callback { .. } => LGRECO_COLLECTIVE,
            Failure::NoSettings => LGRECO_NO_SETTINGS,
            Failure::NoFeedback => LGRECO_FEEDBACK_RULE,
            Failure::OtherFeedback => LGRECO_SAVED_STATE,
            Failure::OtherEnd => LGRECO_OTHER_END,
            Failure::Panicked => LGRECO_PANIC,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Core(error) => error.fmt(f),
            Failure::Named(named) => named.fmt(f),
            Failure::File(error) => error.fmt(f),
            Failure::Null { what } => write!(f, "{what} is NULL"),
            Failure::Alignment { what } => write!(f, "{what} is not aligned for its type"),
            Failure::Overlap { what, with, layers: [_, None] } => write!(f, "{what} overlaps {with}"),
            Failure::Overlap { what, with, layers: [_, Some(layer)] } => {
                write!(f, "{what} share memory with {with} of layer {layer}, counted from 0")
            }
            Failure::StructSize { what, smallest, found } => {
                write!(f, "struct_size of {what} is {found}, expected at least {smallest}: set it with the INIT macro")
            }
            Failure::UnknownField { what, offset } => {
                write!(f, "{what} has a field at byte {offset} that this version of the library does not know")
            }
            Failure::UnknownConstant { what, found } => write!(f, "{what} is {found}, which is none of its constants"),
            Failure::Text { what, why } => write!(f, "{what} {why}"),
            Failure::Handle { what } => write!(f, "not a {what} handle"),
            Failure::Busy => f.write_str("the handle is in use by another call"),
            Failure::Unavailable { what } => write!(f, "{what} is not available"),
            Failure::NotBuiltIn => f.write_str("the library was built without this kind of device"),
            #[cfg(feature = "cuda")]
            Failure::Cuda(error) => error.fmt(f),
            #[cfg(feature = "wgpu")]
            Failure::Wgpu(error) => error.fmt(f),
            Failure::OfLayer { name, failure } => write!(f, "layer `{name}`: {failure}"),
            #[cfg(feature = "cuda")]
            Failure::OfCall { call, failure } => write!(f, "call {call} since the last check: {failure}"),
            Failure::Callback { what } => {
                write!(f, "the collective's callback {what} is NULL, which these settings or this route need")
            }
            Failure::NoSettings => f.write_str("the table has no compressor setting for the option"),
            Failure::NoFeedback => f.write_str("the compressor has no feedback, and so no memory"),
            Failure::OtherFeedback => f.write_str("the saved state is that of other feedback options"),
            Failure::OtherEnd => f.write_str("the call is for the other end of the cut"),
            Failure::Panicked => f.write_str("an earlier call panicked: the handle can only be destroyed"),
        }
    }
}

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Failure {
        Failure::Core(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Core(error)
    }
}

#[cfg(feature = "cuda")]
impl From<lgreco_cuda::Error> for Failure {
    fn from(error: lgreco_cuda::Error) -> Failure {
        Failure::Cuda(error)
    }
}

impl From<NamedError> for Failure {
    fn from(named: NamedError) -> Failure {
        Failure::Named(named)
    }
}

impl From<file::Error> for Failure {
    fn from(error: file::Error) -> Failure {
        Failure::File(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_status_have_no_name() {
        assert_eq!((name(12), name(199), name(u32::MAX)), (None, None, None));
    }
}
