//! Reads lines from a file that grows, or from a pipe.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Largest length of a line in bytes. No model has longer lines, so a file with a longer line is of another kind.
const MOST: u64 = 1 << 28;

/// The source of the lines.
pub struct Source {
    /// The path, or `standard input`.
    pub name: String,
    /// Number of lines read so far.
    pub lines: u64,
    input: Input,
    /// Bytes after the last complete line.
    rest: Vec<u8>,
}

enum Input {
    /// A regular file, which may always grow. `read` is the number of bytes read so far.
    File { path: PathBuf, reader: BufReader<File>, read: u64 },
    /// Lines that a thread reads from a pipe, so that [`Source::next`] can stop waiting. The thread ends when the pipe
    /// is closed.
    Pipe(Receiver<io::Result<Vec<u8>>>),
}

/// Result of reading.
pub enum Next {
    /// A line without its newline.
    Line(Vec<u8>),
    /// No complete line yet.
    Nothing,
    /// The end: no more lines can follow.
    End,
    /// The file has become shorter, and is read again from the start.
    Anew,
}

impl Source {
    /// A file, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Source, Failure> {
        let stdin = path == Path::new("-");
        let name = if stdin { "standard input".to_owned() } else { path.display().to_string() };
        let input = if stdin {
            Input::Pipe(piped(io::stdin()))
        } else {
            let file = File::open(path).map_err(|error| Failure::bad_input(format_args!("{name}: {error}")))?;
            match file.metadata().is_ok_and(|metadata| metadata.is_file()) {
                true => Input::File { path: path.to_path_buf(), reader: BufReader::new(file), read: 0 },
                false => Input::Pipe(piped(file)),
            }
        };
        Ok(Source { name, lines: 0, input, rest: Vec::new() })
    }

    /// Whether the source is a regular file. For such files, [`next`](Source::next) never waits for a line.
    pub fn is_file(&self) -> bool {
        matches!(self.input, Input::File { .. })
    }

    /// Reads the next complete line. If the source is a pipe, waits for the line for at most `wait`. If `wait` is
    /// `None`, waits until there is a line or the pipe is closed.
    pub fn next(&mut self, wait: Option<Duration>) -> Result<Next, Failure> {
        let failed = |error: io::Error| Failure::bad_input(format_args!("{}: {error}", self.name));
        match &mut self.input {
            Input::File { reader, read, .. } => *read += read_line(reader, &mut self.rest).map_err(failed)?,
            Input::Pipe(lines) => {
                let gone = |_| RecvTimeoutError::Disconnected;
                match wait.map_or_else(|| lines.recv().map_err(gone), |wait| lines.recv_timeout(wait)) {
                    Ok(line) => self.rest = line.map_err(failed)?,
                    Err(RecvTimeoutError::Timeout) => return Ok(Next::Nothing),
                    Err(RecvTimeoutError::Disconnected) => return Ok(Next::End),
                }
            }
        }
        if self.rest.last() == Some(&b'\n') {
            self.lines += 1;
            self.rest.pop();
            return Ok(Next::Line(std::mem::take(&mut self.rest)));
        }
        if self.rest.len() as u64 >= MOST {
            let line = self.lines + 1;
            return Err(Failure::bad_input(format_args!("{}: line {line} has more than {MOST} bytes", self.name)));
        }
        // In a pipe, only the last line can be incomplete.
        let Input::File { path, read, .. } = &self.input else { return Ok(Next::End) };
        let shorter = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() < *read);
        if !shorter {
            return Ok(Next::Nothing);
        }
        *self = Source::open(&path.clone())?;
        Ok(Next::Anew)
    }

    /// Takes the bytes after the last complete line.
    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest)
    }
}

/// Reads up to the end of a line, or of the input, or until `line` has [`MOST`] bytes. Returns the number of bytes read.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let room = MOST.saturating_sub(line.len() as u64);
    Ok(reader.take(room).read_until(b'\n', line)? as u64)
}

/// The lines of a pipe, read by a thread. The thread reads at most one line ahead.
fn piped(pipe: impl Read + Send + 'static) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(0);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        loop {
            let mut line = Vec::new();
            let read = read_line(&mut reader, &mut line).map(|_| line);
            let (is_end, has_failed) = (read.as_ref().is_ok_and(Vec::is_empty), read.is_err());
            // Sending fails if nobody waits for lines any more.
            if is_end || sender.send(read).is_err() || has_failed {
                return;
            }
        }
    });
    receiver
}
