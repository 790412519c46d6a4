//! Why a command ends early: one line and an exit code.

use lgreco::Error;
use std::fmt;
use std::io;

/// The kinds of failure, by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing is wrong with the input, but there is no result: infeasible, memory ran out, or it could not be written.
    NoResult = 1,
    /// The input or the request is wrong.
    BadInput = 2,
}

/// A failure of a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
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
            Error::Infeasible { .. }
            | Error::OverBudget { .. }
            | Error::SizeInfeasible { .. }
            | Error::OverSize { .. }
            | Error::PlanMismatch { .. }
            | Error::RuledOut { .. }
            | Error::OutOfMemory { .. }
            | Error::Device { .. } => Failure::no_result(message),
            _ => Failure::bad_input(message),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::no_result(format_args!("standard output: {error}"))
    }
}

/// `text` with what does not print escaped (a layer's name may hold anything): control characters, so that it stays on
/// its line, and those that reorder or hide text.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if matches!(c, '\'' | '"' | '\\') {
            line.push(c);
        } else {
            // After another character combining ones stay as they are.
            line.extend(format!("a{c}").escape_debug().skip(1));
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
    fn what_reorders_or_hides_text_is_escaped() {
        assert_eq!(
            printable("a\u{202e}b\u{200b}c\u{2067}\u{feff}\u{7f}"),
            "a\\u{202e}b\\u{200b}c\\u{2067}\\u{feff}\\u{7f}"
        );
        let plain = "fc1.weight 'é' e\u{301} \"层\" \\ 1×2";
        assert_eq!(printable(plain), plain);
    }

    #[test]
    fn infeasible_is_no_fault_of_the_input() {
        let kind = |error: Error| Failure::from_core(&error, error).kind;
        assert_eq!(kind(Error::Infeasible { budget: 1.0, smallest: 2.0, size: 8 }), Kind::NoResult);
        assert_eq!(kind(Error::OutOfMemory { words: 1 << 60 }), Kind::NoResult);
        assert_eq!(kind(Error::NonFinite { index: 0, value: f32::NAN }), Kind::BadInput);
    }
}
