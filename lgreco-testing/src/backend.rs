//! The conformance suite: checks that a [`Backend`] gives the results of [`Portable`].
//!
//! A backend's test calls [`check_dense`], [`check_qsgd`], [`check_topk`], [`check_quantised_topk`],
//! [`check_powersgd`], [`check_eden`] and [`check_batches`], or [`check_all`] for all of them.

use super::golden;
use super::qsgd::{squared_error, subnormal_rounding};
use lgreco::Error;
use lgreco::backend::{Backend, Job, JobError, Portable};
use lgreco::compress::eden::{self, Eden};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use lgreco::rng::Stream;

/// Values of one tensor in each element type.
///
/// ```
/// use lgreco_testing::backend::Tensor;
/// let tensor = Tensor::new(&[0.5, -2.0], 2, 1);
/// assert_eq!(tensor.gradients()[1].values().dtype(), lgreco::gradient::Dtype::F16);
/// ```
pub struct Tensor {
    shape: Shape,
    single: Vec<f32>,
    half: Vec<F16>,
    brain: Vec<Bf16>,
}

impl Tensor {
    /// A `rows` × `cols` tensor of `values`, rounded to each type.
    ///
    /// # Panics
    /// Panics if there are not `rows · cols` values.
    pub fn new(values: &[f32], rows: usize, cols: usize) -> Tensor {
        assert_eq!(values.len(), rows * cols, "values of a {rows} x {cols} tensor");
        Tensor {
            shape: Shape::new(rows, cols).expect("a small tensor"),
            single: values.to_vec(),
            half: values.iter().map(|&x| F16::from_f32(x)).collect(),
            brain: values.iter().map(|&x| Bf16::from_f32(x)).collect(),
        }
    }

    /// The tensor as f32, f16 and bf16.
    pub fn gradients(&self) -> [Gradient<'_>; 3] {
        [Values::F32(&self.single), Values::F16(&self.half), Values::Bf16(&self.brain)]
            .map(|values| Gradient::new(values, self.shape).expect("as many values as elements"))
    }
}

/// Number `index` of a fixed random sequence, in [0, 1).
fn draw(seed: u64, index: usize) -> f32 {
    let stream = Stream { seed, layer: 77, ..Stream::default() };
    (stream.word(index as u64) >> 8) as f32 / (1 << 24) as f32
}

/// A random value from a bell-shaped distribution around 0. Most values are below 1 in magnitude.
fn bell(seed: u64, index: usize) -> f32 {
    (0..4).map(|i| draw(seed, 4 * index + i) - 0.5).sum()
}

/// Tensors of many kinds. Bell-shaped tensors have many lengths, and magnitudes from 1e-30 to 1e30. Other tensors have
/// ties, zeros of both signs, one spike, constants, subnormal numbers, values of one sign, and the largest and smallest
/// numbers. Some tensors overflow in f16.
pub fn tensors() -> Vec<Tensor> {
    let lengths = [
        (1, 1),
        (2, 1),
        (1, 3),
        (31, 1),
        (32, 1),
        (3, 11),
        (64, 8),
        (63, 13),
        (2048, 1),
        (683, 3),
        (97, 103),
        (130, 160),
    ];
    let mut tensors: Vec<Tensor> = (0..)
        .zip(lengths)
        .map(|(seed, (rows, cols))| Tensor::new(&values(rows * cols, |i| bell(seed, i)), rows, cols))
        .collect();
    let power = |exponent: i32| super::qsgd::power_of_two(exponent.into()) as f32;
    let sign = |i: usize| if draw(99, i) < 0.5 { -1.0 } else { 1.0 };
    let kinds: [&dyn Fn(usize) -> f32; 12] = [
        &|i| sign(i) * power((draw(1, i) * 200.0) as i32 - 100) * (1.0 + draw(2, i)),
        &|i| (draw(3, i) * 5.0) as u32 as f32 - 2.0,
        &|i| if i % 2 == 0 { 0.0 } else { -0.0 },
        &|i| if i == 1234 { -7.25 } else { 0.0 },
        &|i| if i == 7 { 1e30 } else { 1e-30 * bell(4, i) },
        &|_| 0.3,
        &|i| sign(i) * 0.7,
        &|i| f32::from_bits((draw(5, i) * 8_388_608.0) as u32 | (i as u32 & 1) << 31),
        &|i| 3.0 + draw(6, i),
        &|i| -1e-3 - 1e-3 * draw(7, i),
        &|i| if i % 3 == 0 { f32::MAX } else { sign(i) * f32::MIN_POSITIVE * draw(8, i) },
        &|i| bell(9, i) * bell(10, i) * power((i % 40) as i32 - 20),
    ];
    tensors.extend(kinds.iter().map(|kind| Tensor::new(&values(2500, kind), 50, 50)));
    tensors
}

