//! `lgreco watch`: shows a training run in progress.

use super::write;
use crate::args::Watch;
use crate::failure::Failure;
use crate::watch::{Next, Run, Source, html};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Reason for ending.
enum End {
    Failed(Failure),
    /// The reader has closed standard output.
    Closed,
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        End::Failed(failure)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        if error.kind() == ErrorKind::BrokenPipe { End::Closed } else { End::Failed(error.into()) }
    }
}

pub fn run(watch: &Watch, out: &mut dyn Write) -> Result<(), Failure> {
    let page = watch.html.as_deref().map(|path| ("--html", path));
    let input = Some(watch.steps.as_path()).filter(|path| *path != Path::new("-"));
    write::distinct(input.into_iter(), page)?;
    match follow(watch, Source::open(&watch.steps)?, out) {
        Err(End::Failed(failure)) => Err(failure),
        Err(End::Closed) | Ok(()) => Ok(()),
    }
}

fn follow(watch: &Watch, mut source: Source, out: &mut dyn Write) -> Result<(), End> {
    let every = Duration::from_secs_f64(watch.every);
    // Browsers reload the page as often as the command checks the file.
    let refresh = watch.every.ceil().max(1.0) as u32;
    let (mut run, mut shown, mut is_new) = (Run::default(), None::<Instant>, false);
    out.write_all(Run::head().as_bytes())?;
    loop {
        // A new line is shown after at most `every`, even if no other line follows.
        let since = shown.map_or(Duration::ZERO, |time| time.elapsed());
        let wait = (is_new && !watch.once).then(|| every.saturating_sub(since));
        let waits = match source.next(wait)? {
            Next::Line(line) => {
                let wrong = |what| Failure::bad_input(format_args!("{}: line {}: {what}", source.name, source.lines));
                run.add(&line).map_err(wrong)?;
                is_new = true;
                false
            }
            Next::Anew => {
                run = Run::default();
                out.write_all(b"the file begins anew\n")?;
                false
            }
            Next::Nothing if !watch.once => true,
            Next::Nothing | Next::End => break,
        };
        if is_new && (waits || shown.is_none_or(|time| time.elapsed() >= every)) {
            row(&run, out)?;
            page(watch, &source, &run, Some(refresh))?;
            (shown, is_new) = (Some(Instant::now()), false);
        }
        if waits && source.is_file() {
            std::thread::sleep(every);
        }
    }
    let rest = source.rest();
    if !rest.trim_ascii().is_empty() {
        match run.add(&rest) {
            Ok(()) => is_new = true,
            Err(_) => writeln!(out, "line {} is not finished", source.lines + 1)?,
        }
    }
    if run.last.is_none() {
        return Err(Failure::bad_input(format_args!("{}: there is no step in it", source.name)).into());
    }
    if is_new {
        row(&run, out)?;
    }
    page(watch, &source, &run, None)
}

fn row(run: &Run, out: &mut dyn Write) -> Result<(), End> {
    out.write_all(run.row().as_bytes())?;
    Ok(out.flush()?)
}

fn page(watch: &Watch, source: &Source, run: &Run, refresh: Option<u32>) -> Result<(), End> {
    if let Some(path) = &watch.html {
        write::file(path, &html(&source.name, run, refresh))?;
    }
    Ok(())
}
