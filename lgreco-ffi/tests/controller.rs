//! Calls the C functions of a controller from Rust. The residuals equal the residuals of a Rust controller. Steps
//! between decisions do not allocate under any method.

mod common;

use common::{List, allocations, freed_tags, gradient, setting};
use lgreco_c::*;
use lgreco_train::compress::Setting;
use lgreco_train::controller::{Config, Controller, Feedback, Policy, Schedule, Tensor};
use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::feedback::{Residual, Storage};
use lgreco_train::gradient::{Dtype, ValuesMut};
use lgreco_train::search::{Method, Search};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C" fn perform(_: *mut c_void, _: *const lgreco_request) -> i32 {
    0
}

const NAMES: [&CStr; 3] = [c"fc1", c"bias", c"fc2"];
const DIMS: [&[usize]; 3] = [&[64, 48], &[48], &[64, 48]];

/// A controller with a single rank and three layers.
struct Alone {
    controller: *mut lgreco_controller,
    collective: lgreco_collective,
}

impl Alone {
    fn new(options: &[(&str, &str)], fixed: Option<&[lgreco_setting; 3]>) -> Alone {
        let (alone, status) = Alone::created(options, fixed);
        assert_eq!(status, LGRECO_OK);
        alone
    }

    /// Creates a controller. After a failure, `controller` is null.
    fn created(options: &[(&str, &str)], fixed: Option<&[lgreco_setting; 3]>) -> (Alone, lgreco_status) {
        let collective = lgreco_collective { perform: Some(perform), ..Default::default() };
        let layers = [0, 1, 2].map(|layer| lgreco_layer {
            name: NAMES[layer].as_ptr(),
            dims: DIMS[layer].as_ptr(),
            dims_len: DIMS[layer].len(),
            ..Default::default()
        });
        let options = List::new(options.iter().copied());
        let mut alone = Alone { controller: null_mut(), collective };
        let (settings, options) = (fixed.map_or(null(), |fixed| fixed.as_ptr()), options.pointer());
        // SAFETY: all pointers point to values that outlive the call.
        let status = unsafe {
            let (network, place) = (&raw const alone.collective, &raw mut alone.controller);
            lgreco_controller_create(null(), network, layers.as_ptr(), 3, settings, options, place)
        };
        (alone, status)
    }

    /// Bits per value in the first layer's EDEN setting; 0 while the layer is uncompressed.
    fn bits(&self) -> u32 {
        let mut setting = lgreco_setting::default();
        // SAFETY: the handle is live, and the output is valid.
        assert_eq!(unsafe { lgreco_controller_setting(self.controller, 0, &raw mut setting) }, LGRECO_OK);
        // SAFETY: the library ends texts with a NUL.
        let text = unsafe { CStr::from_ptr(setting.text.as_ptr()) }.to_str().unwrap();
        text.strip_prefix("eden ").map_or(0, |bits| bits.parse().unwrap())
    }

    /// Takes a step. Returns its report and its number of allocations.
    fn step(&self, gradients: &mut [Vec<f32>; 3]) -> (lgreco_report, u64) {
        let pointers = gradients.each_mut().map(|values| values.as_mut_ptr().cast::<c_void>());
        let mut report = lgreco_report::default();
        let count = allocations(|| {
            // SAFETY: the arrays of values have the layers' lengths.
            let status = unsafe {
                let (pointers, report) = (pointers.as_ptr(), &raw mut report);
                lgreco_controller_step(self.controller, &self.collective, pointers, 3, 0.1, report)
            };
            assert_eq!(status, LGRECO_OK);
        });
        (report, count)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // SAFETY: the handle is live.
        unsafe { lgreco_controller_destroy(&raw mut self.controller) };
    }
}

fn gradients(step: u32) -> [Vec<f32>; 3] {
    [gradient(step, 64 * 48), vec![0.5; 48], gradient(step + 100, 64 * 48)]
}

/// Destroying a handle clears its tag, so that calls refuse copies of the pointer until the memory is reused.
#[test]
fn destroyed_handles_have_no_tag() {
    drop(Alone::new(&[], None));
    assert_eq!(freed_tags(), 0);
}

