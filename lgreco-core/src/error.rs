//! What can go wrong, and the checks that crates share.

mod word;

pub use word::Word;
pub use word::nearest;

use crate::num::Sum;
use core::fmt;
use word::{Found, Meant};

/// Everything that can go wrong, with the place and the numbers; no strings are built.
///
/// Layers and options are named by index, counted from 0; callers that know names add them.
/// [`Error::code`] is permanent and shared with the C API.
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
    /// A slice does not have the length the call needs.
    #[error("{what}: expected {expected}, found {found}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// The length it must have (for buffers and workspaces: at least).
        expected: usize,
        /// The length it has.
        found: usize,
    },
    /// A parameter is outside its range.
    #[error("{what} is {}, expected {expected}", Number(.value))]
    Parameter {
        /// Which parameter.
        what: &'static str,
        /// The value given.
        value: f64,
        /// The range it must be in.
        expected: &'static str,
    },
    /// A word that names nothing.
    #[error("unknown {what}, expected {expected}")]
    UnknownName {
        /// What it should name.
        what: &'static str,
        /// The names there are.
        expected: &'static str,
    },
    /// A word that no setting has there.
    #[error("setting: `{word}` is unknown{}", Meant(.word, .known))]
    SettingWord {
        /// The word found.
        word: Word,
        /// The words that may stand there.
        known: &'static [&'static str],
    },
    /// A text that is not a setting, although all words before are known.
    #[error("setting: found {}, expected {expected}", Found(.word))]
    SettingSyntax {
        /// The word found; empty at the end of the text.
        word: Word,
        /// What may stand there.
        expected: &'static str,
    },
    /// A tensor with 2^32 rows, columns or elements, or more.
    #[error("a {rows} x {cols} tensor: rows, columns and elements must be below 2^32")]
    TooManyElements {
        /// First dimension.
        rows: usize,
        /// Product of the others.
        cols: usize,
    },
    /// A gradient holds NaN or infinity.
    #[error("element {index} is {value}: gradients must be finite")]
    NonFinite {
        /// Position of the first such element.
        index: usize,
        /// The element.
        value: f32,
    },
    /// The allocator has no room for a workspace.
    #[error("a workspace of {words} words of 8 bytes cannot be allocated")]
    OutOfMemory {
        /// Its length.
        words: usize,
    },
    /// A result does not fit the number format it is sent in.
    #[error("{what} overflows f32")]
    Overflow {
        /// Which quantity.
        what: &'static str,
    },
    /// An element is too large for the format it is to be sent in.
    #[error("element {index} is {}: its magnitude does not fit the format it is sent in", Number(.value))]
    ElementOverflow {
        /// Position of the element.
        index: usize,
        /// The element.
        value: f32,
    },

    /// A backend's device failed; the backend's own error says more.
    #[error("the device failed: {what}")]
    Device {
        /// In what way.
        what: &'static str,
    },

    /// A table without layers.
    #[error("the table has no layers")]
    EmptyTable,
    /// A layer without options.
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
        /// The error given.
        value: f64,
    },
    /// The sizes of the largest options, summed over the layers, do not fit 64 bits.
    #[error("layer {layer}, option {option}: size {size} makes the total overflow 64 bits")]
    SizeOverflow {
        /// Index of the layer.
        layer: usize,
        /// Index of the option in its layer.
        option: usize,
        /// Its size in bits.
        size: u64,
    },
    /// A choice names an option its layer does not have.
    #[error("layer {layer}: option {option} chosen, but there are {options}")]
    NoSuchOption {
        /// Index of the layer.
        layer: usize,
        /// The option named.
        option: usize,
        /// Number of options of the layer.
        options: usize,
    },
    /// Two layers have one name; state and plans are keyed by name.
    #[error("layers {first} and {layer} have the same name")]
    DuplicateName {
        /// Index of the second layer.
        layer: usize,
        /// Index of the first layer.
        first: usize,
    },
    /// A budget that is NaN, infinite or negative.
    #[error("the error budget is {}, expected a finite number >= 0", Number(.value))]
    Budget {
        /// The budget given.
        value: f64,
    },
    /// No plan meets the budget.
    #[error(
        "infeasible: the error budget is {}, the smallest achievable error is {}, with a size of {}",
        Number(.budget),
        Number(.smallest),
        Bits(*.size)
    )]
    Infeasible {
        /// The budget.
        budget: f64,
        /// The error of the plan with every layer's most exact option, rounded up: as a budget it is enough.
        smallest: f64,
        /// The size of that plan in bits. Ties take the smaller option.
        size: u64,
    },
    /// The plan's choices cost more error than its budget.
    #[error("the plan's error is {}, its budget {}", Number(.error), Number(.budget))]
    OverBudget {
        /// The error of the choices, summed by the verifier.
        error: f64,
        /// The budget the plan was made for.
        budget: f64,
    },
    /// No plan is within the size limit.
    #[error(
        "infeasible: the size limit is {}, the smallest achievable size is {}, with an error of {}",
        Bits(*.limit),
        Bits(*.smallest),
        Number(.error)
    )]
    SizeInfeasible {
        /// The size limit in bits.
        limit: u64,
        /// The size of the plan with every layer's smallest option: as a limit it is enough.
        smallest: u64,
        /// The error of that plan, rounded up. Of equally small options it has the most exact.
        error: f64,
    },
    /// The plan's choices have more bits than its size limit.
    #[error("the plan's size is {}, its limit {}", Bits(*.size), Bits(*.limit))]
    OverSize {
        /// The bits of the choices.
        size: u64,
        /// The size limit that the plan was made for.
        limit: u64,
    },
    /// A plan's statement about itself does not hold.
    #[error("the plan states {what} {}, the verifier finds {}", Number(.stated), Number(.found))]
    PlanMismatch {
        /// Which statement.
        what: &'static str,
        /// What the plan says.
        stated: f64,
        /// What the verifier finds.
        found: f64,
    },

    /// Layers of one group have no option left that all of them can have.
    #[error(
        "layer {layer}: none of its options is shared by all layers of its group, the first of which is layer {first}; compare their labels and fixed options"
    )]
    NoSharedOption {
        /// Index of the layer that has none of the options that the group's layers before it share.
        layer: usize,
        /// Index of the group's first layer.
        first: usize,
    },
    /// Layers of one group in a table without labels, where options are matched by their index, differ in their number.
    #[error(
        "layer {layer} has {options} options, but layer {first} of its group has {expected}: they must have as many"
    )]
    UnequalOptions {
        /// Index of the layer.
        layer: usize,
        /// Number of its options.
        options: usize,
        /// Index of the first layer of the group.
        first: usize,
        /// Number of that layer's options.
        expected: usize,
    },
    /// A plan's choice that the table's groups or fixed options rule out.
    #[error(
        "layer {layer}: the table's groups and fixed options rule option {option} out; they allow option {allowed}, for one"
    )]
    RuledOut {
        /// Index of the layer.
        layer: usize,
        /// Index of the option that the plan chooses.
        option: usize,
        /// Index of one that goes with the choices of the layers before it in its group.
        allowed: usize,
    },

    /// Bytes that are not a payload of this version.
    #[error("payload: {what} is {found:#x}, expected {expected:#x}")]
    PayloadHeader {
        /// Which header field.
        what: &'static str,
        /// The value expected.
        expected: u64,
        /// The value found.
        found: u64,
    },
    /// A header field of a payload that is beyond what this version defines.
    #[error("payload: {what} is {found:#x}, expected at most {largest:#x}")]
    PayloadField {
        /// Which header field.
        what: &'static str,
        /// The largest value there is.
        largest: u64,
        /// The value found.
        found: u64,
    },
    /// A payload whose body contradicts its header.
    #[error("payload: {what}")]
    PayloadBody {
        /// What is wrong.
        what: &'static str,
    },
    /// A method that is neither lgreco's own nor among those that the program knows.
    #[error("method {id:#x} is unknown: register it in `Search::methods`, or pass it to `parse_with` or `decode_with`")]
    UnknownMethod {
        /// The method's id.
        id: u8,
    },
    /// Bytes that are not a saved state of this version.
    #[error("saved state: {what} is {found:#x}")]
    SavedState {
        /// Which field.
        what: &'static str,
        /// The value found.
        found: u64,
    },
    /// A saved state or a sealed payload that is not as it was written.
    #[error("the bytes are damaged or cut short: their checksum is {expected:#x}, the one that they carry {found:#x}")]
    Checksum {
        /// The checksum of the bytes.
        expected: u64,
        /// The checksum they carry.
        found: u64,
    },
}

