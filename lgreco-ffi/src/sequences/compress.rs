//! Calls on compressors, payloads and residuals.

use super::{Bytes, DTYPES, ELEMENTS, List, State, TRUTHS, gradient, layer, pick, renew, setting};
use crate::*;
use core::fmt::Display;
use core::ptr::null;
use lgreco::checksum::seal;

pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let context = state.context(which, bytes);
    let gradient = gradient(bytes);
    let compressor = bytes.maybe_mut(state.compressors[which]);
    // SAFETY: every pointer is NULL, or points to a value that outlives the call and has the stated length. Handles are
    // live or NULL.
    unsafe {
        match bytes.below(12) {
            0 | 1 => {
                let (layer, setting) = (layer(bytes, &gradient), setting(bytes));
                let (feedback, storage) = (pick(bytes, &TRUTHS), pick(bytes, &DTYPES));
                let gain = bytes.value();
                let pairs: [(&str, &dyn Display); 3] =
                    [("error_feedback", &feedback), ("residual_dtype", &storage), ("gain", &gain)];
                let options = List::new(bytes, &pairs);
                let options = options.maybe(bytes);
                renew(&mut state.compressors[which], lgreco_compressor_destroy, |to| {
                    lgreco_compressor_create(context, &layer, setting.text.as_ptr(), options, to)
                })
            }
            2 => lgreco_compressor_destroy(&raw mut state.compressors[which]),
            3 => lgreco_compressor_set_setting(compressor, setting(bytes).text.as_ptr()),
            4 | 5 => {
                let (from, to) = (bytes.maybe(gradient.as_ptr().cast()), bytes.maybe_mut(state.payload.as_mut_ptr()));
                let capacity = usize::from(bytes.next()) * 8;
                lgreco_compressor_encode(compressor, 1, from, to, capacity, &mut state.length)
            }
            6 | 7 => {
                let mut values = [0.0f32; ELEMENTS];
                let cut = state.length.min(state.payload.len()).saturating_sub(usize::from(bytes.below(8)) / 4);
                let from = bytes.maybe(state.payload.as_ptr());
                let status = lgreco_compressor_decode(compressor, from, cut, values.as_mut_ptr(), ELEMENTS);
                assert!(status != LGRECO_OK || values.iter().all(|value| value.is_finite()));
                status
            }
            10 => there_and_back(bytes),
            11 => {
                let (mut layer, setting) = (layer(bytes, &gradient), setting(bytes));
                if bytes.below(2) == 0 {
                    layer.values = null();
                }
                let feedback = pick(bytes, &TRUTHS);
                let options = List::new(bytes, &[("error_feedback", &feedback)]);
                lgreco_feedback_check(&layer, setting.text.as_ptr(), options.pointer())
            }
            8 => {
                let (mut norm, mut steps) = (0.0, 0);
                match bytes.below(3) {
                    0 => lgreco_compressor_memory_norm(compressor, &mut norm, &mut steps),
                    1 => lgreco_compressor_set_memory(compressor, 1, gradient.as_ptr(), ELEMENTS),
                    _ => lgreco_compressor_rescale_memory(compressor, 1, bytes.value()),
                }
            }
            _ => {
                let mut saved = [0; 200];
                let capacity = usize::from(bytes.below(200));
                let mut length = 0;
                let status = lgreco_compressor_save(compressor, saved.as_mut_ptr(), capacity, &mut length);
                let at = usize::from(bytes.below(200));
                saved[at] ^= bytes.below(4) / 3;
                seal(&mut saved[..capacity]);
                match status {
                    LGRECO_OK => lgreco_compressor_load(compressor, saved.as_ptr(), capacity),
                    status => status,
                }
            }
        }
    }
}

/// Seals bytes, sometimes flips a bit, and unseals them. A flipped bit must give LGRECO_CHECKSUM.
fn there_and_back(bytes: &mut Bytes) -> lgreco_status {
    const LEN: usize = 76;
    let (mut written, mut length) = ([bytes.next(); LEN + LGRECO_SEAL_BYTES], 0);
    // SAFETY: arrays have the stated lengths.
    unsafe {
        let capacity = written.len() - usize::from(bytes.below(2));
        let status = lgreco_payload_seal(written.as_mut_ptr(), LEN, capacity, &mut length);
        if status != LGRECO_OK {
            return status;
        }
        let damage = bytes.below(2) == 1;
        let (at, bit) = (usize::from(bytes.next()) % written.len(), bytes.below(8));
        written[at] ^= u8::from(damage) << bit;
        let status = lgreco_payload_unseal(written.as_ptr(), written.len(), &mut length);
        assert_eq!(status, if damage { LGRECO_CHECKSUM } else { LGRECO_OK });
        status
    }
}