fn values(count: usize, value: impl Fn(usize) -> f32) -> Vec<f32> {
    (0..count).map(value).collect()
}

/// Calls `check` with every tensor in every type. Some of the tensors contain NaN or infinity.
fn for_each_gradient(mut check: impl FnMut(usize, &Gradient<'_>)) {
    let mut number = 0;
    for tensor in tensors() {
        for gradient in tensor.gradients() {
            check(number, &gradient);
            number += 1;
        }
    }
    for (at, value) in [(0, f32::NAN), (2999, f32::INFINITY), (1500, f32::NEG_INFINITY)] {
        let mut values = values(3000, |i| bell(11, i));
        values[at..(at + 3).min(3000)].fill(value);
        for gradient in Tensor::new(&values, 3000, 1).gradients() {
            check(number, &gradient);
            number += 1;
        }
    }
}

/// Tensors so large that a backend's TopK may gather only candidates for the largest values. One tensor has few equal
/// magnitudes, one has many, and one has few nonzero values.
fn large() -> [Tensor; 3] {
    let kinds: [fn(usize) -> f32; 3] =
        [|i| bell(13, i), |i| (8.0 * bell(14, i)) as i32 as f32, |i| if i % 100 == 0 { bell(15, i) } else { 0.0 }];
    kinds.map(|kind| Tensor::new(&values(331 * 100, kind), 331, 100))
}

/// TopK's `k` for the f32, f16 and bf16 gradient of a large tensor.
const KEPT_OF_LARGE: [u32; 3] = [16_500, 500, 33_100];

/// Whether two errors are the same. NaN equals NaN here.
fn same_error(a: &Error, b: &Error) -> bool {
    match (a, b) {
        (Error::NonFinite { index: i, value: x }, Error::NonFinite { index: j, value: y }) => {
            i == j && x.to_bits() == y.to_bits()
        }
        _ => a == b,
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Asserts that `backend` gives the same results as [`Portable`]: the same rows within `relative`, or the same error
/// for the same job. For QSGD, rows may also differ by the bound of [`qsgd::measure`](lgreco::compress::qsgd::measure).
///
/// # Panics
/// Panics if a check fails.
pub fn check_rows(backend: &mut dyn Backend, jobs: &[Job<'_>], relative: f64) {
    let total = jobs.iter().map(|job| job.candidates.len()).sum();
    let run = |backend: &mut dyn Backend| {
        let mut rows = vec![f64::NAN; total];
        let mut workspace = vec![!0; backend.workspace_len(jobs)];
        backend.measure(jobs, &mut workspace, &mut rows).map(|()| rows)
    };
    let (found, expected) = match (run(backend), run(&mut Portable)) {
        (Ok(found), Ok(expected)) => (found, expected),
        (Err(JobError { job: i, error: a }), Err(JobError { job: j, error: b })) => {
            return assert!(i == j && same_error(&a, &b), "job {i:?}: {a}, expected job {j:?}: {b}");
        }
        (found, expected) => panic!("rows {found:?}, expected {expected:?}"),
    };
    let (mut found, mut expected) = (found.into_iter(), expected.into_iter());
    for (number, job) in jobs.iter().enumerate() {
        for index in 0..job.candidates.len() {
            let (found, expected) = (found.next().expect("a place"), expected.next().expect("a place"));
            let slack = match job.candidates {
                Candidates::Qsgd { base, bits } => slack(&job.gradient, Qsgd { bits: bits[index], ..base }),
                _ => 0.0,
            };
            let apart = (found - expected).abs();
            assert!(
                apart <= relative * expected + slack,
                "job {number}, candidate {index} of {:?}: {found:e}, expected {expected:e}",
                job.candidates
            );
        }
    }
}

/// The absolute part of the bound on the difference of QSGD's rows. This part allows for a backend that ignores
/// rounding to subnormal numbers.
fn slack(gradient: &Gradient<'_>, qsgd: Qsgd) -> f64 {
    let values: Vec<f32> = with_elements!(gradient.values(), v => v.iter().map(|x| x.to_f32()).collect());
    2.0 * squared_error(&values, qsgd).1 + subnormal_rounding(&values, qsgd)
}

/// Asserts that `backend` encodes as [`Portable`] does: the same bytes and none beyond them, or the same error. A
/// buffer that is too short must give an error. The backend's payload must decode to the same bits.
///
/// # Panics
/// Panics if a check fails.
pub fn check_encode(backend: &mut dyn Backend, setting: &Setting, gradient: &Gradient<'_>, stream: Stream) {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let Ok(length) = setting.payload_len(shape, dtype) else {
        let found = backend.encode(setting, gradient, stream, &mut [], &mut []);
        return assert_eq!(found, Portable.encode(setting, gradient, stream, &mut [], &mut []));
    };
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, dtype)];
    let mut run = |backend: &mut dyn Backend, payload: &mut [u8]| {
        backend.encode(setting, gradient, stream, &mut workspace, payload)
    };
    let (mut payload, mut expected) = (vec![0xa5; length + 9], vec![0xa5; length + 9]);
    match (run(backend, &mut payload), run(&mut Portable, &mut expected)) {
        (Ok(found), Ok(_)) => assert_eq!(found, length, "{setting:?}: bytes of the payload"),
        (Err(found), Err(expected)) => {
            return assert!(same_error(&found, &expected), "{setting:?}: {found}, expected {expected}");
        }
        (found, expected) => panic!("{setting:?}: {found:?}, expected {expected:?}"),
    }
    let differs = payload.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{setting:?} of {shape:?}, {dtype:?}: first byte that differs");
    let short = run(backend, &mut payload[..length - 1]);
    assert!(matches!(short, Err(Error::Length { .. })), "{short:?}");
    check_decode(backend, &expected[..length], shape.elements());
}

/// Asserts that `backend` decodes `bytes` into `elements` values as [`Portable`] does: to the same bits, or to an error
/// for the same reason.
///
/// # Panics
/// Panics if a check fails.
pub fn check_decode(backend: &mut dyn Backend, bytes: &[u8], elements: usize) {
    let (mut found, mut expected) = (vec![f32::NAN; elements], vec![f32::NAN; elements]);
    match (backend.decode(bytes, &mut found), Portable.decode(bytes, &mut expected)) {
        (Ok(()), Ok(())) => {
            let differs = bits(&found).iter().zip(&bits(&expected)).position(|(a, b)| a != b);
            let pair = differs.map(|at| (found[at], expected[at]));
            assert_eq!(differs, None, "first value that differs, found and expected {pair:?}");
        }
        (found, expected) => assert_eq!(found, expected, "decoding {} bytes", bytes.len()),
    }
}

/// Asserts that damaged copies of a payload decode as with [`Portable`].
fn check_damaged(backend: &mut dyn Backend, payload: &[u8], elements: usize) {
    check_decode(backend, &payload[..payload.len() - 1], elements);
    check_decode(backend, payload, elements + 1);
    let step = (payload.len() / 40).max(1);
    for at in (0..payload.len()).step_by(step).chain(2..8) {
        for damage in [0x01, 0x80, 0xff] {
            let mut bytes = payload.to_vec();
            bytes[at] ^= damage;
            check_decode(backend, &bytes, elements);
        }
    }
}

/// A payload that [`Portable`] encodes.
fn payload(setting: &Setting, gradient: &Gradient<'_>) -> Option<Vec<u8>> {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let mut payload = vec![0; setting.payload_len(shape, dtype).ok()?];
    let mut workspace = vec![0; setting.encode_workspace_len(shape, dtype)];
    Portable.encode(setting, gradient, Stream::default(), &mut workspace, &mut payload).ok()?;
    Some(payload)
}

/// Checks dense payloads of every tensor, and damaged copies of one payload.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_dense(backend: &mut dyn Backend) {
    for_each_gradient(|number, gradient| {
        check_encode(backend, &Setting::Dense, gradient, Stream::default());
        if number == 10 {
            let payload = payload(&Setting::Dense, gradient).expect("a finite gradient");
            check_damaged(backend, &payload, gradient.shape().elements());
        }
    });
}

