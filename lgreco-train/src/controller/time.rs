//! How long bytes take.

use crate::error::expect_len;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

/// Least-squares fit of synchronisation times: seconds ≈ constant + Σ over buckets of `T(bucket) · bytes(bucket)`.
///
/// Buckets late in the backward pass are not hidden behind computation, so that bytes cost differently. A bucket's `T`
/// can only be told if its bytes varied independently of the others': record samples under random settings (the paper:
/// 50 steps each), or at least under several plans. The sums of squares are kept, not the samples; the same samples in
/// the same order give the same bits.
///
/// ```
/// use lgreco_train::controller::{FitKind, TimeModel};
/// let mut model = TimeModel::new(2);
/// for (bytes, seconds) in [([1000, 0], 3.0), ([0, 1000], 2.0), ([1000, 1000], 4.0), ([0, 0], 1.0)] {
///     model.record(&bytes, seconds)?;
/// }
/// let fit = model.fit();
/// assert_eq!(fit.kind, FitKind::PerBucket);
/// assert!((fit.seconds_per_byte[0] - 2e-3).abs() < 1e-12 && (fit.seconds_per_byte[1] - 1e-3).abs() < 1e-12);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
///
/// # Source
/// L-GreCo (MLSys 2024), "timing-based" variant: linear regression over buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeModel {
    samples: u64,
    buckets: usize,
    /// Means of bytes by bucket, then of seconds; empty without samples.
    means: Vec<f64>,
    /// Centred sums of products, one row per entry of `means`; empty without samples.
    products: Vec<f64>,
}

/// Seconds per byte.
///
/// ```
/// use lgreco_train::controller::{Fit, FitKind};
/// let fit = Fit { kind: FitKind::Pooled, seconds_per_byte: vec![1e-9; 2], constant: 1e-4 };
/// assert!(fit.constant + 1e6 * fit.seconds_per_byte[0] < 2e-3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// How they were found.
    pub kind: FitKind,
    /// By bucket; empty for [`FitKind::None`]. Above 0 for [`FitKind::Pooled`], at least 0 for [`FitKind::PerBucket`].
    pub seconds_per_byte: Vec<f64>,
    /// Seconds that do not depend on bytes.
    pub constant: f64,
}

/// How a [`Fit`] was found.
///
/// ```
/// use lgreco_train::controller::{FitKind, TimeModel};
/// let mut model = TimeModel::new(1);
/// model.record(&[100], 2.0)?;
/// assert_eq!(model.fit().kind, FitKind::None);
/// model.record(&[200], 3.0)?;
/// assert_eq!(model.fit().kind, FitKind::PerBucket);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FitKind {
    /// A slope per bucket.
    PerBucket,
    /// One slope for all buckets, from their total bytes: there were too few samples for more (not above the number of
    /// buckets), the bytes of buckets did not vary independently, or a slope would have been negative.
    Pooled,
    /// None: even the total bytes did not vary, or times did not grow with them.
    None,
}

/// A pivot below this part of its column's variance counts as none: the column is a combination of those before.
const INDEPENDENT: f64 = 1e-9;

impl TimeModel {
    /// Without samples, for so many buckets.
    ///
    /// ```
    /// # use lgreco_train::controller::{FitKind, TimeModel};
    /// assert_eq!(TimeModel::new(3).fit().kind, FitKind::None);
    /// ```
    pub fn new(buckets: usize) -> Self {
        TimeModel { samples: 0, buckets, means: vec![], products: vec![] }
    }

    /// Number of buckets.
    ///
    /// ```
    /// # use lgreco_train::controller::TimeModel;
    /// assert_eq!(TimeModel::new(3).buckets(), 3);
    /// ```
    pub fn buckets(&self) -> usize {
        self.buckets
    }

