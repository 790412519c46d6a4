//! A check of the guarantees that every compressor must give. Authors of methods outside lgreco call [`check`] from a
//! test.

use crate::Error;
use crate::compress::method::Methods;
use crate::compress::{Compressor, Setting, decode_with, stated_len};
use crate::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use crate::rng::Stream;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

/// Checks the properties of a setting that searches, exchanges and saved states rely on:
///
/// * Payloads have the promised length, and their first bytes state this length. Payloads depend only on gradient and
///   stream, not on the old content of the workspace or of the payload buffer.
/// * Payloads decode to finite values, which do not depend on the old content of the buffer. Unless the method is
///   unbiased, the measured error equals the error of the decoded values.
/// * Decoding a truncated payload returns an error. Decoding a damaged payload returns an error or values, and does not
///   panic.
/// * The setting's text and its numbers convert back to the same setting.
/// * An unbiased method decodes to the gradient on average.
///
/// ```
/// use lgreco::compress::method::Methods;
/// lgreco::conformance::check(&"qsgd 4".parse()?, &Methods::NONE);
/// # Ok::<(), lgreco::Error>(())
/// ```
///
/// # Panics
/// When a property is violated. The message names property, setting and gradient.
pub fn check(setting: &Setting, methods: &Methods) {
    assert_eq!(Setting::parse(&setting.to_string(), methods), Ok(*setting), "{setting}: its text is another setting");
    let (id, parameters) = setting.data();
    assert_eq!(Setting::from_data(id, parameters, methods), Ok(*setting), "{setting}: its numbers are another setting");
    for (rows, cols) in [(1, 1), (7, 1), (64, 33), (1, 1000), (9000, 1)] {
        for (kind, values) in gradients(rows * cols) {
            let (f16, bf16): (Vec<F16>, Vec<Bf16>) =
                values.iter().map(|&x| (F16::from_f32(x), Bf16::from_f32(x))).unzip();
            for values in [Values::F32(&values), Values::F16(&f16), Values::Bf16(&bf16)] {
                let Ok(shape) = Shape::new(rows, cols) else { continue };
                let Ok(gradient) = Gradient::new(values, shape) else { continue };
                // A setting with a number of elements, such as `topk 5`, does not fit all shapes.
                if setting.payload_len(shape, values.dtype()).is_ok() {
                    Case { setting, methods, gradient, kind }.check();
                }
            }
        }
    }
    if setting.is_unbiased() {
        is_right_on_average(setting, methods);
    }
}

