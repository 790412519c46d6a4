//! Checks of backends that keep the residual of error feedback on a device, against the core's memories.

use super::backend::Tensor;
use super::powersgd::uniform;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::topk::TopK;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::feedback::{GROUP, Memory, Residual, Storage};
use lgreco_train::gradient::{Bf16, Dtype, Element, Gradient, Shape};
use lgreco_train::rng::Stream;
use lgreco_train::{CoreError, Error};

/// The interface through which this suite tests a backend.
pub trait ResidualDevice {
    /// A residual on the device.
    type Kept;

    /// A residual of zeros.
    fn zeros(&mut self, storage: Storage, elements: usize) -> Self::Kept;

    /// The residual's bytes. [`Storage::bytes`] is their number. Under [`Storage::Int8`], codes come first, then the
    /// groups' exponents.
    fn bytes(&mut self, kept: &Self::Kept) -> Vec<u8>;

    /// One step of classic error feedback with a gain. The gradient is first uploaded to the device.
    ///
    /// # Errors
    /// Returns the errors of [`Memory::step`].
    fn step(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        kept: &mut Self::Kept,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error>;

    /// Decodes the last payload in the same way as the step did.
    fn decode(&mut self, payload: &[u8], values: &mut [f32]);
}

/// Every format of a residual.
pub const STORAGES: [Storage; 3] = [Storage::F32, Storage::Bf16, Storage::Int8];

/// The bits of the values in a residual's bytes.
fn bits(storage: Storage, elements: usize, bytes: &[u8]) -> Vec<u32> {
    assert_eq!(bytes.len() as u64, storage.bytes(elements), "bytes of a residual");
    let value = |i: usize| match storage {
        Storage::F32 => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
        Storage::Bf16 => Bf16(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])).to_f32(),
        Storage::Int8 => {
            let exponent = bytes[elements + i / GROUP] as u32;
            (bytes[i] as i8) as f32 * f32::from_bits(exponent << 23)
        }
    };
    (0..elements).map(|i| value(i).to_bits()).collect()
}

fn memory(shape: Shape, gain: f32, storage: Storage) -> Memory<Vec<u64>> {
    let rule = Residual { gain, storage, ..Residual::CLASSIC };
    Memory::new(rule, shape, vec![0; rule.state_len(shape)]).expect("a gain in range")
}

/// Asserts that payloads and residuals of several steps have the core's bits, on bf16 gradients with subnormal numbers
/// and groups of different magnitude. A gradient with NaN, or a gain out of range, must be refused and change nothing.
/// `setting` is QSGD or TopK of at least a hundred elements.
///
/// # Panics
/// Panics if a check fails.
pub fn check<D: ResidualDevice>(
    device: &mut D,
    (rows, cols): (usize, usize),
    setting: Setting,
    gain: f32,
    storage: Storage,
) {
    let (elements, shape) = (rows * cols, Shape::new(rows, cols).expect("a small shape"));
    let mut kept = device.zeros(storage, elements);
    let mut memory = memory(shape, gain, storage);
    let len = setting.payload_len(shape, Dtype::Bf16).expect("a setting for the shape");
    let (mut found, mut expected, mut decoded) = (vec![0; len], vec![0; len], vec![0.0; elements]);
    for step in 0..4 {
        let scale = if step == 2 { 1e-38 } else { 1.0 };
        let magnitudes = [1.0, 10.0, 100.0, 1000.0, 10_000.0f32];
        let values = uniform(elements, step as u64).into_iter().enumerate();
        let values: Vec<f32> = values.map(|(i, x)| x * scale * magnitudes[i / 700 % 5]).collect();
        let tensor = Tensor::new(&values, rows, cols);
        let gradient = tensor.gradients()[2];
        let stream = Stream { seed: 3, step, layer: 4, rank: 5 };
        assert_eq!(device.step(&setting, &gradient, &mut kept, gain, stream, &mut found), Ok(len));
        let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::Bf16)];
        let expectation = memory.step(&setting, &gradient, stream, &mut workspace, &mut expected, &mut decoded);
        assert_eq!(expectation, Ok(len));
        assert!(found == expected, "payload of step {step}, {setting:?}, {storage:?}");
        memory.values(&mut decoded).expect("one place per element");
        let remembered = bits(storage, elements, &device.bytes(&kept));
        let differs = remembered.iter().zip(&decoded).position(|(&a, b)| a != b.to_bits());
        assert_eq!(differs, None, "residual after step {step}, {setting:?}, {storage:?}");
    }
    let before = device.bytes(&kept);
    assert!(bits(storage, elements, &before).iter().any(|&bits| bits != 0));
    let mut spoiled = uniform(elements, 1);
    spoiled[99] = f32::NAN;
    let tensor = Tensor::new(&spoiled, rows, cols);
    let spoiled = tensor.gradients()[2];
    let mut refused = |gain| device.step(&setting, &spoiled, &mut kept, gain, Stream::default(), &mut found);
    let failed = refused(gain);
    assert!(matches!(failed, Err(Error::Core(CoreError::NonFinite { index: 99, .. }))), "{failed:?}");
    for gain in [0.0, 1.5, f32::NAN] {
        let failed = refused(gain);
        assert!(matches!(failed, Err(Error::Core(CoreError::Parameter { what: "residual gain", .. }))), "{failed:?}");
    }
    assert!(device.bytes(&kept) == before, "a refused step changed the residual");
}

