//! Failures of calls, with their texts and status codes.

use crate::status::*;
use lgreco_train::table::NamedError;
use lgreco_train::{CoreError, file};
use thiserror::Error;

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
    /// The gradients of two layers share memory; `layers` holds the two indices.
    #[error("{what} share memory with {what} of layer {}, counted from 0", .layers[1])]
    LayersOverlap { what: &'static str, layers: [usize; 2] },
    #[error(
        "struct_size of {what} is {found}, expected {expected}: begin with the INIT macro, and use the header that came \
         with the library"
    )]
    StructSize { what: &'static str, expected: usize, found: usize },
    #[error(
        "struct_size of {what} is of revision {found} of the headers, but this library is of revision {LGRECO_HEADER_REVISION}: begin \
         with the INIT macro, and compile with the header that came with the library"
    )]
    HeaderRevision { what: &'static str, found: usize },
    #[error("{what} is {found}, which is none of its constants")]
    UnknownConstant { what: &'static str, found: u32 },
    #[error("{what} {why}")]
    Text { what: &'static str, why: &'static str },
    #[error("{call} has no option `{name}`; there are {known}")]
    UnknownOption { call: &'static str, name: String, known: String },
    #[error("the option `{0}` is given twice")]
    OptionTwice(&'static str),
    #[error("the option `{name}` has no value: NULL follows it")]
    NoValue { name: &'static str },
    #[error("the option `{name}` is `{found}`, expected {expected}")]
    OptionValue { name: &'static str, found: String, expected: &'static str },
    /// Another part of the library rejected an option's value.
    #[error("the option `{name}` is `{found}`: {failure}")]
    OfOption { name: &'static str, found: String, failure: Box<Failure> },
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
    /// There is no GPU that wgpu can use.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Wgpu(lgreco_wgpu::Error),
    #[error("layer `{name}`: {}", .failure.without_layer())]
    OfLayer { name: String, failure: Box<Failure> },
    /// A setting or a pointer in the caller's array is wrong. `index` is the index in the array and of the layer.
    #[error("{what}[{index}]: {failure}")]
    OfElement { what: &'static str, index: usize, failure: Box<Failure> },
    #[cfg(feature = "cuda")]
    #[error("call {call} since the last check: {failure}")]
    OfCall { call: usize, failure: Box<Failure> },
    #[error("layer is {layer}, expected an index below {layers}, the table's number of layers")]
    NoTableLayer { layer: usize, layers: usize },
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

/// The result of this crate's functions. The error is a [`Failure`] unless another error type is named.
pub(crate) type Result<T, E = Failure> = core::result::Result<T, E>;

impl Failure {
    /// The failure's text without the layer's index, as part of a text that already names the layer.
    fn without_layer(&self) -> String {
        match self {
            Failure::Core(error) => error.without_layer().to_string(),
            failure => failure.to_string(),
        }
    }

    /// The same failure, with the layer's name in its text. A failure of the device stays unchanged, because earlier
    /// work may have caused it.
    pub(crate) fn of_layer(self, name: &str) -> Failure {
        if self.is_of_device() { self } else { Failure::OfLayer { name: name.into(), failure: Box::new(self) } }
    }

    /// Makes the failure for this error, with the name of the layer at fault, if known.
    pub(crate) fn named(error: impl Into<lgreco_train::Error>, layer: Option<String>) -> Failure {
        match (error.into(), layer) {
            (lgreco_train::Error::Core(error), layer) => Failure::Named(NamedError { error, layer, option: None }),
            (error, None) => Failure::Core(error),
            (error, Some(name)) => Failure::OfLayer { name, failure: Box::new(Failure::Core(error)) },
        }
    }

    /// Replaces the index of a layer in the failure by the layer's name, if `names` has the name. The index of a
    /// setting or a gradient is also a layer's index, because there is one setting or gradient per layer.
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
            Failure::OfElement { what, index, failure } => match names.get(index) {
                Some(name) => failure.of_layer(name),
                None => Failure::OfElement { what, index, failure },
            },
            other => other,
        }
    }

    /// Whether the device failed, perhaps in work that was enqueued earlier.
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
            Failure::UnknownOption { .. } | Failure::OptionTwice(_) => LGRECO_UNKNOWN_OPTION,
            Failure::NoValue { .. } => LGRECO_NULL_POINTER,
            Failure::OptionValue { .. } => LGRECO_PARAMETER,
            Failure::OfOption { failure, .. } => failure.status(),
            Failure::Handle(_) => LGRECO_HANDLE,
            Failure::Busy => LGRECO_BUSY,
            Failure::Unavailable(_) => LGRECO_UNAVAILABLE,
            Failure::NotBuiltIn => LGRECO_NOT_BUILT_IN,
            #[cfg(feature = "cuda")]
            Failure::Cuda(error) => of_cuda(error),
            #[cfg(feature = "wgpu")]
            Failure::Wgpu(_) => LGRECO_UNAVAILABLE,
            Failure::OfLayer { failure, .. } | Failure::OfElement { failure, .. } => failure.status(),
            #[cfg(feature = "cuda")]
            Failure::OfCall { failure, .. } => failure.status(),
            Failure::NoTableLayer { .. } => LGRECO_LENGTH,
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

/// Returns the value for the constant `found`. The constants count from 0, in the order of `values`.
pub(crate) fn one_of<T: Copy, const N: usize>(what: &'static str, found: u32, values: [T; N]) -> Result<T, Failure> {
    values.get(found as usize).copied().ok_or(Failure::UnknownConstant { what, found })
}
