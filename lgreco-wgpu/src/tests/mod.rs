//! Tests of the backend. If there is no device, tests that need a device report that they are skipped. With
//! `LGRECO_REQUIRE=wgpu`, these tests fail instead.

mod beyond;
mod bins;
mod buffers;
mod conformance;
mod counting;
mod cut;
mod device;
mod devices;
mod eden;
mod feedback;
mod imagined;
mod large;
mod later;
mod memory;
mod orthonormal;
mod poison;
mod races;
mod rows;
mod shaders;
pub(crate) mod simt;
mod splitting;
mod strides;
mod tally;

use crate::WgpuBackend;
use lgreco::backend::{Backend, Portable};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::Gradient;
use lgreco::rng::Stream;
use lgreco_testing::backend::check_encode;
use std::io::Write as _;
use wgpu::BufferUsages;

pub(crate) use devices::{Changes, Kind, give_back};
use devices::{backend, cut, small_backend, with};
pub(crate) use poison::poisoned;

/// Relative tolerance of rows.
const ROWS: f64 = 1e-4;

/// Usages of the caller's buffers.
const USAGE: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Whether all cases run: `tests/run --full` sets `LGRECO_FULL`.
fn is_full() -> bool {
    std::env::var_os("LGRECO_FULL").is_some()
}

/// Reports a check that is skipped. Does not use `eprintln!`, because libtest captures its output.
fn skipped(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
}

/// Runs [`check_encode`], and asserts that the device decodes the payload itself.
fn check_payload(backend: &mut WgpuBackend, setting: &Setting, gradient: &Gradient<'_>, stream: Stream) {
    let decoded = backend.gpu().decoded;
    check_encode(backend, setting, gradient, stream);
    assert_eq!(backend.gpu().decoded, decoded + 1, "{setting:?} was left to the core");
}

/// Asserts that PowerSGD's payload decodes to the same matrix as Portable's payload, up to [`ROWS`] times the norm,
/// with both decoders.
fn check_low_rank(backend: &mut WgpuBackend, powersgd: PowerSgd, gradient: &Gradient<'_>, stream: Stream) {
    let setting = Setting::PowerSgd(powersgd);
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let encode = |backend: &mut dyn Backend| {
        let mut payload = vec![0; setting.payload_len(shape, dtype).unwrap()];
        let mut workspace = vec![0; setting.encode_workspace_len(shape, dtype)];
        backend.encode(&setting, gradient, stream, &mut workspace, &mut payload).unwrap();
        payload
    };
    let decode = |backend: &mut dyn Backend, payload: &[u8]| {
        let mut values = vec![f32::NAN; shape.elements()];
        backend.decode(payload, &mut values).unwrap();
        values
    };
    let (own, cores) = (encode(backend), encode(&mut Portable));
    let expected = decode(&mut Portable, &cores);
    let squared = |x: f32| f64::from(x) * f64::from(x);
    let norm: f64 = expected.iter().map(|&x| squared(x)).sum();
    let decoded = backend.gpu().decoded;
    for found in [decode(backend, &own), decode(&mut Portable, &own), decode(backend, &cores)] {
        let apart: f64 = found.iter().zip(&expected).map(|(a, b)| squared(a - b)).sum();
        assert!(apart <= ROWS * ROWS * norm, "{powersgd:?}: {apart:e} apart, norm {norm:e}");
    }
    assert_eq!(backend.gpu().decoded, decoded + 2, "{powersgd:?} was left to the core");
}
