//! Tests the memory layout of layers of more than 2^31 elements. Kernels count elements, spans and bits of positions in
//! 64 bits. Numbers that stay below 2^32, such as the sides of shapes, have 32 bits. The tests of `beyond` run the
//! kernels on layers of more than 2^31 elements.

use super::exchange::{WORLD, config};
use crate::ExchangeProgram;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::Qsgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};

/// The offsets of all layers must be computed without overflow, up to the largest number of elements of a shape.
#[test]
fn layers_of_more_than_2_31_elements_have_their_places() {
    let qsgd = Setting::Qsgd(Qsgd::default());
    let top = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
    let few = |keep| Setting::QuantisedTopK(QuantisedTopK { keep, bits: 4 });
    let config = config(Dtype::F16, 1.0);
    for (rows, cols) in [(1 << 16, (1 << 15) + 1), (65535, 65537)] {
        let (shape, n) = (Shape::new(rows, cols).unwrap(), rows as u64 * cols as u64);
        for setting in [qsgd, top(1 << 20), top(n as u32), few(n as u32), Setting::Dense] {
            let small = (Shape::new(64, 64).unwrap(), qsgd);
            let program = ExchangeProgram::new(&[(shape, setting), small], config).unwrap();
            let payload =
                |shape, setting: Setting| setting.payload_len(shape, config.dtype).unwrap().next_multiple_of(16);
            let gathered = if setting == Setting::Dense { 0 } else { payload(shape, setting) };
            assert_eq!(program.message_bytes(), 16 + gathered + payload(small.0, small.1), "{setting}");
            assert_eq!(program.residual_bytes(), 8 * (n + 4096));
            let summed = if setting == Setting::Dense { n as usize + WORLD } else { 0 };
            assert_eq!(program.sum_values(), summed);
        }
        let power = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });
        let program = ExchangeProgram::new(&[(shape, power)], config).unwrap();
        assert_eq!((program.sum_values(), program.factor_values()), (4 * rows + WORLD, 4 * cols + WORLD));
    }
    let beyond = Shape::new(1 << 16, 1 << 16).unwrap_err();
    assert_eq!(beyond, lgreco::Error::TooManyElements { rows: 1 << 16, cols: 1 << 16 });
}
