//! Calls the C functions of buckets from Rust. Tests the requests under each method, and buckets whose controller was
//! destroyed or has loaded another state.

mod common;

use common::{List, gradient, setting};
use lgreco_c::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C" fn perform(_: *mut c_void, _: *const lgreco_request) -> i32 {
    1
}

const NAMES: [&CStr; 3] = [c"fc1", c"bias", c"fc2"];
const DIMS: [&[usize]; 3] = [&[32, 24], &[24], &[32, 24]];

/// A controller with a single rank and three layers. Its collectives change no memory.
struct Alone(*mut lgreco_controller);

impl Alone {
    fn new(options: &[(&str, &str)], fixed: Option<&[lgreco_setting; 3]>) -> Alone {
        let collective = lgreco_collective { perform: Some(perform), ..Default::default() };
        let layers = [0, 1, 2].map(|layer| lgreco_layer {
            name: NAMES[layer].as_ptr(),
            dims: DIMS[layer].as_ptr(),
            dims_len: DIMS[layer].len(),
            ..Default::default()
        });
        let (options, mut controller) = (List::new(options.iter().copied()), null_mut());
        let (settings, options) = (fixed.map_or(null(), |fixed| fixed.as_ptr()), options.pointer());
        // SAFETY: all pointers point to values that outlive the call.
        let status = unsafe {
            let place = &raw mut controller;
            lgreco_controller_create(null(), &collective, layers.as_ptr(), 3, settings, options, place)
        };
        assert_eq!(status, LGRECO_OK);
        Alone(controller)
    }

    fn begin(&self) {
        let mut request = lgreco_request::default();
        // SAFETY: handles and outputs are valid.
        unsafe {
            assert_eq!(lgreco_controller_begin_step(self.0, 0.1), LGRECO_OK);
            while lgreco_controller_control(self.0, &raw mut request) == LGRECO_OK
                && request.kind != LGRECO_REQUEST_NONE
            {}
        }
        assert_eq!(request.kind, LGRECO_REQUEST_NONE);
    }

    fn open(&self, layers: &[usize]) -> *mut lgreco_bucket {
        let mut bucket = null_mut();
        // SAFETY: handles and outputs are valid.
        let status = unsafe { lgreco_bucket_open(self.0, layers.as_ptr(), layers.len(), &raw mut bucket) };
        assert_eq!(status, LGRECO_OK);
        bucket
    }

    fn finish(&self) -> lgreco_report {
        let mut report = lgreco_report::default();
        // SAFETY: handles and outputs are valid.
        assert_eq!(unsafe { lgreco_controller_finish_step(self.0, &raw mut report) }, LGRECO_OK);
        report
    }

    fn save(&self) -> Vec<u8> {
        let (mut saved, mut length) = (vec![0; 1 << 16], 0);
        // SAFETY: handles and outputs are valid.
        let status = unsafe {
            lgreco_controller_save(self.0, LGRECO_SAVE_EVERYTHING, saved.as_mut_ptr(), saved.len(), &raw mut length)
        };
        assert_eq!(status, LGRECO_OK);
        saved.truncate(length);
        saved
    }

    fn load(&self, saved: &[u8]) {
        let (states, length) = ([saved.as_ptr()], saved.len());
        // SAFETY: handles and outputs are valid.
        let status =
            unsafe { lgreco_controller_load(self.0, states[0], length, states.as_ptr(), &length, 1, null_mut()) };
        assert_eq!(status, LGRECO_OK);
    }

    fn residual(&self, layer: usize) -> (lgreco_status, Vec<f32>) {
        let mut values = vec![0.0; DIMS[layer].iter().product()];
        // SAFETY: the array of values has the layer's length.
        let status = unsafe { lgreco_controller_residual(self.0, layer, values.as_mut_ptr(), values.len()) };
        (status, values)
    }

    fn close(&self, bucket: &mut *mut lgreco_bucket) -> lgreco_status {
        // SAFETY: the handles are live.
        unsafe { lgreco_bucket_close(self.0, bucket) }
    }

    /// Takes a step with one bucket per layer. Returns the kinds of all requests.
    fn step(&self, number: u32) -> Vec<lgreco_request_kind> {
        self.begin();
        let mut kinds = vec![];
        let mut buckets = [2, 0, 1].map(|layer| (self.open(&[layer]), gradient(number, DIMS[layer].iter().product())));
        for (bucket, values) in &mut buckets {
            let pointers = [values.as_mut_ptr().cast::<c_void>()];
            // SAFETY: the array of values has the layer's length and stays in place until the bucket is closed.
            assert_eq!(unsafe { lgreco_bucket_submit(*bucket, pointers.as_ptr(), 1) }, LGRECO_OK);
        }
        for (bucket, _) in &mut buckets {
            let mut request = lgreco_request::default();
            loop {
                // SAFETY: as above.
                assert_eq!(unsafe { lgreco_bucket_next(*bucket, &raw mut request) }, LGRECO_OK);
                if request.kind == LGRECO_REQUEST_NONE {
                    break;
                }
                kinds.push(request.kind);
                check_fields(&request);
            }
            assert_eq!(self.close(bucket), LGRECO_OK);
            assert!(bucket.is_null());
        }
        self.finish();
        kinds
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // SAFETY: the handle is live or null.
        unsafe { lgreco_controller_destroy(&raw mut self.0) };
    }
}

