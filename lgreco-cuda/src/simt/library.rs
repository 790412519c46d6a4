//! Compiles kernels to libraries for the CPU, by g++.

use crate::kernels::Module;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// How kernels are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// With optimisation, without checks.
    Plain,
    /// With `cuda_racecheck.cpp`, which checks for data races.
    Races,
    /// With `cuda_reads.cpp`, which counts loads and stores.
    Reads,
    /// With the address and undefined-behaviour sanitizers. The process must run under the sanitizers' library.
    Sanitized,
}

/// Held during a compilation.
static BUILDING: Mutex<()> = Mutex::new(());

/// Returns the names of the kernels in a source text.
pub(crate) fn entries(source: &str) -> Vec<&str> {
    let after = source.split("__global__ ").skip(1);
    after
        .map(|text| text.split("(Params").next().and_then(|text| text.split(' ').next_back()).expect("a name"))
        .collect()
}

/// The folder for compiled test libraries.
pub(crate) fn target() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("../target"), PathBuf::from).join("simt");
    std::fs::create_dir_all(&target).expect("a folder for compiled kernels");
    target
}

const COMMON: &str =
    "-std=c++17 -fPIC -fvisibility=hidden -fno-gnu-unique -fno-strict-aliasing -ffp-contract=off -Wno-unknown-pragmas";

/// The parts of the shim that are compiled once for all modules.
struct Shim {
    folder: &'static Path,
    header: Vec<u8>,
    /// Name and source of the flavour's check, if any. The check is linked in place of the sanitizer's library.
    check: Option<(&'static str, Vec<u8>)>,
}

/// Compiles a module to a library, unless the library exists. To save time, an edited source, which runs only once, is
/// compiled with fewer optimisations.
pub(crate) fn build(module: Module, source: &str, flavour: Flavour) -> PathBuf {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/simt"));
    let read = |name: &str| std::fs::read(folder.join(name)).expect("a source of the shim");
    let check = match flavour {
        Flavour::Races => Some("cuda_racecheck"),
        Flavour::Reads => Some("cuda_reads"),
        Flavour::Plain | Flavour::Sanitized => None,
    };
    let check = check.map(|name| (name, read(&format!("{name}.cpp"))));
    let shim = Shim { folder, header: read("cuda_shim.h"), check };
    let exports: String = entries(source).iter().map(|entry| format!("SHIM_EXPORT({entry})\n")).collect();
    let text = format!("{source}\n#line 1 \"exports\"\n{exports}");
    // In code compiled with -Og, the race check misses some races.
    let runs_once = source != module.source() && flavour != Flavour::Races;
    let level = if runs_once { "-Og" } else { "-O1" };
    let own = match flavour {
        Flavour::Plain => "-g0",
        Flavour::Races => "-g1 -fsanitize=thread",
        Flavour::Reads => "-g0 -fsanitize=thread",
        Flavour::Sanitized => {
            "-g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fsanitize-sections=cuda_shared"
        }
    };
    let options: Vec<&str> = [COMMON, level, own].into_iter().flat_map(|text| text.split(' ')).collect();
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let of_check = shim.check.as_ref().map_or(&[][..], |(_, source)| source);
    let sources: [&[u8]; 3] = [&shim.header, of_check, text.as_bytes()];
    made(module.name(), ".so", &[&sources[..], &[level.as_bytes(), own.as_bytes()]].concat(), |library| {
        let (cpp, object) = (library.with_extension("cpp"), library.with_extension("o"));
        std::fs::write(&cpp, &text).expect("a source");
        run(&options, &[&"-include", &shim.precompiled(&options), &"-c", &"-o", &object, &cpp]);
        let mut linked: Vec<&dyn AsRef<OsStr>> = vec![&"-shared", &"-o", &library, &object];
        let check = shim.compiled_check();
        linked.extend(check.iter().map(|check| check as &dyn AsRef<OsStr>));
        // The flavour's check replaces the sanitizer's own library.
        run(if check.is_some() { &[] } else { &options }, &linked);
        [cpp, object].iter().for_each(|file| std::fs::remove_file(file).expect("a file of this function"));
    })
}

impl Shim {
    /// Returns a header file for these options. g++ finds the precompiled header next to the header file.
    fn precompiled(&self, options: &[&str]) -> PathBuf {
        let text = format!("#define CUDA_SHIM\n#include {:?}\n", self.folder.join("cuda_shim.h"));
        let options_text = options.join(" ");
        let parts = [&self.header, text.as_bytes(), options_text.as_bytes()];
        let header = made("cuda_shim", ".h", &parts, |header| std::fs::write(header, &text).expect("a header"));
        made("cuda_shim", ".h.gch", &parts, |to| {
            run(options, &[&"-x", &"c++-header", &"-o", &to, &header]);
        });
        header
    }

    /// Returns the object file of the flavour's check, if there is a check.
    fn compiled_check(&self) -> Option<PathBuf> {
        let (name, text) = self.check.as_ref()?;
        let source = self.folder.join(name).with_extension("cpp");
        Some(made(name, ".o", &[&self.header, text], |object| {
            let options: Vec<&str> = COMMON.split(' ').chain(["-O2"]).collect();
            run(&options, &[&"-c", &"-o", &object, &source]);
        }))
    }
}

/// Returns the path of a file whose name contains a hash of `parts`. If the file does not exist, `make` creates it.
fn made(name: &str, ending: &str, parts: &[&[u8]], make: impl FnOnce(&Path)) -> PathBuf {
    let hash = parts
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let path = target().join(format!("{name}-{hash:016x}{ending}"));
    if !path.exists() {
        // Other processes may make the same file at the same time. So the file gets its final name only when the file
        // is complete, and an existing file is never replaced. If a library were replaced, a process that opens the
        // path again would load a second library.
        let unfinished = target().join(format!("{hash:016x}-{}{ending}", std::process::id()));
        make(&unfinished);
        match std::fs::hard_link(&unfinished, &path) {
            // Some file systems have no hard links.
            Err(_) if !path.exists() => std::fs::rename(&unfinished, &path).expect("a file that was made"),
            _ => std::fs::remove_file(&unfinished).expect("a file that was made"),
        }
    }
    path
}

/// Compiles a source file in the folder `simt` to a library, with these macro definitions. `Err` if there is no g++.
#[cfg(test)]
pub(crate) fn stand_in(source: &str, definitions: &[&str]) -> Result<PathBuf, std::io::Error> {
    Command::new("g++").arg("--version").output()?;
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/simt")).join(source);
    let text = std::fs::read(&path)?;
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let all_definitions = definitions.join(" ");
    let name = source.strip_suffix(".cpp").unwrap_or(source);
    Ok(made(name, ".so", &[&text, all_definitions.as_bytes()], |library| {
        let options = [&["-std=c++17", "-O1", "-shared", "-fPIC"], definitions].concat();
        run(&options, &[&"-o", &library, &path]);
    }))
}

fn run(options: &[&str], files: &[&dyn AsRef<OsStr>]) {
    let output = Command::new("g++").args(options).args(files.iter().map(|file| file.as_ref())).output().expect("g++");
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
}
