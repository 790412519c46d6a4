//! Random plans that are kept throughout training. Training with these plans shows how well compression errors predict
//! the loss.

use lgreco_train::Error;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::compress::{Compressor, Setting, topk::TopK};
use lgreco_train::controller::Tensor;
use lgreco_train::rng::Stream;
use lgreco_train::search::Search;

/// PowerSGD's iterations, as [`Search`] offers them.
const ITERATIONS: u32 = 5;

/// Name of the method of these plans, for use in schemes.
pub const METHOD: &str = "drawn";

/// The plans' names, which are their numbers.
pub const NAMES: [&str; 24] = [
    "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20",
    "21", "22", "23", "24",
];

/// Returns a setting for each tensor. Half of the plans mix all methods; the others use only QSGD, only TopK or only
/// PowerSGD. Each plan has one of four strengths of compression, from which its layers deviate at random.
pub fn plan(name: &str, tensors: &[Tensor], search: &Search) -> Result<Vec<Setting>, Error> {
    let number = NAMES.iter().position(|&other| other == name).unwrap_or(0);
    let unit = |layer: usize, word| {
        let stream = Stream { seed: number as u64, layer: layer as u32, ..Stream::default() };
        f64::from(stream.word(word)) / f64::from(u32::MAX)
    };
    let stage = number / 6;
    let draw = |(layer, tensor): (usize, &Tensor)| -> Result<Setting, Error> {
        if !search.takes(tensor.dims()) {
            return Ok(Setting::Dense);
        }
        let strength = ((stage as f64 + 0.5) / 4.0 + 0.7 * (unit(layer, 0) - 0.5)).clamp(0.0, 1.0);
        let method = match number % 6 {
            alone @ 0..3 => alone,
            _ => (unit(layer, 1) * 2.999) as usize,
        };
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let setting = match method {
            0 => Setting::Qsgd(Qsgd { bits: (6.4 - 4.8 * strength).round() as u8, ..Qsgd::default() }),
            1 => Setting::TopK(TopK::with_density(10f64.powf(-0.5 - 2.0 * strength), shape.elements(), dtype)?),
            _ => {
                Setting::PowerSgd(PowerSgd { rank: 16f64.powf(1.0 - strength).round() as u32, iterations: ITERATIONS })
            }
        };
        let saves = setting.payload_len(shape, dtype)? < Setting::Dense.payload_len(shape, dtype)?;
        Ok(if saves { setting } else { Setting::Dense })
    };
    tensors.iter().enumerate().map(draw).collect()
}
