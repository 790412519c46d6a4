//! Calls on CUDA handles without a device. These calls test the checks that precede any use of the device.

use super::{Bytes, DTYPES, ELEMENTS, List, ROOM, State, gradient, layer, pick, renew, search, setting};
use crate::cuda::{BucketLayers, Collective, DeviceTensor, Encoding, OnDevice, OnDeviceBucket, Outcome, Row};
use crate::failure::Failure;
use crate::handle;
use crate::*;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use lgreco_train::CoreError;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::gradient::Shape;

/// A device number that no machine has.
const ORDINAL: u32 = 1 << 20;

/// Bytes of a bucket's outcome: its fault, its step, and the number of failed steps.
const OUTCOME: usize = 3;

/// Returns `Err` unless `found` equals `expected`.
fn expect(expected: usize, found: usize) -> Result<(), Failure> {
    if found == expected { Ok(()) } else { Err(CoreError::Length { what: "bytes", expected, found }.into()) }
}

/// A device that accepts every call and touches no memory.
struct NoDevice;

impl OnDevice for NoDevice {
    fn held_bytes(&self) -> u64 {
        0
    }

    fn synchronise(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn check(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn workspace_bytes(&self, rows: &[Row<'_>], calls: u32) -> Result<u64, Failure> {
        Ok(rows.len() as u64 * u64::from(calls.count_ones()))
    }

    fn reserve(&mut self, _: &[Row<'_>], _: u32) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<(), Failure> {
        assert_eq!(rows.iter().map(|row| row.candidates.len()).sum::<usize>(), squared_errors.len());
        Ok(())
    }

    fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<(u64, u64), Failure> {
        Ok((1, 8 * rows.len() as u64))
    }

    unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<(), Failure> {
        assert!(!rows.is_empty() && workspace > 0 && workspace.is_multiple_of(256));
        assert!(results > 0 && results.is_multiple_of(8));
        Ok(())
    }

    unsafe fn read_rows(
        &mut self,
        rows: &[Row<'_>],
        results: &[u8],
        squared_errors: &mut [f64],
    ) -> Result<(), Failure> {
        assert_eq!(rows.iter().map(|row| row.candidates.len()).sum::<usize>(), squared_errors.len());
        expect(8 * rows.len(), results.len())?;
        squared_errors.fill(f64::from_bits(results.iter().fold(0, |all, &byte| all << 8 | u64::from(byte))));
        Ok(())
    }

    unsafe fn encode(&mut self, encoding: &Encoding, payload: &mut [u8]) -> Result<usize, Failure> {
        let DeviceTensor { shape, dtype, .. } = encoding.gradient;
        let len = encoding.setting.payload_len(shape, dtype)?;
        if len > payload.len() { Err(Failure::Null("payload")) } else { Ok(len) }
    }

    unsafe fn decode(&mut self, _: &[u8], _: u64) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn encode_to_device(&mut self, encoding: &Encoding, _: u64) -> Result<usize, Failure> {
        let DeviceTensor { shape, dtype, .. } = encoding.gradient;
        Ok(encoding.setting.payload_len(shape, dtype)?)
    }

    unsafe fn decode_on_device(&mut self, _: &Setting, _: Shape, _: u64, _: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64, Failure> {
        Ok(layers.layers.len() as u64)
    }

    unsafe fn bucket(&mut self, _: &BucketLayers, _: u64) -> Result<Box<dyn OnDeviceBucket>, Failure> {
        Ok(Box::new(NoBucket))
    }
}

/// A bucket on `NoDevice`.
struct NoBucket;

impl OnDeviceBucket for NoBucket {
    unsafe fn submit(&mut self, _: &mut dyn OnDevice, _: u64) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn next(&mut self, _: &mut dyn OnDevice) -> Result<Option<Collective>, Failure> {
        Ok(None)
    }

    unsafe fn outcome(&self, _: &mut dyn OnDevice) -> Result<Outcome, Failure> {
        Ok(Outcome::default())
    }

    fn outcome_place(&self) -> (u64, usize) {
        (4, OUTCOME)
    }

    fn outcome_of(&self, copy: &[u8]) -> Result<Outcome, Failure> {
        expect(OUTCOME, copy.len())?;
        let [fault, step, failed] = [0, 1, 2].map(|at| u32::from(copy[at]));
        Ok(Outcome { step, failed, has_failed: fault > 0, ..Outcome::default() })
    }

    unsafe fn residuals(&self, _: &mut dyn OnDevice, values: &mut [f32]) -> Result<(), Failure> {
        values.fill(0.0);
        Ok(())
    }

    unsafe fn set_residuals(&mut self, _: &mut dyn OnDevice, _: &[f32]) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn take_over(&mut self, _: &mut dyn OnDevice, _: &dyn OnDeviceBucket) -> Result<(), Failure> {
        Ok(())
    }

    fn found_inf(&self) -> u64 {
        4
    }
}

/// Makes a random call on a bucket without a device.
///
/// # Safety
/// Pointers are NULL, or point to values that outlive the call. Handles are live or NULL.
unsafe fn on_bucket(
    bytes: &mut Bytes,
    state: &mut State,
    which: usize,
    cuda: *mut lgreco_cuda,
    (layer, setting): (*const lgreco_layer, *const lgreco_setting),
    (values, values_len): (*mut f32, usize),
) -> lgreco_status {
    let (on_fault, reduce_dtype) = (pick(bytes, &["zeros", "nan", "none"]), pick(bytes, &DTYPES[..3]));
    let list = List::new(bytes, &[("on_fault", &on_fault), ("reduce_dtype", &reduce_dtype)]);
    let options = list.maybe(bytes);
    let layers = usize::from(bytes.below(4) > 0);
    let (mut number, mut request, mut outcome, mut found) =
        (0, lgreco_request::default(), lgreco_cuda_outcome::default(), null_mut());
    let (mut start, mut len) = (null(), OUTCOME - usize::from(bytes.below(8) / 7));
    let (bucket, other) = (state.cuda_buckets[which], state.cuda_buckets[usize::from(bytes.below(2))]);
    let memory = bytes.maybe_mut(values).cast();
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe {
        match bytes.below(13) {
            0 => lgreco_cuda_bucket_bytes(cuda, layer, setting, layers, options, bytes.maybe_mut(&raw mut number)),
            1 | 2 => renew(&mut state.cuda_buckets[which], lgreco_cuda_bucket_destroy, |to| {
                lgreco_cuda_bucket_create(cuda, layer, setting, layers, options, memory, 1, to)
            }),
            3 => lgreco_cuda_bucket_submit(cuda, bucket, memory),
            4 => lgreco_cuda_bucket_next(cuda, bucket, bytes.maybe_mut(&raw mut request)),
            5 => lgreco_cuda_bucket_outcome(cuda, bucket, bytes.maybe_mut(&raw mut outcome)),
            6 => lgreco_cuda_bucket_found_inf(cuda, bucket, bytes.maybe_mut(&raw mut found)),
            7 => lgreco_cuda_bucket_get_residuals(cuda, bucket, values, values_len),
            8 => lgreco_cuda_bucket_set_residuals(cuda, bucket, values, values_len),
            9 => {
                let (start, len) = (bytes.maybe_mut(&raw mut start), bytes.maybe_mut(&raw mut len));
                lgreco_cuda_bucket_outcome_place(cuda, bucket, start, len)
            }
            10 | 11 => {
                let outcome = bytes.maybe_mut(&raw mut outcome);
                // A copy may be unaligned.
                let copy = bytes.maybe(values.cast::<u8>().cast_const());
                let copy = if copy.is_null() { copy } else { copy.add(usize::from(bytes.below(2))) };
                // Sometimes the copy overlaps the outcome.
                let copy = if bytes.below(8) == 7 { outcome.cast_const().cast() } else { copy };
                lgreco_cuda_bucket_read_outcome(cuda, bucket, copy.cast(), len, outcome)
            }
            _ => lgreco_cuda_bucket_take_over(cuda, bucket, other),
        }
    }
}

/// Makes `call` several times in a row, because single random calls would rarely reach the state that later calls need.
fn several(bytes: &mut Bytes, mut call: impl FnMut(&mut Bytes) -> lgreco_status) -> lgreco_status {
    for _ in 0..bytes.below(8) {
        assert_ne!(call(bytes), LGRECO_PANIC);
    }
    call(bytes)
}

fn no_device(to: *mut *mut lgreco_cuda) -> lgreco_status {
    // SAFETY: `to` is null or valid for writes.
    unsafe { handle::create(to, || Ok(Box::new(NoDevice) as Box<dyn OnDevice>)) }
}

pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    if state.cudas[which].is_null() {
        renew(&mut state.cudas[which], lgreco_cuda_destroy, no_device);
    }
    several(bytes, |bytes| one(bytes, state, which))
}

fn one(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let context = state.context(which, bytes);
    let cuda = match bytes.below(16) {
        15 => context.cast(),
        14 => null_mut(),
        _ => state.cudas[which],
    };
    let (gradient, mut room) = (gradient(bytes), [0u32; ROOM / 4]);
    let (layer, setting) = (layer(bytes, &gradient), setting(bytes));
    let (layer, setting) = (bytes.maybe(&raw const layer), bytes.maybe(&raw const setting));
    let text = setting.cast();
    let rng = lgreco_rng_stream { rank: u32::from(bytes.below(8) / 7), ..Default::default() };
    let rng = bytes.maybe(&raw const rng);
    let payload = bytes.maybe_mut(room.as_mut_ptr()).cast::<u8>();
    let (capacity, mut length, mut number) = (usize::from(bytes.next()) * 4, 0, 0);
    let length = bytes.maybe_mut(&raw mut length);
    let mut values = [0.0f32; ELEMENTS + 1];
    let (values, values_len) = (bytes.maybe_mut(values.as_mut_ptr()), ELEMENTS + usize::from(bytes.below(8) / 7));
    let to = &raw mut state.cudas[which];
    // SAFETY: every pointer is NULL, or points to a value that outlives the call and has the stated length. Handles are
    // live or NULL. The device uses no pointer.
    unsafe {
        match bytes.below(24) {
            0 => {
                let status = renew(&mut *to, lgreco_cuda_destroy, |to| lgreco_cuda_create(ORDINAL, to));
                assert_ne!(status, LGRECO_OK);
                status
            }
            1 => {
                let create = |to| lgreco_cuda_create_on_stream(null_mut(), to);
                let status = renew(&mut *to, lgreco_cuda_destroy, create);
                assert_ne!(status, LGRECO_OK);
                status
            }
            2..=5 => renew(&mut *to, lgreco_cuda_destroy, no_device),
            6 => lgreco_cuda_destroy(to),
            7 | 8 => lgreco_cuda_held_bytes(cuda, bytes.maybe_mut(&mut number)),
            9 => lgreco_cuda_synchronize(cuda),
            10 => lgreco_cuda_check(cuda),
            11 | 21 | 22 => {
                let (list, layers, calls) =
                    (search(bytes), usize::from(bytes.below(3) > 0), u32::from(bytes.below(70)));
                let search = list.pointer();
                let number = bytes.maybe_mut(&raw mut number);
                match bytes.below(8) {
                    0 => lgreco_cuda_workspace_bytes(cuda, layer, layers, search, calls, number),
                    1 => lgreco_cuda_reserve(cuda, layer, layers, search, calls),
                    2 => renew(&mut state.tables[which], lgreco_table_destroy, |to| {
                        lgreco_cuda_measure(cuda, layer, layers, search, to)
                    }),
                    3 => {
                        let mut other = 0;
                        let other = if bytes.below(8) == 7 { number } else { bytes.maybe_mut(&raw mut other) };
                        lgreco_cuda_rows_bytes(cuda, layer, layers, search, number, other)
                    }
                    4 | 5 => {
                        // No call uses the addresses. Some addresses are valid, and others overlap, are unaligned, or
                        // belong to too small memory.
                        let [workspace, results] = [0, 1].map(|_| {
                            let address = [256usize, 512, 4096, 260][usize::from(bytes.below(4))];
                            bytes.maybe_mut(core::ptr::without_provenance_mut::<c_void>(address))
                        });
                        let [room, other] = [0, 1].map(|_| u64::from(bytes.next()));
                        lgreco_cuda_enqueue_rows(cuda, layer, layers, search, workspace, room, results, other)
                    }
                    _ => {
                        let copy = bytes.maybe(gradient.as_ptr()).cast();
                        let len = [8, 24, 16, 8, 24, 13, 0][usize::from(bytes.below(7))];
                        renew(&mut state.tables[which], lgreco_table_destroy, |to| {
                            lgreco_cuda_read_rows(cuda, layer, layers, search, copy, len, to)
                        })
                    }
                }
            }
            12 => lgreco_cuda_payload_len(cuda, layer, text, length),
            13..=15 => lgreco_cuda_encode(cuda, layer, text, rng, payload, capacity, length),
            16 => lgreco_cuda_encode_to_device(cuda, layer, text, rng, payload, capacity, length),
            17 => {
                let from = bytes.maybe(state.payload.as_ptr());
                lgreco_cuda_decode(cuda, from, state.length.min(ROOM), values, values_len)
            }
            18..=20 => {
                several(bytes, |bytes| on_bucket(bytes, state, which, cuda, (layer, setting), (values, values_len)))
            }
            _ => lgreco_cuda_decode_on_device(cuda, layer, text, payload, capacity, values, values_len),
        }
    }
}
