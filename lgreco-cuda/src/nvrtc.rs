//! NVRTC's functions, from a library that is loaded at run time and stays.
//!
//! cudarc has them too, but looks for NVRTC under the names of one major version of CUDA and panics where it is not.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Program = *mut c_void;
type Get<T> = unsafe extern "C" fn(Program, T) -> c_int;

/// One NVRTC. Its functions answer 0, or a number that `error_string` has words for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    supported_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    supported: unsafe extern "C" fn(*mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: Get<*mut usize>,
    log: Get<*mut c_char>,
    ptx_size: Get<*mut usize>,
    ptx: Get<*mut c_char>,
    cubin_size: Get<*mut usize>,
    cubin: Get<*mut c_char>,
}

/// Code in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Ptx,
    Cubin,
}

impl Nvrtc {
    /// `Err` when the library is not there, or lacks a function, as those before 11.2 do.
    pub(crate) fn load(path: &Path) -> Result<Nvrtc, libloading::Error> {
        // SAFETY: NVIDIA's library, whose initialisers are its own affair; the functions have the types that its header
        // has had since 11.2. It is never unloaded, so they stay.
        unsafe {
            let library = Library::new(path)?;
            let functions = Nvrtc {
                version: *library.get(b"nvrtcVersion\0")?,
                supported_count: *library.get(b"nvrtcGetNumSupportedArchs\0")?,
                supported: *library.get(b"nvrtcGetSupportedArchs\0")?,
                error_string: *library.get(b"nvrtcGetErrorString\0")?,
                create: *library.get(b"nvrtcCreateProgram\0")?,
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0")?,
                log: *library.get(b"nvrtcGetProgramLog\0")?,
                ptx_size: *library.get(b"nvrtcGetPTXSize\0")?,
                ptx: *library.get(b"nvrtcGetPTX\0")?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize\0")?,
                cubin: *library.get(b"nvrtcGetCUBIN\0")?,
            };
            std::mem::forget(library);
            Ok(functions)
        }
    }

    /// Major and minor.
    pub(crate) fn version(&self) -> Result<(u32, u32), String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for an int.
        self.said(unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok((major as u32, minor as u32))
    }

    /// The compute capabilities it compiles for, 80 for 8.0.
    pub(crate) fn supported(&self) -> Result<Vec<u32>, String> {
        let mut count = 0;
        // SAFETY: the count's place.
        self.said(unsafe { (self.supported_count)(&mut count) })?;
        let mut supported: Vec<c_int> = vec![0; count.max(0) as usize];
        // SAFETY: room for as many as NVRTC said.
        self.said(unsafe { (self.supported)(supported.as_mut_ptr()) })?;
        Ok(supported.into_iter().map(|number| number as u32).collect())
    }

    /// Compiles a source, which messages call `name`; the code and NVRTC's log. `Err` with its words, and the log.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        options: &[&str],
        form: Form,
    ) -> Result<(Vec<u8>, String), String> {
        let text = |text: &str| CString::new(text).map_err(|_| format!("a NUL in {name} or its options"));
        let (source, file) = (text(source)?, text(name)?);
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<CString>, String>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let no_headers = std::ptr::null();
        let mut program = null_mut();
        // SAFETY: a place for a program, and C strings that live through the call, which copies them; no headers.
        let made = unsafe { (self.create)(&mut program, source.as_ptr(), file.as_ptr(), 0, no_headers, no_headers) };
        self.said(made)?;
        // SAFETY: the program is NVRTC's, and as many options are there as it is told.
        let compiled = unsafe { (self.compile)(program, pointers.len() as c_int, pointers.as_ptr()) };
        let log = self.read(program, self.log_size, self.log).unwrap_or_default();
        let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
        let (size, get) = match form {
            Form::Ptx => (self.ptx_size, self.ptx),
            Form::Cubin => (self.cubin_size, self.cubin),
        };
        let code = self.said(compiled).and_then(|()| self.read(program, size, get));
        // SAFETY: made by NVRTC, destroyed once.
        unsafe { (self.destroy)(&mut program) };
        match code {
            Ok(code) => Ok((code, log)),
            Err(error) => Err(format!("{error}\n{log}")),
        }
    }

    fn read(&self, program: Program, size: Get<*mut usize>, get: Get<*mut c_char>) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program lives; a place for a size.
        self.said(unsafe { size(program, &mut bytes) })?;
        let mut read = vec![0u8; bytes];
        // SAFETY: the program lives; NVRTC writes as many bytes as it says.
        self.said(unsafe { get(program, read.as_mut_ptr().cast()) })?;
        Ok(read)
    }

    fn said(&self, outcome: c_int) -> Result<(), String> {
        if outcome == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC has a C string for every number, which stays.
        let words = unsafe { CStr::from_ptr((self.error_string)(outcome)) };
        Err(words.to_string_lossy().into_owned())
    }
}
