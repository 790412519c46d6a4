//! NVRTC: kernels compiled at run time, each once per architecture and process, and kept on disk where that is wanted.

use crate::Error;
use crate::kept;
use crate::kernels::Module;
use crate::libraries::{Library, candidates, fault};
use crate::nvrtc::{Form, Nvrtc};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
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
const OLDEST: (u32, u32) = (11, 2);

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

    /// The best for a device of compute capability `device`: its own machine code, so that drivers older than NVRTC do;
    /// or what is nearest before, which drivers compile on. `None` for devices older than all of `supported`.
    pub(crate) fn of(device: u32, supported: &[u32]) -> Option<Self> {
        if supported.contains(&device) {
            return Some(Architecture::Sass(device));
        }
        supported.iter().copied().filter(|&number| number < device).max().map(Architecture::Ptx)
    }
}

/// A number for a source and how it is compiled.
pub(crate) fn sources_hash(source: &str) -> u64 {
    kept::hash(format!("{source}{OPTIONS:?}").as_bytes())
}

/// 80 is 8.0.
pub(crate) fn capability(number: u32) -> String {
    format!("{}.{}", number / 10, number % 10)
}

/// The code of one module, once it is there: while it is made, other modules and other devices' code can be.
type Code = Arc<Mutex<Option<Box<[u8]>>>>;

/// What this process has made or is making, by the hash of what it is made of.
static MADE: Mutex<Option<HashMap<(u64, Architecture), Code>>> = Mutex::new(None);

/// A module's place.
fn made(hash: u64, architecture: Architecture) -> Code {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.get_or_insert_default().entry((hash, architecture)).or_default().clone()
}

/// An NVRTC, its version, and the compute capabilities it compiles for.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    nvrtc: Nvrtc,
    pub(crate) version: (u32, u32),
    pub(crate) supported: Vec<u32>,
}

impl Compiler {
    /// The best NVRTC for a device of compute capability `device` and a driver of CUDA's version `driver`, and what it
    /// makes: of the driver's major version, or else an older one. `Err` when there is none, with why the first that
    /// was found does not do.
    pub(crate) fn find(driver: (u32, u32), device: u32) -> Result<(Self, Architecture), Error> {
        Compiler::first(driver.0, |compiler| compiler.suits(driver, device))
    }

    /// What `take` makes of the first NVRTC that it takes, for a driver of this major version.
    fn first<T>(driver: u32, take: impl Fn(Compiler) -> Result<T, Error>) -> Result<T, Error> {
        let mut refused = None;
        for path in candidates(Library::Nvrtc, driver, |variable| std::env::var_os(variable).map(PathBuf::from)) {
            match Compiler::open(&path).map(|opened| take(opened?)) {
                Some(Ok(taken)) => return Ok(taken),
                Some(Err(error)) => refused = refused.or(Some(error)),
                None => {}
            }
        }
        Err(refused.unwrap_or(Error::NoCompiler))
    }

    /// The NVRTC in a library; `None` when there is no such library.
    pub(crate) fn open(path: &Path) -> Option<Result<Self, Error>> {
        let nvrtc = match Nvrtc::load(path) {
            Ok(nvrtc) => nvrtc,
            Err(error) => return fault(path, &error).map(Err),
        };
        let failed = |call| move |reason| Error::Driver { call, reason };
        let asked = |nvrtc: Nvrtc| {
            let version = nvrtc.version().map_err(failed("nvrtcVersion"))?;
            let supported = nvrtc.supported().map_err(failed("nvrtcGetSupportedArchs"))?;
            Ok(Compiler { nvrtc, version, supported })
        };
        Some(asked(nvrtc))
    }

    /// Whether its code is understood by the driver and the device, and in which form.
    pub(crate) fn suits(self, driver: (u32, u32), device: u32) -> Result<(Self, Architecture), Error> {
        let text = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        if self.version < OLDEST {
            return Err(Error::TooOld { what: "NVRTC", needed: text(OLDEST), found: text(self.version) });
        }
        if self.version.0 > driver.0 {
            let needed = format!("{} (for the NVRTC that was found)", text((self.version.0, 0)));
            let what = "the CUDA version of the NVIDIA driver";
            return Err(Error::TooOld { what, needed, found: text(driver) });
        }
        match Architecture::of(device, &self.supported) {
            Some(architecture) => Ok((self, architecture)),
            None => {
                let least = self.supported.iter().min().map_or("a later one".into(), |&least| capability(least));
                let needed = format!("{least} (for NVRTC {}, which was found)", text(self.version));
                Err(Error::TooOld { what: "the device's compute capability", needed, found: capability(device) })
            }
        }
    }

    /// What `load` makes of the module's code: of what this process has made before, or else of the folder's, or else
    /// of what is compiled now. The folder then has it; what it had that was damaged or did not load is replaced.
    pub(crate) fn load<T>(
        &self,
        module: Module,
        architecture: Architecture,
        folder: Option<&Path>,
        load: impl Fn(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let source = module.source();
        let hash = self.hash(&source);
        let file = folder.map(|folder| file(folder, module, hash, architecture));
        let made = made(hash, architecture);
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = made.as_deref() {
            let loaded = load(code)?;
            file.iter().filter(|file| !file.exists()).for_each(|file| kept::write(file, code));
            return Ok(loaded);
        }
        let kept = file.as_deref().and_then(kept::read);
        if let Some((code, loaded)) = kept.and_then(|code| load(&code).ok().map(|loaded| (code, loaded))) {
            *made = Some(code.into());
            return Ok(loaded);
        }
        let (code, _) = self.compile(module.name(), &source, architecture, &[])?;
        let loaded = load(&code)?;
        file.iter().for_each(|file| kept::write(file, &code));
        *made = Some(code.into());
        Ok(loaded)
    }

    /// Puts what this process has made of the module into a folder that does not have it.
    pub(crate) fn keep(&self, module: Module, architecture: Architecture, folder: &Path) {
        let hash = self.hash(&module.source());
        let file = file(folder, module, hash, architecture);
        let made = made(hash, architecture);
        let made = made.lock().unwrap_or_else(PoisonError::into_inner);
        made.as_deref().filter(|_| !file.exists()).iter().for_each(|code| kept::write(&file, code));
    }

    /// A number for all that decides what is made of a source.
    fn hash(&self, source: &str) -> u64 {
        kept::hash(format!("{source}{OPTIONS:?}{:?}", self.version).as_bytes())
    }

    /// Compiles a source; the code and NVRTC's log.
    pub(crate) fn compile(
        &self,
        module: &'static str,
        source: &str,
        architecture: Architecture,
        more: &[&str],
    ) -> Result<(Vec<u8>, String), Error> {
        let target = format!("--gpu-architecture={}", architecture.name());
        let options: Vec<&str> = OPTIONS.iter().chain(more).copied().chain([target.as_str()]).collect();
        let form = match architecture {
            Architecture::Sass(_) => Form::Cubin,
            Architecture::Ptx(_) => Form::Ptx,
        };
        let compiled = self.nvrtc.compile(module, source, &options, form);
        compiled.map_err(|log| Error::Compile { module, architecture: architecture.name(), log })
    }
}

/// Where a folder has a module's code.
pub(crate) fn file(folder: &Path, module: Module, hash: u64, architecture: Architecture) -> PathBuf {
    folder.join(format!("{}-{hash:016x}-{}", module.name(), architecture.name()))
}
