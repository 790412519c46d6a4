//! Runs the core's conformance suite with the kernels on the CPU.

use super::simt::{Flavour, flavour};
use super::{ROWS, backend, is_full};
use crate::CudaBackend;
use lgreco::Error;
use lgreco::backend::{Backend, Job, JobError};
use lgreco::compress::qsgd::{Qsgd, Scale};
use lgreco::compress::wire::{Method, Payload};
use lgreco::compress::{Candidates, Setting};
use lgreco::gradient::Gradient;
use lgreco::rng::Stream;
use lgreco_testing::backend::{
    Tensor, check_batches, check_dense, check_eden, check_encode, check_powersgd, check_qsgd, check_quantised_topk,
    check_rows, check_topk,
};
use lgreco_testing::powersgd::uniform;

/// A backend that asserts that kernels decode every payload, except dense payloads, which the core decodes.
struct DecodedByKernels(CudaBackend);

impl Backend for DecodedByKernels {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        self.0.workspace_len(jobs)
    }

    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        self.0.measure(jobs, workspace, rows)
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        self.0.encode(setting, gradient, stream, workspace, payload)
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), Error> {
        let before = self.0.gpu_mut().decoded;
        self.0.decode(payload, values)?;
        let header = Payload::parse(payload)?.header;
        let expected = before + usize::from(header.method != Method::Dense);
        assert_eq!(self.0.gpu_mut().decoded, expected, "{header:?}: which of the device and the core decodes");
        Ok(())
    }
}

/// Runs a check with threads and blocks in random order. Full runs without sanitizers run the check two more times,
/// with threads and blocks forwards and backwards.
fn in_all_orders(check: impl Fn(&mut dyn Backend)) {
    let orders = if is_full() && flavour() == Flavour::Plain { 0..3 } else { 2..3 };
    for order in orders {
        let Some(backend) = backend(flavour(), order) else { return };
        check(&mut DecodedByKernels(backend));
    }
}

#[test]
fn dense() {
    in_all_orders(|backend| check_dense(backend));
}

#[test]
fn qsgd() {
    in_all_orders(|backend| check_qsgd(backend, ROWS));
}

/// The tensor has so many values that the threads of a kernel must loop.
#[test]
fn qsgd_of_a_large_tensor() {
    let Some(backend) = backend(flavour(), 0) else { return };
    let mut backend = DecodedByKernels(backend);
    let tensor = Tensor::new(&uniform(40_003, 1), 40_003, 1);
    for gradient in tensor.gradients() {
        for (bucket, scale) in [(512, Scale::MaxNorm), (100, Scale::MinMax), (30_000, Scale::MaxNorm)] {
            let base = Qsgd { bucket, scale, ..Qsgd::default() };
            check_encode(&mut backend, &Setting::Qsgd(base), &gradient, Stream::default());
            let candidates = Candidates::Qsgd { base, bits: &[1, 2, 4, 8] };
            check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
}

#[test]
fn topk() {
    in_all_orders(|backend| check_topk(backend, ROWS));
}

#[test]
fn quantised_topk() {
    in_all_orders(|backend| check_quantised_topk(backend, ROWS));
}

#[test]
fn powersgd() {
    in_all_orders(|backend| check_powersgd(backend, ROWS));
}

#[test]
fn eden() {
    in_all_orders(|backend| check_eden(backend, ROWS));
}

#[test]
fn batches() {
    in_all_orders(|backend| check_batches(backend, ROWS, true));
}
