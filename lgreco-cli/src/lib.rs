//! The `lgreco` command: gradients in, plans, tables and pictures out.
//!
//! [`gradients`] is public for other programs that read them from safetensors files.

mod args;
mod commands;
pub mod failure;
pub mod gradients;
mod plot;
mod report;
mod units;

use clap::Parser;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the command with `args`, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match args::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell when the terminal is gone.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match commands::run(&cli.command, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "lgreco: {failure}");
            ExitCode::from(failure.kind as u8)
        }
    }
}
