//! Calls that take layers of any shape and element type: measuring, compressors, controllers and cuts.

use super::memory::{Buffer, CallerStructs, Values, caller_structs};
use super::{Bytes, expect};
use crate::sequences::cut::{codec, memory};
use crate::sequences::{DTYPES, List, METHODS, TRUTHS, pick, search, setting};
use crate::*;
use core::ffi::c_void;
use core::fmt::Display;
use core::mem::offset_of;
use core::ptr::null_mut;

const HUGE: usize = 1 << 32;

/// Shapes with any number of dimensions. Some are empty, and some are too large for any computer.
const SHAPES: [&[usize]; 20] = [
    &[4, 6],
    &[24],
    &[2, 3, 4],
    &[1],
    &[],
    &[1, 1, 1, 1, 2],
    &[7, 1],
    &[1, 7],
    &[64],
    &[0],
    &[0, 7],
    &[7, 0, 2],
    &[HUGE, HUGE],
    &[HUGE - 1, HUGE - 1],
    &[HUGE / 2, HUGE / 2],
    &[usize::MAX, 2],
    &[2, usize::MAX],
    &[usize::MAX, usize::MAX, usize::MAX],
    &[0, usize::MAX],
    &[3, HUGE, HUGE],
];

/// A layer and its memory.
struct Owned {
    dims: &'static [usize],
    dtype: u32,
    values: Values,
    elements: usize,
}

impl Owned {
    fn new(bytes: &mut Bytes) -> Owned {
        let dims = SHAPES[usize::from(bytes.below(64)) % SHAPES.len()];
        let dtype = [0, 1, 2, 0, 1, 2, 0, 3][usize::from(bytes.below(8))];
        // Layers with too large shapes have no values, because no call may read the values of such layers.
        let elements = dims.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim)).filter(|&all| all <= 64);
        let elements = elements.unwrap_or(0);
        Owned { dims, dtype, values: Values::new(bytes, elements, dtype), elements }
    }

    fn view(&mut self, bytes: &mut Bytes) -> lgreco_layer {
        let values: *mut c_void = self.values.place(bytes);
        let name = [c"fc1", c"", c"\xff\xfe"][usize::from(bytes.below(16) / 7)];
        lgreco_layer {
            name: bytes.maybe(name.as_ptr()),
            dims: bytes.maybe(self.dims.as_ptr()),
            dims_len: self.dims.len(),
            // Calls must not read this pointer, which is not NULL.
            values: if self.elements == 0 { core::ptr::dangling::<u64>().cast() } else { values },
            dtype: self.dtype,
            ..Default::default()
        }
    }
}

/// Makes the caller's structs for the layers. Pointers, lengths and types keep their values.
fn layers(bytes: &mut Bytes, views: &[lgreco_layer]) -> CallerStructs {
    let kept = [
        offset_of!(lgreco_layer, name),
        offset_of!(lgreco_layer, dims),
        offset_of!(lgreco_layer, dims_len),
        offset_of!(lgreco_layer, values),
        offset_of!(lgreco_layer, dtype),
    ];
    caller_structs(bytes, views, &kept)
}

