//! What can go wrong on a device.
//!
//! Errors are values with text. The core's `Error` is `Copy` and has only their kind (`Error::Device`), so the
//! backend keeps the text (`CudaBackend::failure`).

use lgreco::backend::JobError;

/// Why a call failed: bad input, in the core's words, or the device.
///
/// ```
/// use lgreco_cuda::Error;
/// let error = Error::from(lgreco::Error::NonFinite { index: 3, value: f32::NAN });
/// assert_eq!(error.to_string(), "element 3 is NaN: gradients must be finite");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input is at fault.
    #[error(transparent)]
    Core(#[from] lgreco::Error),
    /// A bucket is at fault.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Train(lgreco_train::Error),
    /// The driver's library is not there.
    #[error("no NVIDIA driver: the library libcuda (nvcuda on Windows) was not found")]
    NoDriver,
    /// No kernels come with the crate for the device.
    #[error("no kernels come with this crate for devices of compute capability {capability}")]
    Unsupported {
        /// The device's.
        capability: String,
    },
    /// The compiled kernels are of other sources than the crate's: somebody has changed a kernel and not compiled it.
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
    /// A library is there, but not all of it, or it is none.
    #[error("{library} does not load: {reason}")]
    Library {
        /// Which file, or what was looked for under this name.
        library: String,
        /// The loader's words.
        reason: String,
    },
    /// There is no device of this number, or none at all.
    #[error("no CUDA device {ordinal}: {reason}")]
    NoDevice {
        /// Number of the device asked for.
        ordinal: usize,
        /// The driver's words.
        reason: String,
    },
    /// The device cannot allocate in the order of a stream, as is the case of some virtual GPUs.
    #[error("the device has no memory pools, which the backend allocates from")]
    NoPools,
    /// The driver or the device is too old.
    #[error("{what} is {found}, at least {needed} is needed")]
    TooOld {
        /// What is too old.
        what: &'static str,
        /// What is needed.
        needed: String,
        /// What there is.
        found: String,
    },
    /// The device has no room.
    #[error("the device is out of memory: {bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// Size of the allocation.
        bytes: u64,
    },
    /// The driver refused a call, or work enqueued before failed; after some such errors a context is of no more use.
    #[error("the driver failed in {call}: {reason}")]
    Driver {
        /// Which call.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
    /// The stream is being captured into a graph, whose replays would repeat the random words and the addresses of now.
    #[error("the stream is being captured into a CUDA graph, which this call cannot be part of")]
    Captured,
    /// Memory of the embedder cannot be used.
    #[error("the device memory {what}")]
    Memory {
        /// What is wrong with it.
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

/// What a call of this crate gives: a `T`, or an [`Error`] unless another type is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the device or its driver failed, and not what the call was given. It may then have been at
    /// something that was enqueued by an earlier call.
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

    /// The core's error of the same kind, without the text only this crate's has.
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

/// An error, and the job of the batch that is at fault.
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

/// A version as it is written.
pub(crate) fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// What went wrong while job `index` was worked on: the batch, when it was the device that failed.
pub(crate) fn of_job(index: usize) -> impl Fn(Error) -> DeviceJobError {
    move |error| JobError { job: (!error.is_of_device()).then_some(index), error }
}
