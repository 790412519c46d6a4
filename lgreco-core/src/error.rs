//! The error type of this crate, and checks that other crates use too.

mod word;

pub use word::Word;
pub use word::nearest;

use crate::num::Sum;
use core::fmt;
use word::{Found, Meant};

/// An error of this crate. An error states what is wrong, where, and which value was found. Errors hold no allocated
/// strings.
///
/// Layers and options are named by index, counted from 0. Callers that know the names of layers and options add these
/// names to the message. [`Error::code`] is permanent and shared with the C API.
///
/// ```
/// use lgreco_core::{Error, gradient::Shape};
/// let error = Shape::new(1 << 20, 1 << 12).unwrap_err();
/// assert_eq!(error, Error::TooManyElements { rows: 1 << 20, cols: 1 << 12 });
/// assert_eq!(error.to_string(), "a 1048576 x 4096 tensor: rows, columns and elements must be below 2^32");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice does not have the length that the call needs.
    #[error("{what}: expected {expected}, found {found}")]
    Length {
        /// The argument's name.
        what: &'static str,
        /// The required length. Buffers and workspaces may be longer.
        expected: usize,
        /// The length of the slice.
        found: usize,
    },
    /// A parameter is outside its range.
    #[error("{what} is {}, expected {expected}", Number(.value))]
    Parameter {
        /// The parameter's name.
        what: &'static str,
        /// The value given.
        value: f64,
        /// The allowed range.
        expected: &'static str,
    },
    /// A name is unknown.
    #[error("unknown {what}, expected {expected}")]
    UnknownName {
        /// The kind of thing that the name should denote.
        what: &'static str,
        /// The known names.
        expected: &'static str,
    },
    /// The text of a setting has an unknown word.
    #[error("setting: `{word}` is unknown{}", Meant(.word, .known))]
    SettingWord {
        /// The word found.
        word: Word,
        /// The words that are allowed at this position.
        known: &'static [&'static str],
    },
    /// The text of a setting begins correctly, but has a wrong word or ends too early.
    #[error("setting: found {}, expected {expected}", Found(.word))]
    SettingSyntax {
        /// The word found; empty at the end of the text.
        word: Word,
        /// The words that are allowed at this position.
        expected: &'static str,
    },
    /// A tensor has 2^32 or more rows, columns or elements.
    #[error("a {rows} x {cols} tensor: rows, columns and elements must be below 2^32")]
    TooManyElements {
        /// First dimension.
        rows: usize,
        /// Product of the other dimensions.
        cols: usize,
    },
    /// A gradient holds NaN or infinity.
    #[error("element {index} is {value}: gradients must be finite")]
    NonFinite {
        /// Index of the first element that is not finite.
        index: usize,
        /// The element's value.
        value: f32,
    },
    /// A workspace could not be allocated.
    #[error("a workspace of {words} words of 8 bytes cannot be allocated")]
    OutOfMemory {
        /// The workspace's length in 8-byte words.
        words: usize,
    },
    /// A result is too large for the number format in which it is sent.
    #[error("{what} overflows f32")]
    Overflow {
        /// The quantity that overflows.
        what: &'static str,
    },
    /// An element is too large for the number format in which it is sent.
    #[error("element {index} is {}: its magnitude does not fit the format it is sent in", Number(.value))]
    ElementOverflow {
        /// Index of the element.
        index: usize,
        /// The element's value.
        value: f32,
    },

    /// A backend's device failed. The backend's error type has the details.
    #[error("the device failed: {what}")]
    Device {
        /// The kind of failure.
        what: &'static str,
    },

    /// The table has no layers. The table of a search has no layers if the search leaves all layers uncompressed.
    #[error("the table has no layers: a search leaves out vectors and layers of fewer than `min_elements` elements")]
    EmptyTable,
    /// A layer has no options.
    #[error("layer {layer} has no options")]
    EmptyLayer {
        /// Index of the layer.
        layer: usize,
    },
    /// An option's error is NaN, infinite or negative.
    #[error("layer {layer}, option {option}: error is {}, expected a finite number >= 0", Number(.value))]
    OptionError {
        /// Index of the layer.
        layer: usize,
        /// Index of the option in its layer.
        option: usize,
        /// The option's error.
        value: f64,
    },
    /// The sum over layers of each layer's largest size does not fit 64 bits.
    #[error("layer {layer}, option {option}: size {size} makes the total overflow 64 bits")]
    SizeOverflow {
        /// Index of the layer.
        layer: usize,
        /// Index of the option in its layer.
        option: usize,
        /// The option's size in bits.
        size: u64,
    },
    /// A plan names an option that its layer does not have.
    #[error("layer {layer}: option {option} chosen, but there are {options}")]
    NoSuchOption {
        /// Index of the layer.
        layer: usize,
        /// Index of the option that the plan names.
        option: usize,
        /// Number of options of the layer.
        options: usize,
    },
    /// Two layers have the same name. Saved states and plans find layers by name.
    #[error("layers {first} and {layer} have the same name")]
    DuplicateName {
        /// Index of the later layer.
        layer: usize,
        /// Index of the earlier layer.
        first: usize,
    },
    /// The error budget is NaN, infinite or negative.
    #[error("the error budget is {}, expected a finite number >= 0", Number(.value))]
    Budget {
        /// The budget.
        value: f64,
    },
    /// No plan meets the error budget.
    #[error(
        "infeasible: the error budget is {}, the smallest achievable error is {}, with a size of {}",
        Number(.budget),
        Number(.smallest),
        Bits(*.size)
    )]
    Infeasible {
        /// The budget.
        budget: f64,
        /// The smallest error of any plan, rounded up. A plan exists for every budget from this number on.
        smallest: f64,
        /// The size in bits of the plan with the smallest error. If options of a layer have equal errors, this plan has
        /// the smallest of these options.
        size: u64,
    },
    /// The plan's error exceeds its budget.
    #[error("the plan's error is {}, its budget {}", Number(.error), Number(.budget))]
    OverBudget {
        /// The error of the chosen options, summed by the verifier.
        error: f64,
        /// The plan's error budget.
        budget: f64,
    },
    /// No plan meets the size limit.
    #[error(
        "infeasible: the size limit is {}, the smallest achievable size is {}, with an error of {}",
        Bits(*.limit),
        Bits(*.smallest),
        Number(.error)
    )]
    SizeInfeasible {
        /// The size limit in bits.
        limit: u64,
        /// The smallest size of any plan, in bits. A plan exists for every limit from this number on.
        smallest: u64,
        /// The error of the plan with the smallest size, rounded up. If options of a layer have equal sizes, this plan
        /// has the option with the least error.
        error: f64,
    },
    /// The plan's size exceeds its limit.
    #[error("the plan's size is {}, its limit {}", Bits(*.size), Bits(*.limit))]
    OverSize {
        /// The size of the chosen options in bits.
        size: u64,
        /// The plan's size limit in bits.
        limit: u64,
    },
    /// The plan states a number that the verifier contradicts.
    #[error("the plan states {what} {}, the verifier finds {}", Number(.stated), Number(.found))]
    PlanMismatch {
        /// The stated quantity.
        what: &'static str,
        /// The plan's number.
        stated: f64,
        /// The verifier's number.
        found: f64,
    },

    /// The layers of a group have no allowed option in common.
    #[error(
        "layer {layer}: none of its options is shared by all layers of its group, the first of which is layer {first}, counted from 0; compare their labels and fixed options"
    )]
    NoSharedOption {
        /// Index of the group's first layer that has none of the options shared by all earlier layers.
        layer: usize,
        /// Index of the group's first layer.
        first: usize,
    },
    /// Layers of one group differ in their number of options. Without labels, options are matched by index.
    #[error(
        "layer {layer} has {options} options, but layer {first} of its group has {expected}: they must have equally many"
    )]
    UnequalOptions {
        /// Index of the layer.
        layer: usize,
        /// Number of its options.
        options: usize,
        /// Index of the first layer of the group.
        first: usize,
        /// Number of options of the first layer.
        expected: usize,
    },
    /// The plan chooses an option that the table's groups or fixed options forbid.
    #[error(
        "layer {layer}: the table's groups and fixed options rule option {option} out; for example, option {allowed} is allowed"
    )]
    RuledOut {
        /// Index of the layer.
        layer: usize,
        /// Index of the option that the plan chooses.
        option: usize,
        /// Index of an allowed option, which agrees with the choices of the group's earlier layers.
        allowed: usize,
    },

    /// The bytes are not a payload of this version.
    #[error("payload: {what} is {found:#x}, expected {expected:#x}")]
    PayloadHeader {
        /// The header field.
        what: &'static str,
        /// The value expected.
        expected: u64,
        /// The value found.
        found: u64,
    },
    /// A header field of a payload exceeds the largest value that this version defines.
    #[error("payload: {what} is {found:#x}, expected at most {largest:#x}")]
    PayloadField {
        /// The header field.
        what: &'static str,
        /// The largest defined value.
        largest: u64,
        /// The value found.
        found: u64,
    },
    /// A payload's body contradicts its header.
    #[error("payload: {what}")]
    PayloadBody {
        /// The contradiction.
        what: &'static str,
    },
    /// The method is not one of lgreco's own, and the program has not registered it.
    #[error("method {id:#x} is unknown: register it in `Search::methods`, or pass it to `parse_with` or `decode_with`")]
    UnknownMethod {
        /// The method's id.
        id: u8,
    },
    /// The bytes are not a saved state of this version.
    #[error("saved state: {what} is {found:#x}")]
    SavedState {
        /// The field.
        what: &'static str,
        /// The value found.
        found: u64,
    },
    /// A saved state or a sealed payload is damaged or cut short.
    #[error("the bytes are damaged or cut short: their checksum is {expected:#x}, the one that they carry {found:#x}")]
    Checksum {
        /// The checksum computed from the bytes.
        expected: u64,
        /// The checksum stored with the bytes.
        found: u64,
    },
}

