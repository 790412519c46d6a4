//! Layers of the buckets that the checks of exchange memories use.

use lgreco_train::compress::eden::{self, Eden};
use lgreco_train::compress::powersgd::{PowerSgd, effective_rank};
use lgreco_train::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_train::compress::{Setting, quantised_topk::QuantisedTopK, topk::TopK};
use lgreco_train::gradient::{Dtype, Shape};

/// A layer of the exchanged bucket.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Index of the layer in the model.
    pub index: u32,
    /// How it is compressed.
    pub setting: Setting,
    /// Rows and columns.
    pub shape: Shape,
    /// Type of the gradient and its mean.
    pub dtype: Dtype,
}

/// Numbers of values of a layer's two factors under PowerSGD; 0 under other methods.
pub(super) fn factor_lens(member: &Member) -> [usize; 2] {
    let rank = match member.setting {
        Setting::PowerSgd(c) => effective_rank(member.shape, c.rank),
        _ => 0,
    };
    [member.shape.rows() * rank, member.shape.cols() * rank]
}

/// Whether the bits of a layer's results may differ from the host's.
pub(super) fn is_near(member: &Member) -> bool {
    matches!(member.setting, Setting::PowerSgd(_))
}

/// A bucket with every kind of layer except payloads of variable length: uncompressed layers, products of factors, and
/// payloads of fixed lengths. QSGD has several widths and bucket sizes, and EDEN has both scales. TopK has positions in
/// every coding, both with whole values and in few bits. PowerSGD has ranks below and above the matrix's smaller side.
/// The layers have all element types. Some layers have several thousand elements, some layers a few, and some none.
pub fn members() -> Vec<Member> {
    let base = Qsgd::default();
    let qsgd = |bits, bucket| Setting::Qsgd(Qsgd { bits, bucket, ..base });
    let min_max = Setting::Qsgd(Qsgd { bits: 3, bucket: 700, scale: Scale::MinMax, ..base });
    let nearest = Setting::Qsgd(Qsgd { bits: 5, bucket: 1024, rounding: Rounding::Nearest, ..base });
    let topk = |keep, values| Setting::TopK(TopK { keep, values });
    let few = |keep, bits| Setting::QuantisedTopK(QuantisedTopK { keep, bits });
    let eden = |bits, scale| Setting::Eden(Eden { bits, scale });
    let powersgd = |rank| Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
    let layers = [
        (qsgd(4, 512), 65, 79, Dtype::F32),
        (Setting::Dense, 2500, 1, Dtype::F32),
        (topk(30, Dtype::F32), 61, 47, Dtype::Bf16),
        (qsgd(8, 64), 7, 1, Dtype::Bf16),
        (Setting::Dense, 3, 5, Dtype::Bf16),
        (qsgd(3, 64), 0, 5, Dtype::F32),
        (min_max, 61, 45, Dtype::F16),
        (topk(601, Dtype::F16), 50, 61, Dtype::F32),
        (Setting::Dense, 0, 3, Dtype::F32),
        (qsgd(1, 100), 64, 33, Dtype::F32),
        (topk(2101, Dtype::Bf16), 2101, 1, Dtype::F16),
        (topk(1, Dtype::F32), 1, 1, Dtype::F32),
        (topk(0, Dtype::F32), 0, 2, Dtype::F32),
        (nearest, 33, 31, Dtype::Bf16),
        (Setting::Dense, 7, 9, Dtype::F16),
        (qsgd(2, 1), 5, 7, Dtype::F32),
        (topk(1501, Dtype::F32), 50, 61, Dtype::Bf16),
        (topk(1801, Dtype::Bf16), 120, 150, Dtype::F32),
        (few(1501, 3), 50, 61, Dtype::F32),
        (few(2101, 8), 2101, 1, Dtype::Bf16),
        (few(30, 1), 61, 47, Dtype::F16),
        (few(0, 4), 0, 2, Dtype::F32),
        (few(1801, 5), 120, 150, Dtype::F32),
        (powersgd(3), 61, 47, Dtype::F32),
        (powersgd(2), 5, 2050, Dtype::Bf16),
        (powersgd(9), 7, 5, Dtype::F16),
        (powersgd(2), 0, 4, Dtype::F32),
        (powersgd(18), 1030, 33, Dtype::F32),
        (eden(3, eden::Scale::Unbiased), 65, 79, Dtype::F32),
        (eden(1, eden::Scale::LeastSquares), 50, 41, Dtype::Bf16),
        (eden(8, eden::Scale::Unbiased), 7, 1, Dtype::F16),
        (eden(2, eden::Scale::Unbiased), 0, 5, Dtype::F32),
        (eden(4, eden::Scale::LeastSquares), 120, 150, Dtype::F32),
    ];
    let member = |(index, (setting, rows, cols, dtype)): (u32, (Setting, usize, usize, Dtype))| Member {
        index: 3 * index + 1,
        setting,
        shape: Shape::new(rows, cols).expect("a small shape"),
        dtype,
    };
    (0..).zip(layers).map(member).collect()
}

/// Layers whose messages are damaged: QSGD, TopK with both codings of positions, and TopK in few bits.
pub fn damaged_members() -> [Member; 4] {
    let topk = |keep, values, rows, index| Member {
        index,
        setting: Setting::TopK(TopK { keep, values }),
        shape: Shape::new(rows, 1).expect("a small shape"),
        dtype: Dtype::F32,
    };
    let setting = Setting::Qsgd(Qsgd { bits: 3, bucket: 16, ..Qsgd::default() });
    let few = Setting::QuantisedTopK(QuantisedTopK { keep: 21, bits: 3 });
    [
        topk(20, Dtype::F32, 290, 0),
        topk(23, Dtype::F16, 70, 1),
        Member { setting, ..topk(0, Dtype::F32, 37, 2) },
        Member { setting: few, ..topk(0, Dtype::F32, 90, 3) },
    ]
}
