//! CUDA devices: the calls on one that is not there, for what they do before a device is asked.

use super::{Bytes, ELEMENTS, ROOM, State, gradient, layer, renew, search, setting};
use crate::cuda::{BucketLayers, Call, Collective, DeviceTensor, OnDevice, OnDeviceBucket, Outcome, Row};
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

    fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64, Failure> {
        Ok(layers.layers.len() as u64)
    }

    unsafe fn bucket(&mut self, _: &BucketLayers, _: u64) -> Result<Box<dyn OnDeviceBucket>, Failure> {
        Ok(Box::new(NoBucket))
    }
}

/// Of no device.
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

/// Calls on the bucket of a device that is not there.
///
/// # Safety
/// Pointers are NULL, or to what lives as long as the call; handles are live or NULL.
unsafe fn on_bucket(
    bytes: &mut Bytes,
    state: &mut State,
    which: usize,
    cuda: *mut lgreco_cuda,
    (layer, setting): (*const lgreco_layer, *const lgreco_setting),
    (values, values_len): (*mut f32, usize),
) -> lgreco_status {
    let mut options = lgreco_cuda_bucket_options { on_fault: u32::from(bytes.below(3)), ..Default::default() };
    options.reduce_dtype = u32::from(bytes.below(4));
    let options = bytes.maybe(&raw const options);
    let layers = usize::from(bytes.below(4) > 0);
    let (mut number, mut request, mut outcome, mut found) =
        (0, lgreco_request::default(), lgreco_cuda_outcome::default(), null_mut());
    let (bucket, other) = (state.cuda_buckets[which], state.cuda_buckets[usize::from(bytes.below(2))]);
    let memory = bytes.maybe_mut(values).cast();
    // SAFETY: passed on.
    unsafe {
        match bytes.below(10) {
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
            _ => lgreco_cuda_bucket_take_over(cuda, bucket, other),
        }
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
        match bytes.below(22) {
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
            18..=20 => on_bucket(bytes, state, which, cuda, (layer, setting), (values, values_len)),
            _ => lgreco_cuda_decode_on_device(cuda, layer, setting, payload, capacity, values, values_len),
        }
    }
}
