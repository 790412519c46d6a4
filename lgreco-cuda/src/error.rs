//! Errors of a device.
//!
//! These errors contain text. The core's `Error` is `Copy`, so it cannot contain text and only says that the device
//! failed (`Error::Device`). The backend keeps the full error (`CudaBackend::failure`).

use lgreco::backend::JobError;

/// The reason why a call failed: invalid input, or a failure of the device.
///
/// ```
/// use lgreco_cuda::Error;
/// let error = Error::from(lgreco::Error::NonFinite { index: 3, value: f32::NAN });
/// assert_eq!(error.to_string(), "element 3 is NaN: gradients must be finite");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input is invalid.
    #[error(transparent)]
    Core(#[from] lgreco::Error),
    /// An error of lgreco-train about a bucket or its steps.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Train(lgreco_train::Error),
    /// The driver's library was not found.
    #[error("no NVIDIA driver: the library libcuda (nvcuda on Windows) was not found")]
    NoDriver,
    /// The crate has no kernels for the device.
    #[error("no kernels come with this crate for devices of compute capability {capability}")]
    Unsupported {
        /// The device's compute capability.
        capability: String,
    },
    /// The compiled kernels do not match the crate's sources: a kernel's source was changed without a new compilation.
    #[error(
        "compiled/kernels has no code of {module} for {architecture}: its sources have changed; run \
         `cargo run --release -p lgreco-cuda --features testing --example compile_kernels`"
    )]
    NoKernels {
        /// The kernel's source file.
        module: &'static str,
        /// The device's architecture.
        architecture: String,
    },
    /// A file was found, but it is not a library, or it lacks functions.
    #[error("{library} does not load: {reason}")]
    Library {
        /// The file, or the name that was searched for.
        library: String,
        /// The loader's message.
        reason: String,
    },
    /// No device has this number, or there is no device at all.
    #[error("no CUDA device {ordinal}: {reason}")]
    NoDevice {
        /// Number of the requested device.
        ordinal: usize,
        /// The driver's message.
        reason: String,
    },
    /// The device has no stream-ordered memory allocator, which some virtual GPUs lack.
    #[error("the device has no memory pools, which the backend allocates from")]
    NoPools,
    /// The driver or the device is too old.
    #[error("{what} is {found}, at least {needed} is needed")]
    TooOld {
        /// What is too old.
        what: &'static str,
        /// What is needed.
        needed: String,
        /// What was found.
        found: String,
    },
    /// The device is out of memory.
    #[error("the device is out of memory: {bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// Size of the allocation.
        bytes: u64,
    },
    /// The driver refused a call, or work that was enqueued earlier has failed. After some errors of the driver, the
    /// context is unusable.
    #[error("the driver failed in {call}: {reason}")]
    Driver {
        /// The driver call that failed.
        call: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// The stream is being captured into a graph. The call is refused, because replays of the graph would repeat its
    /// random words and addresses.
    #[error("the stream is being captured into a CUDA graph, which this call cannot be part of")]
    Captured,
    /// The caller's memory cannot be used.
    #[error("the device memory {what}")]
    Memory {
        /// What is wrong with the memory.
        what: &'static str,
    },
    /// There is no kernel for this method.
    #[error("{0} does not run on CUDA devices")]
    Method(&'static str),
}

#[cfg(feature = "train")]
impl From<lgreco_train::Error> for Error {
    fn from(error: lgreco_train::Error) -> Self {
        match error {
            lgreco_train::Error::Core(error) => Error::Core(error),
            error => Error::Train(error),
        }
    }
}

/// Result of this crate's calls: a `T`, or an [`Error`] unless another type is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the device or its driver failed. Such a failure does not depend on the call's input, and work of an
    /// earlier call may have caused it.
    ///
    /// ```
    /// use lgreco_cuda::Error;
    /// assert!(Error::OutOfMemory { bytes: 4096 }.is_of_device());
    /// assert!(!Error::from(lgreco::Error::NonFinite { index: 3, value: f32::NAN }).is_of_device());
    /// ```
    pub fn is_of_device(&self) -> bool {
        match self {
            Error::Core(_) | Error::Memory { .. } | Error::Method(_) => false,
            #[cfg(feature = "train")]
            Error::Train(_) => false,
            _ => true,
        }
    }

    /// Returns the core's error of the same kind, which has fewer details.
    pub(crate) fn to_core(&self) -> lgreco::Error {
        let what = match self {
            Error::Core(error) => return *error,
            #[cfg(feature = "train")]
            Error::Train(_) => "a bucket's steps are out of order",
            Error::NoDriver => "there is no driver",
            Error::Library { .. } => "a library of its does not load",
            Error::Unsupported { .. } | Error::NoKernels { .. } => "there are no kernels for it",
            Error::NoDevice { .. } => "it is not there",
            Error::NoPools => "it has no memory pools",
            Error::TooOld { .. } => "it or its driver is too old",
            Error::OutOfMemory { .. } => "it is out of memory",
            Error::Driver { .. } => "its driver failed",
            Error::Captured => "its stream is being captured",
            Error::Memory { .. } => "device memory cannot be used",
            Error::Method(_) => "it does not have this method",
        };
        lgreco::Error::Device { what }
    }
}

/// An error, and the job of the batch that caused it.
///
/// ```
/// use lgreco_cuda::{DeviceJobError, Error};
/// let error = Error::from(lgreco::Error::NonFinite { index: 3, value: f32::NAN });
/// let failed = DeviceJobError { job: Some(2), error };
/// assert_eq!(failed.to_string(), "job 2: element 3 is NaN: gradients must be finite");
/// let failed = DeviceJobError { job: None, error: Error::OutOfMemory { bytes: 4096 } };
/// assert_eq!(failed.to_string(), "the device is out of memory: 4096 bytes cannot be allocated");
/// ```
pub type DeviceJobError = JobError<Error>;

/// Formats a version as text.
pub(crate) fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// Wraps an error of job `index`. Errors of the device belong to the batch and get no job.
pub(crate) fn of_job(index: usize) -> impl Fn(Error) -> DeviceJobError {
    move |error| JobError { job: (!error.is_of_device()).then_some(index), error }
}