/// What a call of this crate gives: a `T`, or an [`Error`] unless another type is named.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// [`Error::Parameter`] unless `holds`.
    pub fn require(holds: bool, what: &'static str, value: f64, expected: &'static str) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(Error::Parameter { what, value, expected }) }
    }

    /// [`Error::SavedState`] unless `holds`.
    pub fn require_saved(holds: bool, what: &'static str, found: u64) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(Error::SavedState { what, found }) }
    }

    /// [`Error::Overflow`] unless `finite`.
    pub fn require_finite(finite: bool, what: &'static str) -> Result<(), Error> {
        if finite { Ok(()) } else { Err(Error::Overflow { what }) }
    }

    /// [`Error::PayloadBody`] with what is wrong, unless `sound`.
    pub fn require_body(sound: bool, what: &'static str) -> Result<(), Error> {
        if sound { Ok(()) } else { Err(Error::PayloadBody { what }) }
    }

    /// No plan meets `budget`, since the most exact one has the error `smallest` and `size` bits.
    pub(crate) fn infeasible(budget: f64, smallest: Sum, size: u64) -> Error {
        Error::Infeasible { budget, smallest: finite_or_infinite(smallest), size }
    }

    /// No plan is within `limit`, since the smallest one has `smallest` bits and the error `error`.
    pub(crate) fn size_infeasible(limit: u64, smallest: u64, error: Sum) -> Error {
        Error::SizeInfeasible { limit, smallest, error: finite_or_infinite(error) }
    }

    /// The permanent numeric code of this kind of error; never 0, never reused.
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

    /// The layer at fault, for errors that have one.
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

    /// The option at fault, in the layer at fault, for errors that have one.
    pub const fn option(&self) -> Option<usize> {
        match *self {
            Error::OptionError { option, .. } | Error::SizeOverflow { option, .. } | Error::RuledOut { option, .. } => {
                Some(option)
            }
            _ => None,
        }
    }
}

