//! Cross-crate tests of lgreco; see `tests/run`.

pub mod fuzz;
