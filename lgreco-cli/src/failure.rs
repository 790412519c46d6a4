//! Failures of commands: a message of one line and an exit code.

use lgreco::Error;
use std::fmt;
use std::io;

/// The kinds of failure, with their exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The input is correct but there is no result: the limit is infeasible, memory ran out, or output could not be written.
    NoResult = 1,
    /// The input or the request is wrong.
    BadInput = 2,
}

/// A command's failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind of failure.
    pub kind: Kind,
    /// What is wrong and where, without control characters.
    pub message: String,
}

impl Failure {
    /// A failure caused by the input.
    pub fn bad_input(message: impl fmt::Display) -> Self {
        Failure { kind: Kind::BadInput, message: printable(&message.to_string()) }
    }

    /// A failure despite correct input.
    pub fn no_result(message: impl fmt::Display) -> Self {
        Failure { kind: Kind::NoResult, message: printable(&message.to_string()) }
    }

    /// A failure of the kind that `error` implies, with the text `message`.
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

/// Escapes unprintable characters of `text`, which layer names may contain. Control characters would break the line,
/// and other characters can reorder or hide text.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if matches!(c, '\'' | '"' | '\\') {
            line.push(c);
        } else {
            // The `a` in front keeps combining characters from being escaped.
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