/// Measures a row of one layer, or the table of up to three layers.
pub(super) fn measure(bytes: &mut Bytes, context: *mut lgreco_context) -> lgreco_status {
    let mut owned = [Owned::new(bytes), Owned::new(bytes), Owned::new(bytes)];
    let views = owned.each_mut().map(|layer| layer.view(bytes));
    let count = usize::from(bytes.below(4));
    // SAFETY: structs and buffers are as large as they state. Handles are live or NULL.
    unsafe {
        if bytes.below(2) == 0 {
            let layer = layers(bytes, &views[..1]);
            let mut settings = Buffer::of((0..count).map(|_| setting(bytes)).collect());
            let (mut errors, mut sizes) = (Buffer::new(count), Buffer::new(count));
            let (to, sizes_to) = (errors.place(bytes), sizes.place(bytes));
            let (from, settings) = (layer.pointer(), settings.place(bytes));
            let status = expect(lgreco_measure(context, from, settings, count, 1, 0, to, sizes_to));
            assert!(
                status != LGRECO_OK || errors.values().iter().all(|error: &f64| error.is_finite() && *error >= 0.0)
            );
            return status;
        }
        let mut table = core::ptr::dangling_mut();
        let (layers, options) = (layers(bytes, &views[..count]), search(bytes));
        let status = expect(lgreco_table_measure(context, layers.pointer(), count, options.pointer(), &mut table));
        assert_eq!(status == LGRECO_OK, !table.is_null(), "a failed call leaves NULL");
        if status == LGRECO_OK {
            let mut view = caller_structs(bytes, &[lgreco_table_view::default()], &[]);
            expect(lgreco_table_get(table, view.place()));
            view.check_guard();
            let mut found = Buffer::<lgreco_setting>::new(1);
            let (layer, option) = (bytes.below(3).into(), bytes.below(9).into());
            expect(lgreco_table_setting(table, layer, option, found.place(bytes)));
        }
        assert_eq!(lgreco_table_destroy(&mut table), LGRECO_OK);
        status
    }
}

/// Makes a compressor, reads its bound, encodes and decodes one or two payloads, and saves and loads its state.
pub(super) fn compressor(bytes: &mut Bytes, context: *mut lgreco_context) -> lgreco_status {
    let mut owned = Owned::new(bytes);
    let view = owned.view(bytes);
    let (feedback, storage) = (pick(bytes, &TRUTHS), pick(bytes, &DTYPES));
    let options = List::new(bytes, &[("error_feedback", &feedback), ("residual_dtype", &storage)]);
    let mut compressor = core::ptr::dangling_mut();
    // SAFETY: structs and buffers are as large as they state. Handles are live or NULL.
    unsafe {
        let layer = layers(bytes, &[view]);
        let mut setting = Buffer::of(vec![setting(bytes)]);
        let (setting, options) = (setting.place(bytes).cast_const().cast(), options.pointer());
        let mut status = expect(lgreco_compressor_create(context, layer.pointer(), setting, options, &mut compressor));
        assert_eq!(status == LGRECO_OK, !compressor.is_null(), "a failed call leaves NULL");
        let (mut bound, mut length) = (0, usize::MAX);
        if status == LGRECO_OK && owned.elements > 0 {
            status = expect(lgreco_compressor_bound(compressor, &mut bound));
        }
        for step in 0..2 {
            if status != LGRECO_OK || bound == 0 || bound > 1 << 16 {
                break;
            }
            let capacity = [bound, bound, bound, bound + 9, bound - 1, 0][usize::from(bytes.below(6))];
            let (mut payload, mut decoded) = (Buffer::<u8>::new(capacity), Buffer::<f32>::new(owned.elements));
            let (from, to) = (owned.values.place(bytes), payload.place(bytes));
            status = expect(lgreco_compressor_encode(compressor, step, from, to, capacity, &mut length));
            if status == LGRECO_OK {
                assert!(length <= capacity);
                let cut = length - usize::from(bytes.below(8) / 7).min(length);
                let (from, elements) = (payload.place(bytes), owned.elements);
                let to = decoded.place(bytes);
                if expect(lgreco_compressor_decode(compressor, from, cut, to, elements)) == LGRECO_OK {
                    assert!(decoded.values().iter().all(|x| x.is_finite()), "values that are not finite");
                }
            }
        }
        let mut needed = 0;
        let told = |needed| lgreco_compressor_save(compressor, null_mut(), 0, needed);
        if !compressor.is_null() && expect(told(&mut needed)) == LGRECO_LENGTH {
            let mut saved = Buffer::<u8>::new(needed);
            let to = saved.place(bytes);
            if expect(lgreco_compressor_save(compressor, to, needed, &mut needed)) == LGRECO_OK {
                expect(lgreco_compressor_load(compressor, to, needed - usize::from(bytes.below(4) / 3).min(needed)));
            }
        }
        assert_eq!(lgreco_compressor_destroy(&mut compressor), LGRECO_OK);
        status
    }
}

