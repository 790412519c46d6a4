use super::context::lgreco_context;
use super::setting::lgreco_setting;
use crate::handle;
use crate::pointers::{filled, read_struct, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use lgreco_train::CoreError;
use lgreco_train::compress::{SEAL_LEN, Setting, seal, unseal};

/// Bytes of a setting.
pub const LGRECO_SETTING_BYTES: usize = 76;

const MAGIC: [u8; 4] = *b"LGS\x01";
/// Bytes before the checksum.
const FIELDS: usize = LGRECO_SETTING_BYTES - SEAL_LEN;

/// Writes a setting to bytes[0 .. LGRECO_SETTING_BYTES], the same on every machine, so that ranks that compress by hand can
/// send it to one another. Settings that compress alike have the same bytes: fields of other methods are left out.
///
/// LGRECO_LENGTH when `capacity` is less; LGRECO_UNKNOWN_CONSTANT, LGRECO_PARAMETER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_setting_to_bytes(
    context: *mut lgreco_context,
    setting: *const lgreco_setting,
    bytes: *mut u8,
    capacity: usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let setting = read_struct(setting)?.to_core()?;
            let to = slice_mut(bytes, capacity, "bytes")?.first_chunk_mut();
            let expected = LGRECO_SETTING_BYTES;
            *to.ok_or(CoreError::Length { what: "bytes", expected, found: capacity })? = written(setting);
            Ok(())
        })
    }
}

/// Fills `setting` with what lgreco_setting_to_bytes wrote. Any bytes may be given. Whether the setting fits a layer is for
/// the calls that use it to say.
///
/// LGRECO_CHECKSUM for a setting that is not as it was written; LGRECO_LENGTH, LGRECO_SAVED_STATE for bytes that are no
/// setting; LGRECO_UNKNOWN_CONSTANT, LGRECO_PARAMETER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_setting_from_bytes(
    context: *mut lgreco_context,
    bytes: *const u8,
    length: usize,
    setting: *mut lgreco_setting,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let place = filled(setting)?;
            place.fill(lgreco_setting::from_core(read(slice(bytes, length, "bytes")?)?));
            Ok(())
        })
    }
}

/// `LGS`, version 1; the fields in their order, 4 bytes each, 8 of the density; little-endian; a checksum.
fn written(setting: Setting) -> [u8; LGRECO_SETTING_BYTES] {
    let s = lgreco_setting::from_core(setting);
    let density = s.density.to_bits();
    let words = [s.method, s.bits, s.bucket, s.scale, s.rounding, s.keep, s.values, s.rank, s.iterations];
    let rest = [s.lambda.to_bits(), density as u32, (density >> 32) as u32, s.fit, s.stages, s.bin, s.group];
    let mut bytes = [0; LGRECO_SETTING_BYTES];
    let (magic, fields) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    for (to, word) in fields.chunks_exact_mut(4).zip(words.into_iter().chain(rest)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    seal(&mut bytes, FIELDS).expect("room for a checksum");
    bytes
}

fn read(bytes: &[u8]) -> Result<Setting, Failure> {
    if bytes.len() != LGRECO_SETTING_BYTES {
        return Err(CoreError::Length { what: "bytes", expected: LGRECO_SETTING_BYTES, found: bytes.len() }.into());
    }
    let word = |at: usize| bytes[4 * at..].first_chunk().map_or(0, |&word| u32::from_le_bytes(word));
    let wrong = |what, at| Failure::from(CoreError::SavedState { what, found: word(at).into() });
    if bytes[..MAGIC.len()] != MAGIC {
        return Err(wrong("magic or version of a setting", 0));
    }
    unseal(bytes)?;
    let setting = lgreco_setting {
        method: word(1),
        bits: word(2),
        bucket: word(3),
        scale: word(4),
        rounding: word(5),
        keep: word(6),
        values: word(7),
        rank: word(8),
        iterations: word(9),
        lambda: f32::from_bits(word(10)),
        density: f64::from_bits(u64::from(word(11)) | u64::from(word(12)) << 32),
        fit: word(13),
        stages: word(14),
        bin: word(15),
        group: word(16),
        ..lgreco_setting::default()
    };
    let setting = setting.to_core()?;
    let canonical = written(setting);
    match canonical.chunks_exact(4).zip(bytes.chunks_exact(4)).position(|(expected, found)| expected != found) {
        Some(at) => Err(wrong("a field of another method", at)),
        None => Ok(setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LGRECO_CHECKSUM, LGRECO_LENGTH, LGRECO_SAVED_STATE};
    use lgreco_testing::controller::SETTINGS;

    #[test]
    fn settings_come_back_and_differ() {
        let all = SETTINGS.map(written);
        for (setting, bytes) in SETTINGS.into_iter().zip(all) {
            assert_eq!(read(&bytes).unwrap(), setting);
            assert_eq!(all.iter().filter(|other| **other == bytes).count(), 1);
            assert_eq!(read(&bytes[1..]).unwrap_err().status(), LGRECO_LENGTH);
            for bit in 0..8 * bytes.len() {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                let expected = if bit < 32 { LGRECO_SAVED_STATE } else { LGRECO_CHECKSUM };
                assert_eq!(read(&changed).unwrap_err().status(), expected, "bit {bit}");
                seal(&mut changed, FIELDS).unwrap();
                match read(&changed) {
                    Ok(other) => assert_eq!((written(other), bit >= 32), (changed, true)),
                    Err(failure) => assert!(bit >= 32 || failure.status() == LGRECO_SAVED_STATE),
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_fixed() {
        let mut expected = [0; LGRECO_SETTING_BYTES];
        expected[..8].copy_from_slice(&[b'L', b'G', b'S', 1, 2, 0, 0, 0]); // TopK
        let fields = [4, 512, 0, 0, 3, 0, 4, 1, 0]; // keeps 3
        let density = 0.01f64.to_bits();
        let rest = [density as u32, (density >> 32) as u32, 0, 1, 500, 512];
        for (to, word) in expected[8..].chunks_exact_mut(4).zip(fields.into_iter().chain(rest)) {
            to.copy_from_slice(&u32::to_le_bytes(word));
        }
        seal(&mut expected, FIELDS).unwrap();
        assert_eq!(written(SETTINGS[2]), expected);
    }
}
