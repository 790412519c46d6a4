use crate::pointers::{Range, disjoint, slice, slice_mut, write};
use crate::status::lgreco_status;
use lgreco_train::compress::{seal, unseal};

/// Bytes that lgreco_payload_seal adds. Sizes in tables and plans are those of payloads without them.
pub const LGRECO_SEAL_BYTES: usize = 8;

/// Writes a checksum of payload[0 .. length] to the LGRECO_SEAL_BYTES after it, for networks and files that may change bits
/// unnoticed: most changes of a payload decode to other numbers. `sealed_length` receives the length of both. Does not
/// allocate.
///
/// LGRECO_LENGTH when `capacity` is less than that; nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_payload_seal(
    payload: *mut u8,
    length: usize,
    capacity: usize,
    sealed_length: *mut usize,
) -> lgreco_status {
    plain!(|| {
        let sealed = Range::of(sealed_length, 1, "sealed_length");
        disjoint(Range::of(payload, capacity, "payload"), &[sealed])?;
        write(sealed_length, "sealed_length", || Ok(seal(slice_mut(payload, capacity, "payload")?, length)?))
    })
}

/// Tells how many of the bytes that lgreco_payload_seal closed are the payload: those that lgreco_compressor_decode takes.
/// Any bytes may be given. Does not allocate.
///
/// LGRECO_CHECKSUM when a bit has changed or the end is missing; LGRECO_LENGTH when there are fewer than LGRECO_SEAL_BYTES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_payload_unseal(
    sealed: *const u8,
    sealed_length: usize,
    length: *mut usize,
) -> lgreco_status {
    plain!(|| {
        let bytes = Range::of(sealed, sealed_length, "sealed");
        disjoint(Range::of(length, 1, "length"), &[bytes])?;
        write(length, "length", || Ok(unseal(slice(sealed, sealed_length, "sealed")?)?.len()))
    })
}
