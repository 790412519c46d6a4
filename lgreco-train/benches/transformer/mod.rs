//! The layers of a transformer, and TopK settings whose payloads have equal sizes.

use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::{Compressor, Setting, topk::TopK};
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::rng::Stream;

/// The layers of a transformer: six blocks of width 320, an embedding of 256 characters, and an embedding of 128
/// positions. The layers have 7.5 million values together.
pub fn shapes() -> Vec<Shape> {
    let block = [[960, 320], [960, 1], [320, 320], [320, 1], [1280, 320], [1280, 1], [320, 1280], [320, 1]];
    let block = block.into_iter().chain([[320, 1]; 4]);
    let blocks = std::iter::repeat_n(block, 6).flatten();
    let shapes = blocks.chain([[256, 320], [128, 320], [320, 1], [320, 1]]);
    shapes.map(|[rows, cols]| Shape::new(rows, cols).expect("below 2^32")).collect()
}

/// A rank's gradient, whose values have heavier tails than a uniform distribution, like values of real gradients.
pub fn noise(rank: u32, len: usize) -> Vec<f32> {
    let stream = Stream { seed: 3, step: 0, layer: 0, rank };
    let value = |i: u64| {
        let x = (stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        x * x * x
    };
    (0..len as u64).map(value).collect()
}

/// The settings of all layers if each layer keeps the same share of its elements.
pub struct Row {
    pub name: String,
    /// The fraction of the elements that is kept.
    pub share: f64,
    pub settings: Vec<Setting>,
    /// The length of all payloads together.
    pub bytes: usize,
}

/// Returns, for each percentage, a row for TopK with f32 values, and rows for TopK in 2, 3 and 4 bits. In few bits,
/// each layer keeps the largest share for which all payloads together take no more bytes than with f32 values.
pub fn rows(shapes: &[Shape], percents: &[usize]) -> Vec<Row> {
    let keep = |shape: &Shape, share: f64| ((shape.elements() as f64 * share) as u32).max(1);
    let row = |name: String, share, setting: &dyn Fn(&Shape) -> Setting| {
        let settings: Vec<Setting> = shapes.iter().map(setting).collect();
        let len = |(setting, shape): (&Setting, &Shape)| setting.payload_len(*shape, Dtype::F32).expect("a setting");
        let bytes = settings.iter().zip(shapes).map(len).sum();
        Row { name, share, settings, bytes }
    };
    let mut rows = Vec::new();
    for &percent in percents {
        let share = percent as f64 / 100.0;
        let full = |shape: &Shape| Setting::TopK(TopK { keep: keep(shape, share), values: Dtype::F32 });
        rows.push(row(format!("topk {percent} %"), share, &full));
        let budget = rows[rows.len() - 1].bytes;
        for bits in [2, 3, 4] {
            let few = |share: f64| {
                let setting =
                    move |shape: &Shape| Setting::QuantisedTopK(QuantisedTopK { keep: keep(shape, share), bits });
                row(format!("{bits} bits"), share, &setting)
            };
            let shares = (1..=1000).map(|i| i as f64 / 1000.0);
            rows.extend(shares.map(few).rfind(|row| row.bytes <= budget));
        }
    }
    rows
}
