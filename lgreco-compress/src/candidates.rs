//! One row of the error table as a value: candidates that are measured together.
//!
//! [`Candidates`] holds one method with one varying parameter, so one pass over the gradient can measure the whole row.
//! A table with several methods has several rows per layer.

use super::clt::CltK;
use super::eden::{self, Eden};
use super::powersgd::{self, PowerSgd};
use super::qsgd::{self, Qsgd};
use super::quantised_topk::{self, QuantisedTopK};
use super::topk::{self, TopK};
use super::{Compressor, Setting};
use crate::Error;
use crate::error::expect_len;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use core::slice::from_ref;

/// Candidates of one method that differ in one parameter: one row of the error table, measured together.
///
/// ```
/// use lgreco_compress::Candidates;
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[3.0, 0.0, -1.0, 2.0]), Shape::new(2, 2)?)?;
/// let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[1, 2, 3] };
/// let mut workspace = vec![0; candidates.measure_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut row = [0.0; 3];
/// candidates.measure(&gradient, Stream::default(), &mut workspace, &mut row)?;
/// assert_eq!(row, [5.0, 1.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Candidates<'a> {
    /// `base` with each bit width in `bits`.
    Qsgd {
        /// Bucket size, scale and rounding; the bit width of `base` is ignored.
        base: Qsgd,
        /// Bit widths, 1 to 8.
        bits: &'a [u8],
    },
    /// TopK with each number of kept elements in `keeps`.
    TopK {
        /// Type of the kept values in the payload.
        values: Dtype,
        /// Numbers of kept elements, 1 to the number of elements.
        keeps: &'a [u32],
    },
    /// TopK with each number of kept elements in `keeps`, and values in each of `bits` bits. The row lists all bit
    /// widths of the first number, then all bit widths of the next number. One pass measures the whole row.
    QuantisedTopK {
        /// Numbers of kept elements, 1 to the number of elements.
        keeps: &'a [u32],
        /// Bits per value, 1 to 8.
        bits: &'a [u8],
    },
    /// PowerSGD at each rank in `ranks`.
    PowerSgd {
        /// Power iterations, 1 to [`MOST_ITERATIONS`](powersgd::MOST_ITERATIONS).
        iterations: u32,
        /// Ranks, at least 1.
        ranks: &'a [u32],
    },
    /// CLT-k with each number of kept elements in `keeps`. Errors are measured as if the gradient's own k largest
    /// values were the leader's selection. For a mean gradient, these errors are lower bounds: a real leader selects
    /// from the gradient of one worker.
    CltK {
        /// Numbers of kept elements, 1 to the number of elements.
        keeps: &'a [u32],
    },
    /// `base` with each bit width in `bits`.
    Eden {
        /// Scale; the bit width of `base` is ignored.
        base: Eden,
        /// Bit widths, 1 to 8.
        bits: &'a [u8],
    },
    /// Settings of any methods, each measured separately. Outside methods are measured by one encoding and decoding. If
    /// the payload length of any setting varies, the row has two halves: squared errors, then payload lengths in bytes.
    Each(&'a [Setting]),
}

