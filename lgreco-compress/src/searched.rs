//! Methods that a search can vary, each by one parameter.

use super::describe::{Planned, Unit};
use super::{adacomp, clt, eden, hard_threshold, loco, powersgd, qsgd, sidco, topk};
use crate::{Error, Result};
use core::fmt;
use core::str::FromStr;
use num_traits::Float;

macro_rules! searched {
    ($(#[$of_method:meta])* Method { $($(#[$doc:meta])* $name:ident $module:ident;)* }) => {
        $(#[$of_method])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Method {
            $($(#[$doc])* $name,)*
            /// Chooses among several methods per layer: EDEN, TopK and PowerSGD by default.
            Hybrid,
        }

        impl Method {
            /// All methods.
            pub const ALL: [Method; [$(stringify!($name),)*].len() + 1] = [$(Method::$name,)* Method::Hybrid];

            /// The name used in labels and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Method::$name => $module::KNOWN.name,)*
                    Method::Hybrid => "hybrid",
                }
            }

            /// The parameter that a search varies. For [`Hybrid`](Method::Hybrid) it is the parameter of EDEN.
            pub const fn planned(self) -> &'static Planned {
                match self {
                    $(Method::$name => &$module::PLANNED,)*
                    Method::Hybrid => &eden::PLANNED,
                }
            }
        }
    };
}

searched! {
    /// A compression method that a user can request for a search.
    ///
    /// ```
    /// use lgreco_compress::SearchMethod as Method;
    /// assert_eq!("topk".parse(), Ok(Method::TopK));
    /// assert!("top-k".parse::<Method>().is_err());
    /// ```
    Method {
        /// Quantisation; the parameter is bits per element, 1 to 8.
        Qsgd qsgd;
        /// Quantisation after a rotation; the parameter is bits per element, 1 to 8.
        Eden eden;
        /// Sparsification; the parameter is the density, from 2^-32 to 1.
        TopK topk;
        /// Low rank; the parameter is the rank, 1 to 65536.
        PowerSgd powersgd;
        /// Sparsification at positions that all workers share; the parameter is the density.
        CltK clt;
        /// Sparsification by an estimated magnitude; the parameter is the density.
        Sidco sidco;
        /// Sparsification by magnitude; the parameter is the least magnitude sent, above 0.
        HardThreshold hard_threshold;
        /// Sparsification to elements that stand out of their bin; the parameter is elements per bin, 1 to 2^24.
        AdaComp adacomp;
        /// Quantisation to 4 bits, rounded to nearest; the parameter is elements per group, 1 to 2^24.
        LoCo loco;
    }
}

/// All names, for error messages.
const NAMES: &str = "qsgd, eden, topk, powersgd, hybrid, clt-k, sidco, hard-threshold, adacomp or loco";

impl Method {
    /// The methods to compare first: the methods of the L-GreCo paper, EDEN, and the default (hybrid).
    pub const COMPARED: [Method; 5] = [Method::Qsgd, Method::Eden, Method::TopK, Method::PowerSgd, Method::Hybrid];

    /// Label of a setting of this method: `qsgd 4`, `topk 0.1%`, `powersgd 32`.
    pub fn label(self, parameter: f64) -> impl fmt::Display {
        Label(self, parameter)
    }
}

struct Label(Method, f64);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Label(method, parameter) = self;
        match method.planned().unit {
            // Rounds away the error of binary fractions: 0.1 · 3 · 100 = 30.000000000000004.
            Unit::Density => write!(f, "{} {}%", method.name(), Float::round(parameter * 100.0 * 1e9) / 1e9),
            _ => write!(f, "{} {parameter}", method.name()),
        }
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let unknown = Error::UnknownName { what: "method", expected: NAMES };
        Self::ALL.into_iter().find(|method| method.name() == name).ok_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_all() {
        assert!(Method::ALL.iter().all(|method| NAMES.contains(method.name())));
        assert_eq!(NAMES.split([' ', ',']).filter(|word| !word.is_empty() && *word != "or").count(), Method::ALL.len());
    }
}
