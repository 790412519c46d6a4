//! NVRTC: kernels compiled at run time, each once per architecture and process, and kept on disk where that is wanted.

use crate::Error;
use crate::kernels::Module;
use crate::libraries::{Library, candidates};
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
        let mut refused = None;
        for path in candidates(Library::Nvrtc, driver.0, |variable| std::env::var_os(variable).map(PathBuf::from)) {
            let Some(opened) = Compiler::open(&path) else { continue };
            match opened.and_then(|compiler| compiler.suits(driver, device)) {
                Ok(found) => return Ok(found),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(Error::NoCompiler))
    }

    /// The NVRTC in a library; `None` when there is no such library, or no NVRTC in it.
    pub(crate) fn open(path: &Path) -> Option<Result<Self, Error>> {
        let nvrtc = Nvrtc::load(path)?;
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
        let architecture = Architecture::of(device, &self.supported)?;
        Ok((self, architecture))
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
                let (code, _) = self.compile(module.name(), &source, architecture, &[])?;
                if let Some(file) = file {
                    keep(&file, &code);
                }
                code.into()
            }
        };
        made.insert((hash, architecture), Arc::clone(&code));
        Ok(code)
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

/// Writes a file at once or not at all; a cache that cannot be written is no error.
fn keep(file: &Path, code: &[u8]) {
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    if std::fs::write(&unfinished, code).is_ok() && std::fs::rename(&unfinished, file).is_err() {
        std::fs::remove_file(&unfinished).ok();
    }
}

/// FNV-1a of all that decides what a compiler makes.
fn hash(source: &str, version: (u32, u32)) -> u64 {
    let all = format!("{source}{OPTIONS:?}{version:?}");
    all.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
