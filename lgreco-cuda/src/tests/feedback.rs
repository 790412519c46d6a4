//! Error feedback whose residual lies in device memory, for which the processor's stands: the core's suite, and what is
//! refused here alone.
#![allow(unsafe_code)]

use super::backend;
use super::memory::Held;
use super::simt::{Edit, Flavour, Simt, flavour};
use crate::kernels::Module;
use crate::{CudaBackend, DeviceResidual, Error};
use lgreco_core::backend::Backend;
use lgreco_core::compress::{Compressor, Setting, qsgd::Qsgd, quantised_topk::QuantisedTopK, topk::TopK};
use lgreco_core::gradient::{Dtype, Gradient};
use lgreco_core::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use lgreco_testing::residual::{ResidualDevice, STORAGES, check, check_all, check_limits, check_powersgd};
use lgreco_train::feedback::Storage;

/// A residual, and rubbish behind it that has to stay.
pub struct Kept {
    words: Vec<u32>,
    storage: Storage,
    bytes: usize,
}

impl Kept {
    fn residual(&mut self) -> DeviceResidual {
        DeviceResidual { address: self.words.as_mut_ptr().expose_provenance() as u64, storage: self.storage }
    }
}

impl ResidualDevice for CudaBackend {
    type Kept = Kept;

    fn zeros(&mut self, storage: Storage, elements: usize) -> Kept {
        let bytes = storage.bytes(elements) as usize;
        let mut words = vec![u32::MAX; bytes.div_ceil(4) + 1];
        bytemuck::cast_slice_mut(&mut words)[..bytes].fill(0u8);
        Kept { words, storage, bytes }
    }

    fn bytes(&mut self, kept: &Kept) -> Vec<u8> {
        let (bytes, rest) = bytemuck::cast_slice::<u32, u8>(&kept.words).split_at(kept.bytes);
        assert!(rest.iter().all(|&byte| byte == u8::MAX), "written behind the residual");
        bytes.to_vec()
    }

    fn step(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        kept: &mut Kept,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, lgreco_train::Error> {
        let held = Held::new(gradient, gradient.values().dtype().bytes());
        // SAFETY: the residual is of the gradient's size.
        let done = unsafe {
            self.encode_with_feedback(setting, &held.gradient(gradient), kept.residual(), gain, stream, payload)
        };
        done.map_err(|error| match error {
            Error::Core(error) => error.into(),
            other => panic!("{other}"),
        })
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) {
        Backend::decode(self, payload, values).unwrap();
    }
}

#[test]
fn payloads_and_residuals_are_those_of_the_core() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    check_all(&mut backend);
}

/// More values than the threads of a kernel take at once, the last of which a thread has not four of.
#[test]
fn large_residuals_are_worked_on_in_a_loop() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    for storage in STORAGES {
        check(&mut backend, (61, 419), Setting::Qsgd(Qsgd::default()), 0.7, storage);
    }
}

#[test]
fn what_powersgd_leaves_out_is_remembered() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    check_powersgd(&mut backend, (61, 47), 2);
}

/// If a payload could not be decoded, all of the sum would be remembered although it was sent.
#[test]
fn a_payload_that_does_not_decode_is_not_remembered() {
    let edit = Edit {
        module: Module::Positions,
        from: "index >= p.keep) {\n            atomicMax",
        to: "true) {\n            atomicMax",
    };
    let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
    let mut backend = CudaBackend::on(Box::new(device));
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let gradient = tensor.gradients()[0];
    let (held, mut kept) = (Held::new(&gradient, 0), backend.zeros(Storage::F32, 61 * 47));
    let in_full = Setting::TopK(TopK { keep: 55, values: Dtype::F32 });
    for setting in [in_full, Setting::QuantisedTopK(QuantisedTopK { keep: 55, bits: 4 })] {
        let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        let (on_device, residual, stream) = (held.gradient(&gradient), kept.residual(), Stream::default());
        // SAFETY: the residual is of the gradient's size.
        let failed = unsafe { backend.encode_with_feedback(&setting, &on_device, residual, 1.0, stream, &mut payload) };
        assert!(matches!(failed, Err(Error::Core(lgreco_core::Error::PayloadBody { .. }))), "{failed:?}");
        assert!(backend.bytes(&kept).iter().all(|&byte| byte == 0), "the residual has changed");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    check_limits(&mut backend);
}

#[test]
fn addresses_and_settings_that_cannot_be_are_refused() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let held = Held::new(&tensor.gradients()[0], 0);
    let gradient = held.gradient(&tensor.gradients()[0]);
    for storage in STORAGES {
        let mut kept = backend.zeros(storage, 61 * 47);
        let address = kept.residual().address;
        let mut run = |setting, address| {
            let residual = DeviceResidual { address, storage };
            // SAFETY: the residual is of the gradient's size, or its address is refused.
            unsafe {
                backend.encode_with_feedback(setting, &gradient, residual, 1.0, Stream::default(), &mut [0; 20_000])
            }
        };
        let qsgd = Setting::Qsgd(Qsgd::default());
        assert!(matches!(run(&qsgd, 0), Err(Error::Memory { .. })));
        assert!(matches!(run(&qsgd, address + 1), Err(Error::Memory { .. })));
        assert!(matches!(run(&Setting::Dense, address), Err(Error::Method(_))));
        assert!(backend.bytes(&kept).iter().all(|&byte| byte == 0));
    }
}
