//! NVRTC: kernels compiled at run time, each once per architecture and process, and kept on disk where that is wanted.

use crate::Error;
use crate::kernels::Module;
use cudarc::nvrtc::{result, sys};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The options of every module: arithmetic is IEEE 754's, because bits of payloads depend on it.
const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    "--device-as-default-execution-space",
];

/// The oldest NVRTC that says what it can compile for.
const OLDEST: (i32, i32) = (11, 2);

/// What NVRTC is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Architecture {
    /// Machine code for one compute capability, 80 for 8.0.
    Sass(u32),
    /// Code that drivers compile for this compute capability and later ones.
    Ptx(u32),
}

impl Architecture {
    /// What NVRTC calls it.
    pub(crate) fn name(self) -> String {
        match self {
            Architecture::Sass(number) => format!("sm_{number}"),
            Architecture::Ptx(number) => format!("compute_{number}"),
        }
    }

    /// The best for a device of compute capability `device`: its own machine code, so that drivers older than NVRTC do; or
    /// what is nearest before, which drivers compile on.
    pub(crate) fn of(device: u32, supported: &[u32]) -> Result<Self, Error> {
        if supported.contains(&device) {
            return Ok(Architecture::Sass(device));
        }
        let before = supported.iter().copied().filter(|&number| number < device).max();
        before.map(Architecture::Ptx).ok_or_else(|| Error::TooOld {
            what: "the device's compute capability",
            needed: supported.iter().min().map_or("one that NVRTC knows".into(), |&least| capability(least)),
            found: capability(device),
        })
    }
}

/// 80 is 8.0.
pub(crate) fn capability(number: u32) -> String {
    format!("{}.{}", number / 10, number % 10)
}

/// Code by the hash of what it was made of.
type Made = HashMap<(u64, Architecture), Arc<[u8]>>;

/// NVRTC's version and the compute capabilities it compiles for.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    pub(crate) version: (i32, i32),
    pub(crate) supported: Vec<u32>,
}

impl Compiler {
    /// `Err` when NVRTC is not there or too old.
    pub(crate) fn find() -> Result<Self, Error> {
        // SAFETY: loads a library and looks for nothing in it.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoCompiler);
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for an int.
        check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        let version = (major, minor);
        if version < OLDEST {
            let text = |(major, minor)| format!("{major}.{minor}");
            return Err(Error::TooOld { what: "NVRTC", needed: text(OLDEST), found: text(version) });
        }
        let mut count = 0;
        // SAFETY: the count's place; then, as NVRTC asks, room for as many.
        let supported = unsafe {
            check("nvrtcGetNumSupportedArchs", sys::nvrtcGetNumSupportedArchs(&mut count))?;
            let mut supported = vec![0; count as usize];
            check("nvrtcGetSupportedArchs", sys::nvrtcGetSupportedArchs(supported.as_mut_ptr()))?;
            supported
        };
        Ok(Compiler { version, supported: supported.into_iter().map(|number| number as u32).collect() })
    }

    /// The module's code, compiled on first use; with a folder, from there and to there.
    pub(crate) fn code(
        &self,
        module: Module,
        architecture: Architecture,
        folder: Option<&Path>,
    ) -> Result<Arc<[u8]>, Error> {
        static MADE: Mutex<Option<Made>> = Mutex::new(None);
        let source = module.source();
        let hash = hash(&source, self.version);
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let made = made.get_or_insert_default();
        if let Some(code) = made.get(&(hash, architecture)) {
            return Ok(Arc::clone(code));
        }
        let file = folder.map(|folder| folder.join(format!("{}-{hash:016x}-{}", module.name(), architecture.name())));
        let kept = file.as_ref().and_then(|file| std::fs::read(file).ok()).filter(|kept| !kept.is_empty());
        let code: Arc<[u8]> = match kept {
            Some(code) => code.into(),
            None => {
                let (code, _) = compile(module.name(), &source, architecture, &[])?;
                if let Some(file) = file {
                    keep(&file, &code);
                }
                code.into()
            }
        };
        made.insert((hash, architecture), Arc::clone(&code));
        Ok(code)
    }
}

/// Writes a file at once or not at all; a cache that cannot be written is no error.
fn keep(file: &Path, code: &[u8]) {
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    if std::fs::write(&unfinished, code).is_ok() && std::fs::rename(&unfinished, file).is_err() {
        std::fs::remove_file(&unfinished).ok();
    }
}

/// FNV-1a of all that decides what a compiler makes.
fn hash(source: &str, version: (i32, i32)) -> u64 {
    let all = format!("{source}{OPTIONS:?}{version:?}");
    all.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn check(call: &'static str, outcome: sys::nvrtcResult) -> Result<(), Error> {
    outcome.result().map_err(|error| Error::Driver { call, reason: error.to_string() })
}

/// A program, which NVRTC owns.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by NVRTC, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Compiles a source; the code and NVRTC's log. NVRTC is there.
pub(crate) fn compile(
    name: &'static str,
    source: &str,
    architecture: Architecture,
    more: &[&str],
) -> Result<(Vec<u8>, String), Error> {
    let failed = |log: String| Error::Compile { module: name, architecture: architecture.name(), log };
    let (text, file) = (CString::new(source), CString::new(name));
    let (Ok(text), Ok(file)) = (text, file) else { return Err(failed("a NUL in the source".into())) };
    let program = result::create_program(&text, Some(&file)).map_err(|error| failed(error.to_string()))?;
    let program = Program(program);
    let target = format!("--gpu-architecture={}", architecture.name());
    let options: Vec<&str> = OPTIONS.iter().chain(more).copied().chain([target.as_str()]).collect();
    // SAFETY: the program lives, and none of the options has a NUL; the log is a C string of the length NVRTC says.
    let (compiled, log) = unsafe {
        let compiled = result::compile_program(program.0, &options);
        (compiled, result::get_program_log(program.0))
    };
    let log: Vec<u8> = log.unwrap_or_default().into_iter().map(|c| c as u8).collect();
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
    compiled.map_err(|error| failed(format!("{error}\n{log}")))?;
    // SAFETY: the program is compiled; NVRTC writes as many bytes as it says.
    let code = unsafe {
        match architecture {
            Architecture::Sass(_) => {
                let mut size = 0;
                check("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(program.0, &mut size))?;
                let mut code = vec![0u8; size];
                check("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()))?;
                code
            }
            Architecture::Ptx(_) => {
                let code = result::get_ptx(program.0).map_err(|error| failed(error.to_string()))?;
                code.into_iter().map(|c| c as u8).collect()
            }
        }
    };
    Ok((code, log))
}