unsafe extern "C" fn perform(_: *mut c_void, _: *const lgreco_request) -> i32 {
    0
}

/// Makes a controller of up to three layers as the only rank, takes a few steps, and reads its state.
pub(super) fn controller(bytes: &mut Bytes, context: *mut lgreco_context) -> lgreco_status {
    let mut owned = [Owned::new(bytes), Owned::new(bytes), Owned::new(bytes)];
    let mut views = owned.each_mut().map(|layer| layer.view(bytes));
    for (view, name) in views.iter_mut().zip([c"fc1", c"fc2", c"fc3"]) {
        view.name = bytes.maybe(name.as_ptr());
    }
    let count = usize::from(bytes.below(4));
    let functions = lgreco_collective { perform: Some(perform), ..Default::default() };
    let functions_kept = [
        offset_of!(lgreco_collective, rank),
        offset_of!(lgreco_collective, user),
        offset_of!(lgreco_collective, perform),
    ];
    let mut fixed = Buffer::of((0..count).map(|_| setting(bytes)).collect());
    let fixed = if bytes.below(3) == 0 { fixed.place(bytes) } else { null_mut() };
    let method = METHODS[usize::from(bytes.below(METHODS.len() as u8))];
    let policy = pick(bytes, &["lgreco", "uniform", "uncompressed", "kmeans", "paper"]);
    // The option `states` is small: three layers need few solver states, and clearing the default number would dominate
    // the run time.
    let mut pairs: Vec<(&str, &dyn Display)> =
        vec![("method", &method), ("start_iter", &2), ("period", &1), ("states", &256), ("min_elements", &4)];
    if fixed.is_null() {
        pairs.push(("policy", &policy));
    }
    let options = List::new(bytes, &pairs);
    let mut controller = core::ptr::dangling_mut();
    // SAFETY: structs and buffers are as large as they state. Handles are live or NULL.
    unsafe {
        let layers = layers(bytes, &views[..count]);
        let functions = caller_structs(bytes, &[functions], &functions_kept);
        let (collective, layers, options) = (functions.pointer(), layers.pointer(), options.pointer());
        let created = lgreco_controller_create(context, collective, layers, count, fixed, options, &mut controller);
        let mut status = expect(created);
        assert_eq!(status == LGRECO_OK, !controller.is_null(), "a failed call leaves NULL");
        for _ in 0..2 + bytes.below(3) {
            if status != LGRECO_OK {
                break;
            }
            let sound = owned.iter().take(count).all(|layer| layer.values.are_finite(layer.dtype));
            let gradients = owned.each_mut().map(|layer| layer.values.place(bytes));
            let mut report = caller_structs(bytes, &[lgreco_report::default()], &[]);
            let (from, to) = (bytes.maybe(gradients.as_ptr()), report.place());
            let rate = f64::from(bytes.value());
            status = expect(lgreco_controller_step(controller, collective, from, count, rate, to));
            report.check_guard();
            let finite = owned.iter().take(count).all(|layer| layer.values.are_finite(layer.dtype));
            assert!(status != LGRECO_OK || !sound || finite, "means that are not finite");
        }
        if !controller.is_null() {
            let (mut request, mut report) = (
                caller_structs(bytes, &[lgreco_request::default()], &[]),
                caller_structs(bytes, &[lgreco_report::default()], &[]),
            );
            expect(lgreco_controller_begin_step(controller, f64::from(bytes.value())));
            expect(lgreco_controller_control(controller, request.place()));
            expect(lgreco_controller_finish_step(controller, report.place()));
            request.check_guard();
            report.check_guard();
            let layer = usize::from(bytes.below(4));
            let mut setting = Buffer::new(1);
            expect(lgreco_controller_setting(controller, layer, setting.place(bytes)));
            let mut found = [
                caller_structs(bytes, &[lgreco_metrics::default()], &[]),
                caller_structs(bytes, &[lgreco_decision::default()], &[]),
            ];
            let [metrics, decision] = &mut found;
            expect(lgreco_controller_metrics(controller, layer, metrics.place()));
            expect(lgreco_controller_decision(controller, decision.place()));
            found.iter().for_each(|found| found.check_guard());
            let (mut length, mut loaded) = (0, caller_structs(bytes, &[lgreco_loaded::default()], &[]));
            expect(lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, null_mut(), 0, &mut length));
            let mut saved = Buffer::<u8>::new(length);
            let to = saved.place(bytes);
            if expect(lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, to, length, &mut length)) == LGRECO_OK
            {
                let from = to.cast_const();
                expect(lgreco_controller_load(controller, from, length, &from, &length, 1, loaded.place()));
                loaded.check_guard();
            }
        }
        assert_eq!(lgreco_controller_destroy(&mut controller), LGRECO_OK);
        status
    }
}

