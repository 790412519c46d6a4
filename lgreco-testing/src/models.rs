//! Makes error tables from a seed: tables like those of real models, and tables that are hard to plan.

use lgreco::gradient::Shape;
use lgreco::rng::Stream;
use lgreco::table::{Choice, Table};

/// A table and an error budget.
///
/// ```
/// use lgreco::plan::{self, Solver, budget::Budget};
/// use lgreco_testing::models::{Rows, model};
/// let model = model(Rows::Hybrid, 4, 20, 1);
/// let plan = plan::solve(&model.table(), Budget::Absolute(model.budget), Solver::default())?;
/// assert!(plan.summary().proven());
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// All options, layer after layer.
    pub choices: Vec<Choice>,
    /// Where each layer's options end.
    pub ends: Vec<usize>,
    /// The error budget.
    pub budget: f64,
}

/// Shape of a [`Model`]'s rows.
///
/// ```
/// use lgreco_testing::models::{Rows, model};
/// for rows in Rows::ALL {
///     assert_eq!(model(rows, 3, 10, 0).table().layers(), 3);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Sparsification: the error falls smoothly, without a bend, as the size grows.
    TopK,
    /// Quantisation: 7 widths; each bit halves the error.
    Qsgd,
    /// Low rank: the error falls fast, then slowly; sizes are multiples of rows plus columns.
    PowerSgd,
    /// The options of TopK, QSGD and PowerSGD in one row.
    Hybrid,
    /// Errors that fall in random steps; sizes and errors of layers span many magnitudes.
    Spread,
    /// Errors that fall smoothly from a scale between 10^-6 and 10^3; sizes as for sparsification.
    Scales,
    /// Errors drawn log-uniformly from nine decades, and sizes drawn uniformly, each sorted. Few options are on the
    /// convex hull.
    Scattered,
    /// Errors that fall exponentially; each layer has a different scale and rate.
    Exponential,
    /// Size and error nearly on one line, the same for all layers.
    Correlated,
    /// Size and error exactly on one line: a subset-sum problem.
    SubsetSum,
    /// Every layer has the same row.
    Equal,
    /// Errors are multiples of a fraction of the budget.
    Multiples,
    /// Sizes from single bits to 2^55.
    HugeSizes,
}

impl Rows {
    /// Every kind.
    pub const ALL: [Rows; 13] = [
        Rows::TopK,
        Rows::Qsgd,
        Rows::PowerSgd,
        Rows::Hybrid,
        Rows::Spread,
        Rows::Scales,
        Rows::Scattered,
        Rows::Exponential,
        Rows::Correlated,
        Rows::SubsetSum,
        Rows::Equal,
        Rows::Multiples,
        Rows::HugeSizes,
    ];
}

/// A sequence of random numbers, uniform in [0, 1).
struct Draws(Stream, u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.1 += 1;
        f64::from(self.0.word(self.1)) / 4_294_967_296.0
    }

    /// A log-uniform number between 1 and 2^`octaves`.
    fn magnitude(&mut self, octaves: u32) -> f64 {
        let exponent = self.next() * f64::from(octaves);
        let whole = exponent as u32;
        f64::from_bits(u64::from(1023 + whole) << 52) * (1.0 + (exponent - f64::from(whole)))
    }
}

/// A model of `layers` layers whose rows have about `options` options (quantisers have 7). The budget is a sum over the
/// layers: the error of the option after the first third of each row.
///
/// ```
/// use lgreco_testing::models::{Rows, model};
/// assert_eq!(model(Rows::Spread, 3, 10, 7), model(Rows::Spread, 3, 10, 7));
/// assert_ne!(model(Rows::Spread, 3, 10, 7), model(Rows::Spread, 3, 10, 8));
/// ```
pub fn model(rows: Rows, layers: usize, options: usize, seed: u64) -> Model {
    let mut draws = Draws(Stream { seed, ..Stream::default() }, 0);
    let mut model = Model { choices: Vec::new(), ends: Vec::new(), budget: 0.0 };
    for _ in 0..layers {
        let start = model.choices.len();
        row(rows, options, &mut draws, &mut model.choices);
        let row = &model.choices[start..];
        model.budget += row[row.len() / 3].error;
        model.ends.push(model.choices.len());
    }
    model
}