/// Checks QSGD's payloads and rows of every tensor, with varied settings. Also checks damaged payloads and [golden]
/// ones.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_qsgd(backend: &mut dyn Backend, relative: f64) {
    golden::check_qsgd(backend);
    let buckets = [512, 1, 7, 32, 1000, 2048, 100_000];
    for_each_gradient(|number, gradient| {
        let bucket = buckets[number % buckets.len()];
        let stream = Stream { seed: 0x1234_5678_9abc_def0, step: 3, layer: number as u32, rank: 2 };
        for (choice, (scale, rounding)) in [
            (Scale::MaxNorm, Rounding::Stochastic),
            (Scale::MinMax, Rounding::Stochastic),
            (Scale::MaxNorm, Rounding::Nearest),
            (Scale::MinMax, Rounding::Nearest),
        ]
        .into_iter()
        .enumerate()
        {
            let qsgd = Qsgd { bits: 1 + ((number + 3 * choice) % 8) as u8, bucket, scale, rounding };
            check_encode(backend, &Setting::Qsgd(qsgd), gradient, stream);
            let widths: &[u8] = if number % 2 == 0 { &[2, 3, 4, 5, 6, 7, 8] } else { &[8, 1, 4] };
            let candidates = Candidates::Qsgd { base: qsgd, bits: widths };
            check_rows(backend, &[Job { gradient: *gradient, candidates, stream }], relative);
            if number == 30 {
                let payload = payload(&Setting::Qsgd(qsgd), gradient).expect("a finite gradient");
                check_damaged(backend, &payload, gradient.shape().elements());
            }
        }
    });
    let tensor = Tensor::new(&[1.0, 2.0], 2, 1);
    let gradient = tensor.gradients()[0];
    for qsgd in [Qsgd { bits: 0, ..Qsgd::default() }, Qsgd { bits: 9, ..Qsgd::default() }] {
        check_encode(backend, &Setting::Qsgd(qsgd), &gradient, Stream::default());
        let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[4, qsgd.bits] };
        check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], relative);
    }
    let base = Qsgd { bucket: 0, ..Qsgd::default() };
    check_encode(backend, &Setting::Qsgd(base), &gradient, Stream::default());
    let candidates = Candidates::Qsgd { base, bits: &[4] };
    check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], relative);
}

