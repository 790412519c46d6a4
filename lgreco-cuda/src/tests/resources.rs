//! Checks the registers, shared memory and local memory of every shipped kernel. The tests read these numbers from the
//! machine code.

use crate::kernels::Module;
use crate::shipped::{self, Architecture};
use std::collections::BTreeMap;

/// Resources of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Registers per thread.
    registers: u32,
    /// Static shared memory in bytes. For compute capability 9.0 and later, the number includes 1,024 bytes that the
    /// system reserves.
    shared: u32,
    /// Bytes of local memory per thread: spilled registers, and arrays that do not fit into registers.
    local: u32,
}

/// The largest resources that a kernel outside the list `MORE` may use. With these limits, a multiprocessor can hold at
/// least 32 warps.
const USUAL: Use = Use { registers: 64, shared: 8 << 10, local: 0 };

/// Larger limits of registers and shared memory for some kernels.
const MORE: [(&str, u32, u32); 24] = [
    ("eden.cu/decode_rotated", 64, 26 << 10),
    ("eden.cu/encode_rotated", 64, 26 << 10),
    ("eden.cu/rows", 64, 22 << 10),
    ("exchange.cu/encode", 96, 20 << 10),
    ("exchange_eden.cu/average_rotated", 80, 26 << 10),
    ("exchange_eden.cu/check_rotated", 64, 26 << 10),
    ("exchange_eden.cu/encode_offered", 80, 26 << 10),
    ("exchange_sums.cu/back_project", 80, 8 << 10),
    ("exchange_sums.cu/gram", 64, 42 << 10),
    ("exchange_sums.cu/means", 72, 8 << 10),
    ("exchange_sums.cu/prepare", 80, 8 << 10),
    ("exchange_sums.cu/project", 128, 8 << 10),
    ("powersgd.cu/back_project", 80, 8 << 10),
    ("powersgd.cu/gram", 72, 42 << 10),
    ("powersgd.cu/project", 80, 8 << 10),
    ("powersgd.cu/residuals", 88, 8 << 10),
    ("qsgd.cu/fused_encode", 64, 20 << 10),
    ("qsgd.cu/fused_row", 64, 20 << 10),
    ("qsgd.cu/fused_row_of_residuals", 80, 20 << 10),
    ("selection.cu/average_kept", 80, 34 << 10),
    ("selection.cu/offer", 80, 18 << 10),
    ("selection.cu/refine", 80, 34 << 10),
    ("selection.cu/sample", 64, 34 << 10),
    ("topk.cu/count_", 64, 34 << 10),
];

/// Returns the limits of a kernel. An entry of `MORE` applies to the kernel of the same name. If the name in the entry
/// ends with `_`, the entry applies to all kernels with this prefix.
fn bound(kernel: &str) -> Use {
    let more = MORE.iter().find(|(name, ..)| kernel == *name || name.ends_with('_') && kernel.starts_with(name));
    more.map_or(USUAL, |&(_, registers, shared)| Use { registers, shared, local: 0 })
}

/// Returns the resources of each kernel, for each architecture.
fn shipped_kernels() -> Vec<(String, Architecture, Use)> {
    let mut all = Vec::new();
    for module in Module::ALL {
        for architecture in shipped::SASS.map(Architecture::Sass) {
            let cubin = shipped::code(module, architecture).expect("code of these sources");
            for (entry, used) in read(cubin).expect("a cubin") {
                all.push((format!("{}/{entry}", module.name()), architecture, used));
            }
        }
    }
    all
}

/// Returns the kernels that use more than `bound` allows.
fn excesses(kernels: &[(String, Architecture, Use)], bound: impl Fn(&str) -> Use) -> Vec<String> {
    let exceeds = |name: &str, used: Use| {
        let most = bound(name);
        used.registers > most.registers || used.shared > most.shared || used.local > most.local
    };
    let beyond = kernels.iter().filter(|(name, _, used)| exceeds(name, *used));
    beyond.map(|(name, architecture, used)| format!("{name} for {}: {used:?}", architecture.name())).collect()
}

#[test]
fn kernels_spill_nothing_and_stay_within_bounds() {
    let kernels = shipped_kernels();
    for module in Module::ALL {
        for entry in super::simt::entries(&module.source()) {
            let name = format!("{}/{entry}", module.name());
            let found = kernels.iter().filter(|(found, _, used)| *found == name && used.registers > 0).count();
            assert_eq!(found, shipped::SASS.len(), "architectures that have {name}");
        }
    }
    assert_eq!(excesses(&kernels, bound), [""; 0]);
}

