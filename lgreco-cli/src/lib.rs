//! The `lgreco` command.