/// Result of a call of this crate: a `T` or an [`Error`]. Other crates may pass another error type as `E`.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// Returns [`Error::Parameter`] unless `holds`.
    pub fn require(holds: bool, what: &'static str, value: f64, expected: &'static str) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(Error::Parameter { what, value, expected }) }
    }

    /// Returns [`Error::SavedState`] unless `holds`.
    pub fn require_saved(holds: bool, what: &'static str, found: u64) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(Error::SavedState { what, found }) }
    }

    /// Returns [`Error::Overflow`] unless `finite`.
    pub fn require_finite(finite: bool, what: &'static str) -> Result<(), Error> {
        if finite { Ok(()) } else { Err(Error::Overflow { what }) }
    }

    /// Returns [`Error::PayloadBody`] with the contradiction `what`, unless `sound`.
    pub fn require_body(sound: bool, what: &'static str) -> Result<(), Error> {
        if sound { Ok(()) } else { Err(Error::PayloadBody { what }) }
    }

    /// The error for a `budget` that no plan meets. The plan with the least error has the error `smallest` and `size`
    /// bits.
    pub(crate) fn infeasible(budget: f64, smallest: Sum, size: u64) -> Error {
        Error::Infeasible { budget, smallest: finite_or_infinite(smallest), size }
    }

    /// The error for a size `limit` that no plan meets. The smallest plan has `smallest` bits and the error `error`.
    pub(crate) fn size_infeasible(limit: u64, smallest: u64, error: Sum) -> Error {
        Error::SizeInfeasible { limit, smallest, error: finite_or_infinite(error) }
    }

    /// The permanent number of this kind of error. Numbers are never 0 and never reused.
    pub const fn code(&self) -> u32 {
        match self {
            Error::Length { .. } => 1,
            Error::Parameter { .. } => 2,
            Error::TooManyElements { .. } => 3,
            Error::NonFinite { .. } => 4,
            Error::Overflow { .. } => 5,
            Error::UnknownName { .. } => 6,
            Error::OutOfMemory { .. } => 7,
            Error::ElementOverflow { .. } => 8,
            Error::Device { .. } => 9,
            Error::SettingWord { .. } => 10,
            Error::SettingSyntax { .. } => 11,
            Error::EmptyTable => 20,
            Error::EmptyLayer { .. } => 21,
            Error::OptionError { .. } => 22,
            Error::SizeOverflow { .. } => 23,
            Error::NoSuchOption { .. } => 24,
            Error::Budget { .. } => 25,
            Error::Infeasible { .. } => 26,
            Error::OverBudget { .. } => 27,
            Error::PlanMismatch { .. } => 28,
            Error::DuplicateName { .. } => 29,
            Error::SizeInfeasible { .. } => 30,
            Error::OverSize { .. } => 31,
            Error::NoSharedOption { .. } => 32,
            Error::UnequalOptions { .. } => 33,
            Error::RuledOut { .. } => 34,
            Error::PayloadHeader { .. } => 40,
            Error::PayloadBody { .. } => 41,
            Error::PayloadField { .. } => 42,
            Error::UnknownMethod { .. } => 43,
            Error::SavedState { .. } => 62,
            Error::Checksum { .. } => 63,
        }
    }

    /// Index of the faulty layer, for errors that concern a layer.
    pub const fn layer(&self) -> Option<usize> {
        match *self {
            Error::EmptyLayer { layer }
            | Error::OptionError { layer, .. }
            | Error::SizeOverflow { layer, .. }
            | Error::NoSuchOption { layer, .. }
            | Error::NoSharedOption { layer, .. }
            | Error::UnequalOptions { layer, .. }
            | Error::RuledOut { layer, .. }
            | Error::DuplicateName { layer, .. } => Some(layer),
            _ => None,
        }
    }

    /// Index of the faulty option within its layer, for errors that concern an option.
    pub const fn option(&self) -> Option<usize> {
        match *self {
            Error::OptionError { option, .. } | Error::SizeOverflow { option, .. } | Error::RuledOut { option, .. } => {
                Some(option)
            }
            _ => None,
        }
    }
}