#[test]
fn more_than_the_bounds_is_noticed() {
    let kernels = shipped_kernels();
    for (name, ..) in MORE {
        let usual = excesses(&kernels, |kernel| if kernel.starts_with(name) { USUAL } else { bound(kernel) });
        assert!(usual.iter().any(|excess| excess.starts_with(name)), "{name} needs no bound of its own");
    }
    // Plants an error: a kernel's machine code gets a stack frame of 8 bytes.
    let mut cubin = shipped::code(Module::Magnitude, Architecture::Sass(90)).expect("code of these sources").to_vec();
    let frame = cubin.windows(4).position(|bytes| bytes == [SIZED, FRAME, 8, 0]).expect("a frame's size");
    cubin[frame + 8] = 8;
    let planted = read(&cubin).expect("a cubin").into_iter();
    let planted: Vec<_> = planted.map(|(name, used)| (name, Architecture::Sass(90), used)).collect();
    assert_eq!(excesses(&planted, bound).len(), 1);
}

/// An attribute in the section `.nv.info` has a format, a number, and the length of its content. For the numbers below,
/// the content is a symbol's index and a word.
const SIZED: u8 = 4;
const REGISTERS: u8 = 0x2f;
const FRAME: u8 = 0x11;
const LEAST_STACK: u8 = 0x12;

/// A section: its name, its bytes, and its size. The size is larger than the number of bytes if the file does not store
/// the section's content.
struct Section<'c> {
    name: &'c str,
    bytes: &'c [u8],
    size: u64,
}

/// Returns the resources of all kernels in a cubin (an object file of machine code), by name. `None` if the bytes are
/// not a cubin.
fn read(cubin: &[u8]) -> Option<BTreeMap<String, Use>> {
    let sections = sections(cubin)?;
    let named = |name| sections.iter().find(|section| section.name == name).map(|section| section.bytes);
    let (symbols, names) = (named(".symtab")?, named(".strtab")?);
    let symbol = |index: u32| text(names, word(symbols.get(24 * index as usize..)?, 0)?);
    let mut kernels: BTreeMap<String, Use> = BTreeMap::new();
    for section in &sections {
        if let Some(name) = section.name.strip_prefix(".text.") {
            kernels.entry(name.into()).or_default();
        }
    }
    for section in &sections {
        if let Some(used) = section.name.strip_prefix(".nv.shared.").and_then(|name| kernels.get_mut(name)) {
            used.shared = section.size as u32;
        }
    }
    let mut rest = named(".nv.info")?;
    while rest.len() >= 4 {
        let (format, attribute, size) = (rest[0], rest[1], u16::from_le_bytes([rest[2], rest[3]]).into());
        rest = &rest[4..];
        if format != SIZED {
            continue;
        }
        let (payload, others) = rest.split_at_checked(size)?;
        // Not only kernels but also functions that kernels call have these attributes.
        if let (REGISTERS | FRAME | LEAST_STACK, Some(index), Some(value)) =
            (attribute, word(payload, 0), word(payload, 4))
        {
            let used = kernels.entry(symbol(index)?.into()).or_default();
            match attribute {
                REGISTERS => used.registers = value,
                _ => used.local = used.local.max(value),
            }
        }
        rest = others;
    }
    Some(kernels)
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let (first, size) = (long(file, 0x28)?, usize::from(half(file, 0x3a)?));
    let (count, of_names) = (usize::from(half(file, 0x3c)?), usize::from(half(file, 0x3e)?));
    let header = |index: usize| file.get(first as usize + index * size..);
    let bytes = |header: &[u8]| {
        const HAS_NO_BYTES: u32 = 8;
        let (start, size) = (long(header, 24)? as usize, long(header, 32)?);
        let len = if word(header, 4)? == HAS_NO_BYTES { 0 } else { size as usize };
        Some((file.get(start..start.checked_add(len)?)?, size))
    };
    let (names, _) = bytes(header(of_names)?)?;
    let section = |index| {
        let (bytes, size) = bytes(header(index)?)?;
        Some(Section { name: text(names, word(header(index)?, 0)?)?, bytes, size })
    };
    (0..count).map(section).collect()
}

fn text(names: &[u8], at: u32) -> Option<&str> {
    let bytes = names.get(at as usize..)?;
    std::str::from_utf8(bytes.split(|&byte| byte == 0).next()?).ok()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
