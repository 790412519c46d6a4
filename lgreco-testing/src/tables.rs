//! Makes error tables from bytes. Every byte string gives an instance, and the same bytes give the same instance.

use lgreco::plan::{Limit, budget::Budget};
use lgreco::{rng::Stream, table::Choice, table::Table};

/// A table with a reference plan, a budget and a size limit.
///
/// ```
/// use lgreco::plan::budget::Budget;
/// use lgreco_testing::tables::Instance;
/// let instance = Instance::from_seed(3, 8, 5);
/// let reference = Budget::Defaults { alpha: 1.0, options: &instance.defaults };
/// assert!(reference.limit(&instance.table()).is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// All options, layer after layer.
    pub choices: Vec<Choice>,
    /// Where each layer's options end.
    pub ends: Vec<usize>,
    /// The reference plan: one option per layer.
    pub defaults: Vec<u32>,
    /// The error budget, finite and at least 0.
    pub budget: f64,
    /// The size limit.
    pub size_limit: u64,
}

impl Instance {
    /// The error budget and the size limit.
    pub fn limits(&self) -> [Limit; 2] {
        [Limit::Error(self.budget), Limit::Size(self.size_limit)]
    }

    /// The table, borrowed.
    pub fn table(&self) -> Table<'_> {
        Table::new(&self.choices, &self.ends).expect("instances are valid tables")
    }

    /// Reads an instance of 1 to `layers` layers with 1 to `options` options each; missing bytes read as 0.
    ///
    /// The first bytes choose the kinds of sizes and errors: small integers with many ties, smooth curves, magnitudes
    /// from subnormal to 2^1000, and sizes that need all 64 bits. These bytes also choose the kinds of budget and size
    /// limit: zero, the reference plan's, the smallest achievable, or anything up to the largest.
    ///
    /// ```
    /// use lgreco_testing::tables::Instance;
    /// let instance = Instance::from_bytes(b"", 8, 5);
    /// assert_eq!((instance.choices.len(), instance.budget), (1, 0.0));
    /// ```
    pub fn from_bytes(bytes: &[u8], layers: usize, options: usize) -> Instance {
        let mut bytes = bytes.iter().copied();
        let mut byte = move || usize::from(bytes.next().unwrap_or(0));
        let (kind, budget_kind) = (byte(), byte());
        let layers = 1 + byte() % layers;
        let mut instance =
            Instance { choices: Vec::new(), ends: Vec::new(), defaults: Vec::new(), budget: 0.0, size_limit: 0 };
        for _ in 0..layers {
            let count = 1 + byte() % options;
            instance.defaults.push((byte() % count) as u32);
            let scale = byte() as i32;
            for option in 0..count {
                let (a, b) = (byte(), byte());
                let error = match kind % 5 {
                    0 => (a % 8) as f64,
                    1 => (scale + 1) as f64 / (1 + option) as f64 + a as f64 / 4096.0,
                    2 => (256 * a + b) as f64 / 1024.0 * power_of_two(scale % 40 - 20),
                    3 => (256 * a + b + 1) as f64 * power_of_two(7 * scale - 1074 + 16 * (b as i32 % 14)),
                    _ => 0.1 * (a as i32 * (1 + scale)) as f64,
                };
                let size = match kind / 5 % 3 {
                    0 => (b % 8) as u64,
                    1 => 8 * ((1 + scale as u64) * (1 + option as u64) + b as u64),
                    _ => (((256 * b + a) as u64) << 48) / layers as u64,
                };
                instance.choices.push(Choice { size, error });
            }
            instance.ends.push(instance.choices.len());
        }
        let table = instance.table();
        let sum = |pick: fn(f64, f64) -> f64| -> f64 {
            table.iter().map(|options| options.iter().map(|choice| choice.error).reduce(pick).unwrap_or(0.0)).sum()
        };
        let (smallest, largest) = (sum(f64::min), sum(f64::max));
        let part = byte() as f64 / 255.0;
        let default = |budget: Budget| budget.limit(&table);
        let budget = match (budget_kind % 6, default(Budget::Defaults { alpha: 1.0, options: &instance.defaults })) {
            (0, Ok(Limit::Error(budget))) => budget,
            (0, _) => largest,
            (1, _) => 0.0,
            (2, _) => smallest,
            (3, _) => smallest.next_down().max(0.0),
            (4, _) => smallest + part * (largest - smallest),
            _ => part * 2.0 * largest,
        };
        let size = |pick: fn(u64, u64) -> u64| -> u64 {
            table.iter().map(|options| options.iter().map(|choice| choice.size).reduce(pick).unwrap_or(0)).sum()
        };
        let (least, most) = (size(u64::min), size(u64::max));
        let size_limit =
            match (budget_kind / 6 % 6, default(Budget::DefaultSize { alpha: 1.0, options: &instance.defaults })) {
                (0, Ok(Limit::Size(size))) => size,
                (1, _) => 0,
                (2, _) => least,
                (3, _) => least.saturating_sub(1),
                (4, _) => least.saturating_add((part * (most - least) as f64) as u64),
                _ => (part * 2.0 * most as f64) as u64,
            };
        (instance.budget, instance.size_limit) = (budget, size_limit);
        instance
    }

    /// An instance from pseudo-random bytes.
    ///
    /// ```
    /// # use lgreco_testing::tables::Instance;
    /// assert_eq!(Instance::from_seed(3, 8, 5), Instance::from_seed(3, 8, 5));
    /// ```
    pub fn from_seed(seed: u64, layers: usize, options: usize) -> Instance {
        let stream = Stream { seed, ..Stream::default() };
        let bytes: Vec<u8> = (0..(2 * layers * (options + 2) + 8) as u64).map(|at| stream.word(at) as u8).collect();
        Instance::from_bytes(&bytes, layers, options)
    }
}

fn power_of_two(exponent: i32) -> f64 {
    match exponent {
        ..-1074 => 0.0,
        -1074..-1022 => f64::from_bits(1 << (exponent + 1074)),
        -1022..=1023 => f64::from_bits(((exponent + 1023) as u64) << 52),
        _ => f64::MAX,
    }
}
