use crate::pointers::{Range, disjoint, slice, slice_mut, write};
use crate::status::lgreco_status;
use lgreco_train::compress::{seal, unseal};

/// Number of bytes that lgreco_payload_seal adds. Sizes in tables and plans do not include them.
pub const LGRECO_SEAL_BYTES: usize = 8;

/// Writes a checksum of payload[0 .. length] to the LGRECO_SEAL_BYTES bytes after it. Seal payloads on networks and in
/// files that may flip bits unnoticed, because most altered payloads decode to other numbers without an error.
/// `sealed_length` receives the total length of payload and checksum. Does not allocate.
///
/// Fails with LGRECO_LENGTH when `capacity` is less than the total length. Nothing is written in this case.
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

/// Verifies the checksum of lgreco_payload_seal. `length` receives the length of the payload without the checksum, for
/// lgreco_compressor_decode. Any bytes are allowed as input. Does not allocate.
///
/// Fails with LGRECO_CHECKSUM when a bit has changed or the end is missing, and with LGRECO_LENGTH for fewer than
/// LGRECO_SEAL_BYTES bytes.
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
