//! The text that each thread keeps about its last failed call.

use crate::failure::Failure;
use crate::status::{LGRECO_PANIC, lgreco_status};
use core::any::Any;
use core::cell::RefCell;
use core::ffi::c_char;
use core::fmt;

const CAPACITY: usize = 1024;

thread_local! {
    static MESSAGE: RefCell<Message> = const { RefCell::new(Message::empty()) };
}

/// Returns the text of this thread's last failed call. Before the first failure, the text is empty.
///
/// An example is "layer `fc1`: element 77 is NaN". The text names the layer, option, argument or file, and says what
/// was found and what is expected. The text is UTF-8 and meant for people. Only status codes are stable. The text is
/// valid until this thread's next call that fails. Calls that succeed leave the text unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_message() -> *const c_char {
    MESSAGE.with_borrow(Message::as_ptr)
}

/// Makes this text the thread's message.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    MESSAGE.with_borrow_mut(|message| message.set(text));
}

/// Makes the failure's text the thread's message, and returns its status code.
pub(crate) fn failed(failure: &Failure) -> lgreco_status {
    say(format_args!("{failure}"));
    failure.status()
}

/// Makes a panic's text the thread's message, and returns LGRECO_PANIC.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> lgreco_status {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    say(format_args!("a bug in lgreco, please report it: {text}"));
    LGRECO_PANIC
}

/// A text of at most 1023 bytes of UTF-8 with a NUL after it. It needs no allocation.
struct Message {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Message {
    const fn empty() -> Message {
        Message { bytes: [0; CAPACITY], len: 0 }
    }

    fn set(&mut self, text: fmt::Arguments<'_>) {
        self.len = 0;
        // Writing never fails: text beyond the capacity is dropped.
        let _ = fmt::write(self, text);
        self.bytes[self.len] = 0;
    }

    const fn as_ptr(&self) -> *const c_char {
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
        message.set(format_args!("{}", "é".repeat(800)));
        assert_eq!(text(&message), "é".repeat(511));
        message.set(format_args!("short"));
        assert_eq!(text(&message), "short");
    }

    #[test]
    fn nul_does_not_end_the_text() {
        let mut message = Message::empty();
        message.set(format_args!("layer `a\0b`: error is {}", f64::NAN));
        assert_eq!(text(&message), "layer `a?b`: error is NaN");
    }

    #[test]
    fn every_thread_has_its_own() {
        let own = || {
            // SAFETY: the message ends with a NUL, and no later failure has changed it.
            unsafe { CStr::from_ptr(lgreco_message()) }.to_str().unwrap().to_owned()
        };
        say(format_args!("of this thread"));
        let other = std::thread::spawn(move || {
            let before = own();
            assert_eq!(failed(&Failure::Busy), crate::status::LGRECO_BUSY);
            (before, own())
        });
        assert_eq!(other.join().unwrap(), (String::new(), "the handle is in use by another call".into()));
        assert_eq!(own(), "of this thread");
    }
}