/// A sum of errors, rounded up; infinity beyond f64::MAX, where the sum is not a number.
fn finite_or_infinite(sum: Sum) -> f64 {
    let sum = sum.rounded_up();
    if sum.is_nan() { f64::INFINITY } else { sum }
}

/// A size for people.
struct Bits(u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "bit" } else { "bits" })
    }
}

/// A number for people: with an exponent where it would otherwise be a row of zeros.
pub struct Number<'a, T>(pub &'a T);

impl<T: Copy + Into<f64> + fmt::Display + fmt::LowerExp> fmt::Display for Number<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = (*self.0).into().abs();
        let plain = !size.is_finite() || size == 0.0 || (1e-5..1e16).contains(&size);
        if plain { fmt::Display::fmt(self.0, f) } else { fmt::LowerExp::fmt(self.0, f) }
    }
}

/// `Err` with the first layer that has the name of an earlier one. O(n log n).
#[cfg(feature = "alloc")]
pub fn expect_distinct<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = alloc::collections::BTreeMap::new();
    for (layer, name) in names.into_iter().enumerate() {
        if let Some(first) = seen.insert(name, layer) {
            return Err(Error::DuplicateName { layer, first });
        }
    }
    Ok(())
}

/// `Err` unless `found == expected`.
pub fn expect_len(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

/// `Err` unless `found >= expected`.
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