/// Runs [`check`] for QSGD and TopK in every format, with gains of 1 and below 1.
///
/// # Panics
/// Panics if a check fails.
pub fn check_all<D: ResidualDevice>(device: &mut D) {
    for (setting, gain) in [
        (Setting::Qsgd(Qsgd::default()), 1.0),
        (Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() }), 0.2),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F16 }), 1.0),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F32 }), 0.3),
        (Setting::QuantisedTopK(QuantisedTopK { keep: 55, bits: 3 }), 0.7),
    ] {
        for storage in STORAGES {
            check(device, (61, 47), setting, gain, storage);
        }
    }
}

/// Asserts that the f32 residual is the compression error of a PowerSGD payload. After every step, the residual must be
/// `(m + g) − d`, where `d` is the decoded payload. PowerSGD's payloads need not have the core's bits.
///
/// # Panics
/// Panics if a check fails.
pub fn check_powersgd<D: ResidualDevice>(device: &mut D, (rows, cols): (usize, usize), rank: u32) {
    let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
    let (elements, shape) = (rows * cols, Shape::new(rows, cols).expect("a small shape"));
    let mut kept = device.zeros(Storage::F32, elements);
    let (mut memory, mut decoded) = (vec![0.0f32; elements], vec![0.0; elements]);
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).expect("a rank")];
    for step in 0..3 {
        let tensor = Tensor::new(&uniform(elements, step as u64), rows, cols);
        let (gradient, stream) = (tensor.gradients()[0], Stream { step, ..Stream::default() });
        assert_eq!(device.step(&setting, &gradient, &mut kept, 1.0, stream, &mut payload), Ok(payload.len()));
        device.decode(&payload, &mut decoded);
        let values = uniform(elements, step as u64);
        memory.iter_mut().zip(values.iter().zip(&decoded)).for_each(|(m, (g, d))| *m = (*m + g) - d);
        let remembered = bits(Storage::F32, elements, &device.bytes(&kept));
        assert!(remembered.iter().zip(&memory).all(|(&a, b)| a == b.to_bits()), "step {step}");
    }
}

/// Asserts that two cases are refused exactly where the core refuses them: a residual too large for its format, and a
/// sum that exceeds f32.
///
/// # Panics
/// Panics if a check fails.
pub fn check_limits<D: ResidualDevice>(device: &mut D) {
    let shape = Shape::new(3, 1).expect("a small shape");
    let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
    let mut refused = 0;
    for storage in STORAGES {
        for bits in [0x7f7d_ffff, 0x7f7e_0000, 0x7f7e_0001, 0x7f7f_0000, 0x7f7f_0001, 0x7f7f_ffff] {
            // The second largest value becomes the residual. At the second step, the sum of gradient and residual is
            // too large.
            let tensor = Tensor::new(&[f32::MAX, f32::from_bits(bits), 1.0], 3, 1);
            let gradient = tensor.gradients()[0];
            let (mut memory, mut kept) = (memory(shape, 1.0, storage), device.zeros(storage, 3));
            for step in 0..2 {
                let stream = Stream { step, ..Stream::default() };
                let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32)];
                let (mut message, mut decoded) = ([0; 100], [0.0; 3]);
                let expected = memory.step(&setting, &gradient, stream, &mut workspace, &mut message, &mut decoded);
                let found = device.step(&setting, &gradient, &mut kept, 1.0, stream, &mut message);
                assert_eq!(found, expected, "{storage:?}, {bits:x}, step {step}");
                refused += usize::from(step == 0 && expected.is_err());
            }
        }
    }
    assert_eq!(refused, 6, "two above bf16's largest number, four above int8's");
}
