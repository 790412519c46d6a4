//! Reads a file that grows line by line.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Largest length of a line in bytes. No model has longer lines, so a longer one means that the file is of another
/// kind.
const MOST: u64 = 1 << 28;

/// The source of the lines.
pub struct Source {
    /// The path, or `standard input`.
    pub name: String,
    /// Number of lines read so far.
    pub lines: u64,
    file: Option<PathBuf>,
    reader: Box<dyn BufRead>,
    /// Bytes read so far, including an incomplete last line.
    read: u64,
    rest: Vec<u8>,
}

/// Result of reading.
pub enum Next {
    /// A line without its newline.
    Line(Vec<u8>),
    /// No complete line yet.
    Nothing,
    /// The end: no more lines can follow.
    End,
    /// The file has become shorter. It is read again from the start.
    Anew,
}

impl Source {
    /// A file, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Source, Failure> {
        let stdin = path == Path::new("-");
        let name = if stdin { "standard input".to_owned() } else { path.display().to_string() };
        let (file, reader): (_, Box<dyn BufRead>) = if stdin {
            (None, Box::new(BufReader::new(io::stdin())))
        } else {
            let file = File::open(path).map_err(|error| Failure::bad_input(format_args!("{name}: {error}")))?;
            // A pipe ends when its writer ends. A file may always grow.
            let grows = file.metadata().is_ok_and(|metadata| metadata.is_file());
            (grows.then(|| path.to_path_buf()), Box::new(BufReader::new(file)))
        };
        Ok(Source { name, lines: 0, file, reader, read: 0, rest: Vec::new() })
    }

    /// Reads the next complete line.
    pub fn next(&mut self) -> Result<Next, Failure> {
        let failed = |error: io::Error| Failure::bad_input(format_args!("{}: {error}", self.name));
        let room = MOST.saturating_sub(self.rest.len() as u64);
        self.read += (&mut self.reader).take(room).read_until(b'\n', &mut self.rest).map_err(failed)? as u64;
        if self.rest.last() == Some(&b'\n') {
            self.lines += 1;
            self.rest.pop();
            return Ok(Next::Line(std::mem::take(&mut self.rest)));
        }
        if self.rest.len() as u64 >= MOST {
            let line = self.lines + 1;
            return Err(Failure::bad_input(format_args!("{}: line {line} has more than {MOST} bytes", self.name)));
        }
        let Some(path) = &self.file else { return Ok(Next::End) };
        let shorter = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() < self.read);
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
