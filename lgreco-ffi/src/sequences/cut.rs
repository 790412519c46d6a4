//! Calls on both ends of a cut, with lost, repeated and damaged messages.

use super::{Bytes, List, ROOM, State, renew};
use crate::*;
use core::fmt::Display;
use core::ptr::null;
use lgreco::checksum::seal;

const BATCH: usize = 2;
const FEATURES: usize = 8;
const VALUES: usize = BATCH * FEATURES;

/// A codec's text, with numbers in and out of range.
pub(super) fn codec(bytes: &mut Bytes) -> String {
    let (bits, number) = (bytes.below(10), bytes.below(10));
    match bytes.below(8) {
        0 => "dense bf16".into(),
        1 => format!("min-max {bits} tile {number}"),
        2 => format!("min-max {bits} tile batch"),
        3 => format!("symmetric {bits} channels {number}"),
        4 => format!("topk {number}"),
        5 => format!("shared-index {number} f16"),
        6 => format!("eden {bits}"),
        _ => "topk".into(),
    }
}

pub(super) fn memory(bytes: &mut Bytes) -> String {
    match bytes.below(8) {
        0 | 6 => "none".into(),
        1 => format!("residual gain 0.{} int8", bytes.below(10)),
        2 => format!("mixed reset {}", bytes.below(4)),
        3 => "ef21".into(),
        4 => format!("samples {}", bytes.below(4)),
        5 => format!("samples 3 bits {}", bytes.below(10)),
        _ => "samples".into(),
    }
}

pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let [(forward, forward_memory), (backward, backward_memory)] = [0, 1].map(|_| (codec(bytes), memory(bytes)));
    let in_flight = bytes.below(8);
    let mut pairs: Vec<(&str, &dyn Display)> = vec![
        ("batch", &BATCH),
        ("features", &FEATURES),
        ("in_flight", &in_flight),
        ("forward", &forward),
        ("forward_memory", &forward_memory),
    ];
    if bytes.below(4) == 0 {
        pairs.extend([("backward", &backward as &dyn Display), ("backward_memory", &backward_memory)]);
    }
    let options = List::new(bytes, &pairs);
    let mut setting = lgreco_cut_setting::default();
    // SAFETY: the list and the output are valid.
    let made = unsafe { lgreco_cut_setting_make(options.pointer(), &mut setting) };
    assert_ne!(made, LGRECO_PANIC);
    let values: [f32; VALUES] = core::array::from_fn(|_| bytes.value());
    let ids = [u64::from(bytes.below(4)), if bytes.below(4) == 3 { LGRECO_UNREMEMBERED } else { 9 }];
    let (ids, from) = (bytes.maybe(ids.as_ptr()), bytes.maybe(values.as_ptr().cast()));
    let samples = usize::from(bytes.below(16) % 13).min(BATCH);
    let [above, below] = if bytes.below(16) == 15 { [state.cuts[1], state.cuts[0]] } else { state.cuts };
    let mut received = [0.0; VALUES];
    let (to, to_len) = (received.as_mut_ptr(), samples * FEATURES);
    let (message, capacity) = (state.message.as_mut_ptr(), ROOM - usize::from(bytes.below(8) / 7) * (ROOM - 30));
    let length = state.message_length.min(ROOM).saturating_sub(usize::from(bytes.below(16) / 15));
    let (f32, lengths, ticket) = (LGRECO_DTYPE_F32, &raw mut state.message_length, &raw mut state.ticket);
    // SAFETY: every pointer is NULL, or points to a value that outlives the call and has the stated length. Handles are
    // live or NULL.
    unsafe {
        match bytes.below(16) {
            0 | 1 => {
                let mut status = LGRECO_OK;
                for end in [LGRECO_END_UPSTREAM, LGRECO_END_DOWNSTREAM] {
                    status = renew(&mut state.cuts[end as usize], lgreco_cut_destroy, |to| {
                        lgreco_cut_create(bytes.maybe(&raw const setting), end, 1, to)
                    });
                }
                status
            }
            2 | 3 => lgreco_cut_send_activations(above, from, f32, samples, ids, message, capacity, lengths, ticket),
            4 | 5 => {
                let mut stated = 0;
                let status = lgreco_cut_samples(below, message, length, &mut stated);
                assert!(status != LGRECO_OK || stated <= BATCH);
                lgreco_cut_receive(below, message, length, to, to_len, ticket)
            }
            6 => {
                let ticket = *ticket;
                lgreco_cut_send_gradients(below, ticket, from, f32, samples, message, capacity, lengths)
            }
            7 => lgreco_cut_receive(above, message, length, to, to_len, ticket),
            8 => {
                let how = u32::from(bytes.below(2));
                let sent = lgreco_cut_evaluate(above, how, from, f32, samples, message, capacity, lengths);
                match sent {
                    LGRECO_OK => lgreco_cut_receive_evaluation(below, message, *lengths, to, to_len),
                    status => status,
                }
            }
            9 => match bytes.below(2) {
                0 => {
                    let ticket = *ticket;
                    let ids_or_null = ids;
                    lgreco_cut_repeat_activations(
                        above,
                        ticket,
                        from,
                        f32,
                        samples,
                        ids_or_null,
                        message,
                        capacity,
                        lengths,
                    )
                }
                _ => lgreco_cut_receive_repeated(below, message, length, to, to_len),
            },
            10 | 11 => {
                let both = [lgreco_cut_commit_step(above), lgreco_cut_commit_step(below)];
                both[which]
            }
            12 => {
                lgreco_cut_forget(above, *ticket);
                lgreco_cut_forget(below, *ticket)
            }
            13 => {
                let (mut ids, mut count, mut found) = ([0; 4], 0, 0);
                let (capacity, ids) = (usize::from(bytes.below(5)), bytes.maybe_mut(ids.as_mut_ptr()));
                match bytes.below(2) {
                    0 => lgreco_cut_remembered_samples(state.cuts[which], ids, capacity, &mut count),
                    _ => lgreco_cut_remembered(state.cuts[which], 9, to, FEATURES, &mut found),
                }
            }
            14 => {
                let mut read = setting;
                read.bytes[usize::from(bytes.next()) % LGRECO_CUT_SETTING_BYTES] ^= bytes.below(8);
                seal(&mut read.bytes);
                let (mut compatibility, mut what) = (0, null());
                lgreco_cut_setting_compare(&read, bytes.maybe(&raw const setting), &mut compatibility, &mut what)
            }
            _ => {
                let (to, end) = (state.saved.as_mut_ptr(), which as u32);
                let mut length = 0;
                let written = lgreco_cut_save(state.cuts[which], to, ROOM, &mut length);
                if length > ROOM {
                    return written;
                }
                state.saved[usize::from(bytes.next()) % length.max(1)] ^= bytes.below(4) / 3;
                seal(&mut state.saved[..length]);
                let saved = state.saved.as_ptr();
                match written {
                    LGRECO_OK => renew(&mut state.cuts[which], lgreco_cut_destroy, |to| {
                        lgreco_cut_restore(&setting, end, saved, length, to)
                    }),
                    status => status,
                }
            }
        }
    }
}
