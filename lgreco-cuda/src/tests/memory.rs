//! Tests gradients in simulated device memory, which is the CPU's memory.
#![allow(unsafe_code)]

use super::simt::flavour;
use super::{ROWS, backend};
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error};
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::{
    Candidates, Compressor, Setting, eden::Eden, powersgd::PowerSgd, qsgd::Qsgd, quantised_topk::QuantisedTopK,
    topk::TopK,
};
use lgreco::gradient::{Dtype, Gradient, Shape, with_elements};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;

/// Words that hold a gradient. The gradient begins at byte `offset`.
pub(super) struct Held {
    words: Vec<u32>,
    offset: usize,
}

impl Held {
    pub(super) fn new(gradient: &Gradient<'_>, offset: usize) -> Held {
        let bytes: &[u8] = with_elements!(gradient.values(), values => bytemuck::cast_slice(values));
        let mut words = vec![u32::MAX; (offset + bytes.len()).div_ceil(4) + 8];
        bytemuck::cast_slice_mut(&mut words)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Held { words, offset }
    }

    pub(super) fn gradient(&self, like: &Gradient<'_>) -> DeviceGradient {
        let address = (self.words.as_ptr().expose_provenance() + self.offset) as u64;
        // SAFETY: the words outlive the gradient, and hold all of its values.
        unsafe { DeviceGradient::new(address, like.values().dtype(), like.shape()) }.unwrap()
    }
}

fn settings() -> [Setting; 6] {
    [
        Setting::Eden(Eden::default()),
        Setting::TopK(TopK { keep: 55, values: Dtype::F16 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: 57, bits: 5 }),
        Setting::Dense,
        Setting::Qsgd(Qsgd::default()),
        Setting::Qsgd(Qsgd { bits: 3, bucket: 128, ..Qsgd::default() }),
    ]
}

#[test]
fn gradients_are_compressed_where_they_are() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let stream = Stream { seed: 2, ..Stream::default() };
    for gradient in tensor.gradients() {
        let dtype = gradient.values().dtype();
        for offset in [0, 4, 8, 16, 256].into_iter().chain((dtype != Dtype::F32).then_some(2)) {
            let held = Held::new(&gradient, offset);
            let on_device = held.gradient(&gradient);
            for setting in settings() {
                let len = setting.payload_len(gradient.shape(), dtype).unwrap();
                let (mut found, mut expected) = (vec![0; len], vec![0; len]);
                backend.encode_device(&setting, &on_device, stream, &mut found).unwrap();
                let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), dtype)];
                Portable.encode(&setting, &gradient, stream, &mut workspace, &mut expected).unwrap();
                assert!(found == expected, "{setting:?} at {offset}");
            }
            let candidates = [
                Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] },
                Candidates::TopK { values: dtype, keeps: &[50, 700] },
                Candidates::PowerSgd { iterations: 1, ranks: &[1, 4] },
                Candidates::Eden { base: Eden::default(), bits: &[3, 1] },
            ];
            let on_device = candidates.map(|candidates| DeviceJob { gradient: on_device, candidates, stream });
            let jobs = candidates.map(|candidates| Job { gradient, candidates, stream });
            let (mut rows, mut expected) = ([f64::NAN; 8], [f64::NAN; 8]);
            backend.measure_device(&on_device, &mut rows).unwrap();
            Portable.measure(&jobs, &mut vec![0; Portable.workspace_len(&jobs)], &mut expected).unwrap();
            assert!(rows.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= ROWS * b), "{rows:?}, not {expected:?}");
        }
    }
}

