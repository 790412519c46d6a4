//! What a cubin says of its kernels: registers and static shared memory.

use std::collections::BTreeMap;

/// Of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) registers: u32,
    /// Bytes, with what the system keeps for itself where the assembler counts that.
    pub(crate) shared: u32,
    /// Bytes of local memory per thread.
    pub(crate) frame: u32,
}

/// Numbers of attributes of the section `.nv.info`, whose payloads are the number of a symbol and a word.
const FORMAT_SIZED: u8 = 4;
const REGISTERS: u8 = 0x2f;
const FRAME: u8 = 0x11;

/// A section: its name, and where it is in the file.
struct Section<'c> {
    name: &'c str,
    bytes: &'c [u8],
    size: u64,
}

/// All kernels of a cubin, by name; `None` where it is not one.
pub(crate) fn facts(cubin: &[u8]) -> Option<BTreeMap<String, Facts>> {
    let sections = sections(cubin)?;
    let named = |name| sections.iter().find(|section| section.name == name).map(|section| section.bytes);
    let (symbols, names) = (named(".symtab")?, named(".strtab")?);
    let symbol = |index: u32| {
        let entry = symbols.get(24 * index as usize..)?;
        text(names, word(entry, 0)?)
    };
    let mut kernels: BTreeMap<String, Facts> = BTreeMap::new();
    for section in &sections {
        if let Some(name) = section.name.strip_prefix(".text.") {
            kernels.entry(name.into()).or_default();
        }
    }
    for section in &sections {
        if let Some(facts) = section.name.strip_prefix(".nv.shared.").and_then(|name| kernels.get_mut(name)) {
            facts.shared = section.size as u32;
        }
    }
    let mut rest = named(".nv.info")?;
    while rest.len() >= 4 {
        let (format, attribute, size) = (rest[0], rest[1], u16::from_le_bytes([rest[2], rest[3]]).into());
        rest = &rest[4..];
        if format != FORMAT_SIZED {
            continue;
        }
        let (payload, others) = rest.split_at_checked(size)?;
        if let (REGISTERS | FRAME, Some(index), Some(value)) = (attribute, word(payload, 0), word(payload, 4))
            && let Some(facts) = kernels.get_mut(symbol(index)?)
        {
            match attribute {
                REGISTERS => facts.registers = value,
                _ => facts.frame = value,
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
