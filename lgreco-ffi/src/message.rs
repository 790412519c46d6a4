//! The text a handle keeps about its last failed call.

use core::ffi::c_char;
use core::fmt;

const CAPACITY: usize = 512;

/// At most 511 bytes of UTF-8 and a NUL, without an allocation.
pub(crate) struct Message {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Message {
    pub(crate) const fn empty() -> Message {
        Message { bytes: [0; CAPACITY], len: 0 }
    }

    pub(crate) fn set(&mut self, text: fmt::Arguments<'_>) {
        self.len = 0;
        // Writing never fails: what does not fit is left out.
        let _ = fmt::write(self, text);
        self.bytes[self.len] = 0;
    }

    /// As much of the text as there is room for, and a NUL; nothing where there is no room.
    pub(crate) fn copy_to(&self, room: &mut [u8]) {
        let Some(most) = room.len().checked_sub(1) else { return };
        let text = str::from_utf8(&self.bytes[..self.len]).unwrap_or_default();
        let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        room[..end].copy_from_slice(&text.as_bytes()[..end]);
        room[end] = 0;
    }

    pub(crate) const fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = CAPACITY - 1 - self.len;
        let end = (0..=room.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        let kept = &text[..end];
        for (byte, &from) in self.bytes[self.len..].iter_mut().zip(kept.as_bytes()) {
            *byte = if from == 0 { b'?' } else { from };
        }
        self.len += kept.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    fn text(message: &Message) -> &str {
        CStr::from_bytes_until_nul(&message.bytes).unwrap().to_str().unwrap()
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let mut message = Message::empty();
        message.set(format_args!("{}", "é".repeat(400)));
        assert_eq!(text(&message), "é".repeat(255));
        message.set(format_args!("short"));
        assert_eq!(text(&message), "short");
    }

    #[test]
    fn copies_are_cut_between_characters_too() {
        let mut message = Message::empty();
        message.set(format_args!("né"));
        for (len, expected) in
            [(0, &b""[..]), (1, b"\0"), (2, b"n\0"), (3, b"n\0."), (4, b"n\xc3\xa9\0"), (5, b"n\xc3\xa9\0.")]
        {
            let mut room = [b'.'; 5];
            message.copy_to(&mut room[..len]);
            assert_eq!(&room[..len], expected);
        }
    }

    #[test]
    fn nul_does_not_end_the_text() {
        let mut message = Message::empty();
        message.set(format_args!("layer `a\0b`: error is {}", f64::NAN));
        assert_eq!(text(&message), "layer `a?b`: error is NaN");
    }
}
