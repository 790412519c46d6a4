//! Where NVIDIA's run-time libraries may be: on the library path, in a toolkit, among Python's packages.

use crate::Error;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The oldest major version of CUDA that is looked for, and how many later than the driver's, to say what is wrong.
const OLDEST: u32 = 11;
const LATER: u32 = 2;

/// Folders of Python's packages that [`look_among_packages`] was given.
static PACKAGES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// From now on this process looks for NVRTC and cuBLAS among the Python packages of this folder, too: for a program in Python,
/// whose environment no variable names if it is not active. Nothing for a path that is not absolute.
///
/// ```no_run
/// lgreco_cuda::look_among_packages("/home/me/env/lib/python3.12/site-packages".into());
/// ```
pub fn look_among_packages(folder: PathBuf) {
    let mut packages = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner);
    if folder.is_absolute() && !packages.contains(&folder) {
        packages.push(folder);
    }
}

/// A library that comes with CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Nvrtc,
    Cublas,
}

impl Library {
    /// Its names for the major versions of CUDA that a driver of major version `driver` can use, its own first; then of
    /// whichever version; then of later ones.
    fn names(self, driver: u32) -> Vec<String> {
        let name = |major| self.name(major);
        let usable = (OLDEST..=driver).rev().map(name);
        let unnumbered = match self {
            Library::Nvrtc => "libnvrtc.so",
            Library::Cublas => "libcublas.so",
        };
        let unnumbered = (!cfg!(windows)).then(|| unnumbered.to_owned());
        usable.chain(unnumbered).chain((driver + 1..=driver + LATER).map(name)).collect()
    }

    /// Its file of a major version of CUDA: one name per major version, NVRTC's since 11.2.
    fn name(self, major: u32) -> String {
        match (self, cfg!(windows), major) {
            (Library::Nvrtc, true, 11) => "nvrtc64_112_0.dll".into(),
            (Library::Nvrtc, true, _) => format!("nvrtc64_{major}0_0.dll"),
            (Library::Nvrtc, false, 11) => "libnvrtc.so.11.2".into(),
            (Library::Nvrtc, false, _) => format!("libnvrtc.so.{major}"),
            (Library::Cublas, true, _) => format!("cublas64_{major}.dll"),
            (Library::Cublas, false, _) => format!("libcublas.so.{major}"),
        }
    }
}

/// Where a library may be, the best first: each name as the system finds it, then in the folders that the environment's
/// variables lead to.
pub(crate) fn candidates(library: Library, driver: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let folders = folders(variable);
    let of_name = |name: String| {
        let found: Vec<PathBuf> =
            folders.iter().map(|folder| folder.join(&name)).filter(|path| path.exists()).collect();
        std::iter::once(name.into()).chain(found)
    };
    library.names(driver).into_iter().flat_map(of_name).collect()
}

/// Why a library cannot be used; `None` when there is none under this name.
pub(crate) fn fault(path: &Path, error: &libloading::Error) -> Option<Error> {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        reason = format!("{reason}: {error}");
        source = error.source();
    }
    // A file that is there may need another one that is not.
    let named = path.to_string_lossy();
    let own = reason.contains(&format!("{named}: "));
    let absent = own && reason.contains("No such file") || reason.contains("os error 126");
    (!absent || path.is_absolute()).then(|| Error::Library { library: named.into_owned(), reason })
}

/// Folders of libraries: of toolkits, then of Python's packages, in folders that were given, an environment's or the system's.
fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|path| path.is_absolute());
    let mut folders = Vec::new();
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).chain([PathBuf::from("/usr/local/cuda")]);
    for toolkit in toolkits {
        folders.extend(["lib64", "lib", "bin/x64", "bin"].map(|folder| toolkit.join(folder)));
    }
    let given = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner);
    folders.extend(given.iter().flat_map(|packages| of_packages(packages)));
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set);
    let local = set("HOME").map(|home| home.join(".local"));
    for prefix in environments.chain(local).chain([PathBuf::from("/usr/local")]) {
        folders.push(prefix.join("lib"));
        let pythons = entries(&prefix.join("lib")).into_iter().filter(|path| named(path, "python3"));
        for packages in pythons.chain([prefix.join("Lib")]) {
            folders.extend(
                ["site-packages", "dist-packages"].iter().flat_map(|folder| of_packages(&packages.join(folder))),
            );
        }
    }
    folders
}

/// Of NVIDIA's libraries among the packages in a folder.
fn of_packages(packages: &Path) -> Vec<PathBuf> {
    // cuda_nvrtc and cublas up to CUDA 12, cu13 and so on from then on.
    let nvidias = entries(&packages.join("nvidia")).into_iter().filter(|path| named(path, "cu"));
    nvidias.flat_map(|package| ["lib", "bin/x86_64", "bin"].map(|folder| package.join(folder))).collect()
}

fn named(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// What is in a folder, in order; nothing where there is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}
