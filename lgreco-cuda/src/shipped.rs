//! The compiled kernels of the crate: `compiled/kernels`, which `examples/compile_kernels.rs` writes.

use crate::error::version;
use crate::kernels::Module;
use crate::{Error, Result};
use std::sync::OnceLock;

/// NVRTC's options for every module. The arithmetic must follow IEEE 754, so that payloads have the same bits on all
/// devices.
pub(crate) const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    "--device-as-default-execution-space",
];

/// The target of a compiled module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Architecture {
    /// Machine code for one compute capability, such as 80 for 8.0.
    Sass(u32),
    /// PTX, which drivers compile for this compute capability and later ones.
    Ptx(u32),
}

impl Architecture {
    /// The compiler's name for the target.
    pub(crate) fn name(self) -> String {
        match self {
            Architecture::Sass(number) => format!("sm_{number}"),
            Architecture::Ptx(number) => format!("compute_{number}"),
        }
    }
}

/// Formats a compute capability as text: 80 becomes `8.0`.
pub(crate) fn capability(number: u32) -> String {
    version((number / 10, number % 10))
}

/// The archive: one entry per group of architectures that are [compressed together](TOGETHER). An entry is the length
/// of a name, the name, the length of the content, and the content. The content is compressed by LZMA. The decompressed
/// content consists of entries of the same form, one per module and architecture. Such an inner entry contains the
/// module's code.
const ARCHIVE: &[u8] = include_bytes!("../compiled/kernels");

/// Compute capabilities with machine code.
pub(crate) const SASS: [u32; 6] = [70, 75, 80, 90, 100, 120];
/// The compute capability of the PTX. Drivers compile the PTX for devices of this and later compute capabilities.
pub(crate) const PTX: u32 = 75;

/// Architectures that are compressed together. The code of a module is similar for adjacent architectures. Compressed
/// together, two adjacent architectures take five sixths of their separate size.
pub(crate) const TOGETHER: [&[Architecture]; 4] = [
    &[Architecture::Sass(70), Architecture::Sass(75)],
    &[Architecture::Sass(80), Architecture::Sass(90)],
    &[Architecture::Sass(100), Architecture::Sass(120)],
    &[Architecture::Ptx(PTX)],
];

/// Compute capabilities of systems on a chip. Systems on a chip do not run the machine code of graphics cards of the
/// same major version.
const ON_A_CHIP: [u32; 4] = [72, 87, 101, 110];

/// The CUDA version of the oldest driver that loads the machine code.
pub(crate) const DRIVER: (u32, u32) = (12, 0);
/// The CUDA version of the oldest driver that reads the PTX.
const PTX_DRIVER: (u32, u32) = (12, 9);
/// The version of the PTX.
#[cfg(test)]
const PTX_VERSION: &str = ".version 8.8";

/// Returns the architecture whose code a device of compute capability `device` runs. `driver` is the driver's CUDA
/// version, at least [`DRIVER`].
pub(crate) fn architecture(driver: (u32, u32), device: u32) -> Result<Architecture> {
    let runs = |number: &u32| number / 10 == device / 10 && *number <= device && !ON_A_CHIP.contains(&device);
    if let Some(number) = SASS.into_iter().filter(runs).max() {
        return Ok(Architecture::Sass(number));
    }
    if device < SASS[0] {
        let (needed, found) = (capability(SASS[0]), capability(device));
        return Err(Error::TooOld { what: "the device's compute capability", needed, found });
    }
    if device <= PTX {
        return Err(Error::Unsupported { capability: capability(device) });
    }
    if driver < PTX_DRIVER {
        let needed = format!("{} (for compute capability {})", version(PTX_DRIVER), capability(device));
        return Err(Error::TooOld { what: "the CUDA version of the NVIDIA driver", needed, found: version(driver) });
    }
    Ok(Architecture::Ptx(PTX))
}

/// The name of a module's code. The name contains a hash of the sources and the options, so code compiled from other
/// sources has another name.
pub(crate) fn name(module: Module, architecture: Architecture) -> String {
    let hash = hash(format!("{}{OPTIONS:?}", module.source()).as_bytes());
    format!("{} {} {hash:016x}", module.name(), architecture.name())
}

/// The 64-bit FNV-1a hash.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The name of a group of architectures.
pub(crate) fn names(architectures: &[Architecture]) -> String {
    let names: Vec<String> = architectures.iter().map(|architecture| architecture.name()).collect();
    names.join(" ")
}

