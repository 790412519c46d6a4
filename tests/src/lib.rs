//! Cross-crate tests of lgreco; see `tests/run`.
