//! The `lgreco` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    lgreco_cli::run(std::env::args_os()).into()
}