impl Candidates<'_> {
    /// Number of values in the row: one per candidate, or two in some cases of [`Each`](Candidates::Each).
    pub fn len(&self) -> usize {
        match self {
            Candidates::Qsgd { bits, .. } | Candidates::Eden { bits, .. } => bits.len(),
            Candidates::TopK { keeps, .. } | Candidates::CltK { keeps } => keeps.len(),
            Candidates::QuantisedTopK { keeps, bits } => keeps.len() * bits.len(),
            Candidates::PowerSgd { ranks, .. } => ranks.len(),
            Candidates::Each(settings) => match settings.iter().all(Setting::has_fixed_len) {
                true => settings.len(),
                false => 2 * settings.len(),
            },
        }
    }

    /// Name of the first candidate's method; empty if there are no candidates.
    pub fn name(&self) -> &'static str {
        self.setting(0).map_or("", |setting| setting.name())
    }

    /// Whether there are no candidates.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Candidate `index` as a setting, or `None` past the end.
    ///
    /// ```
    /// use lgreco_compress::{Candidates, qsgd::Qsgd};
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 8] };
    /// assert_eq!(candidates.setting(1).map(|setting| setting.to_string()), Some("qsgd 8".into()));
    /// assert_eq!(candidates.setting(2), None);
    /// ```
    pub fn setting(&self, index: usize) -> Option<Setting> {
        match *self {
            Candidates::Qsgd { base, bits } => bits.get(index).map(|&bits| Setting::Qsgd(Qsgd { bits, ..base })),
            Candidates::TopK { values, keeps } => keeps.get(index).map(|&keep| Setting::TopK(TopK { keep, values })),
            Candidates::QuantisedTopK { keeps, bits } => {
                let (keep, bits) = (keeps.get(index.checked_div(bits.len())?)?, bits[index % bits.len()]);
                Some(Setting::QuantisedTopK(QuantisedTopK { keep: *keep, bits }))
            }
            Candidates::PowerSgd { iterations, ranks } => {
                ranks.get(index).map(|&rank| Setting::PowerSgd(PowerSgd { rank, iterations }))
            }
            Candidates::CltK { keeps } => keeps.get(index).map(|&keep| Setting::CltK(CltK { keep })),
            Candidates::Eden { base, bits } => bits.get(index).map(|&bits| Setting::Eden(Eden { bits, ..base })),
            Candidates::Each(settings) => settings.get(index).copied(),
        }
    }

    /// Returns an error unless all parameters are valid for their method and for the shape. The result does not depend
    /// on the gradient's values.
    ///
    /// # Errors
    /// The error of [`payload_len`](Compressor::payload_len) for the first candidate that does not fit.
    pub fn check(&self, shape: Shape, dtype: Dtype) -> Result<(), Error> {
        let mut settings = (0..self.len()).filter_map(|index| self.setting(index));
        settings.try_for_each(|setting| setting.payload_len(shape, dtype).map(drop))
    }

    /// Words (of 64 bits) of workspace that [`measure`](Candidates::measure) needs.
    pub fn measure_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        match *self {
            Candidates::Qsgd { .. } | Candidates::Eden { .. } => 0,
            Candidates::TopK { keeps, .. } | Candidates::CltK { keeps } => {
                topk::measure_workspace_len(shape, keeps.len())
            }
            Candidates::QuantisedTopK { keeps, .. } => quantised_topk::measure_workspace_len(shape, keeps),
            Candidates::PowerSgd { ranks, .. } => {
                powersgd::measure_workspace_len(shape, dtype, ranks.iter().copied().max().unwrap_or(0))
            }
            Candidates::Each(settings) => {
                let words = settings.iter().map(|setting| setting.measure_workspace_len(shape, dtype));
                words.max().unwrap_or(0)
            }
        }
    }

    /// Measures every candidate: `squared_errors[i]` is ‖gradient − decode(encode(gradient))‖² under candidate `i`. For
    /// stochastic rounding, the result is the expectation of this error over the random bits. The relative deviation of
    /// the result is below 1e-5 for all methods but QSGD. [`qsgd::measure`](crate::qsgd::measure) states QSGD's bound,
    /// which is wider for tensors of a few values and for stochastic rounding.
    ///
    /// ```
    /// # use lgreco_compress::{Candidates, qsgd::Qsgd};
    /// # use lgreco_core::{Error, rng::Stream};
    /// # use lgreco_core::gradient::{Gradient, Shape, Values};
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let gradient = Gradient::new(Values::F32(&[1.0, f32::INFINITY, 3.0]), Shape::new(3, 1)?)?;
    /// let found = candidates.measure(&gradient, Stream::default(), &mut [], &mut [0.0; 2]);
    /// assert_eq!(found, Err(Error::NonFinite { index: 1, value: f32::INFINITY }));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the first NaN or infinity. [`Error::Parameter`] when a candidate does not fit its
    /// method or the shape. [`Error::Length`] when `workspace` is too short or the length of `squared_errors` is not
    /// [`len`](Candidates::len). [`Error::ElementOverflow`] (sparsifiers) and [`Error::Overflow`] (PowerSGD, EDEN) when
    /// a number is too large for the type in which it is sent.
    ///
    /// # Complexity
    /// QSGD and EDEN: O(elements · candidates), one pass. TopK: about one pass for any number of candidates. TopK in
    /// few bits: three passes and a sort of the kept elements. PowerSGD: one encoding and decoding at the largest rank.
    /// SIDCo, AdaComp and LoCo: a few passes per candidate. The documentation of each method's `measure` has details.
    pub fn measure(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        squared_errors: &mut [f64],
    ) -> Result<(), Error> {
        expect_len("squared errors, one per candidate", self.len(), squared_errors.len())?;
        match *self {
            Candidates::Qsgd { base, bits } => qsgd::measure(gradient, base, bits, squared_errors),
            Candidates::TopK { values, keeps } => topk::measure(gradient, values, keeps, workspace, squared_errors),
            Candidates::QuantisedTopK { keeps, bits } => {
                quantised_topk::measure(gradient, keeps, bits, workspace, squared_errors)
            }
            Candidates::PowerSgd { iterations, ranks } => {
                powersgd::measure(gradient, ranks, iterations, stream, workspace, squared_errors)
            }
            Candidates::CltK { keeps } => topk::measure(gradient, Dtype::F32, keeps, workspace, squared_errors),
            Candidates::Eden { base, bits } => eden::measure(gradient, base.scale, bits, stream, squared_errors),
            Candidates::Each(settings) => {
                let (errors, lens) = squared_errors.split_at_mut(settings.len());
                for (index, (setting, error)) in settings.iter().zip(errors).enumerate() {
                    let (squared, len) = setting.measure(gradient, stream, workspace)?;
                    *error = squared;
                    lens.get_mut(index).into_iter().for_each(|place| *place = len as f64);
                }
                Ok(())
            }
        }
    }
}