/// Checks TopK's payloads and rows of every tensor, with varied k and value types. Also checks damaged payloads and
/// [golden] ones.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_topk(backend: &mut dyn Backend, relative: f64) {
    golden::check_topk(backend);
    for_each_gradient(|number, gradient| {
        let elements = gradient.shape().elements() as u32;
        let keeps: Vec<u32> = [1, elements / 100, elements / 10, elements / 2, elements - 1, elements]
            .map(|keep| keep.clamp(1, elements))
            .to_vec();
        for values in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let keep = keeps[(number + values as usize) % keeps.len()];
            let setting = Setting::TopK(TopK { keep, values });
            check_encode(backend, &setting, gradient, Stream::default());
            let candidates = Candidates::TopK { values, keeps: &keeps };
            check_rows(backend, &[Job { gradient: *gradient, candidates, stream: Stream::default() }], relative);
            if (30..32).contains(&number)
                && let Some(payload) = payload(&setting, gradient)
            {
                check_damaged(backend, &payload, elements as usize);
            }
        }
    });
    let tensor = Tensor::new(&values(3000, |i| bell(12, i)), 3000, 1);
    let gradient = tensor.gradients()[0];
    // The two nonzero values are adjacent, so that changing one bit makes their positions equal.
    let neighbours = Tensor::new(&values(1000, |i| if i / 2 == 50 { 1.0 } else { 0.0 }), 1000, 1);
    let two = Setting::TopK(TopK { keep: 2, values: Dtype::F32 });
    check_damaged(backend, &payload(&two, &neighbours.gradients()[0]).expect("a finite gradient"), 1000);
    let many: Vec<u32> = (1..=700).map(|i| 3000 - 4 * i).collect();
    for keeps in [&many[..], &[0], &[3001], &[]] {
        let candidates = Candidates::TopK { values: Dtype::F32, keeps };
        check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], relative);
    }
    for keep in [0, 3001] {
        check_encode(backend, &Setting::TopK(TopK { keep, values: Dtype::F32 }), &gradient, Stream::default());
    }
    for tensor in large() {
        for (gradient, keep) in tensor.gradients().iter().zip(KEPT_OF_LARGE) {
            check_encode(backend, &Setting::TopK(TopK { keep, values: Dtype::F32 }), gradient, Stream::default());
        }
    }
}

