//! A file of results, to which runs are added one by one.

use crate::report::Row;
use crate::worker::Failure;
use std::path::PathBuf;

/// The results of runs, with the JSON file that stores them, if there is a file.
pub struct Results {
    path: Option<PathBuf>,
    rows: Vec<Row>,
}

impl Results {
    /// Reads the file, which may be missing.
    pub fn open(path: Option<PathBuf>) -> Result<Results, Failure> {
        let rows = match &path {
            Some(path) if path.exists() => Results::read(path)?,
            _ => vec![],
        };
        Ok(Results { path, rows })
    }

    /// The runs of a file.
    pub fn read(path: &PathBuf) -> Result<Vec<Row>, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
    }

    /// All runs so far.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Adds a run, and writes the file. So the file has all finished runs if the program is stopped.
    pub fn add(&mut self, row: Row) -> Result<(), Failure> {
        self.rows.push(row);
        if let Some(path) = &self.path {
            let new = path.with_extension("new");
            let lines = self.rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            std::fs::write(&new, format!("[\n{}\n]\n", lines.join(",\n")))?;
            std::fs::rename(new, path)?;
        }
        Ok(())
    }
}
