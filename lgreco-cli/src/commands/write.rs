//! Files: whole or not at all, and never the input.

use crate::args::Target;
use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Refuses to write over `inputs`, and to write two results to one file.
pub fn distinct<'a>(
    inputs: impl Iterator<Item = &'a Path>,
    json: Option<&'a Target>,
    plot: Option<&'a Path>,
) -> Result<(), Failure> {
    let json = match json {
        Some(Target::File(path)) => Some(path.as_path()),
        _ => None,
    };
    let results = json.map(|path| ("--json", path)).into_iter().chain(plot.map(|path| ("--plot", path)));
    let named = inputs.map(|path| ("the input", path)).chain(results);
    let files: Vec<_> = named.map(|(name, path)| (name, path, place(path))).collect();
    for (at, (flag, path, place)) in files.iter().enumerate() {
        if let Some((other, ..)) = files[..at].iter().find(|(.., earlier)| earlier == place && !is_special(place)) {
            return Err(Failure::bad_input(format_args!("{flag} {} would overwrite {other}", path.display())));
        }
    }
    Ok(())
}

/// Writes `text` to the file at `path`: to a new file beside it, which then takes its place, so that a failure leaves
/// what was there. Devices and pipes are written to directly.
pub fn file(path: &Path, text: &str) -> Result<(), Failure> {
    let place = place(path);
    let written = if is_special(&place) { fs::write(&place, text) } else { replace(&place, text.as_bytes()) };
    written.map_err(|error| Failure::no_result(format_args!("{}: {error}", path.display())))
}

fn replace(place: &Path, bytes: &[u8]) -> io::Result<()> {
    // What may not be written to may not be replaced either.
    let permissions = match OpenOptions::new().write(true).open(place) {
        Ok(file) => Some(file.metadata()?.permissions()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mut name = OsString::from(".");
    name.push(place.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = place.with_file_name(name);
    let mut file = File::create_new(&beside)?;
    let filled = file.write_all(bytes).and_then(|()| permissions.map_or(Ok(()), |these| file.set_permissions(these)));
    drop(file);
    filled.and_then(|()| fs::rename(&beside, place)).inspect_err(|_| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
    })
}

/// The file that `path` leads to, through links; where there is none yet, the place it would have.
fn place(path: &Path) -> PathBuf {
    let there = |path: &Path| path.canonicalize().ok();
    let new = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(there(folder)?.join(path.file_name()?))
    };
    there(path).or_else(new).unwrap_or_else(|| path.into())
}

/// Whether there is something at `place` that is no file.
fn is_special(place: &Path) -> bool {
    fs::metadata(place).is_ok_and(|there| !there.is_file())
}
