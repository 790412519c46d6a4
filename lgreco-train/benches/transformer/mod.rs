//! A transformer's layers, and settings of TopK at as many bytes.

use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::{Compressor, Setting, topk::TopK};
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::rng::Stream;

/// Six blocks of width 320, an embedding of 256 characters and one of 128 places: 7.5 million values.
pub fn shapes() -> Vec<Shape> {
    let block = [[960, 320], [960, 1], [320, 320], [320, 1], [1280, 320], [1280, 1], [320, 1280], [320, 1]];
    let block = block.into_iter().chain([[320, 1]; 4]);
    let blocks = std::iter::repeat_n(block, 6).flatten();
    let shapes = blocks.chain([[256, 320], [128, 320], [320, 1], [320, 1]]);
    shapes.map(|[rows, cols]| Shape::new(rows, cols).expect("below 2^32")).collect()
}

/// Values of a rank's gradient, with heavier tails than a uniform's, as gradients have.
pub fn noise(rank: u32, len: usize) -> Vec<f32> {
    let stream = Stream { seed: 3, step: 0, layer: 0, rank };
    let value = |i: u64| {
        let x = (stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        x * x * x
    };
    (0..len as u64).map(value).collect()
}

/// Each layer's setting where all keep the same share.
pub struct Row {
    pub name: String,
    /// Of the elements, how many are kept.
    pub share: f64,
    pub settings: Vec<Setting>,
    /// Of all payloads.
    pub bytes: usize,
}

/// TopK in full at each of so many per cent, and in 2, 3 and 4 bits at the most that takes no more bytes.
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
