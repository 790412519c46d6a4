//! Loads and calls NVRTC, NVIDIA's compiler library.
#![allow(unsafe_code, reason = "a library of C functions")]

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Texts = *const *const c_char;

/// The loaded library. The library's functions return 0 or an error code; `nvrtcGetErrorString` describes the code.
pub struct Nvrtc(Library);

impl Nvrtc {
    pub fn load(path: &Path) -> Result<Nvrtc, libloading::Error> {
        // SAFETY: this is NVIDIA's library, and its initialisers are trusted.
        unsafe { Library::new(path) }.map(Nvrtc)
    }

    /// NVRTC's major and minor version.
    pub fn version(&self) -> Result<(i32, i32), String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function has this type, and both pointers are valid.
        unsafe {
            let version = self.function::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>("nvrtcVersion")?;
            self.said(version(&mut major, &mut minor))?;
        }
        Ok((major, minor))
    }

    /// Compiles `source`. In the compiler's messages, the source has the name `file`. An error includes NVRTC's error
    /// text and log.
    pub fn compile(&self, file: &str, source: &str, options: &[String], is_ptx: bool) -> Result<Vec<u8>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| format!("{file}: a NUL in its text or options"));
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (source, name) = (text(source)?, text(file)?);
        let (size, get) =
            if is_ptx { ("nvrtcGetPTXSize", "nvrtcGetPTX") } else { ("nvrtcGetCUBINSize", "nvrtcGetCUBIN") };
        let mut program = null_mut();
        // SAFETY: NVRTC declares its functions with these types. All texts stay alive during the calls. The program
        // exists until its destruction at the end.
        unsafe {
            let create = self.function::<unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                Texts,
                Texts,
            ) -> c_int>("nvrtcCreateProgram")?;
            let compile =
                self.function::<unsafe extern "C" fn(Program, c_int, Texts) -> c_int>("nvrtcCompileProgram")?;
            let destroy = self.function::<unsafe extern "C" fn(*mut Program) -> c_int>("nvrtcDestroyProgram")?;
            self.said(create(&mut program, source.as_ptr(), name.as_ptr(), 0, null(), null()))?;
            let compiled = self.said(compile(program, pointers.len() as c_int, pointers.as_ptr()));
            let code = match compiled {
                Ok(()) => self.read(program, size, get),
                Err(error) => {
                    let log = self.read(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").unwrap_or_default();
                    Err(format!("{file}: {error}\n{}", String::from_utf8_lossy(&log)))
                }
            };
            destroy(&mut program);
            code
        }
    }

    /// # Safety
    /// The program has not been destroyed. `size` and `get` are the names of NVRTC functions of the types [`Size`] and
    /// [`Get`], and both return the same output.
    unsafe fn read(&self, program: Program, size: &str, get: &str) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the caller guarantees that the program exists and that the functions have these types. `get` writes
        // exactly as many bytes as `size` reports.
        unsafe {
            self.said(self.function::<Size>(size)?(program, &mut bytes))?;
            let mut read = vec![0u8; bytes];
            self.said(self.function::<Get>(get)?(program, read.as_mut_ptr().cast()))?;
            Ok(read)
        }
    }

    /// # Safety
    /// The function `name` has the type `T`.
    unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, String> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.0.get::<T>(name) }.map(|function| *function).map_err(|error| error.to_string())
    }

    fn said(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function has this type, and returns a static text.
        unsafe {
            let words = self.function::<unsafe extern "C" fn(c_int) -> *const c_char>("nvrtcGetErrorString")?;
            Err(CStr::from_ptr(words(code)).to_string_lossy().into_owned())
        }
    }
}
