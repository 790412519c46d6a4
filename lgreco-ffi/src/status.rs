//! Status codes and what is said about failures.

use core::ffi::{CStr, c_char};
use lgreco_train::table::NamedError;
use lgreco_train::{CoreError, file};
use thiserror::Error;

/// Number of this header, which changes with every declaration in it. The INIT macros put it into their structs: the first call
/// that is given a struct, a callback among them, by a program that was compiled with another header than the library's fails
/// with LGRECO_STRUCT_SIZE.
pub const LGRECO_HEADER_REVISION: u32 = 3;

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
/// Layers of one group have no option left that all of them can have.
pub const LGRECO_NO_SHARED_OPTION: lgreco_status = 32;
/// Layers of one group differ in their number of options, where these are matched by their index.
pub const LGRECO_UNEQUAL_OPTIONS: lgreco_status = 33;
/// A plan's choice that the table's groups or fixed options rule out.
pub const LGRECO_RULED_OUT: lgreco_status = 34;
/// Bytes that are not a payload of this version.
pub const LGRECO_PAYLOAD_HEADER: lgreco_status = 40;
/// A payload whose body contradicts its header.
pub const LGRECO_PAYLOAD_BODY: lgreco_status = 41;
/// A header field of a payload beyond what this version defines.
pub const LGRECO_PAYLOAD_FIELD: lgreco_status = 42;
/// A method that is neither the library's own nor known to the program.
pub const LGRECO_UNKNOWN_METHOD: lgreco_status = 43;
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
/// A struct's struct_size is not that of this library: the INIT macro was not used, or the program was compiled with another
/// header than the library's.
pub const LGRECO_STRUCT_SIZE: lgreco_status = 203;
/// A number that should be one of a list of constants is none of them.
pub const LGRECO_UNKNOWN_CONSTANT: lgreco_status = 204;
/// Text is not UTF-8, holds a NUL, or has none at its end.
pub const LGRECO_TEXT: lgreco_status = 205;
/// Not JSON, or not the JSON expected there.
pub const LGRECO_JSON: lgreco_status = 206;
/// A table or plan file of a version this library does not read.
pub const LGRECO_JSON_VERSION: lgreco_status = 207;
/// Not a handle, one of another kind, or a copy of one that has been destroyed.
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

/// Writes the function `name`, which knows the names of these constants.
macro_rules! named_constants {
    ($($constant:ident,)*) => {
        fn name(status: lgreco_status) -> Option<&'static CStr> {
            let name = match status {
                $($constant => concat!(stringify!($constant), "\0"),)*
                _ => return None,
            };
            CStr::from_bytes_with_nul(name.as_bytes()).ok()
        }
    };
}

named_constants! {
    LGRECO_OK, LGRECO_LENGTH, LGRECO_PARAMETER, LGRECO_TOO_MANY_ELEMENTS, LGRECO_NON_FINITE, LGRECO_OVERFLOW,
    LGRECO_UNKNOWN_NAME, LGRECO_OUT_OF_MEMORY, LGRECO_ELEMENT_OVERFLOW, LGRECO_DEVICE, LGRECO_SETTING_WORD,
    LGRECO_SETTING_SYNTAX, LGRECO_EMPTY_TABLE, LGRECO_EMPTY_LAYER, LGRECO_OPTION_ERROR, LGRECO_SIZE_OVERFLOW,
    LGRECO_NO_SUCH_OPTION, LGRECO_BUDGET, LGRECO_INFEASIBLE, LGRECO_OVER_BUDGET, LGRECO_PLAN_MISMATCH,
    LGRECO_DUPLICATE_NAME, LGRECO_SIZE_INFEASIBLE, LGRECO_OVER_SIZE, LGRECO_NO_SHARED_OPTION, LGRECO_UNEQUAL_OPTIONS, LGRECO_RULED_OUT,
    LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_BODY, LGRECO_PAYLOAD_FIELD, LGRECO_UNKNOWN_METHOD, LGRECO_NOT_CONTRACTIVE, LGRECO_FEEDBACK_RULE, LGRECO_SAVED_STATE, LGRECO_CHECKSUM,
    LGRECO_COLLECTIVE, LGRECO_PEER, LGRECO_PEER_PLAN, LGRECO_PEER_MESSAGE, LGRECO_LAYER_MISMATCH,
    LGRECO_NON_FINITE_GRADIENT, LGRECO_IN_FLIGHT, LGRECO_STEP_ORDER, LGRECO_NOT_FIXED, LGRECO_OUT_OF_STEP,
    LGRECO_SAMPLE_OUT_OF_STEP, LGRECO_DUPLICATE_SAMPLE, LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_NOT_IN_FLIGHT,
    LGRECO_MID_STEP, LGRECO_OTHER_SETTING, LGRECO_NULL_POINTER, LGRECO_ALIGNMENT, LGRECO_OVERLAP,
    LGRECO_STRUCT_SIZE, LGRECO_UNKNOWN_CONSTANT, LGRECO_TEXT, LGRECO_JSON, LGRECO_JSON_VERSION, LGRECO_HANDLE,
    LGRECO_BUSY, LGRECO_UNAVAILABLE, LGRECO_NO_SETTINGS, LGRECO_OTHER_END, LGRECO_NOT_BUILT_IN, LGRECO_PANIC,
}