/// Checks payloads and rows of TopK in few bits for every tensor, with varied k and widths. Also checks damaged
/// payloads and [golden] ones.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_quantised_topk(backend: &mut dyn Backend, relative: f64) {
    golden::check_quantised_topk(backend);
    for_each_gradient(|number, gradient| {
        let elements = gradient.shape().elements() as u32;
        let keeps = [1, elements / 100, elements / 10, elements / 2, elements].map(|keep| keep.clamp(1, elements));
        for bits in 1..=8 {
            let keep = keeps[(number + bits as usize) % keeps.len()];
            let setting = Setting::QuantisedTopK(QuantisedTopK { keep, bits });
            check_encode(backend, &setting, gradient, Stream::default());
            if number == 30
                && let Some(payload) = payload(&setting, gradient)
            {
                check_damaged(backend, &payload, elements as usize);
            }
        }
        let candidates = Candidates::QuantisedTopK { keeps: &keeps, bits: &[8, 2, 1, 3, 5] };
        check_rows(backend, &[Job { gradient: *gradient, candidates, stream: Stream::default() }], relative);
    });
    let tensor = Tensor::new(&values(3000, |i| bell(12, i)), 3000, 1);
    let gradient = tensor.gradients()[0];
    for (keeps, bits) in [(&[0][..], &[4][..]), (&[3001], &[4]), (&[7], &[0]), (&[7], &[9]), (&[], &[4]), (&[7], &[])] {
        let candidates = Candidates::QuantisedTopK { keeps, bits };
        check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], relative);
    }
    for (keep, bits) in [(0, 4), (3001, 4), (7, 0), (7, 9)] {
        let setting = Setting::QuantisedTopK(QuantisedTopK { keep, bits });
        check_encode(backend, &setting, &gradient, Stream::default());
    }
    for tensor in large() {
        for (gradient, (keep, bits)) in tensor.gradients().iter().zip(KEPT_OF_LARGE.into_iter().zip([3, 6, 1])) {
            let setting = Setting::QuantisedTopK(QuantisedTopK { keep, bits });
            check_encode(backend, &setting, gradient, Stream::default());
            let candidates = Candidates::QuantisedTopK { keeps: &[keep], bits: &[bits] };
            check_rows(backend, &[Job { gradient: *gradient, candidates, stream: Stream::default() }], relative);
        }
    }
}