/// Returns the bytes of an entry of the archive.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn entry(name: &str, bytes: &[u8]) -> Vec<u8> {
    let len = |bytes: &[u8]| (bytes.len() as u32).to_le_bytes();
    [&len(name.as_bytes())[..], name.as_bytes(), &len(bytes), bytes].concat()
}

/// A module's code.
///
/// # Errors
/// [`Error::NoKernels`] if the archive has no code for these sources.
pub(crate) fn code(module: Module, architecture: Architecture) -> Result<&'static [u8]> {
    let code = modules(architecture).and_then(|modules| find(modules, &name(module, architecture)));
    code.ok_or_else(|| Error::NoKernels { module: module.name(), architecture: architecture.name() })
}

/// Returns the decompressed entries of an architecture's group. The entries stay in memory after the first call.
fn modules(architecture: Architecture) -> Option<&'static [u8]> {
    static OPENED: [OnceLock<Vec<u8>>; TOGETHER.len()] = [const { OnceLock::new() }; TOGETHER.len()];
    let has = |together: &[Architecture]| together.iter().any(|known| known.name() == architecture.name());
    let (together, opened) = TOGETHER.iter().zip(&OPENED).find(|(together, _)| has(together))?;
    Some(opened.get_or_init(|| find(ARCHIVE, &names(together)).and_then(decompressed).unwrap_or_default()))
}

fn decompressed(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    lzma_rs::lzma_decompress(&mut bytes, &mut all).ok()?;
    Some(all)
}

fn find<'a>(mut archive: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    loop {
        let (name, rest) = part(archive)?;
        let (bytes, rest) = part(rest)?;
        if name == wanted.as_bytes() {
            return Some(bytes);
        }
        archive = rest;
    }
}

/// Splits off the bytes of a field with a length prefix. Returns these bytes and all later bytes.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_get_code_that_they_run() {
        let of =
            |driver, device| architecture(driver, device).map(Architecture::name).map_err(|error| error.to_string());
        for (device, expected) in [
            (70, "sm_70"),
            (75, "sm_75"),
            (80, "sm_80"),
            (86, "sm_80"),
            (87, "compute_75"),
            (89, "sm_80"),
            (90, "sm_90"),
            (103, "sm_100"),
            (110, "compute_75"),
            (121, "sm_120"),
            (130, "compute_75"),
        ] {
            assert_eq!(of((12, 9), device).as_deref(), Ok(expected), "{device}");
        }
        assert_eq!(of((12, 0), 89).as_deref(), Ok("sm_80"));
        for (driver, device, expected) in [
            ((12, 9), 61, "the device's compute capability is 6.1, at least 7.0 is needed"),
            ((12, 9), 72, "no kernels come with this crate for devices of compute capability 7.2"),
            (
                (12, 8),
                87,
                "the CUDA version of the NVIDIA driver is 12.8, at least 12.9 (for compute capability 8.7) is needed",
            ),
        ] {
            assert_eq!(of(driver, device), Err(expected.to_owned()), "{device}");
        }
    }

    #[test]
    fn there_is_code_of_these_sources() {
        for module in Module::ALL {
            for architecture in SASS.map(Architecture::Sass).into_iter().chain([Architecture::Ptx(PTX)]) {
                let code = code(module, architecture).unwrap_or_else(|error| panic!("{error}"));
                match architecture {
                    Architecture::Sass(_) => assert!(code.starts_with(b"\x7fELF")),
                    Architecture::Ptx(number) => {
                        let text = str::from_utf8(code).unwrap();
                        assert!(text.contains(&format!(".target sm_{number}")) && text.ends_with('\0'));
                        assert!(text.contains(PTX_VERSION), "for which drivers is it?");
                    }
                }
            }
        }
    }

    #[test]
    fn archives_are_read_and_damage_is_nothing_found() {
        let archive = [entry("one", b"first code"), entry("two", &[7; 1000])].concat();
        assert_eq!(find(&archive, "one"), Some(&b"first code"[..]));
        assert_eq!(find(&archive, "two"), Some(&[7; 1000][..]));
        assert_eq!(find(&archive, "three"), None);
        for len in 0..archive.len() {
            assert_eq!(find(&archive[..len], "two"), None);
        }
        let mut compressed = Vec::new();
        lzma_rs::lzma_compress(&mut &archive[..], &mut compressed).unwrap();
        assert_eq!(decompressed(&compressed), Some(archive));
        assert_eq!(decompressed(&compressed[..compressed.len() / 2]), None);
    }
}