#[test]
fn steps_allocate_at_first_and_at_decisions_only() {
    for method in ["qsgd", "topk"] {
        let alone = Alone::new(&[("method", method), ("start_iter", "3"), ("period", "4")], None);
        for step in 0..12 {
            let (report, count) = alone.step(&mut gradients(step));
            assert_eq!(report.switched == 1, [3, 7, 11].contains(&step));
            // The first step allocates the memory for exchanges.
            assert_eq!(count > 0, report.switched == 1 || step == 0, "step {step} allocates {count} times");
        }
    }
}

/// Tests each method that plans do not choose.
#[test]
fn steps_under_fixed_settings_allocate_at_first_and_once() {
    for method in ["clt-k 40", "hard-threshold 0.9", "sidco 0.05", "adacomp 64", "loco 512"] {
        let fixed = [method, "dense", method].map(setting);
        let alone = Alone::new(&[("start_iter", "3")], Some(&fixed));
        for step in 0..10 {
            let (report, count) = alone.step(&mut gradients(step));
            assert_eq!(report.switched == 1, step == 3);
            assert_eq!(count > 0, [0, 3].contains(&step), "{method}: step {step} allocates {count} times");
            assert!(step < 3 || report.bytes_out < report.bytes_in, "{method} sends {}", report.bytes_out);
        }
    }
}

/// The controller must check the collective's number of workers before it allocates memory for the workers, because the
/// field may be uninitialised.
#[test]
fn a_number_of_workers_that_is_far_too_large_is_an_error() {
    unsafe extern "C" fn expect_few(user: *mut c_void, request: *const lgreco_request) -> i32 {
        // SAFETY: `user` is the pointer from the collective below, and `request` comes from the library.
        unsafe {
            *user.cast::<u32>() += 1;
            if (*request).length == 32 { 0 } else { -1 }
        }
    }
    let mut alone = Alone::new(&[], None);
    let mut calls = 0u32;
    alone.collective.world_size = u32::MAX;
    alone.collective.perform = Some(expect_few);
    alone.collective.user = (&raw mut calls).cast();
    let mut gradients = gradients(0);
    let pointers = gradients.each_mut().map(|values| values.as_mut_ptr().cast::<c_void>());
    // SAFETY: the arrays of values have the layers' lengths.
    let status =
        unsafe { lgreco_controller_step(alone.controller, &alone.collective, pointers.as_ptr(), 3, 0.1, null_mut()) };
    assert_eq!((status, calls), (LGRECO_PARAMETER, 1));
}

#[test]
fn a_ramp_up_begins_mild_and_is_looked_at() {
    let ramp = |policy, ramp_up| [("policy", policy), ("start_iter", "2"), ("period", "2"), ("ramp_up", ramp_up)];
    let alone = Alone::new(&ramp("uniform", "8,4"), None);
    let bits: Vec<u32> = (0..7)
        .map(|step| {
            alone.step(&mut gradients(step));
            alone.bits()
        })
        .collect();
    assert_eq!(bits, [0, 0, 8, 8, 5, 5, 3]); // the root of 24 is 4.90
    let wrong =
        [("uniform", "8,0"), ("uniform", "9,4"), ("uniform", "NaN,4"), ("uniform", "8"), ("uncompressed", "8,4")];
    for (policy, ramp_up) in wrong {
        assert_eq!(Alone::created(&ramp(policy, ramp_up), None).1, LGRECO_PARAMETER, "{policy} {ramp_up}");
    }
}

