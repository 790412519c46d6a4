//! Methods that a search can vary, each by one parameter.

use super::describe::Unit;
pub use super::registry::Method;
use crate::{Error, Result};
use core::fmt;
use core::str::FromStr;
use num_traits::Float;

/// Makes the list of methods for searches from the lines of the registry.
macro_rules! searched {
    ($($(#[$doc:meta])* $name:ident $module:ident;)*) => {
        /// A compression method that a user can request for a search.
        ///
        /// ```
        /// use lgreco_compress::SearchMethod as Method;
        /// assert_eq!("topk".parse(), Ok(Method::TopK));
        /// assert!("top-k".parse::<Method>().is_err());
        /// ```
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

            /// The parameter that a search varies. [`Hybrid`](Method::Hybrid) returns the parameter of EDEN.
            pub const fn planned(self) -> &'static $crate::Planned {
                match self {
                    $(Method::$name => &$module::PLANNED,)*
                    Method::Hybrid => &eden::PLANNED,
                }
            }
        }
    };
}
pub(super) use searched;

/// All names with commas, for error messages.
const NAMES: &str = {
    const BYTES: [u8; len()] = {
        let (mut bytes, mut at, mut method) = ([0; len()], 0, 0);
        while method < Method::ALL.len() {
            let name = Method::ALL[method].name().as_bytes();
            at = put(&mut bytes, at, name);
            if method + 1 < Method::ALL.len() {
                at = put(&mut bytes, at, b", ");
            }
            method += 1;
        }
        bytes
    };
    match core::str::from_utf8(&BYTES) {
        Ok(names) => names,
        Err(_) => panic!("names are UTF-8"),
    }
};

/// Length of all names with commas.
const fn len() -> usize {
    let (mut len, mut method) = (2 * (Method::ALL.len() - 1), 0);
    while method < Method::ALL.len() {
        len += Method::ALL[method].name().len();
        method += 1;
    }
    len
}

/// Copies `from` to `bytes` at `at`. Returns the index after the copied bytes.
const fn put(bytes: &mut [u8], at: usize, from: &[u8]) -> usize {
    bytes.split_at_mut(at).1.split_at_mut(from.len()).0.copy_from_slice(from);
    at + from.len()
}

impl Method {
    /// The methods to compare first: the methods of the L-GreCo paper, EDEN, and the default (hybrid).
    pub const COMPARED: [Method; 5] = [Method::Qsgd, Method::Eden, Method::TopK, Method::PowerSgd, Method::Hybrid];

    /// The methods of a [`Hybrid`](Method::Hybrid) search with their defaults. The default of the first method sets the
    /// budget. For usual shapes, PowerSGD with rank 8 takes about as many bytes as 3-bit EDEN.
    pub const HYBRID: [(Method, f64); 3] = [
        (Method::Eden, Method::Eden.planned().default),
        (Method::TopK, Method::TopK.planned().default),
        (Method::PowerSgd, 8.0),
    ];

    /// Whether a search can vary the width of the values that the method sends.
    pub const fn has_widths(self) -> bool {
        matches!(self, Method::TopK)
    }

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
        assert!(NAMES.split(", ").eq(Method::ALL.iter().map(|method| method.name())), "{NAMES}");
    }
}
