//! The `lgreco` command: it reads gradients, and writes plans, tables and pictures.
//!
//! Other programs use three public modules: [`gradients`] reads safetensors files, [`page`] makes pages about plans,
//! and [`chart`] draws.

mod args;
pub mod chart;
mod commands;
mod comparison;
mod facts;
pub mod failure;
pub mod gradients;
pub mod page;
mod plot;
mod report;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod text_table;
mod units;
mod watch;

pub use facts::{Facts, LeftAlone};
pub use report::Solved;

use args::{ConstraintArgs, Group};
use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::io::{self, Write};

/// Prepares a table for planning with constraints in the text form of `--group` and `--fix`.
///
/// The layers of each entry of `groups` share a setting. `fixed` has entries `LAYER=SETTING`.
///
/// # Errors
/// [`failure::Failure`], with the layer or setting that the table lacks.
pub fn constrained<'a>(
    table: &'a lgreco::table::NamedTable,
    groups: &[Vec<String>],
    fixed: &[String],
) -> Result<lgreco::plan::Merged<'a>, failure::Failure> {
    let asked = ConstraintArgs { group: groups.iter().cloned().map(Group).collect(), fix: fixed.to_vec() };
    commands::constraints::merged("plan", table, &asked)
}

/// Runs the command with `args`, which begin with the program's name. Returns the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match args::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => done(commands::printed(error.print())),
                kind => {
                    // A failed write means that the terminal is gone, so nothing can be reported.
                    let _ = match kind {
                        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.print(),
                        _ => writeln!(io::stderr(), "lgreco: {}", usage(&error)),
                    };
                    error.exit_code() as u8
                }
            };
        }
    };
    done(commands::run(&cli.command, &mut io::stdout().lock()))
}

/// Reports a failure, if there is one, and returns the exit code.
fn done(result: Result<(), failure::Failure>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "lgreco: {failure}");
            failure.kind as u8
        }
    }
}

/// Describes a usage error on one line.
fn usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let line = lines.join(" ").replace(" tip: ", "; tip: ");
    failure::printable(line.strip_prefix("error: ").unwrap_or(&line))
}