#[test]
fn legacys_parameters_are_looked_at() {
    let legacy = |text| [("policy", "legacy"), ("start_iter", "3"), ("period", "4"), ("legacy", text)];
    let alone = Alone::new(&legacy("48; 6,4; 5,3; 8"), None);
    let bits: Vec<u32> = (0..8)
        .map(|step| {
            alone.step(&mut gradients(step));
            alone.bits()
        })
        .collect();
    assert_eq!(bits, [0, 0, 0, 4, 4, 4, 4, 3]);
    assert_eq!(Alone::created(&legacy("48; 6,4; 5; 8"), None).1, LGRECO_LENGTH);
    for text in ["48; 6,4; 5,3; 0", "48; 100", "48; 4,4; 4,NaN; 8", "48; 6,4; 5,3; soon", "6,4", "x; 6,4; 8"] {
        assert_eq!(Alone::created(&legacy(text), None).1, LGRECO_PARAMETER, "{text}");
    }
}

/// A Rust controller with the same layers and options gives the same bits in means and residuals.
#[test]
fn residuals_are_kept_as_in_rust() {
    let half = Residual { gain: 0.5, reset_every: 4, storage: Storage::Bf16 };
    let tenth = Residual { gain: 0.1, reset_every: 3, storage: Storage::F32 };
    let rules = [
        (vec![], Feedback::default()),
        (vec![("error_feedback", "false")], Feedback::NONE),
        (
            vec![("gain", "0.5"), ("reset_every", "4"), ("residual_dtype", "bfloat16")],
            Feedback { others: Some(half), ..Feedback::default() },
        ),
        (
            vec![("loco_gain", "0.1"), ("loco_reset_every", "3"), ("loco_residual_dtype", "float32")],
            Feedback { loco: Some(tenth), ..Feedback::default() },
        ),
    ];
    let mut residuals = Vec::new();
    for [first, last] in [["topk 50", "loco 64"], ["adacomp 64", "qsgd 4"]] {
        let settings = [first, "dense", last];
        for (options, feedback) in &rules {
            let fixed = settings.map(setting);
            let alone = Alone::new(&[&[("start_iter", "2")], &options[..]].concat(), Some(&fixed));

            let mut worker = ThreadCollective::group(1).remove(0);
            let mut config = Config::new(Search::new(Method::Qsgd));
            config.policy = Policy::Fixed(settings.map(|text| text.parse::<Setting>().unwrap()).to_vec());
            config.schedule = Schedule { warmup: 2, ..config.schedule };
            config.feedback = *feedback;
            let tensor = |layer: usize| Tensor::new(NAMES[layer].to_str().unwrap(), DIMS[layer], Dtype::F32).unwrap();
            let mut rust =
                Controller::new(config, [0, 1, 2].map(tensor).to_vec(), worker.rank(), worker.world_size()).unwrap();
            for step in 0..9 {
                let (mut of_c, mut of_rust) = (gradients(step), gradients(step));
                alone.step(&mut of_c);
                let mut views = of_rust.each_mut().map(|values| ValuesMut::F32(values));
                rust.step(&mut worker, &mut views, 0.1).unwrap();
                assert_eq!(of_c, of_rust, "{first}, {last} at step {step}");
            }
            for layer in [0, 2] {
                let (mut of_c, mut of_rust) = (vec![1.0; 64 * 48], vec![2.0; 64 * 48]);
                // SAFETY: the array of values has the layer's length.
                let status =
                    unsafe { lgreco_controller_residual(alone.controller, layer, of_c.as_mut_ptr(), of_c.len()) };
                assert_eq!(status, LGRECO_OK);
                rust.residual(layer, &mut of_rust).unwrap();
                assert_eq!(of_c, of_rust, "layer {layer}");
                residuals.push(of_c);
            }
        }
    }
    let differs = |a: usize, b: usize| assert_ne!(residuals[a], residuals[b], "runs {a} and {b}");
    // The residuals of TopK and LoCo come first, then those of AdaComp and QSGD. Each pair of methods has four runs:
    // the default, no error feedback, other residual options for all methods but LoCo, and other residual options for
    // LoCo.
    [(0, 2), (0, 4), (1, 3), (1, 7), (8, 10), (8, 12)].into_iter().for_each(|(a, b)| differs(a, b));
    assert_eq!((&residuals[1], &residuals[0]), (&residuals[5], &residuals[6]), "each has its own fields");
    assert!(residuals[9].iter().all(|&value| value == 0.0), "QSGD remembers nothing");
}
