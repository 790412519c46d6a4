//! CUDA devices: the calls on one that is not there, for what they do before a device is asked.

use super::{Bytes, ELEMENTS, ROOM, State, gradient, layer, renew, search, setting};
use crate::cuda::{Call, DeviceTensor, OnDevice, Row};
use crate::handle;
use crate::status::Failure;
use crate::*;
use core::ptr::null_mut;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::feedback::Storage;
use lgreco_train::gradient::Shape;
use lgreco_train::rng::Stream;

/// The number of no device, whatever there is.
const ORDINAL: u32 = 1 << 20;

/// Takes every call that arrives and touches no memory.
struct NoDevice;

impl OnDevice for NoDevice {
    fn keep_code_in(&mut self, _: &str) {}

    fn use_cublas(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn held_bytes(&self) -> u64 {
        0
    }

    fn synchronise(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn check(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn workspace_bytes(&self, rows: &[Row<'_>], calls: &[Call]) -> Result<u64, Failure> {
        Ok(rows.len() as u64 * calls.len() as u64)
    }

    fn reserve(&mut self, _: &[Row<'_>], _: &[Call]) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<(), Failure> {
        assert_eq!(rows.iter().map(|row| row.candidates.len()).sum::<usize>(), squared_errors.len());
        Ok(())
    }

    unsafe fn encode(
        &mut self,
        setting: &Setting,
        DeviceTensor { shape, dtype, .. }: DeviceTensor,
        _: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Failure> {
        let len = setting.payload_len(shape, dtype)?;
        if len > payload.len() { Err(Failure::Null { what: "payload" }) } else { Ok(len) }
    }

    unsafe fn encode_with_feedback(
        &mut self,
        setting: &Setting,
        gradient: DeviceTensor,
        stream: Stream,
        _: f32,
        _: (u64, Storage),
        payload: &mut [u8],
    ) -> Result<usize, Failure> {
        // SAFETY: nothing is touched.
        unsafe { self.encode(setting, gradient, stream, payload) }
    }

    unsafe fn decode(&mut self, _: &[u8], _: u64) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn encode_to_device(
        &mut self,
        setting: &Setting,
        DeviceTensor { shape, dtype, .. }: DeviceTensor,
        _: Stream,
        _: u64,
    ) -> Result<usize, Failure> {
        Ok(setting.payload_len(shape, dtype)?)
    }

    unsafe fn decode_on_device(&mut self, _: &Setting, _: Shape, _: u64, _: u64) -> Result<(), Failure> {
        Ok(())
    }
}

pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let context = state.context(which, bytes);
    let cuda = match bytes.below(16) {
        15 => context.cast(),
        14 => null_mut(),
        _ => state.cudas[which],
    };
    let (gradient, mut room) = (gradient(bytes), [0u32; ROOM / 4]);
    let (layer, setting) = (layer(bytes, &gradient), setting(bytes));
    let (layer, setting) = (bytes.maybe(&raw const layer), bytes.maybe(&raw const setting));
    let rng = lgreco_rng_stream { reserved: u32::from(bytes.below(8) / 7), ..Default::default() };
    let rng = bytes.maybe(&raw const rng);
    let payload = bytes.maybe_mut(room.as_mut_ptr()).cast::<u8>();
    let (capacity, mut length, mut number) = (usize::from(bytes.next()) * 4, 0, 0);
    let length = bytes.maybe_mut(&raw mut length);
    let mut values = [0.0f32; ELEMENTS + 1];
    let (values, values_len) = (bytes.maybe_mut(values.as_mut_ptr()), ELEMENTS + usize::from(bytes.below(8) / 7));
    let to = &raw mut state.cudas[which];
    // SAFETY: every pointer is NULL, or to a value that lives as long as the call and is as long as is said; handles are
    // live or NULL; no pointer is used as one to a device's memory.
    unsafe {
        match bytes.below(19) {
            0 => {
                let status = renew(&mut *to, lgreco_cuda_destroy, |to| lgreco_cuda_create(context, ORDINAL, to));
                assert_ne!(status, LGRECO_OK);
                status
            }
            1 => {
                let create = |to| lgreco_cuda_create_on_stream(context, to, null_mut());
                let status = renew(&mut *to, lgreco_cuda_destroy, create);
                assert_ne!(status, LGRECO_OK);
                status
            }
            2..=5 => renew(&mut *to, lgreco_cuda_destroy, |to| {
                handle::create::<_, lgreco_cuda>(context, to, |_| Ok(Box::new(NoDevice)))
            }),
            6 => lgreco_cuda_destroy(to),
            7 => lgreco_cuda_keep_code_in(cuda, bytes.maybe([c"/tmp", c"\xff"][which].as_ptr())),
            8 => lgreco_cuda_held_bytes(cuda, bytes.maybe_mut(&mut number)),
            9 => lgreco_cuda_synchronize(cuda),
            10 if which == 0 => lgreco_cuda_use_cublas(cuda),
            10 => lgreco_cuda_check(cuda),
            11 => {
                let (search, layers, calls) =
                    (search(bytes), usize::from(bytes.below(3) / 2), u32::from(bytes.below(70)));
                let number = bytes.maybe_mut(&raw mut number);
                match bytes.below(3) {
                    0 => lgreco_cuda_workspace_bytes(cuda, layer, layers, &search, calls, number),
                    1 => lgreco_cuda_reserve(cuda, layer, layers, &search, calls),
                    _ => renew(&mut state.tables[which], lgreco_table_destroy, |to| {
                        lgreco_cuda_measure(cuda, layer, layers, &search, to)
                    }),
                }
            }
            12 => lgreco_cuda_payload_len(cuda, layer, setting, length),
            13 => lgreco_cuda_encode(cuda, layer, setting, rng, payload, capacity, length),
            14 | 15 => {
                let (gain, storage) = (bytes.value(), u32::from(bytes.below(4)));
                let mut residual = [0u32; ELEMENTS];
                let residual = bytes.maybe_mut(residual.as_mut_ptr()).cast();
                let residual_bytes = [0, 96, 48, 25][usize::from(bytes.below(4))];
                lgreco_cuda_encode_with_feedback(
                    cuda,
                    layer,
                    setting,
                    rng,
                    gain,
                    storage,
                    residual,
                    residual_bytes,
                    payload,
                    capacity,
                    length,
                )
            }
            16 => lgreco_cuda_encode_to_device(cuda, layer, setting, rng, payload, capacity, length),
            17 => {
                let from = bytes.maybe(state.payload.as_ptr());
                lgreco_cuda_decode(cuda, from, state.length.min(ROOM), values, values_len)
            }
            _ => lgreco_cuda_decode_on_device(cuda, layer, setting, payload, capacity, values, values_len),
        }
    }
}