/// Checks PowerSGD. Rows of well-conditioned matrices must agree within `relative`. Payloads must have the same header
/// and length, and decode to the same matrix within `relative` of its norm. Also checks refusals and [golden] payloads.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_powersgd(backend: &mut dyn Backend, relative: f64) {
    golden::check_powersgd(backend);
    for (rows, cols, scale) in [
        (1, 1, 1.0),
        (5, 3, 100.0),
        (3, 40, 1e-3),
        (64, 64, 1.0),
        (130, 33, 1e-2),
        (33, 300, 1000.0),
        (40, 50, 1e-30),
        (50, 40, 1e30),
    ] {
        let tensor = Tensor::new(&values(rows * cols, |i| scale * bell(13, i)), rows, cols);
        // At extreme scales the f16 gradient is skipped, because f16 cannot hold the values.
        let gradients = tensor
            .gradients()
            .into_iter()
            .filter(|gradient| (1e-10..1e10).contains(&scale) || gradient.values().dtype() != Dtype::F16);
        for (gradient, iterations) in gradients.zip([1, 2, 5]) {
            let stream = Stream { seed: 5, layer: cols as u32, ..Stream::default() };
            let candidates = Candidates::PowerSgd { iterations, ranks: &[4, 1, 20, 2] };
            let ranks = rows.min(cols) as u32;
            // At full rank, the error is only rounding, for which there is no relative bound.
            if ranks > 20 {
                check_rows(backend, &[Job { gradient, candidates, stream }], relative);
            }
            for rank in [1, 3, 20] {
                check_low_rank(backend, PowerSgd { rank, iterations }, &gradient, stream, relative);
            }
        }
    }
    let tensor = Tensor::new(&values(600, |i| if i == 333 { f32::NAN } else { bell(14, i) }), 20, 30);
    let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
    check_encode(backend, &setting, &tensor.gradients()[0], Stream::default());
    let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[2] };
    let job = Job { gradient: tensor.gradients()[2], candidates, stream: Stream::default() };
    check_rows(backend, &[job], relative);
}

fn check_low_rank(
    backend: &mut dyn Backend,
    powersgd: PowerSgd,
    gradient: &Gradient<'_>,
    stream: Stream,
    relative: f64,
) {
    let shape = gradient.shape();
    let setting = Setting::PowerSgd(powersgd);
    let length = setting.payload_len(shape, gradient.values().dtype()).expect("a rank");
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, gradient.values().dtype())];
    let mut run = |backend: &mut dyn Backend| {
        let (mut payload, mut decoded) = (vec![0; length], vec![f32::NAN; shape.elements()]);
        let found = backend.encode(&setting, gradient, stream, &mut workspace, &mut payload);
        assert_eq!(found, Ok(length));
        backend.decode(&payload, &mut decoded).expect("its own payload");
        (payload, decoded)
    };
    let ((payload, found), (expected_payload, expected)) = (run(backend), run(&mut Portable));
    assert_eq!(payload[..HEADER_LEN], expected_payload[..HEADER_LEN]);
    let squared = |x: f64| x * x;
    let apart: f64 = found.iter().zip(&expected).map(|(&a, &b)| squared(a as f64 - b as f64)).sum();
    let norm: f64 = expected.iter().map(|&x| squared(x as f64)).sum();
    assert!(apart <= squared(relative) * norm, "{powersgd:?} of {shape:?}: {apart:e} apart, norm {norm:e}");
}

