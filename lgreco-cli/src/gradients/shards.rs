//! Finds the files of a model: one file, the files of a folder, or the files that an index names.

use super::header::Entries;
use crate::failure::Failure;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

/// Ending of the name of an index file in a folder.
const INDEX: &str = ".safetensors.index.json";

/// The files of a model, ordered by name, and the index that lists them.
#[derive(Debug, PartialEq)]
pub(super) struct Files {
    pub(super) paths: Vec<PathBuf>,
    pub(super) index: Option<Index>,
}

/// An index, which names the file of each layer.
#[derive(Debug, PartialEq)]
pub(super) struct Index {
    pub(super) path: PathBuf,
    /// Path of each layer's file, by the layer's name. Paths include the index's folder.
    pub(super) layers: BTreeMap<String, PathBuf>,
}

/// A failure about the file or folder at `path`.
pub(super) fn wrong(path: &Path, what: impl Display) -> Failure {
    Failure::bad_input(format_args!("{}: {what}", path.display()))
}

impl Files {
    pub(super) fn of(path: &Path) -> Result<Files, Failure> {
        if path.is_dir() {
            Files::of_folder(path)
        } else if path.extension() == Some(OsStr::new("json")) {
            Files::of_index(path)
        } else {
            Ok(Files { paths: vec![path.into()], index: None })
        }
    }

    /// If a folder has an index, the index defines the model. Otherwise the model is all safetensors files of the
    /// folder.
    fn of_folder(folder: &Path) -> Result<Files, Failure> {
        let (mut indices, mut shards) = (Vec::new(), Vec::new());
        for entry in folder.read_dir().map_err(|error| wrong(folder, error))? {
            let path = entry.map_err(|error| wrong(folder, error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match () {
                _ if name.starts_with('.') || path.is_dir() => {}
                _ if name.ends_with(INDEX) => indices.push(path),
                _ if name.ends_with(".safetensors") => shards.push(path),
                _ => {}
            }
        }
        indices.sort();
        shards.sort();
        match &indices[..] {
            [] if shards.is_empty() => Err(wrong(folder, "the folder holds no .safetensors file")),
            [] => Ok(Files { paths: shards, index: None }),
            [index] => Files::of_index(index),
            [first, second, ..] => {
                let what = format_args!("two indices, {} and {}: name one of them", first.display(), second.display());
                Err(wrong(folder, what))
            }
        }
    }

    fn of_index(path: &Path) -> Result<Files, Failure> {
        #[derive(Deserialize)]
        struct File {
            weight_map: Entries<String>,
        }
        let json = std::fs::read(path).map_err(|error| wrong(path, error))?;
        let File { weight_map: entries } =
            serde_json::from_slice(&json).map_err(|error| wrong(path, format_args!("not an index ({error})")))?;
        if let Some(name) = entries.twice() {
            return Err(wrong(path, format_args!("layer `{name}` is in the index twice")));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut layers = BTreeMap::new();
        for (name, file) in entries.0 {
            let Some(inside) = inside(&file) else {
                let what = "expected a file in the index's folder, by a relative path without `..`";
                return Err(wrong(path, format_args!("layer `{name}`: the file is `{file}`, {what}")));
            };
            layers.insert(name, folder.join(inside));
        }
        if layers.is_empty() {
            return Err(wrong(path, "the index lists no layers"));
        }
        let paths: BTreeSet<PathBuf> = layers.values().cloned().collect();
        Ok(Files { paths: paths.into_iter().collect(), index: Some(Index { path: path.into(), layers }) })
    }
}

impl Index {
    /// Checks that the index names `file` for the layer `name`.
    pub(super) fn check(&self, name: &str, file: &Path) -> Result<(), Failure> {
        match self.layers.get(name) {
            Some(listed) if listed == file => Ok(()),
            Some(listed) => {
                let what = format_args!("layer `{name}` is here, but {} has it in ", self.path.display());
                Err(wrong(file, format_args!("{what}{}", listed.display())))
            }
            None => Err(wrong(file, format_args!("layer `{name}` is not in the index {}", self.path.display()))),
        }
    }
}

/// `file` as a relative path without `..`, which stays inside the index's folder, except through links. Returns `None`
/// for all other paths.
fn inside(file: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in Path::new(file).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!path.as_os_str().is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_an_index_stay_in_its_folder() {
        assert_eq!(inside("./part/a.safetensors"), Some("part/a.safetensors".into()));
        for outside in ["../a.safetensors", "part/../../a", "/etc/passwd", "", "."] {
            assert_eq!(inside(outside), None, "{outside}");
        }
    }
}