/// Jobs of one method share launches, regardless of their positions in the batch. Each row must be at its job's
/// position, and must have the same bits as if its job were measured alone.
#[test]
fn rows_of_mixed_jobs_are_those_of_each_alone() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let tensors = [(61, 47), (5, 9), (1, 700), (64, 64)]
        .map(|(rows, cols)| Tensor::new(&uniform(rows * cols, rows as u64), rows, cols));
    let of_type = |number: usize| tensors.iter().map(move |tensor| tensor.gradients()[number]);
    let gradients: Vec<Gradient<'_>> = of_type(0).chain(of_type(1)).collect();
    let held: Vec<Held> = gradients.iter().map(|gradient| Held::new(gradient, 0)).collect();
    let mut jobs = Vec::new();
    for (layer, (gradient, held)) in gradients.iter().zip(&held).enumerate() {
        for candidates in [
            Candidates::TopK { values: Dtype::F32, keeps: &[1, 40] },
            Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4, 8] },
            Candidates::PowerSgd { iterations: 2, ranks: &[1] },
            Candidates::QuantisedTopK { keeps: &[9, 30], bits: &[3] },
            Candidates::Eden { base: Eden::default(), bits: &[1, 4] },
            Candidates::Qsgd { base: Qsgd::default(), bits: &[5] },
            Candidates::TopK { values: Dtype::Bf16, keeps: &[7] },
        ] {
            let stream = Stream { seed: 3, layer: layer as u32, ..Stream::default() };
            jobs.push(DeviceJob { gradient: held.gradient(gradient), candidates, stream });
        }
    }
    let mut together = vec![f64::NAN; jobs.iter().map(|job| job.candidates.len()).sum()];
    backend.measure_device(&jobs, &mut together).unwrap();
    let mut alone = Vec::new();
    for job in &jobs {
        let mut row = vec![f64::NAN; job.candidates.len()];
        backend.measure_device(&[*job], &mut row).unwrap();
        alone.extend(row);
    }
    assert_eq!(together, alone);

    // The call reports the error of the failed job with the lowest number, even if later jobs share launches with
    // earlier jobs.
    let mut values = uniform(61 * 47, 1);
    values[1000] = f32::NAN;
    let damaged = Tensor::new(&values, 61, 47);
    let damaged_held = Held::new(&damaged.gradients()[0], 0);
    for at in [7, 20, 31] {
        let gradient = damaged_held.gradient(&damaged.gradients()[0]);
        let mut with_damage = jobs.clone();
        with_damage[at].gradient = gradient;
        with_damage[40].gradient = gradient;
        let failed = backend.measure_device(&with_damage, &mut together).unwrap_err();
        assert_eq!(failed.job, Some(at));
    }
}

/// Decodes a payload into device memory.
fn decoded(backend: &mut CudaBackend, payload: &[u8], elements: usize) -> Result<Vec<f32>, Error> {
    let mut values = vec![f32::NAN; elements];
    let address = values.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the memory has as many values as the payload, or the call fails before it writes.
    unsafe { backend.decode_to_device(payload, address) }.map(|()| values)
}

#[test]
fn payloads_are_decoded_to_device_memory() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let gradient = tensor.gradients()[0];
    for setting in settings().into_iter().chain([Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 })]) {
        let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
        Portable.encode(&setting, &gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
        let mut expected = vec![f32::NAN; 61 * 47];
        Portable.decode(&payload, &mut expected).unwrap();
        assert!(decoded(&mut backend, &payload, 61 * 47).unwrap() == expected, "{setting:?}");
        let damaged = [&payload[..16], &[0xff; 16], &payload[32..]].concat();
        assert!(decoded(&mut backend, &damaged, 61 * 47).is_err(), "{setting:?}");
    }
}

#[test]
fn payloads_stay_on_the_device() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    for setting in [
        Setting::Qsgd(Qsgd { bits: 5, bucket: 128, ..Qsgd::default() }),
        Setting::TopK(TopK { keep: 70, values: Dtype::F32 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: 71, bits: 3 }),
        Setting::Eden(Eden::default()),
        Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 }),
    ] {
        stay_on_the_device(&mut backend, &uniform(61 * 47, 1), setting);
    }
}

