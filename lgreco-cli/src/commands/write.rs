//! Writes each file completely or not at all, and never over an input.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of attempts to create a temporary file while other processes remove it.
const TRIES: usize = 100;

/// Refuses to write over `inputs`, and to write two results to one file. `results` pairs each file with its flag.
pub fn distinct<'a>(
    inputs: impl Iterator<Item = &'a Path>,
    results: impl IntoIterator<Item = (&'static str, &'a Path)>,
) -> Result<(), Failure> {
    let named = inputs.map(|path| ("the input", path)).chain(results);
    let files: Vec<_> = named.map(|(name, path)| (name, path, place(path))).collect();
    for (at, (flag, path, place)) in files.iter().enumerate() {
        if let Some((other, ..)) = files[..at].iter().find(|(.., earlier)| earlier == place && !is_special(place)) {
            return Err(Failure::bad_input(format_args!("{flag} {} would overwrite {other}", path.display())));
        }
    }
    Ok(())
}

/// Writes `text` to a temporary file in the folder of `path`, which then replaces the old file. So the old content
/// remains if writing fails. Devices and pipes are written directly.
pub fn file(path: &Path, text: &str) -> Result<(), Failure> {
    let place = place(path);
    let written = if is_special(&place) { fs::write(&place, text) } else { replace(&place, text.as_bytes()) };
    written.map_err(|error| Failure::no_result(format_args!("{}: {error}", path.display())))
}

fn replace(place: &Path, bytes: &[u8]) -> io::Result<()> {
    // A file without write permission must not be replaced either.
    let permissions = match OpenOptions::new().write(true).open(place) {
        Ok(file) => Some(file.metadata()?.permissions()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    remove_abandoned(place);
    let (beside, mut file) = create_beside(place)?;
    let filled = file
        .write_all(bytes)
        .and_then(|()| permissions.map_or(Ok(()), |these| file.set_permissions(these)))
        .and_then(|()| file.sync_all());
    filled.and_then(|()| fs::rename(&beside, place)).inspect_err(|_| {
        // Reports the first error, even if removing the temporary file fails too.
        let _ = fs::remove_file(&beside);
    })?;
    // Synchronising the folder makes the new file survive a power cut. Some systems cannot synchronise folders, so
    // failures are ignored.
    let _ = File::open(place.with_file_name("")).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Creates a temporary file beside the file `place`, and locks it so that no other process considers it abandoned.
fn create_beside(place: &Path) -> io::Result<(PathBuf, File)> {
    // No name is used twice: a process that removes an old file could otherwise also remove a new file of this name.
    static CREATED: AtomicU64 = AtomicU64::new(0);
    for _ in 0..TRIES {
        let end = format!("{}-{}.tmp", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let path = place.with_file_name(with_ends(place.file_name().unwrap_or_default(), OsStr::new(&end)));
        let file = File::create_new(&path)?;
        // Another process may lock the new file first, in order to remove it. Then `lock` waits, the file is gone, and
        // the loop tries another name. On file systems without locks, no process removes files.
        if file.lock().is_err() || path.try_exists()? {
            return Ok((path, file));
        }
    }
    Err(io::Error::other("other processes keep removing what is being written"))
}

/// The name of a hidden file for the file `name`. Only this module makes names of this form.
fn with_ends(name: &OsStr, end: &OsStr) -> OsString {
    [OsStr::new("."), name, OsStr::new("."), end].into_iter().collect()
}

/// Removes the temporary files that killed processes left beside the file `place`. Running processes hold locks on
/// their temporary files.
fn remove_abandoned(place: &Path) {
    let start = with_ends(place.file_name().unwrap_or_default(), OsStr::new(""));
    let ours = |name: &OsStr| {
        let middle = name.as_encoded_bytes().strip_prefix(start.as_encoded_bytes())?.strip_suffix(b".tmp")?;
        (!middle.is_empty() && middle.iter().all(|&byte| byte.is_ascii_digit() || byte == b'-')).then_some(())
    };
    let entries = place.with_file_name("").read_dir().into_iter().flatten().flatten();
    for entry in entries.filter(|entry| ours(&entry.file_name()).is_some()) {
        // This module creates only regular files. Opening a pipe could block.
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // This process holds the lock until the file is removed. A process that has just created the file waits for the
        // lock, and then notices that the file is gone.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The file to which `path` leads through links. If the file does not exist, the path at which it would be created.
fn place(path: &Path) -> PathBuf {
    let there = |path: &Path| path.canonicalize().ok();
    let mut path = path.to_owned();
    // A link may lead to a file that does not exist yet. The loop ends, because `canonicalize` fails for links in a
    // circle.
    for _ in 0..40 {
        if let Some(place) = there(&path) {
            return place;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let new = there(folder).zip(path.file_name()).map(|(folder, name)| folder.join(name));
        let Some(new) = new else { return path };
        match fs::read_link(&new) {
            Ok(to) => path = new.with_file_name("").join(to),
            Err(_) => return new,
        }
    }
    path
}

/// Whether `place` exists and is not a regular file.
fn is_special(place: &Path) -> bool {
    fs::metadata(place).is_ok_and(|there| !there.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A search for abandoned files can find a new file before the process that created the file has locked it.
    #[test]
    fn what_is_written_is_not_taken_for_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    remove_abandoned(&path);
                }
            });
            let all: io::Result<()> = (0..100).try_for_each(|_| replace(&path, b"whole"));
            done.store(true, Ordering::Relaxed);
            all.unwrap();
        });
    }

    #[test]
    #[cfg(unix)]
    fn nobody_waits_for_a_pipe_of_that_name() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join(".plan.json.17-0.tmp");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        file(&folder.path().join("plan.json"), "whole").unwrap();
        assert!(pipe.exists());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [".plan.json.17-0.tmp", ".plan.json.18-1.tmp", ".plan.json.tmp", ".plan.json.x.tmp", ".plan.17.tmp"]
        {
            fs::write(path(name), "half").unwrap();
        }
        let live = File::open(path(".plan.json.18-1.tmp")).unwrap();
        live.try_lock().unwrap();
        file(&path("plan.json"), "whole").unwrap();
        assert_eq!(fs::read_to_string(path("plan.json")).unwrap(), "whole");
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".plan.17.tmp", ".plan.json.18-1.tmp", ".plan.json.tmp", ".plan.json.x.tmp", "plan.json"]);
    }
}
