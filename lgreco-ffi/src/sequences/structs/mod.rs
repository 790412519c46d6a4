//! Calls with structs of right and wrong sizes and random contents, layers of any shape and type, and arrays of any
//! length.
//!
//! All memory that a call may read or write is valid, and as long as the stated lengths. Only lengths that a call must
//! refuse before it reads are longer than the memory.

mod layers;
mod memory;
mod plans;

use super::Bytes;
use crate::*;
use core::ffi::CStr;
use core::ptr::null_mut;

/// Makes the calls that `bytes` encode, on structs of any size and content. Returns the numbers of successful
/// measurements of layers, and of successful rounds of calls on compressors, controllers, cuts, and tables with plans.
///
/// # Panics When a call panics inside, returns a status without a name, or writes beyond its outputs. When a call
/// leaves a handle after a failure, or returns values that are not finite as valid.
pub fn check(bytes: &[u8]) -> [usize; 5] {
    let (mut bytes, mut done) = (Bytes(bytes), [0; 5]);
    let mut context = null_mut();
    // SAFETY: the handle is live or NULL.
    unsafe {
        assert_eq!(expect(lgreco_context_create(c"cpu".as_ptr(), &mut context)), LGRECO_OK);
        for _ in 0..4 {
            let (noun, status) = match bytes.below(8) {
                0 | 1 => (0, layers::measure(&mut bytes, context)),
                2 | 3 => (1, layers::compressor(&mut bytes, context)),
                4 | 5 => (2, layers::controller(&mut bytes, context)),
                6 => (3, layers::cut(&mut bytes)),
                _ => (4, plans::table_and_plan(&mut bytes)),
            };
            done[noun] += usize::from(status == LGRECO_OK);
            super::check_message();
            if bytes.0.is_empty() {
                break;
            }
        }
        assert_eq!(lgreco_context_destroy(&mut context), LGRECO_OK);
    }
    done
}

/// Asserts that a status has a name and is not LGRECO_PANIC.
fn expect(status: lgreco_status) -> lgreco_status {
    assert_ne!(status, LGRECO_PANIC);
    // SAFETY: the text is static.
    let name = unsafe { CStr::from_ptr(lgreco_status_name(status)) };
    assert_ne!(name, c"unknown status", "{status}");
    status
}

#[cfg(test)]
mod tests {
    #[test]
    fn structs_of_any_size_and_content_keep_the_contract() {
        let (mut state, mut done) = (7u64, [0; 5]);
        for _ in 0..12_000 {
            let bytes: Vec<u8> = (0..300)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            done.iter_mut().zip(super::check(&bytes)).for_each(|(all, more)| *all += more);
        }
        assert!(done.iter().all(|&calls| calls > 100), "only {done:?} calls did something");
    }
}