/// Asserts that the fields used by the request's kind are set, and that all other fields are 0 or NULL.
fn check_fields(request: &lgreco_request) {
    let lgreco_request { kind, memory, root, buffer, count, length, lens, send, send_lens, .. } = *request;
    assert_eq!((memory, root), (LGRECO_DEVICE_CPU, 0));
    let set = [!buffer.is_null(), count > 0, length > 0, !lens.is_null(), !send_lens.is_null()];
    assert_eq!((!send.is_null(), !request.received.is_null()), (set[4], set[4]));
    assert_eq!(set[4], !request.received_lens.is_null());
    let expected = match kind {
        LGRECO_REQUEST_ALL_REDUCE_SUM | LGRECO_REQUEST_ALL_REDUCE_SUM_BF16 => [true, true, false, false, false],
        LGRECO_REQUEST_ALL_GATHER | LGRECO_REQUEST_BROADCAST => [true, false, true, false, false],
        LGRECO_REQUEST_ALL_GATHER_EACH => [true, false, false, true, false],
        LGRECO_REQUEST_ALL_TO_ALL => [false, false, false, false, true],
        LGRECO_REQUEST_REDUCE_SCATTER_SUM => [true, true, false, true, false],
        _ => unreachable!("{kind}"),
    };
    assert_eq!(set, expected, "kind {kind}");
}

fn fixed(text: &str) -> [lgreco_setting; 3] {
    [text, "dense", text].map(setting)
}

#[test]
fn buckets_ask_for_the_collectives_of_their_methods() {
    let every = LGRECO_REQUEST_ALL_GATHER_EACH;
    let methods = [
        ("qsgd 4", "all_gather", vec![LGRECO_REQUEST_ALL_GATHER]),
        ("topk 40", "all_gather", vec![LGRECO_REQUEST_ALL_GATHER]),
        ("powersgd 2", "all_gather", vec![LGRECO_REQUEST_ALL_REDUCE_SUM; 2]),
        ("clt-k 40", "all_gather", vec![LGRECO_REQUEST_BROADCAST, LGRECO_REQUEST_ALL_REDUCE_SUM]),
        ("sidco 0.01", "all_gather", vec![LGRECO_REQUEST_ALL_GATHER, every]),
        ("qsgd 4", "scatter_reduce", vec![LGRECO_REQUEST_ALL_TO_ALL, every]),
    ];
    for (method, route, expected) in methods {
        let fixed = fixed(method);
        let alone = Alone::new(&[("start_iter", "2"), ("route", route)], Some(&fixed));
        for step in 0..8 {
            let kinds = alone.step(step);
            // At step 0, and at step 2 with its new settings, an extra all-gather checks that ranks exchange the same
            // layers.
            if step > 2 {
                let all = [&expected[..], &expected, &[LGRECO_REQUEST_ALL_REDUCE_SUM]].concat();
                assert_eq!(kinds, all, "method {method}, step {step}");
            }
        }
    }
}

/// Only the controller that lent a bucket takes the bucket back. Until then the bucket's layers are in flight.
#[test]
fn buckets_belong_to_their_controller() {
    let fixed = fixed("topk 40");
    let [mut alone, other] = [(); 2].map(|()| Alone::new(&[("start_iter", "2")], Some(&fixed)));
    (0..4).for_each(|step| drop((alone.step(step), other.step(step))));
    let before = alone.residual(0);
    assert!(before.1.iter().any(|&value| value != 0.0));
    let saved = alone.save();
    [&alone, &other].iter().for_each(|one| one.begin());
    let mut bucket = alone.open(&[0]);
    let mut of_other = other.open(&[0]);
    assert_eq!(other.close(&mut bucket), LGRECO_STEP_ORDER);
    assert!(!bucket.is_null());
    assert_eq!(alone.residual(0).0, LGRECO_IN_FLIGHT);
    // SAFETY: the handles are live.
    unsafe {
        assert_eq!(lgreco_bucket_close(null_mut(), &raw mut bucket), LGRECO_NULL_POINTER);
        assert!(!bucket.is_null());
        let mut copy = bucket.cast::<lgreco_controller>();
        assert_eq!(lgreco_controller_destroy(&raw mut copy), LGRECO_HANDLE);
    }
    assert_eq!(other.close(&mut of_other), LGRECO_OK);
    other.finish();
    assert_eq!(alone.close(&mut bucket), LGRECO_OK);
    assert_eq!(alone.residual(0), before, "it has come to no means");
    assert_eq!(alone.close(&mut bucket), LGRECO_OK, "closing twice does nothing");
    alone.finish();

    // A state is loaded while a bucket is open. The loaded residual stays, even if the old bucket is closed after a new
    // bucket was opened with the layer.
    alone.begin();
    let mut stale = alone.open(&[0]);
    alone.load(&saved);
    assert_eq!(alone.residual(0), before);
    alone.begin();
    let mut again = alone.open(&[0]);
    assert_eq!(alone.close(&mut stale), LGRECO_OK);
    assert!(stale.is_null());
    assert_eq!(alone.residual(0).0, LGRECO_IN_FLIGHT, "the other bucket has it");
    assert_eq!(alone.close(&mut again), LGRECO_OK);
    assert_eq!(alone.residual(0), before);

    // Destroys the controller before the bucket.
    let mut last = alone.open(&[1, 2]);
    // SAFETY: the handles are live.
    unsafe {
        assert_eq!(lgreco_controller_destroy(&raw mut alone.0), LGRECO_OK);
        assert_eq!(lgreco_bucket_withhold(last, 1), LGRECO_OK);
        assert_eq!(other.close(&mut last), LGRECO_STEP_ORDER);
        assert_eq!(lgreco_bucket_close(null_mut(), &raw mut last), LGRECO_OK);
    }
    assert!(last.is_null());
}