impl Setting {
    /// This setting as a row of the error table with one candidate. Returns `None` for an uncompressed layer.
    pub fn row(&self) -> Option<Candidates<'_>> {
        match self {
            Setting::Dense => None,
            setting => setting.joint_row().or(Some(Candidates::Each(from_ref(setting)))),
        }
    }

    /// The row with this setting, if its method can measure several settings in one pass.
    fn joint_row(&self) -> Option<Candidates<'_>> {
        Some(match self {
            Setting::Qsgd(base) => Candidates::Qsgd { base: *base, bits: from_ref(&base.bits) },
            Setting::Eden(base) => Candidates::Eden { base: *base, bits: from_ref(&base.bits) },
            Setting::TopK(top) => Candidates::TopK { values: top.values, keeps: from_ref(&top.keep) },
            Setting::QuantisedTopK(top) => {
                Candidates::QuantisedTopK { keeps: from_ref(&top.keep), bits: from_ref(&top.bits) }
            }
            Setting::CltK(clt) => Candidates::CltK { keeps: from_ref(&clt.keep) },
            Setting::PowerSgd(power) => {
                Candidates::PowerSgd { iterations: power.iterations, ranks: from_ref(&power.rank) }
            }
            _ => return None,
        })
    }

    /// Words of workspace that [`measure`](Setting::measure) needs.
    pub fn measure_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        match self.joint_row() {
            Some(row) => row.measure_workspace_len(shape, dtype),
            None => self.described().measure_workspace_len(shape, dtype),
        }
    }

    /// Measures the setting on a gradient. Returns the squared error, as [`Candidates::measure`]
    /// defines it, and the payload's length in bytes.
    ///
    /// ```
    /// # use lgreco_compress::Setting;
    /// # use lgreco_core::rng::Stream;
    /// # use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
    /// let gradient = Gradient::new(Values::F32(&[3.0, 0.0, -1.0, 2.0]), Shape::new(2, 2)?)?;
    /// let setting: Setting = "hard-threshold 1.5".parse()?;
    /// let mut workspace = vec![0; setting.measure_workspace_len(gradient.shape(), Dtype::F32)];
    /// let measured = setting.measure(&gradient, Stream::default(), &mut workspace)?;
    /// assert_eq!(measured, (1.0, 16 + 2 * 4 + 1)); // the header, two values, and a byte for their positions
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Candidates::measure`].
    pub fn measure(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
    ) -> Result<(f64, usize), Error> {
        let Some(row) = self.joint_row() else { return self.described().measure(gradient, stream, workspace) };
        let mut error = [0.0];
        row.measure(gradient, stream, workspace, &mut error)?;
        Ok((error[0], self.payload_len(gradient.shape(), gradient.values().dtype())?))
    }
}
