//! Errors of a device.
//!
//! These errors contain text. The core's `Error` is `Copy`, so it cannot contain text. It only says that the device
//! failed (`Error::Device`). The backend keeps the full error (`WgpuBackend::failure`). If the device finds an invalid
//! payload, the core decodes this payload again and returns its own error. So invalid payloads give the same error with
//! and without a device.

use lgreco::backend::JobError;

/// The reason why a call failed: invalid input, or a failure of the device.
///
/// ```
/// use lgreco_wgpu::Error;
/// let error = Error::from(lgreco::Error::NonFinite { index: 3, value: f32::NAN });
/// assert_eq!(error.to_string(), "element 3 is NaN: gradients must be finite");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input is invalid.
    #[error(transparent)]
    Core(#[from] lgreco::Error),
    /// No adapter was found, or the backend can use none of them.
    #[error("no GPU to be used: {0}")]
    NoAdapter(String),
    /// The device's limits are too low for the kernels.
    #[error("the device's {what} is {found}, at least {needed} is needed")]
    Limit {
        /// WebGPU's name of the limit.
        what: &'static str,
        /// The required value.
        needed: u64,
        /// The device's value.
        found: u64,
    },
    /// The device's shader compiler cannot compile the kernels. FXC, the older compiler of DirectX 12, cannot.
    #[error(
        "the device's shader compiler cannot compile the kernels: on DirectX 12 they need DXC. Put dxcompiler.dll next to the program, \
         or enable wgpu's feature `static-dxc`, or use Vulkan. The compiler said: {0}"
    )]
    Compiler(String),
    /// The caller's buffer cannot be used.
    #[error("the buffer {what}")]
    Buffer {
        /// What is wrong with the buffer.
        what: &'static str,
    },
    /// Data is too large for the device.
    #[error("{what} of {bytes} bytes is more than the device's {limit} of {largest}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The size of the data in bytes.
        bytes: u64,
        /// WebGPU's name of the limit.
        limit: &'static str,
        /// The device's limit.
        largest: u64,
    },
    /// The device is out of memory.
    #[error("the device is out of memory: {0}")]
    OutOfMemory(String),
    /// The device is lost: removed, reset or destroyed. A new backend is needed.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The driver refused a call.
    #[error("the device refused a call: {0}")]
    Refused(String),
    /// The method has no kernels, or none for this use. QSGD, TopK, PowerSGD and EDEN have kernels.
    #[error("{0} does not run on wgpu devices")]
    Method(&'static str),
}

impl Error {
    /// Whether the error concerns the input of a call, not the device.
    pub(crate) fn is_of_input(&self) -> bool {
        matches!(self, Error::Core(_) | Error::Buffer { .. } | Error::TooLarge { .. } | Error::Method(_))
    }

    /// Returns the core's error of the same kind, which has fewer details.
    pub(crate) fn to_core(&self) -> lgreco::Error {
        let what = match self {
            Error::Core(error) => return *error,
            Error::NoAdapter(_) => "there is no GPU to be used",
            Error::Limit { .. } => "its limits are too low",
            Error::Compiler(_) => "its shader compiler cannot compile the kernels",
            Error::Buffer { .. } => "a buffer cannot be used",
            Error::TooLarge { .. } => "something is too large for it",
            Error::OutOfMemory(_) => "it is out of memory",
            Error::Lost(_) => "it is lost",
            Error::Refused(_) => "it refused a call",
            Error::Method(_) => "it does not have this method",
        };
        lgreco::Error::Device { what }
    }
}

impl From<wgpu::Error> for Error {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { source } => Error::OutOfMemory(source.to_string()),
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                Error::Refused(description)
            }
        }
    }
}

/// An error, and the job of the batch that it concerns.
///
/// ```
/// use lgreco_wgpu::{BufferJobError, Error};
/// let failed = BufferJobError { job: Some(2), error: Error::Method("loco") };
/// assert_eq!(failed.to_string(), "job 2: loco does not run on wgpu devices");
/// let failed = BufferJobError { job: None, error: Error::Lost("reset".into()) };
/// assert_eq!(failed.to_string(), "the device is lost: reset");
/// ```
pub type BufferJobError = JobError<Error>;

/// Wraps an error of job `index`. Errors of the device concern the whole batch and get no job.
pub(crate) fn of_job(index: usize) -> impl Fn(Error) -> BufferJobError {
    move |error| JobError { job: error.is_of_input().then_some(index), error }
}

/// Returns the error of the first job that failed.
pub(crate) fn first_failure(
    recorded: impl IntoIterator<Item = Result<(), BufferJobError>>,
) -> Result<(), BufferJobError> {
    recorded.into_iter().filter_map(Result::err).min_by_key(|failed| failed.job).map_or(Ok(()), Err)
}
