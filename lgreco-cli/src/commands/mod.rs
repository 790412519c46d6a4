//! The commands, one per file.

mod backend;
mod compare;
pub mod constraints;
mod devices;
mod frontier;
mod measure;
mod model;
mod outside;
mod plan;
mod solve;
mod watch;
mod write;

use crate::args::{Command, Target};
use crate::failure::Failure;
use indicatif::ProgressBar;
use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

/// Runs a command, and writes its result to `out`.
pub fn run(command: &Command, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Command::Plan { source, solving, constraints, output } => plan::run(source, *solving, constraints, output, out),
        Command::Measure { source, json } => measure::run(source, json.as_ref(), out),
        Command::Solve { table, solving, constraints, frontier: None, output } => {
            solve::run(table, *solving, constraints, output, out)
        }
        Command::Solve { table, solving, constraints, frontier: Some(most), output } => {
            frontier::run(table, solving.solver, constraints, *most, output.json.as_ref(), out)
        }
        Command::Compare(compare) => compare::run(compare, out),
        Command::Watch(watch) => watch::run(watch, out),
        Command::Devices => print(out, &devices::report()),
    }
}

/// Writes the report to `out` and the JSON to its target. JSON on standard output replaces the report.
fn emit(
    out: &mut dyn Write,
    report: impl FnOnce() -> String,
    json: impl FnOnce() -> String,
    target: Option<&Target>,
) -> Result<(), Failure> {
    match target {
        Some(Target::Stdout) => print(out, &json()),
        Some(Target::File(path)) => {
            write::file(path, &json())?;
            print(out, &report())
        }
        None => print(out, &report()),
    }
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Turns the result of writing to standard output into a command's result. A pipe that the reader closed early is not a
/// failure.
pub fn printed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs `work` and measures its seconds. Shows a spinner if standard error is a terminal.
fn timed<T>(doing: String, work: impl FnOnce() -> T) -> (T, f64) {
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.enable_steady_tick(Duration::from_millis(100));
    let start = Instant::now();
    let result = work();
    let seconds = start.elapsed().as_secs_f64();
    spinner.finish_and_clear();
    (result, seconds)
}
