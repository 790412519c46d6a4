//! Compiled code in files: a checksum, then the code.

use std::path::{Path, PathBuf};

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The code in a file, if it is there and as it was written.
pub(crate) fn read(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (sum, code) = bytes.split_first_chunk()?;
    (u64::from_le_bytes(*sum) == hash(code)).then(|| code.to_vec())
}

/// Writes a file at once or not at all; one that cannot be written is no error.
pub(crate) fn write(file: &Path, code: &[u8]) {
    let unfinished = unfinished(file);
    let bytes = [&hash(code).to_le_bytes(), code].concat();
    if std::fs::write(&unfinished, bytes).is_err() || std::fs::rename(&unfinished, file).is_err() {
        std::fs::remove_file(&unfinished).ok();
    }
}

/// Where this process writes what is to become `file`. Processes of several machines may have one number; they then
/// write the same.
pub(crate) fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    name.into()
}
