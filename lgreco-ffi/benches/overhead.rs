//! Measures how much longer a call through the C API takes than the same call in Rust. The layer is so small that the
//! call itself dominates. Each reported time is the fastest of many rounds. Fails if the difference is 100 ns or more.

use lgreco_c::*;
use lgreco_train::compress::{Compressor, Setting, decode};
use lgreco_train::gradient::{Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::Instant;

const ROUNDS: usize = 2000;
const CALLS: u32 = 500;
/// Largest allowed difference in nanoseconds per call.
const LIMIT: f64 = 100.0;

/// Returns nanoseconds per call of the fastest round.
fn fastest(mut call: impl FnMut(u32)) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(&mut call);
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min) * 1e9 / f64::from(CALLS)
}

fn compare(call: &str, rust: f64, c: f64) {
    println!("{call} of 4 values: Rust {rust:.1} ns, C {c:.1} ns, {:.1} ns more", c - rust);
    assert!(c - rust < LIMIT, "{call} through C costs {LIMIT} ns or more over Rust");
}

fn main() {
    let (values, mut payload, mut decoded) = ([0.5f32, -1.0, 2.0, 0.25], [0u8; 32], [0.0f32; 4]);
    let shape = Shape::new(2, 2).expect("four elements");
    let rust = fastest(|step| {
        let gradient = Gradient::new(Values::F32(black_box(&values)), shape).expect("four values");
        let stream = Stream { step, ..Stream::default() };
        let written = Setting::Dense.encode(&gradient, stream, &mut [], black_box(&mut payload));
        assert_eq!(black_box(written), Ok(32));
    });

    let mut compressor = null_mut();
    let dims = [2, 2];
    let layer = lgreco_layer { name: c"fc1".as_ptr(), dims: dims.as_ptr(), dims_len: 2, ..Default::default() };
    // SAFETY: all pointers point to values that outlive the call.
    let status = unsafe { lgreco_compressor_create(null(), &layer, c"dense".as_ptr(), null(), &raw mut compressor) };
    assert_eq!(status, LGRECO_OK);
    let c = fastest(|step| {
        let (from, to, mut length) = (black_box(&values).as_ptr().cast(), black_box(&mut payload).as_mut_ptr(), 0);
        // SAFETY: the array of values has the layer's length, and the payload has the stated length.
        let status = unsafe { lgreco_compressor_encode(compressor, step, from, to, 32, &mut length) };
        assert_eq!((black_box(status), length), (LGRECO_OK, 32));
    });
    compare("encode", rust, c);
    let rust = fastest(|_| {
        assert!(decode(black_box(&payload), black_box(&mut decoded)).is_ok());
    });
    let c = fastest(|_| {
        let (from, to) = (black_box(&payload).as_ptr(), black_box(&mut decoded).as_mut_ptr());
        // SAFETY: the payload has the stated length, and the output has the layer's length.
        let status = unsafe { lgreco_compressor_decode(compressor, from, 32, to, 4) };
        assert_eq!(black_box(status), LGRECO_OK);
    });
    compare("decode", rust, c);
    // SAFETY: the handle is live.
    unsafe { lgreco_compressor_destroy(&raw mut compressor) };
}