/// Rounds a sum of errors up. Returns infinity if the sum overflows to NaN.
fn finite_or_infinite(sum: Sum) -> f64 {
    let sum = sum.rounded_up();
    if sum.is_nan() { f64::INFINITY } else { sum }
}

/// Writes a size with its unit.
struct Bits(u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "bit" } else { "bits" })
    }
}

/// Writes a number for messages. Very large and very small numbers get an exponent.
pub struct Number<'a, T>(pub &'a T);

impl<T: Copy + Into<f64> + fmt::Display + fmt::LowerExp> fmt::Display for Number<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = (*self.0).into().abs();
        let plain = !size.is_finite() || size == 0.0 || (1e-5..1e16).contains(&size);
        if plain { fmt::Display::fmt(self.0, f) } else { fmt::LowerExp::fmt(self.0, f) }
    }
}

/// Sorts names, and returns each name with its index in `names`. If two names are equal, fails with the indices of the
/// first such pair. O(n log n).
#[cfg(feature = "alloc")]
pub fn distinct<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<alloc::vec::Vec<(&'a str, usize)>, Error> {
    let mut names: alloc::vec::Vec<_> = names.into_iter().zip(0..).collect();
    names.sort_unstable();
    let twice = names.windows(2).filter(|pair| pair[0].0 == pair[1].0).min_by_key(|pair| pair[1].1);
    match twice {
        Some(pair) => Err(Error::DuplicateName { layer: pair[1].1, first: pair[0].1 }),
        None => Ok(names),
    }
}

