//! cuBLAS's product of matrices, from a library that is loaded at run time and stays.
//!
//! cudarc has it too, but looks for cuBLAS under the names of one major version of CUDA and panics where it is not.
//!
//! cuBLAS makes products only where the embedder says so (`use_cublas`), and only an encoder's. Payloads are
//! otherwise the same on every device, and rows are promised within 1e-4, for which its plain f32 sums have no bound.
//! It reads a copy in f32, scaled by a power of two as the crate's own kernels scale on the fly, so that nothing
//! overflows, and f16 and bf16 take the same path; it has a workspace of its own, so that nothing is allocated behind
//! the embedder's back.

use crate::Error;
use crate::device::{Gemm, Part};
use crate::libraries::{Library, candidates};
use cudarc::driver::sys::CUstream;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// Bytes of memory that cuBLAS has to itself, so that it allocates nothing and always divides a product alike: what
/// NVIDIA recommends for compute capability 9.0, the most of all.
pub(crate) const WORKSPACE: u64 = 32 << 20;

/// f32 throughout, whatever the environment says of TF32 and emulation: `CUBLAS_PEDANTIC_MATH`.
const PEDANTIC: c_int = 2;

type Handle = *mut c_void;

/// cuBLAS's functions. They answer 0, or a number that `words` has words for.
#[derive(Clone, Copy, Debug)]
struct Functions {
    words: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(*mut Handle) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    set_stream: unsafe extern "C" fn(Handle, CUstream) -> c_int,
    set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    set_math_mode: unsafe extern "C" fn(Handle, c_int) -> c_int,
    sgemm: unsafe extern "C" fn(
        Handle,
        c_int,
        c_int,
        c_int,
        c_int,
        c_int,
        *const f32,
        *const c_void,
        c_int,
        *const c_void,
        c_int,
        *const f32,
        *mut c_void,
        c_int,
    ) -> c_int,
}

impl Functions {
    /// `None` when the library is not there, or lacks a function, as those before CUDA 11.5 do.
    fn load(path: &Path) -> Option<Functions> {
        // SAFETY: NVIDIA's library, whose initialisers are its own affair; the functions have the types that its header
        // has had since 11.5. It is never unloaded, so they stay.
        unsafe {
            let library = libloading::Library::new(path).ok()?;
            let functions = Functions {
                words: *library.get(b"cublasGetStatusString\0").ok()?,
                create: *library.get(b"cublasCreate_v2\0").ok()?,
                destroy: *library.get(b"cublasDestroy_v2\0").ok()?,
                set_stream: *library.get(b"cublasSetStream_v2\0").ok()?,
                set_workspace: *library.get(b"cublasSetWorkspace_v2\0").ok()?,
                set_math_mode: *library.get(b"cublasSetMathMode\0").ok()?,
                sgemm: *library.get(b"cublasSgemm_v2\0").ok()?,
            };
            std::mem::forget(library);
            Some(functions)
        }
    }

    fn said(&self, call: &'static str, outcome: c_int) -> Result<(), Error> {
        if outcome == 0 {
            return Ok(());
        }
        // SAFETY: cuBLAS has a C string for every number, which stays.
        let words = unsafe { CStr::from_ptr((self.words)(outcome)) };
        Err(Error::Driver { call, reason: words.to_string_lossy().into_owned() })
    }
}

/// cuBLAS in one context, on one stream. It is dropped while the context is current.
#[derive(Debug)]
pub(crate) struct Cublas {
    functions: Functions,
    handle: Handle,
}

impl Cublas {
    /// The best cuBLAS for a driver of CUDA's major version `driver`, in the current context: of the same major version,
    /// or else another. `Err` when there is none, with why the first that was found does not do.
    ///
    /// # Safety
    /// The stream is the context's; `workspace` is nobody else's, and outlives all products.
    pub(crate) unsafe fn find(driver: u32, stream: CUstream, workspace: Part) -> Result<Self, Error> {
        let mut refused = None;
        for path in candidates(Library::Cublas, driver, |variable| std::env::var_os(variable).map(PathBuf::from)) {
            let Some(functions) = Functions::load(&path) else { continue };
            // SAFETY: as the caller promises.
            match unsafe { Cublas::create(functions, stream, workspace) } {
                Ok(cublas) => return Ok(cublas),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(Error::NoCublas))
    }

    /// # Safety
    /// As of [`find`](Cublas::find).
    unsafe fn create(functions: Functions, stream: CUstream, workspace: Part) -> Result<Self, Error> {
        let mut handle = null_mut();
        // SAFETY: a place for a handle.
        functions.said("cublasCreate", unsafe { (functions.create)(&mut handle) })?;
        let cublas = Cublas { functions, handle };
        let (address, bytes) = (workspace.address as *mut c_void, workspace.bytes as usize);
        // SAFETY: the handle is cuBLAS's, the rest as the caller promises. The stream comes first: setting it takes the
        // workspace away.
        unsafe {
            functions.said("cublasSetMathMode", (functions.set_math_mode)(handle, PEDANTIC))?;
            functions.said("cublasSetStream", (functions.set_stream)(handle, stream))?;
            functions.said("cublasSetWorkspace", (functions.set_workspace)(handle, address, bytes))?;
        }
        Ok(cublas)
    }

    /// Enqueued. The context is current.
    pub(crate) fn multiply(&self, gemm: &Gemm) -> Result<(), Error> {
        let &Gemm { transposed, rows, cols, terms, left, right, product } = gemm;
        for (part, height, width) in [(left, rows, terms), (right, terms, cols), (product, rows, cols)] {
            assert_eq!(part.bytes, 4 * u64::from(height) * u64::from(width), "{gemm:?}");
        }
        let [rows, cols, terms] = [rows, cols, terms].map(|size| c_int::try_from(size).expect("sizes within an int"));
        // Rows of the matrices as they lie there.
        let (left_rows, right_rows, product_rows) = (if transposed { terms } else { rows }, terms, rows);
        let [left, right, product] = [left, right, product].map(|part| part.address as *mut c_void);
        let (one, zero) = (1.0, 0.0);
        // SAFETY: the parts are memory that is there, as large as the sizes say; the two numbers are read before the call
        // returns.
        let outcome = unsafe {
            (self.functions.sgemm)(
                self.handle,
                transposed.into(),
                0,
                rows,
                cols,
                terms,
                &one,
                left,
                left_rows,
                right,
                right_rows,
                &zero,
                product,
                product_rows,
            )
        };
        self.functions.said("cublasSgemm", outcome)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: made by cuBLAS, destroyed once. Nothing can be done about an error.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}
