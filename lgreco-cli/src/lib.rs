//! The `lgreco` command: gradients in, plans, tables and pictures out.
//!
//! [`gradients`] is public for other programs that read them from safetensors files.

mod args;
mod commands;
pub mod failure;
pub mod gradients;
mod plot;
mod report;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod units;

use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the command with `args`, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match args::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let told = match error.kind() {
                ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.print(),
                _ => writeln!(io::stderr(), "lgreco: {}", usage(&error)),
            };
            // Nobody is left to tell when the terminal is gone.
            let _ = told;
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

/// What is wrong with the usage, on one line.
fn usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let line = lines.join(" ").replace(" tip: ", "; tip: ");
    failure::printable(line.strip_prefix("error: ").unwrap_or(&line))
}