    /// Number of samples.
    ///
    /// ```
    /// # use lgreco_train::controller::TimeModel;
    /// assert_eq!(TimeModel::new(3).samples(), 0);
    /// ```
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Adds one step's bytes by bucket and how long their exchange took.
    ///
    /// ```
    /// # use lgreco_train::controller::TimeModel;
    /// let mut model = TimeModel::new(2);
    /// assert!(model.record(&[4096, 256], 0.003).is_ok());
    /// assert!(model.record(&[4096], 0.003).is_err());
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Length`] unless there is one entry per bucket; [`CoreError::Parameter`] when `seconds` is NaN,
    /// infinite or negative; [`CoreError::Overflow`] when squares of them leave f64; [`CoreError::OutOfMemory`] at the
    /// first sample. The model is then unchanged.
    ///
    /// # Complexity
    /// O(buckets²); the first sample allocates as much.
    pub fn record(&mut self, bytes: &[u64], seconds: f64) -> Result<(), Error> {
        expect_len("bytes, one entry per bucket", self.buckets(), bytes.len())?;
        if !(seconds.is_finite() && seconds >= 0.0) {
            return Err(Error::Core(CoreError::Parameter {
                what: "seconds",
                value: seconds,
                expected: "a finite number >= 0",
            }));
        }
        if self.samples == 0 {
            let columns = self.buckets + 1;
            (self.means, self.products) = (zeros(columns)?, zeros(columns.saturating_mul(columns))?);
        }
        let (columns, count) = (self.means.len(), (self.samples + 1) as f64);
        let value = |column: usize| bytes.get(column).map_or(seconds, |&bytes| bytes as f64);
        let means = &self.means;
        // Welford's update.
        let added = |i: usize, j: usize| {
            let off = (value(i) - means[i]) * ((count - 1.0) / count);
            off * (value(j) - means[j])
        };
        let pairs = || (0..columns).flat_map(|i| (0..=i).map(move |j| (i, j)));
        if !pairs().all(|(i, j)| (self.products[i * columns + j] + added(i, j)).is_finite()) {
            return Err(Error::Core(CoreError::Overflow { what: "a sum of the time model" }));
        }
        pairs().for_each(|(i, j)| self.products[i * columns + j] += added(i, j));
        self.samples += 1;
        (0..columns).for_each(|i| self.means[i] += (value(i) - self.means[i]) / count);
        Ok(())
    }

    /// The fit of all samples so far; see [`FitKind`] for what happens where they do not suffice.
    ///
    /// ```
    /// # use lgreco_train::controller::{FitKind, TimeModel};
    /// let mut model = TimeModel::new(2);
    /// model.record(&[100, 100], 2.0)?;
    /// model.record(&[200, 200], 3.0)?;
    /// let fit = model.fit();
    /// assert_eq!((fit.kind, fit.constant, &fit.seconds_per_byte[..]), (FitKind::Pooled, 1.0, &[0.005; 2][..]));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Complexity
    /// O(buckets³), allocates O(buckets²).
    pub fn fit(&self) -> Fit {
        let buckets = self.buckets();
        if self.samples == 0 {
            return Fit { kind: FitKind::None, constant: 0.0, seconds_per_byte: vec![] };
        }
        let per_bucket = if self.samples > buckets as u64 { self.slopes() } else { None };
        let (kind, slopes) = match per_bucket.filter(|slopes| slopes.iter().all(|&slope| slope >= 0.0)) {
            Some(slopes) => (FitKind::PerBucket, slopes),
            None => match self.pooled_slope() {
                Some(slope) => (FitKind::Pooled, vec![slope; buckets]),
                None => (FitKind::None, vec![]),
            },
        };
        let explained: f64 = slopes.iter().zip(&self.means).map(|(slope, mean)| slope * mean).sum();
        Fit { kind, constant: self.means[buckets] - explained, seconds_per_byte: slopes }
    }

    fn product(&self, i: usize, j: usize) -> f64 {
        self.products[i.max(j) * self.means.len() + i.min(j)]
    }

    /// Solves the normal equations by Cholesky's decomposition; `None` where bytes are not independent.
    fn slopes(&self) -> Option<Vec<f64>> {
        let n = self.buckets();
        let mut factor = vec![0.0; n * n];
        let mut slopes = vec![0.0; n];
        for i in 0..n {
            for j in 0..=i {
                let known: f64 = (0..j).map(|k| factor[i * n + k] * factor[j * n + k]).sum();
                let rest = self.product(i, j) - known;
                if i == j {
                    if rest.is_nan() || rest <= INDEPENDENT * self.product(i, i) {
                        return None;
                    }
                    factor[i * n + i] = crate::num::sqrt(rest);
                } else {
                    factor[i * n + j] = rest / factor[j * n + j];
                }
            }
        }
        for i in 0..n {
            let known: f64 = (0..i).map(|k| factor[i * n + k] * slopes[k]).sum();
            slopes[i] = (self.product(i, n) - known) / factor[i * n + i];
        }
        for i in (0..n).rev() {
            let known: f64 = (i + 1..n).map(|k| factor[k * n + i] * slopes[k]).sum();
            slopes[i] = (slopes[i] - known) / factor[i * n + i];
        }
        slopes.iter().all(|slope| slope.is_finite()).then_some(slopes)
    }

    /// The slope over total bytes.
    fn pooled_slope(&self) -> Option<f64> {
        let n = self.buckets();
        let variance: f64 = (0..n).flat_map(|i| (0..n).map(move |j| self.product(i, j))).sum();
        let covariance: f64 = (0..n).map(|i| self.product(i, n)).sum();
        let scale: f64 = (0..n).map(|i| self.product(i, i)).sum();
        let slope = covariance / variance;
        (variance > INDEPENDENT * scale && slope > 0.0 && slope.is_finite()).then_some(slope)
    }

    /// All numbers, for saved states.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.means.iter().chain(&self.products).copied()
    }

    /// The model of these samples and numbers; `None` unless as many as [`numbers`](TimeModel::numbers) gives, all finite.
    pub(super) fn from_numbers(buckets: usize, samples: u64, numbers: &[f64]) -> Option<Self> {
        if samples == 0 {
            return numbers.is_empty().then(|| TimeModel::new(buckets));
        }
        let fits = numbers.len() == (buckets + 1) * (buckets + 2) && numbers.iter().all(|x| x.is_finite());
        let (means, products) = numbers.split_at_checked(buckets + 1)?;
        fits.then(|| TimeModel { samples, buckets, means: means.into(), products: products.into() })
    }
}

fn zeros(len: usize) -> Result<Vec<f64>, Error> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| Error::Core(CoreError::OutOfMemory { words: len }))?;
    zeros.resize(len, 0.0);
    Ok(zeros)
}
