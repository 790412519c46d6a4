//! Kernels that come compiled with the crate, so that no compiler is needed where they run: `compiled/kernels`, which
//! `examples/compile_kernels.rs` writes.

use crate::compiler::{Architecture, sources_hash};
use crate::kernels::Module;
use std::sync::OnceLock;

/// Entries one after another, of [what is compressed together](TOGETHER) each: the length of a name, the name, the length of what
/// follows, and, as LZMA, such entries of modules, whose code is what follows.
const ARCHIVE: &[u8] = include_bytes!("../compiled/kernels");

/// What there is machine code for.
pub(crate) const SASS: [u32; 6] = [70, 75, 80, 90, 100, 120];
/// What there is code for that drivers compile for all later devices.
pub(crate) const PTX: u32 = 75;

/// Modules of an architecture are alike, and so are those of its neighbour: two together take five sixths of what they take apart.
pub(crate) const TOGETHER: [&[Architecture]; 4] = [
    &[Architecture::Sass(70), Architecture::Sass(75)],
    &[Architecture::Sass(80), Architecture::Sass(90)],
    &[Architecture::Sass(100), Architecture::Sass(120)],
    &[Architecture::Ptx(PTX)],
];

/// Compute capabilities of systems on a chip, which do not run the machine code of the graphics cards of their kind.
const ON_A_CHIP: [u32; 4] = [72, 87, 101, 110];

/// The least driver that takes machine code: of a later minor version than its own, too.
const DRIVER: (u32, u32) = (12, 0);
/// The compiler of all of it.
#[cfg(test)]
pub(crate) const COMPILER: (u32, u32) = (12, 9);
/// And the version of the PTX, with the least driver that reads it.
#[cfg(test)]
const PTX_VERSION: &str = ".version 8.8";
const PTX_DRIVER: (u32, u32) = (12, 9);

/// What there is for a device of compute capability `device`, under a driver of CUDA's version `driver`.
pub(crate) fn architecture(driver: (u32, u32), device: u32) -> Option<Architecture> {
    let runs = |number: &u32| number / 10 == device / 10 && *number <= device && !ON_A_CHIP.contains(&device);
    match SASS.into_iter().filter(runs).max() {
        Some(number) => (driver >= DRIVER).then_some(Architecture::Sass(number)),
        None => (driver >= PTX_DRIVER && device > PTX).then_some(Architecture::Ptx(PTX)),
    }
}

/// What the code of a module is called; the hash is of all that it is made of, so that code of other sources is not found.
pub(crate) fn name(module: Module, architecture: Architecture) -> String {
    format!("{} {} {:016x}", module.name(), architecture.name(), sources_hash(&module.source()))
}

/// What architectures are called together.
pub(crate) fn names(architectures: &[Architecture]) -> String {
    let names: Vec<String> = architectures.iter().map(|architecture| architecture.name()).collect();
    names.join(" ")
}

/// An entry.
#[cfg(any(test, all(feature = "testing", feature = "train")))]
pub(crate) fn entry(name: &str, bytes: &[u8]) -> Vec<u8> {
    let len = |bytes: &[u8]| (bytes.len() as u32).to_le_bytes();
    [&len(name.as_bytes())[..], name.as_bytes(), &len(bytes), bytes].concat()
}

/// A module's code; `None` when there is none of these sources.
pub(crate) fn code(module: Module, architecture: Architecture) -> Option<Vec<u8>> {
    find(modules(architecture)?, &name(module, architecture)).map(<[u8]>::to_vec)
}

/// An architecture's entries and its neighbour's, which are kept.
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

/// Bytes behind their length, and what comes after them.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_get_code_that_they_run() {
        let of = |device| architecture((12, 9), device).map(Architecture::name);
        for (device, expected) in [
            (61, None),
            (70, Some("sm_70")),
            (72, None),
            (75, Some("sm_75")),
            (80, Some("sm_80")),
            (86, Some("sm_80")),
            (87, Some("compute_75")),
            (89, Some("sm_80")),
            (90, Some("sm_90")),
            (103, Some("sm_100")),
            (110, Some("compute_75")),
            (121, Some("sm_120")),
            (130, Some("compute_75")),
        ] {
            assert_eq!(of(device).as_deref(), expected, "{device}");
        }
        assert_eq!((architecture((11, 8), 80), architecture((12, 8), 87)), (None, None));
        assert_eq!(architecture((12, 0), 89), Some(Architecture::Sass(80)));
    }

    #[test]
    fn there_is_code_of_these_sources() {
        for module in Module::ALL {
            for architecture in SASS.map(Architecture::Sass).into_iter().chain([Architecture::Ptx(PTX)]) {
                let code = code(module, architecture);
                let code = code.unwrap_or_else(|| {
                    let command = "cargo run --release -p lgreco-cuda --features testing --example compile_kernels";
                    panic!("{}: the sources have changed: {command}", name(module, architecture))
                });
                match architecture {
                    Architecture::Sass(_) => assert!(code.starts_with(b"\x7fELF")),
                    Architecture::Ptx(number) => {
                        let text = String::from_utf8(code).unwrap();
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