/// Why a call failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Core(#[from] lgreco_train::Error),
    #[error(transparent)]
    Cut(#[from] lgreco_pipeline::Error),
    #[error(transparent)]
    Named(#[from] NamedError),
    #[error(transparent)]
    File(#[from] file::Error),
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error("{0} is not aligned for its type")]
    Alignment(&'static str),
    #[error("{0} overlaps {1}")]
    Overlap(&'static str, &'static str),
    /// Of two layers' gradients, with the layers' indices.
    #[error("{what} share memory with {what} of layer {}, counted from 0", .layers[1])]
    LayersOverlap { what: &'static str, layers: [usize; 2] },
    #[error(
        "struct_size of {what} is {found}, expected {expected}: begin with the INIT macro, and use the header that came \
         with the library"
    )]
    StructSize { what: &'static str, expected: usize, found: usize },
    #[error(
        "struct_size of {what} is of revision {found} of lgreco.h, but this library is of revision {LGRECO_HEADER_REVISION}: begin \
         with the INIT macro, and compile with the header that came with the library"
    )]
    HeaderRevision { what: &'static str, found: usize },
    #[error("{what} is {found}, which is none of its constants")]
    UnknownConstant { what: &'static str, found: u32 },
    #[error("{what} {why}")]
    Text { what: &'static str, why: &'static str },
    #[error("not a {0} handle")]
    Handle(&'static str),
    #[error("the handle is in use by another call")]
    Busy,
    #[error("{0} is not available")]
    Unavailable(&'static str),
    #[cfg_attr(all(feature = "cuda", feature = "wgpu"), expect(dead_code, reason = "every device is built in"))]
    #[error("the library was built without this kind of device")]
    NotBuiltIn,
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] lgreco_cuda::Error),
    /// There is no such GPU, or none that can be used.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Wgpu(lgreco_wgpu::Error),
    #[error("layer `{name}`: {}", .failure.without_layer())]
    OfLayer { name: String, failure: Box<Failure> },
    /// An element of the array of settings that the caller gave.
    #[error("{what}[{index}]: {failure}")]
    OfSetting { what: &'static str, index: usize, failure: Box<Failure> },
    #[cfg(feature = "cuda")]
    #[error("call {call} since the last check: {failure}")]
    OfCall { call: usize, failure: Box<Failure> },
    #[error("the table has no compressor setting for the option")]
    NoSettings,
    #[error("the compressor has no feedback, and so no memory")]
    NoFeedback,
    #[error("the saved state is that of other feedback options")]
    OtherFeedback,
    #[error("the call is for the other end of the cut")]
    OtherEnd,
    #[error("an earlier call panicked: the handle can only be destroyed")]
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

/// What the calls behind the API give: a `T`, or a [`Failure`] unless another type is named.
pub(crate) type Result<T, E = Failure> = core::result::Result<T, E>;

impl Failure {
    /// As text, without the index of a layer whose name has been said.
    fn without_layer(&self) -> String {
        match self {
            Failure::Core(error) => error.without_layer().to_string(),
            failure => failure.to_string(),
        }
    }

    /// The same, about a layer, if it can be one's fault.
    pub(crate) fn of_layer(self, name: &str) -> Failure {
        if self.is_of_device() { self } else { Failure::OfLayer { name: name.into(), failure: Box::new(self) } }
    }

    /// With the name of the layer at fault, if it is known.
    pub(crate) fn named(error: impl Into<lgreco_train::Error>, layer: Option<String>) -> Failure {
        match (error.into(), layer) {
            (lgreco_train::Error::Core(error), layer) => Failure::Named(NamedError { error, layer, option: None }),
            (error, None) => Failure::Core(error),
            (error, Some(name)) => Failure::OfLayer { name, failure: Box::new(Failure::Core(error)) },
        }
    }

    /// With the name of the layer that the failure tells by its index, where `names` has it. Settings are one
    /// per layer.
    pub(crate) fn with_name(self, names: &[String]) -> Failure {
        match self {
            Failure::Core(error) => match error.layer().and_then(|layer| names.get(layer)).cloned() {
                None => Failure::Core(error),
                name => Failure::named(error, name),
            },
            Failure::LayersOverlap { layers: [layer, _], .. } => match names.get(layer) {
                Some(name) => self.of_layer(name),
                None => self,
            },
            Failure::OfSetting { what, index, failure } => match names.get(index) {
                Some(name) => failure.of_layer(name),
                None => Failure::OfSetting { what, index, failure },
            },
            other => other,
        }
    }

    /// Whether a device failed, perhaps in what it had been told earlier.
    pub(crate) fn is_of_device(&self) -> bool {
        match self {
            Failure::Core(lgreco_train::Error::Core(error)) | Failure::Named(NamedError { error, .. }) => {
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
            Failure::Cut(error) => error.code(),
            Failure::Named(named) => named.error.code(),
            Failure::File(file::Error::Table(named)) => named.error.code(),
            Failure::File(file::Error::Setting { error, .. }) => error.code(),
            Failure::File(file::Error::Version { .. }) => LGRECO_JSON_VERSION,
            Failure::File(_) => LGRECO_JSON,
            Failure::Null(_) => LGRECO_NULL_POINTER,
            Failure::Alignment(_) => LGRECO_ALIGNMENT,
            Failure::Overlap(..) | Failure::LayersOverlap { .. } => LGRECO_OVERLAP,
            Failure::StructSize { .. } | Failure::HeaderRevision { .. } => LGRECO_STRUCT_SIZE,
            Failure::UnknownConstant { .. } => LGRECO_UNKNOWN_CONSTANT,
            Failure::Text { .. } => LGRECO_TEXT,
            Failure::Handle(_) => LGRECO_HANDLE,
            Failure::Busy => LGRECO_BUSY,
            Failure::Unavailable(_) => LGRECO_UNAVAILABLE,
            Failure::NotBuiltIn => LGRECO_NOT_BUILT_IN,
            #[cfg(feature = "cuda")]
            Failure::Cuda(error) => of_cuda(error),
            #[cfg(feature = "wgpu")]
            Failure::Wgpu(_) => LGRECO_UNAVAILABLE,
            Failure::OfLayer { failure, .. } | Failure::OfSetting { failure, .. } => failure.status(),
            #[cfg(feature = "cuda")]
            Failure::OfCall { failure, .. } => failure.status(),
            Failure::NoSettings => LGRECO_NO_SETTINGS,
            Failure::NoFeedback => LGRECO_FEEDBACK_RULE,
            Failure::OtherFeedback => LGRECO_SAVED_STATE,
            Failure::OtherEnd => LGRECO_OTHER_END,
            Failure::Panicked => LGRECO_PANIC,
        }
    }
}

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Failure {
        Failure::Core(error.into())
    }
}

/// What the constant `found` stands for: one of `values`, which are in the order of the constants, from 0.
pub(crate) fn one_of<T: Copy, const N: usize>(what: &'static str, found: u32, values: [T; N]) -> Result<T, Failure> {
    values.get(found as usize).copied().ok_or(Failure::UnknownConstant { what, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_status_have_no_name() {
        assert_eq!((name(12), name(199), name(u32::MAX)), (None, None, None));
    }
}
