//! Why a command ends early: one line and an exit code.

use lgreco_core::Error;
use std::fmt;
use std::io;

/// The kinds of failure, by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing is wrong with the input, but there is no result: infeasible, or it could not be written.
    NoResult = 1,
    /// The input or the request is wrong.
    BadInput = 2,
}

/// A failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind.
    pub kind: Kind,
    /// What went wrong and where, without control characters.
    pub message: String,
}

impl Failure {
    /// A failure to be blamed on the input.
    pub fn bad_input(message: impl fmt::Display) -> Self {
        Failure { kind: Kind::BadInput, message: printable(&message.to_string()) }
    }

    /// A failure to get a result from good input.
    pub fn no_result(message: impl fmt::Display) -> Self {
        Failure { kind: Kind::NoResult, message: printable(&message.to_string()) }
    }

    /// A failure that `error` describes, in the words of `message`.
    pub fn from_core(error: &Error, message: impl fmt::Display) -> Self {
        match error {
            Error::Infeasible { .. } | Error::OverBudget { .. } | Error::PlanMismatch { .. } => {
                Failure::no_result(message)
            }
            _ => Failure::bad_input(message),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::no_result(format_args!("standard output: {error}"))
    }
}

/// `text` with control characters (a layer's name may hold any) escaped, so that it stays on its line.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if c.is_control() {
            line.extend(c.escape_default())
        } else {
            line.push(c)
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(Failure::bad_input("layer `a\nb\u{1b}`").message, "layer `a\\nb\\u{1b}`");
    }

    #[test]
    fn infeasible_is_no_fault_of_the_input() {
        let kind = |error: Error| Failure::from_core(&error, error).kind;
        assert_eq!(kind(Error::Infeasible { budget: 1.0, smallest: 2.0 }), Kind::NoResult);
        assert_eq!(kind(Error::NonFinite { index: 0, value: f32::NAN }), Kind::BadInput);
    }
}