fn stay_on_the_device(backend: &mut CudaBackend, values: &[f32], setting: Setting) {
    let (mut values, shape) = (values.to_vec(), Shape::new(61, 47).unwrap());
    let len = setting.payload_len(shape, Dtype::F32).unwrap();
    let stream = Stream { seed: 7, ..Stream::default() };
    for spoiled in [None, Some(1234)] {
        if let Some(at) = spoiled {
            values[at] = f32::NAN;
        }
        let tensor = Tensor::new(&values, 61, 47);
        let gradient = tensor.gradients()[0];
        let held = Held::new(&gradient, 4);
        let (mut payload, mut decoded) = (vec![u32::MAX; len.div_ceil(4)], vec![f32::NAN; 61 * 47]);
        let to = payload.as_mut_ptr().expose_provenance() as u64;
        let out = decoded.as_mut_ptr().expose_provenance() as u64;
        let small = Tensor::new(&[1.0, 2.0], 2, 1);
        let small_held = Held::new(&small.gradients()[0], 0);
        let fine = small_held.gradient(&small.gradients()[0]);
        let mut other = [0u32; 8];
        let other = other.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: all memory is alive, and large enough.
        let found = unsafe {
            let small = Setting::Qsgd(Qsgd { bits: 2, bucket: 64, ..Qsgd::default() });
            backend.encode_to_device(&small, &fine, stream, other).unwrap();
            // The numbers of jobs also count calls that cannot fail, but not refused calls.
            backend.decode_on_device(&small, fine.shape(), other, out).unwrap();
            backend.decode_on_device(&small, Shape::new(0, 5).unwrap(), other, out).unwrap();
            assert_eq!(backend.encode_to_device(&setting, &held.gradient(&gradient), stream, to), Ok(len));
            let unaligned = backend.encode_to_device(&setting, &held.gradient(&gradient), stream, to + 2);
            assert!(matches!(unaligned, Err(Error::Memory { .. })), "{unaligned:?}");
            backend.decode_on_device(&setting, shape, to, out).unwrap();
            let refused = backend.decode_on_device(&Setting::Dense, shape, to, out);
            assert!(matches!(refused, Err(Error::Method(_))), "{refused:?}");
            backend.check()
        };
        // The expected payload comes from encoding into host memory. Other tests compare payloads in host memory with
        // the core's.
        let mut expected = vec![0; len];
        match (backend.encode(&setting, &gradient, stream, &mut [], &mut expected), found) {
            (Ok(_), Ok(())) => {
                assert!(bytemuck::cast_slice::<u32, u8>(&payload)[..len] == expected);
                let mut values = vec![f32::NAN; 61 * 47];
                Portable.decode(&expected, &mut values).unwrap();
                assert!(decoded == values);
            }
            (Err(_), Err(failed)) => {
                assert!(failed.to_string().starts_with("job 3: element 1234 is NaN"), "{failed}");
                assert_eq!(backend.check(), Ok(()), "told once");
            }
            outcomes => panic!("{outcomes:?}"),
        }
    }
}

/// The payloads have the same layout as after an all-gather of messages of equal length.
#[test]
fn payloads_of_several_ranks_lie_one_after_another() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let shape = Shape::new(61, 47).unwrap();
    for setting in [
        Setting::Qsgd(Qsgd { bits: 7, bucket: 128, ..Qsgd::default() }),
        Setting::TopK(TopK { keep: 71, values: Dtype::F16 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: 71, bits: 5 }),
        Setting::Eden(Eden { bits: 7, ..Eden::default() }),
    ] {
        let len = setting.payload_len(shape, Dtype::F32).unwrap();
        assert!(!len.is_multiple_of(4), "{setting:?}: {len} bytes");
        let mut gathered = vec![0; 3 * len];
        for (rank, payload) in gathered.chunks_mut(len).enumerate() {
            let (tensor, stream) = (Tensor::new(&uniform(61 * 47, rank as u64), 61, 47), Stream::default());
            Backend::encode(&mut backend, &setting, &tensor.gradients()[0], stream, &mut [], payload).unwrap();
        }
        for payload in gathered.chunks(len) {
            let (mut expected, mut decoded) = (vec![0.0; 61 * 47], vec![f32::NAN; 61 * 47]);
            Portable.decode(payload, &mut expected).unwrap();
            let (from, to) = (payload.as_ptr().expose_provenance(), decoded.as_mut_ptr().expose_provenance());
            // SAFETY: the payload and the values are alive and large enough.
            unsafe { backend.decode_on_device(&setting, shape, from as u64, to as u64) }.unwrap();
            assert_eq!(backend.check(), Ok(()));
            assert!(decoded == expected, "{setting:?}");
        }
    }
}