/// Test gradients with `elements` elements each, and their descriptions.
fn gradients(elements: usize) -> [(&'static str, Vec<f32>); 5] {
    let stream = Stream { seed: 11, ..Stream::default() };
    let uniform = |index: usize| (stream.word(index as u64) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let heavy = |index: usize| {
        let x = uniform(index);
        x * x * x * 1e-3
    };
    [
        ("noise", (0..elements).map(uniform).collect()),
        ("heavy tails", (0..elements).map(heavy).collect()),
        ("zeros", vec![0.0; elements]),
        ("one value", vec![-0.25; elements]),
        ("one element in ten", (0..elements).map(|i| if i % 10 == 3 { uniform(i) } else { 0.0 }).collect()),
    ]
}

struct Case<'a> {
    setting: &'a Setting,
    methods: &'a Methods,
    gradient: Gradient<'a>,
    kind: &'static str,
}

impl Case<'_> {
    fn told(&self, what: &str) -> alloc::string::String {
        let shape = self.gradient.shape();
        let (rows, cols, dtype) = (shape.rows(), shape.cols(), self.gradient.values().dtype().name());
        alloc::format!("{}: {what} ({} of {rows} x {cols} in {dtype})", self.setting, self.kind)
    }

    /// Encodes the gradient, after filling workspace and payload with the byte `garbage`.
    fn encoded(&self, garbage: u8) -> Vec<u8> {
        let (shape, dtype) = (self.gradient.shape(), self.gradient.values().dtype());
        let words = self.setting.encode_workspace_len(shape, dtype);
        let most = self.setting.payload_len(shape, dtype).expect("checked before");
        let mut workspace = vec![u64::from_ne_bytes([garbage; 8]); words];
        let mut payload = vec![garbage; most + 3];
        let stream = Stream { seed: 5, step: 2, layer: 1, rank: 3 };
        let len = self.setting.encode(&self.gradient, stream, &mut workspace, &mut payload);
        let len = len.unwrap_or_else(|error| panic!("{}: {error}", self.told("encode fails")));
        let fits = if self.setting.has_fixed_len() { len == most } else { len <= most };
        assert!(fits, "{}", self.told("the payload is not as long as payload_len says"));
        assert!(
            payload[most..].iter().all(|&byte| byte == garbage),
            "{}",
            self.told("encode writes behind the payload")
        );
        payload.truncate(len);
        // A method may accept a buffer shorter than `payload_len` if its payload fits. The tested buffer is one byte
        // too short for the payload.
        let room = payload.len() - 1;
        let short = self.setting.encode(&self.gradient, stream, &mut workspace, &mut vec![0; room]);
        assert!(matches!(short, Err(Error::Length { .. })), "{}", self.told("a payload without room is no error"));
        payload
    }

    fn decoded(&self, payload: &[u8], before: f32) -> Vec<f32> {
        let mut values = vec![before; self.gradient.shape().elements()];
        let decoded = decode_with(self.methods, payload, &mut values);
        decoded.unwrap_or_else(|error| panic!("{}: {error}", self.told("decode fails")));
        values
    }

    fn check(&self) {
        let payload = self.encoded(0);
        assert!(payload == self.encoded(0xa5), "{}", self.told("the payload depends on what memory held before"));
        let values = self.decoded(&payload, f32::NAN);
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let same = bits(&values) == bits(&self.decoded(&payload, 1e30));
        assert!(same, "{}", self.told("decoded values depend on what memory held before"));
        assert!(values.iter().all(|x| x.is_finite()), "{}", self.told("decoded values are not finite"));
        let stated = stated_len(&[&payload[..], &[1, 2, 3]].concat());
        assert_eq!(stated, Ok(payload.len()), "{}", self.told("the payload states another length"));
        self.check_damage(&payload);
        self.check_row(&values);
    }

    fn check_damage(&self, payload: &[u8]) {
        let mut values = vec![0.0; self.gradient.shape().elements()];
        for len in (0..payload.len()).rev().take(40).chain(0..payload.len().min(20)) {
            let cut = decode_with(self.methods, &payload[..len], &mut values);
            assert!(cut.is_err(), "{}", self.told("a payload that is cut short decodes"));
        }
        // Decoding may fail or succeed, but must not panic.
        for at in (0..payload.len()).step_by((payload.len() / 64).max(1)) {
            let mut damaged = payload.to_vec();
            damaged[at] ^= 0x55;
            let _ = decode_with(self.methods, &damaged, &mut values);
        }
    }

    /// Compares the measured error with the error of the decoded values. Skips unbiased methods, whose measured error
    /// is an expectation.
    fn check_row(&self, decoded: &[f32]) {
        let Some(row) = self.setting.row() else { return };
        let (shape, dtype) = (self.gradient.shape(), self.gradient.values().dtype());
        let mut workspace = vec![u64::MAX; row.measure_workspace_len(shape, dtype)];
        let mut measured = vec![0.0; row.len()];
        let stream = Stream { seed: 5, step: 2, layer: 1, rank: 3 };
        let found = row.measure(&self.gradient, stream, &mut workspace, &mut measured);
        found.unwrap_or_else(|error| panic!("{}: {error}", self.told("measure fails")));
        if self.setting.is_unbiased() {
            return;
        }
        let values: Vec<f64> =
            with_elements!(self.gradient.values(), v => v.iter().map(|x| x.to_f32().into()).collect());
        let square = |x: f64| x * x;
        let exact: f64 = values.iter().zip(decoded).map(|(x, &y)| square(x - f64::from(y))).sum();
        let norm: f64 = values.iter().copied().map(square).sum();
        let close = (measured[0] - exact).abs() <= 1e-4 * exact + 1e-9 * norm;
        assert!(close, "{}: {} {exact}", self.told("the measured error is not that of decoding"), measured[0]);
    }
}

/// Checks that the mean of many decoded payloads is close to the gradient.
fn is_right_on_average(setting: &Setting, methods: &Methods) {
    const DRAWS: u32 = 2000;
    let [(_, values), ..] = gradients(64);
    let shape = Shape::new(64, 1).expect("a small shape");
    let gradient = Gradient::new(Values::F32(&values), shape).expect("as many values");
    let Ok(most) = setting.payload_len(shape, Dtype::F32) else { return };
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    let (mut payload, mut decoded) = (vec![0; most], vec![0.0; 64]);
    let (mut sums, mut squares) = (vec![0.0; 64], vec![0.0; 64]);
    for step in 0..DRAWS {
        let stream = Stream { seed: 8, step, ..Stream::default() };
        let len = setting.encode(&gradient, stream, &mut workspace, &mut payload).expect("finite values");
        decode_with(methods, &payload[..len], &mut decoded).expect("an own payload");
        for (index, &x) in decoded.iter().enumerate() {
            sums[index] += f64::from(x);
            squares[index] += f64::from(x) * f64::from(x);
        }
    }
    for (index, &x) in values.iter().enumerate() {
        let mean = sums[index] / f64::from(DRAWS);
        let variance = (squares[index] / f64::from(DRAWS) - mean * mean).max(0.0);
        let allowed = 6.0 * crate::num::sqrt(variance / f64::from(DRAWS)) + 1e-5;
        let off = (mean - f64::from(x)).abs();
        assert!(off <= allowed, "{setting}: it says that it is unbiased, but element {index} is {off} off on average");
    }
}
