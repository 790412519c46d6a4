//! Error feedback by compressor.

use crate::Error;
use crate::compress::{Compressor, ResidualKind, Setting};
use crate::feedback::Residual;

/// The residual that a layer keeps under each compressor; `None` for no error feedback. Uncompressed layers never keep a
/// residual.
///
/// ```
/// use lgreco_train::controller::{Config, Feedback};
/// use lgreco_train::feedback::Residual;
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::TopK));
/// assert_eq!(config.feedback, Feedback::default());
/// config.feedback.others = Some(Residual { gain: 0.5, reset_every: 1000, ..Residual::CLASSIC });
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// The residual under QSGD and EDEN, which are unbiased; none unless set.
    pub qsgd: Option<Residual>,
    /// The residual under LoCo. Unless set, the residual is LoCo's moving average, [`Residual::LOCO`].
    pub loco: Option<Residual>,
    /// The residual under all other lossy compressors; classic error feedback unless set.
    pub others: Option<Residual>,
}

impl Feedback {
    /// No error feedback under any compressor.
    pub const NONE: Feedback = Feedback { qsgd: None, loco: None, others: None };

    /// The same residual under every lossy compressor, including QSGD and LoCo.
    ///
    /// ```
    /// use lgreco_train::{controller::Feedback, feedback::Residual};
    /// assert_eq!(Feedback::always(Residual::CLASSIC).qsgd, Some(Residual::CLASSIC));
    /// ```
    pub const fn always(residual: Residual) -> Feedback {
        Feedback { qsgd: Some(residual), loco: Some(residual), others: Some(residual) }
    }

    /// The residual under a setting.
    ///
    /// ```
    /// use lgreco_train::controller::Feedback;
    /// use lgreco_train::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd};
    /// let feedback = Feedback::default();
    /// assert!(feedback.of(&Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 })).is_some());
    /// assert!(feedback.of(&Setting::Qsgd(Qsgd::default())).is_none());
    /// ```
    pub fn of(&self, setting: &Setting) -> Option<Residual> {
        match setting.traits().residual {
            ResidualKind::Lossless => None,
            ResidualKind::Optional => self.qsgd,
            ResidualKind::Average => self.loco,
            ResidualKind::Classic => self.others,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        [self.qsgd, self.loco, self.others].iter().flatten().try_for_each(Residual::check)
    }
}

impl Default for Feedback {
    fn default() -> Self {
        Feedback { qsgd: None, loco: Some(Residual::LOCO), others: Some(Residual::CLASSIC) }
    }
}
