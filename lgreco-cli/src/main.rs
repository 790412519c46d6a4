//! The `lgreco` command.
fn main() {}