/// Makes both ends of a cut with a random small setting, and sends a micro-batch there and back in any element type.
pub(super) fn cut(bytes: &mut Bytes) -> lgreco_status {
    let (batch, features) = (1 + usize::from(bytes.below(3)), 1 + usize::from(bytes.below(12)));
    let (forward, backward, memory) = (codec(bytes), codec(bytes), memory(bytes));
    let mut pairs: Vec<(&str, &dyn Display)> =
        vec![("batch", &batch), ("features", &features), ("forward", &forward), ("forward_memory", &memory)];
    if bytes.below(2) == 0 {
        pairs.push(("backward", &backward));
    }
    let options = List::new(bytes, &pairs);
    let mut setting = Buffer::<lgreco_cut_setting>::new(1);
    let setting = setting.place(bytes);
    // SAFETY: the list is valid, and the output is valid or NULL.
    let made = expect(unsafe { lgreco_cut_setting_make(options.pointer(), setting) });
    if made != LGRECO_OK {
        return made;
    }
    let mut ends = [core::ptr::dangling_mut(); 2];
    // SAFETY: structs and buffers are as large as they state. Handles are live or NULL.
    unsafe {
        let mut status = LGRECO_OK;
        for (end, to) in [LGRECO_END_UPSTREAM, LGRECO_END_DOWNSTREAM].into_iter().zip(&mut ends) {
            status = expect(lgreco_cut_create(setting, end, 1, to));
            assert_eq!(status == LGRECO_OK, !to.is_null(), "a failed call leaves NULL");
        }
        let [above, below] = ends;
        let samples = batch.saturating_sub(usize::from(bytes.below(8) / 7));
        let elements = samples * features;
        let dtype = u32::from(bytes.below(3));
        let mut values = Values::new(bytes, elements, dtype);
        let ids = [1, 2, 3];
        if status == LGRECO_OK && samples > 0 {
            let mut bound = 0;
            assert_eq!(lgreco_cut_bound(above, &mut bound), LGRECO_OK);
            let capacity = bound - usize::from(bytes.below(16) / 15);
            let (mut message, mut received) = (Buffer::<u8>::new(capacity), Buffer::<f32>::new(elements));
            let (from, to, ids) = (values.place(bytes), message.place(bytes), bytes.maybe(ids.as_ptr()));
            let (mut length, mut ticket) = (0, 0);
            let (length_to, ticket_to) = (&raw mut length, &raw mut ticket);
            status = expect(lgreco_cut_send_activations(
                above, from, dtype, samples, ids, to, capacity, length_to, ticket_to,
            ));
            if status == LGRECO_OK {
                let (from, to) = (message.place(bytes), received.place(bytes));
                status = expect(lgreco_cut_receive(below, from, length, to, elements, &raw mut ticket));
                assert!(status != LGRECO_OK || received.values().iter().all(|x| x.is_finite()));
            }
        }
        ends.iter_mut().for_each(|end| assert_eq!(lgreco_cut_destroy(end), LGRECO_OK));
        status
    }
}