fn row(rows: Rows, options: usize, draws: &mut Draws, out: &mut Vec<Choice>) {
    let mut push = |size: f64, error: f64| out.push(Choice { size: size as u64, error });
    match rows {
        Rows::TopK | Rows::Qsgd | Rows::PowerSgd | Rows::Hybrid => {
            // Real models have few different widths, so layers share shapes.
            let side = 64.0 * [1.0, 2.0, 4.0, 8.0][(draws.next() * 4.0) as usize];
            let other = side * [1.0, 3.0, 4.0][(draws.next() * 3.0) as usize];
            let (elements, norm) = (side * other, draws.magnitude(10) / 1e3);
            let decay = 0.5 + draws.next();
            if matches!(rows, Rows::TopK | Rows::Hybrid) {
                for step in 1..=options {
                    let density = step as f64 / options as f64 * 0.1;
                    let kept = (density * elements) as u64 as f64;
                    let error = norm * (1.0 - density) / (1.0 + 20.0 * decay * density);
                    push(64.0 + 8.0 * (kept * 5.1) as u64 as f64, error * (1.0 + 1e-4 * draws.next()));
                }
            }
            if matches!(rows, Rows::Qsgd | Rows::Hybrid) {
                for bits in 2..=8u32 {
                    let error = norm * 0.9 / f64::from(1u32 << bits) * (1.0 + 0.1 * draws.next());
                    push(128.0 + elements * f64::from(bits) + 32.0 * elements / 512.0, error);
                }
            }
            if matches!(rows, Rows::PowerSgd | Rows::Hybrid) {
                for rank in (1..=16u32).map(|step| 4 * step) {
                    let error = norm / (1.0 + decay * f64::from(rank) / 8.0) * (1.0 + 0.01 * draws.next());
                    push(128.0 + 32.0 * f64::from(rank) * (side + other), error);
                }
            }
        }
        Rows::Spread => {
            let elements = draws.magnitude(14) * 64.0;
            let mut error = draws.magnitude(40);
            for step in 1..=options {
                push(8.0 * (elements * (step as f64 + 0.5 * draws.next()) / 64.0) as u64 as f64, error);
                error *= 1.0 - (0.2 + draws.next()) / (1.0 + step as f64);
            }
        }
        Rows::Scales => {
            let (elements, scale, decay) = (draws.magnitude(14) * 64.0, draws.magnitude(30) / 1e6, 0.5 + draws.next());
            for step in 1..=options {
                let part = step as f64 / options as f64;
                let error = scale * (1.001 - part) / (1.0 + 20.0 * decay * part);
                push(64.0 + 8.0 * (part * elements) as u64 as f64, error * (1.0 + 1e-4 * draws.next()));
            }
        }
        Rows::Scattered => {
            let elements = draws.magnitude(14) * 64.0;
            let mut sizes: Vec<f64> = (0..options).map(|_| 8.0 * (draws.next() * elements) as u64 as f64).collect();
            let mut errors: Vec<f64> = (0..options).map(|_| draws.magnitude(30) / 1e6).collect();
            sizes.sort_by(f64::total_cmp);
            errors.sort_by(|a, b| b.total_cmp(a));
            sizes.into_iter().zip(errors).for_each(|(size, error)| push(size, error));
        }
        Rows::Exponential => {
            let (elements, mut error) = (draws.magnitude(14) * 64.0, draws.magnitude(30) / 1e6);
            let kept = 1.0 - 0.5 / draws.magnitude(6);
            for step in 1..=options {
                push(8.0 * (elements * step as f64 / 64.0) as u64 as f64, error);
                error *= kept;
            }
        }
        Rows::Correlated | Rows::SubsetSum => {
            let steepest = if rows == Rows::SubsetSum { 1e5 } else { draws.magnitude(4) * 1e5 };
            for step in 1..=options {
                let size = (steepest * (step as f64 - draws.next() * 0.9) / options as f64) as u64 as f64;
                let noise = if rows == Rows::SubsetSum { 0.0 } else { 0.01 * draws.next() };
                push(size, (4e5 * 4.0 - size) / 1e3 + noise);
            }
        }
        Rows::Equal => {
            for step in 1..=options {
                push((1000 * step + 37 * (step * step % 11)) as f64, 1.0 / step as f64);
            }
        }
        Rows::Multiples => {
            for step in 1..=options {
                let cells = (options - step) as f64 + (draws.next() * 3.0) as u64 as f64;
                push((draws.next() * 100.0) as u64 as f64 + 64.0 * step as f64, cells * 0.1);
            }
        }
        Rows::HugeSizes => {
            let largest = draws.magnitude(54);
            let error = draws.magnitude(300);
            for step in 1..=options {
                let part = step as f64 / options as f64;
                push(largest * part * (0.9 + 0.1 * draws.next()), error * (1.1 - part) * (0.9 + 0.1 * draws.next()));
            }
        }
    }
}

impl Model {
    /// The table, borrowed.
    pub fn table(&self) -> Table<'_> {
        Table::new(&self.choices, &self.ends).expect("models are valid tables")
    }
}

/// The layers of ResNet-50 (He et al., CVPR 2016, table 1) as matrices: output channels by the inputs of each output.
/// ResNet-50 has 161 layers and 25.6 M parameters, including those of batch normalisation.
///
/// ```
/// let layers = lgreco_testing::models::resnet_50();
/// let parameters: usize = layers.iter().map(|shape| shape.elements()).sum();
/// assert_eq!((layers.len(), parameters), (161, 25_557_032));
/// ```
pub fn resnet_50() -> Vec<Shape> {
    let mut sides = Vec::new();
    let mut convolution = |rows: usize, cols: usize| sides.extend([(rows, cols), (rows, 1), (rows, 1)]);
    convolution(64, 3 * 49);
    let mut channels = 64;
    for (width, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..blocks {
            convolution(width, channels);
            convolution(width, 9 * width);
            convolution(4 * width, width);
            if block == 0 {
                convolution(4 * width, channels);
            }
            channels = 4 * width;
        }
    }
    sides.extend([(1000, channels), (1000, 1)]);
    sides.into_iter().map(|(rows, cols)| Shape::new(rows, cols).expect("sides")).collect()
}
