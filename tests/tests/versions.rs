//! Checks that all stated versions and licences equal those of the workspace, and that the changelog begins with this
//! version.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LICENCE: &str = "MIT OR Apache-2.0";

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest(path: impl AsRef<Path>) -> toml::Table {
    read(path).parse().unwrap()
}

fn members(root: &toml::Table) -> Vec<PathBuf> {
    root["workspace"]["members"].as_array().unwrap().iter().map(|folder| folder.as_str().unwrap().into()).collect()
}

#[test]
fn crates_have_the_version_and_licence_of_the_workspace() {
    let root = manifest("Cargo.toml");
    let package = &root["workspace"]["package"];
    assert_eq!(package["version"].as_str(), Some(VERSION), "[workspace.package] in Cargo.toml");
    assert_eq!(package["license"].as_str(), Some(LICENCE), "[workspace.package] in Cargo.toml");
    let inherited = toml::Value::Table(toml::Table::from_iter([("workspace".into(), true.into())]));
    for folder in members(&root) {
        let package = &manifest(folder.join("Cargo.toml"))["package"];
        for key in ["version", "license", "rust-version", "edition"] {
            assert_eq!(package[key], inherited, "{key} in {}", folder.join("Cargo.toml").display());
        }
    }
}

#[test]
fn crates_depend_on_this_version_of_each_other() {
    let root = manifest("Cargo.toml");
    let published = members(&root).into_iter().filter(|folder| {
        manifest(folder.join("Cargo.toml"))["package"].get("publish").and_then(toml::Value::as_bool) != Some(false)
    });
    for folder in published {
        let name = folder.to_str().unwrap();
        let dependency = root["workspace"]["dependencies"].get(name);
        let stated = dependency.and_then(|dependency| dependency.get("version")).and_then(toml::Value::as_str);
        assert_eq!(stated, Some(VERSION), "{name} in [workspace.dependencies] of Cargo.toml");
    }
}

#[test]
fn the_c_header_and_the_python_package_have_this_version() {
    let line = format!("#define LGRECO_VERSION \"{VERSION}\"");
    assert!(read("lgreco-ffi/include/lgreco.h").lines().any(|found| found == line), "lgreco.h has no line {line}");
    let project = &manifest("lgreco-python/pyproject.toml")["project"];
    assert_eq!(project["license"].as_str(), Some(LICENCE), "pyproject.toml");
    let dynamic = project["dynamic"].as_array().unwrap();
    assert!(dynamic.contains(&"version".into()) && project.get("version").is_none(), "pyproject.toml states a version");
}

#[test]
fn every_published_folder_has_both_licences() {
    for folder in members(&manifest("Cargo.toml")) {
        let package = &manifest(folder.join("Cargo.toml"))["package"];
        let published = package.get("publish").is_none() || folder == Path::new("lgreco-python");
        for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(
                !published || read(folder.join(file)) == read(file),
                "{} differs from {file}",
                folder.join(file).display()
            );
        }
    }
}

/// The entry is `## [0.1.0] - Unreleased`, or has the day of the release. `tests/release --publish` writes the day.
#[test]
fn the_first_entry_of_the_changelog_is_this_version() {
    let changelog = read("CHANGELOG.md");
    let first = changelog.lines().find(|line| line.starts_with("## ")).expect("CHANGELOG.md has no entry");
    let when = first.strip_prefix(&format!("## [{VERSION}] - "));
    let is_date = |text: &str| {
        text.len() == 10
            && text.bytes().enumerate().all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() })
    };
    assert!(
        when.is_some_and(|when| when == "Unreleased" || is_date(when)),
        "the first entry of CHANGELOG.md is `{first}`, expected `## [{VERSION}] - ` and a date like 2027-01-31 or Unreleased"
    );
}
