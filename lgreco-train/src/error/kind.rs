//! Short descriptions of the error codes that ranks send each other.

use core::fmt;

/// Formats a code's description, to be appended to the code; empty for a code without a description.
pub(super) struct Kind(pub u32);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match words(self.0) {
            Some(words) => write!(f, ": {words}"),
            None => Ok(()),
        }
    }
}

/// Returns a code's description. Only the error on the failing rank has numbers, and the layer or option at fault.
const fn words(code: u32) -> Option<&'static str> {
    Some(match code {
        1 => "a length that does not fit",
        2 => "a parameter outside its range",
        3 => "a tensor with too many elements",
        4 | 101 => "gradients that are not finite",
        5 => "a result that overflows f32",
        6 => "an unknown name",
        7 => "no memory",
        8 => "an element too large for the format it is sent in",
        9 => "a device that failed",
        10 | 11 => "a text that is no setting",
        20 => "a table without layers",
        21 => "a layer without options",
        22 => "an option's error that is not a finite number",
        23 => "sizes that overflow 64 bits",
        24 => "an option that its layer does not have",
        25 => "an error budget that is not a finite number",
        26 => "an error budget that no plan meets",
        27 => "a plan above its error budget",
        28 => "a plan that states what does not hold",
        29 => "two layers of one name",
        30 => "a size or time limit that no plan meets",
        31 => "a plan above its size limit",
        40..=42 => "a payload that cannot be decoded",
        43 => "a compression method that the rank does not know",
        60 => "a compressor too strong for feedback",
        61 => "feedback where it does not work",
        62 => "a saved state that cannot be read",
        63 => "bytes that are damaged",
        80 => "a collective call that failed",
        81 => "a rank that failed",
        82 => "layers, shapes, settings or a step that differ",
        83 => "a message that cannot be decoded",
        100 => "a gradient that is not its layer's",
        102 => "a layer in a bucket that is being exchanged",
        103 => "a trainer that failed, or a call out of order",
        104 => "settings for a policy that is not fixed",
        200 => "a pointer that is NULL",
        201 => "a pointer that is not aligned",
        202 => "gradients that share memory",
        203 => "a struct of another header",
        215 => "its own backward pass",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::{CoreError, Error};
    use std::string::ToString;

    #[test]
    fn a_peers_error_is_told_in_words() {
        let told = |code| Error::Peer { rank: 1, code }.to_string();
        let not_finite = Error::NonFiniteGradient { layer: 0, index: 0, value: 0.0 };
        assert_eq!(told(not_finite.code()), "rank 1 failed with error code 101: gradients that are not finite");
        assert_eq!(told(CoreError::OutOfMemory { words: 0 }.code()), "rank 1 failed with error code 7: no memory");
        assert_eq!(told(999), "rank 1 failed with error code 999");
    }
}
