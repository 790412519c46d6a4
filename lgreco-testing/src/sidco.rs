//! Checks SIDCo against its textbook form: stages over lists of magnitudes, as in the paper.

use super::hard_threshold::{payload_len, squared_error};
use super::topk::{STALE, bits, check_payload, order, rounded, same_error, widened};
use lgreco::Error;
use lgreco::compress::sidco::{self, Fit, Sidco};
use lgreco::compress::wire::Payload;
use lgreco::compress::{Compressor, Setting, decode, stated_len};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (values.len() as f64 - 1.0)
}

/// The threshold from a fit of the exponential or the generalised Pareto distribution.
fn fitted(pareto: bool, values: &[f64], density: f64) -> f64 {
    let mean = mean(values);
    if !pareto {
        return -mean * f64::ln(density);
    }
    let q = mean * mean / variance(values);
    let (beta, kappa) = (0.5 * mean * (q + 1.0), 0.5 * (q - 1.0));
    if kappa.abs() < 1e-9 {
        -beta * f64::ln(density)
    } else {
        beta * (1.0 - f64::exp(kappa * f64::ln(density))) / kappa
    }
}

/// The threshold for exponential or generalised Pareto fits, on magnitudes of L2 norm 1; `None` if a fit fails.
pub fn threshold(sidco: Sidco, values: &[f32]) -> Option<f64> {
    let norm = f64::sqrt(values.iter().map(|&x| x as f64 * x as f64).sum());
    let magnitudes: Vec<f64> = values.iter().map(|&x| x.abs() as f64 / norm).collect();
    let pareto = sidco.fit == Fit::Pareto;
    let single = sidco.stages == 1 || sidco.density >= 0.25;
    let mut eta = fitted(pareto, &magnitudes, if single { sidco.density } else { 0.25 });
    if !(eta >= 0.0 && eta.is_finite()) {
        return None;
    }
    if !single {
        let ratio = f64::exp(f64::ln(sidco.density / 0.25) / (sidco.stages as f64 - 1.0));
        for _ in 1..sidco.stages {
            let above: Vec<f64> = magnitudes.iter().copied().filter(|&a| a > eta).collect();
            let least = above.iter().copied().fold(f64::INFINITY, f64::min);
            let excess: Vec<f64> = above.iter().map(|a| a - least).collect();
            if above.len() < 3 || excess.iter().all(|&x| x == 0.0) {
                break;
            }
            eta = least + fitted(pareto, &excess, ratio);
        }
    }
    Some(eta * norm)
}

/// Asserts that `sidco` sends the largest elements. Their number must be the number of elements above [`threshold`],
/// limited to the range from half to twice the wanted number. Inside this range, all elements must be sent if their
/// payload is shorter. Elements within 1e-9 of the threshold may be sent or not. The payload must not be longer than
/// predicted. Measuring this density must give the payload's squared error and its length. For gamma fits there is no
/// textbook form, so only the range of the number is checked. Returns the number of sent elements.
///
/// # Panics
/// Panics if a check fails, or if a value is not finite or too large for the value type.
pub fn check(sidco: Sidco, gradient: &Gradient<'_>) -> u32 {
    let (values, shape, dtype) = (widened(gradient), gradient.shape(), gradient.values().dtype());
    let most = sidco.payload_len(shape, dtype).unwrap();
    let mut workspace = vec![STALE; sidco.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xc3; most + 5];
    let written = sidco.encode(gradient, Stream::default(), &mut workspace, &mut payload[..most]);
    if let Some(index) = values.iter().position(|x| !x.is_finite()) {
        assert!(same_error(written.unwrap_err(), Error::NonFinite { index, value: values[index] }));
        return 0;
    }
    let len = written.unwrap();
    assert!(payload[len..].iter().all(|&byte| byte == 0xc3), "bytes beyond the payload are written");
    assert_eq!(stated_len(&payload), Ok(len), "the header states the length");
    check_payload(&payload[..len]);
    let sent = Payload::parse(&payload).unwrap().header.parameter;
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&payload[..len], &mut decoded).unwrap();
    let mut largest = vec![0.0; values.len()];
    order(&values)[..sent as usize].iter().for_each(|&i| largest[i] = rounded(values[i], sidco.values));
    assert_eq!(bits(&decoded), bits(&largest), "the largest are sent");

    let n = values.len() as u32;
    let target = ((sidco.density * n as f64 + 0.5) as u32).clamp(n.min(1), n);
    let (half, twice) = (target.div_ceil(2), n.min(2 * target));
    // All values are sent if their payload is shorter than that of the values above the threshold with positions.
    let length = |count: u32| payload_len(count as usize, values.len(), sidco.values);
    let or_all = |count: u32| if length(count) > length(n) { n } else { count };
    if values.iter().all(|&x| x == 0.0) {
        assert_eq!(sent, 0);
    } else if values.len() < sidco::SMALLEST {
        assert_eq!(sent, target);
    } else {
        let whole = sent == n && or_all(twice) == n;
        assert!(whole || (half..=twice).contains(&sent), "{sent} sent, {target} wanted");
        if sidco.fit != Fit::GammaPareto {
            let above = |x: f64| values.iter().filter(|v| v.abs() as f64 > x).count() as u32;
            let bounded = |count: u32| match count.clamp(half, twice) {
                within if within == count => or_all(count),
                within => within,
            };
            match threshold(sidco, &values) {
                Some(eta) => {
                    let (least, most) = (above(eta * (1.0 + 1e-9)), above(eta * (1.0 - 1e-9)));
                    let found = (least..=most).any(|count| bounded(count) == sent);
                    assert!(found, "{sent} sent, not {least} to {most}, wanted {target}");
                }
                None => assert_eq!(sent, target),
            }
        }
    }
    let setting = Setting::Sidco(sidco);
    let mut workspace = vec![STALE; setting.measure_workspace_len(shape, Dtype::F32)];
    let (measured, found_len) = setting.measure(gradient, Stream::default(), &mut workspace).unwrap();
    let error = squared_error(&values, &decoded);
    assert!((measured - error).abs() <= 1e-11 * error, "measured {measured}, decoded {error}");
    assert_eq!(found_len, len);
    sent
}

/// Runs [`check`] on a gradient whose f32 values have the bits in `bytes`. The first three bytes choose density, stages
/// and fit. If there are at least 20 values, they are repeated at decreasing scales to more than 1,100, enough for a
/// fit.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    let Some((&[density, stages, fit], rest)) = bytes.split_first_chunk::<3>() else { return };
    let fit = [Fit::Exponential, Fit::GammaPareto, Fit::Pareto][fit as usize % 3];
    let density = (density as f64 + 1.0) / 256.0;
    let sidco = Sidco { density: density * density, fit, stages: 1 + stages as u32 % 12, values: Dtype::F32 };
    let words: Vec<u32> = rest.as_chunks::<4>().0.iter().take(100).map(|&word| u32::from_le_bytes(word)).collect();
    let values: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
    let rounds = if words.len() < 20 { 1 } else { 1100 / words.len() + 1 };
    let scaled = |round: usize| values.iter().map(move |x| x * (1.0 - round as f32 / 64.0));
    let values: Vec<f32> = (0..rounds).flat_map(scaled).collect();
    check(sidco, &Gradient::new(Values::F32(&values), Shape::new(values.len(), 1).unwrap()).unwrap());
}