/// Checks EDEN's payloads and rows of every tensor, with both scales. The tensors together use every width. Also checks
/// that damaged payloads decode as with [`Portable`].
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_eden(backend: &mut dyn Backend, relative: f64) {
    let scales = [eden::Scale::Unbiased, eden::Scale::LeastSquares];
    for_each_gradient(|number, gradient| {
        let stream = Stream { seed: 0x1234_5678_9abc_def0, step: 3, layer: number as u32, rank: 2 };
        for (choice, scale) in scales.into_iter().enumerate() {
            let base = Eden { bits: 1 + ((number + 3 * choice) % 8) as u8, scale };
            let setting = Setting::Eden(base);
            check_encode(backend, &setting, gradient, stream);
            let widths: &[u8] = if number % 2 == 0 { &[1, 2, 3, 4, 5, 6, 7, 8] } else { &[8, 2, 5] };
            let candidates = Candidates::Eden { base, bits: widths };
            check_rows(backend, &[Job { gradient: *gradient, candidates, stream }], relative);
            if (30..33).contains(&number) && choice == 0 {
                let payload = payload(&setting, gradient).expect("a finite gradient");
                check_damaged(backend, &payload, gradient.shape().elements());
            }
        }
    });
    for (tensor, scale) in large().iter().zip(scales) {
        for (gradient, bits) in tensor.gradients().iter().zip([3, 1, 8]) {
            let base = Eden { bits, scale };
            check_encode(backend, &Setting::Eden(base), gradient, Stream::default());
            let candidates = Candidates::Eden { base, bits: &[1, 3, 4] };
            check_rows(backend, &[Job { gradient: *gradient, candidates, stream: Stream::default() }], relative);
        }
    }
    let tensor = Tensor::new(&[1.0, 2.0], 2, 1);
    let gradient = tensor.gradients()[0];
    for widths in [&[0][..], &[9], &[]] {
        let base = Eden { bits: widths.first().copied().unwrap_or(3), ..Eden::default() };
        check_encode(backend, &Setting::Eden(base), &gradient, Stream::default());
        let candidates = Candidates::Eden { base, bits: widths };
        check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], relative);
    }
}

/// Checks batches of jobs. One batch has many jobs of all sizes and methods, with the same gradient several times.
/// Another batch has no jobs. In further batches, a job in the middle fails or cannot be measured. With `powersgd`,
/// PowerSGD's jobs are included.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_batches(backend: &mut dyn Backend, relative: f64, powersgd: bool) {
    check_rows(backend, &[], relative);
    let tensors: Vec<Tensor> = (0..40)
        .map(|i| {
            let (rows, cols) = (1 + 37 * i % 90, 1 + 53 * i % 70);
            Tensor::new(&values(rows * cols, |k| bell(20 + i as u64, k)), rows, cols)
        })
        .collect();
    let stream = Stream { seed: 8, ..Stream::default() };
    let mut jobs = Vec::new();
    for (i, tensor) in tensors.iter().enumerate() {
        let gradient = tensor.gradients()[i % 3];
        let mut push = |candidates| jobs.push(Job { gradient, candidates, stream });
        push(Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4, 8] });
        push(Candidates::TopK { values: gradient.values().dtype(), keeps: &[1] });
        if powersgd && gradient.shape().rows().min(gradient.shape().cols()) > 8 {
            push(Candidates::PowerSgd { iterations: 1, ranks: &[1, 4] });
        }
    }
    check_rows(backend, &jobs, relative);
    let spoiled = Tensor::new(&values(900, |i| if i == 77 { f32::INFINITY } else { 1.0 }), 30, 30);
    let mut failing = jobs.clone();
    failing[20].gradient = spoiled.gradients()[0];
    check_rows(backend, &failing, relative);
    failing[30].candidates = Candidates::TopK { values: Dtype::F32, keeps: &[0] };
    check_rows(backend, &failing, relative);
    failing[10].candidates = Candidates::TopK { values: Dtype::F32, keeps: &[0] };
    check_rows(backend, &failing, relative);
    let result = backend.measure(&jobs, &mut [], &mut [0.0; 3]);
    assert!(matches!(result, Err(JobError { job: None, error: Error::Length { .. } })), "{result:?}");
    check_rows(backend, &jobs[..3], relative);
}

/// Runs all checks of this module. Rows must be within `relative` of [`Portable`]'s.
///
/// # Panics
/// Panics if `backend` differs from [`Portable`].
pub fn check_all(backend: &mut dyn Backend, relative: f64) {
    check_dense(backend);
    check_qsgd(backend, relative);
    check_topk(backend, relative);
    check_quantised_topk(backend, relative);
    check_powersgd(backend, relative);
    check_eden(backend, relative);
    check_batches(backend, relative, true);
}