/// Fails unless `found == expected`.
pub fn expect_len(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

/// Fails unless `found >= expected`.
pub fn expect_room(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected <= found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn large_and_small_numbers_are_short() {
        let text = |value| Error::Budget { value }.to_string();
        assert_eq!(text(-1e308), "the error budget is -1e308, expected a finite number >= 0");
        assert_eq!(text(f64::NEG_INFINITY), "the error budget is -inf, expected a finite number >= 0");
        assert_eq!(text(-5e-324), "the error budget is -5e-324, expected a finite number >= 0");
        assert_eq!(text(-0.25), "the error budget is -0.25, expected a finite number >= 0");
        let infeasible = Error::Infeasible { budget: 1e300, smallest: 1.5e300, size: 1 }.to_string();
        let told =
            "infeasible: the error budget is 1e300, the smallest achievable error is 1.5e300, with a size of 1 bit";
        assert_eq!(infeasible, told);
        let infeasible = Error::SizeInfeasible { limit: 1, smallest: 20, error: 1e-9 }.to_string();
        let told =
            "infeasible: the size limit is 1 bit, the smallest achievable size is 20 bits, with an error of 1e-9";
        assert_eq!(infeasible, told);
        let element = Error::ElementOverflow { index: 3, value: 1e38 }.to_string();
        assert_eq!(element, "element 3 is 1e38: its magnitude does not fit the format it is sent in");
        let all = [
            Error::Parameter { what: "gain", value: 1e308, expected: "in (0, 1]" },
            Error::OptionError { layer: 0, option: 0, value: -1e308 },
            Error::OverBudget { error: 1e308, budget: 1e300 },
            Error::PlanMismatch { what: "error", stated: 1e308, found: 1e-308 },
        ];
        assert!(all.iter().all(|error| error.to_string().len() < 220));
    }
}