#[test]
fn a_check_is_due_after_so_many_calls() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let (setting, empty) = (Setting::Qsgd(Qsgd::default()), Shape::new(0, 5).unwrap());
    // SAFETY: a layer without elements decodes nothing.
    let decode = |backend: &mut CudaBackend| unsafe { backend.decode_on_device(&setting, empty, 256, 256) };
    for _ in 0..2 {
        (0..4096).for_each(|_| decode(&mut backend).unwrap());
        assert!(matches!(decode(&mut backend), Err(Error::Memory { .. })));
        assert_eq!(backend.check(), Ok(()));
    }
}

/// The means of an exchange overwrite the gradients, so the check must not need the gradients.
#[test]
fn what_is_enqueued_next_may_overwrite_a_gradient_at_fault() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let (mean, stream) = (Setting::Qsgd(Qsgd { bucket: 64, ..Qsgd::default() }), Stream::default());
    let encoders = [
        Setting::Dense,
        Setting::Qsgd(Qsgd { bucket: 128, ..Qsgd::default() }),
        Setting::TopK(TopK { keep: 3, values: Dtype::F16 }),
        Setting::TopK(TopK { keep: 3, values: Dtype::F32 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: 3, bits: 2 }),
        Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 }),
    ];
    let spoiled = [[f32::NAN, 1e9], [1e9, f32::NEG_INFINITY], [-3e38, 3e38], [1e5, -1e6], [-65520.0, 2.0], [1.0, 2.0]];
    let mut refused = 0;
    for (setting, [one, other]) in encoders.iter().flat_map(|setting| spoiled.map(|pair| (setting, pair))) {
        let values = [0.5, 1.0, 0.0, one, -2.0, 1.0, 1.0, other, one, 0.25, 3.0, -0.0];
        let (tensor, means) = (Tensor::new(&values, 4, 3), Tensor::new(&[0.5; 12], 4, 3));
        let (gradient, means) = (tensor.gradients()[0], means.gradients()[0]);
        let (mut held, held_means) = (Held::new(&gradient, 0), Held::new(&means, 0));
        let (place, source) = (held.gradient(&gradient), held_means.gradient(&means));
        let mut payloads = [[0u32; 32]; 2];
        let [sent, received] = payloads.each_mut().map(|payload| payload.as_mut_ptr().expose_provenance() as u64);
        let overwritten = held.words.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the memory is large enough for the payloads and the values, and no other work uses it before the
        // check.
        let found = unsafe {
            backend.encode_to_device(&mean, &source, stream, received).unwrap();
            backend.encode_to_device(setting, &place, stream, sent).unwrap();
            backend.decode_on_device(&mean, gradient.shape(), received, overwritten).unwrap();
            backend.check()
        };
        let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
        let expected = Portable.encode(setting, &gradient, stream, &mut workspace, &mut [0; 128]);
        refused += usize::from(expected.is_err());
        match (expected, found) {
            (Ok(_), Ok(())) => {}
            (Err(expected), Err(found)) => {
                let found = (found.job, found.error.to_string());
                assert_eq!(found, (Some(1), expected.to_string()), "{setting:?}, {one}, {other}");
            }
            outcomes => panic!("{setting:?}, {one}, {other}: {outcomes:?}"),
        }
        assert_eq!(held.words[..12], [0.5f32.to_bits(); 12]);
    }
    assert!(refused >= 12, "{refused}");
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let shape = Shape::new(3, 5).unwrap();
    for (address, dtype) in [(0, Dtype::F32), (4098, Dtype::F32), (4097, Dtype::Bf16), (u64::MAX - 31, Dtype::F32)] {
        // SAFETY: nothing uses the gradient.
        let refused = unsafe { DeviceGradient::new(address, dtype, shape) };
        assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    }
    // SAFETY: nothing uses the gradient.
    assert!(unsafe { DeviceGradient::new(4098, Dtype::F16, shape) }.is_ok());
}
