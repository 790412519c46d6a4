//! The options `--json`, `--plot` and `--html`.

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Destinations of results, besides the report on standard output.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Write the plan as JSON to FILE. With `-`, write only JSON to standard output.
    #[arg(long, value_name = "FILE", value_parser = target())]
    pub json: Option<Target>,
    /// Draw the plan as an SVG file: setting of each layer, size before and after compression, error against size.
    #[arg(long, value_name = "FILE.svg", value_parser = plot())]
    pub plot: Option<PathBuf>,
    /// Write a page for a browser, as one file that loads nothing else. The page shows settings over the model's depth,
    /// the size-error frontier, and a table of layers that can be sorted.
    #[arg(long, value_name = "FILE.html", value_parser = page())]
    pub html: Option<PathBuf>,
}

impl Output {
    /// The files that are written, with their flags.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let pictures = [("--plot", &self.plot), ("--html", &self.html)];
        let pictures = pictures.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)));
        Target::file(self.json.as_ref()).chain(pictures)
    }
}

/// A file, or standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output, written as `-`.
    Stdout,
    /// The file at this path.
    File(PathBuf),
}

impl Target {
    /// The file of the option `--json`, paired with that flag. Nothing for standard output.
    pub fn file(json: Option<&Target>) -> impl Iterator<Item = (&'static str, &Path)> {
        let path = json.and_then(|target| match target {
            Target::Stdout => None,
            Target::File(path) => Some(path.as_path()),
        });
        path.map(|path| ("--json", path)).into_iter()
    }
}

/// Parses the value of `--json`.
pub(super) fn target() -> impl TypedValueParser<Value = Target> {
    PathBufValueParser::new().map(|path| if path == Path::new("-") { Target::Stdout } else { Target::File(path) })
}

/// Parses the path of `--plot`.
fn plot() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let ending = path.extension().unwrap_or(OsStr::new("svg"));
        if path == Path::new("-") {
            Err("a picture is not drawn to standard output: name a file")
        } else if !ending.eq_ignore_ascii_case("svg") {
            Err("pictures are drawn as SVG alone: name a file that ends in .svg")
        } else {
            Ok(path)
        }
    })
}

/// Parses the path of a page. The file name may have any ending.
pub(super) fn page() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => Err("a page is not written to standard output: name a file"),
        false => Ok(path),
    })
}
