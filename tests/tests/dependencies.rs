//! Checks the dependencies that cargo lists against `deny.toml`: their licences, sources and duplicates.

use serde::Deserialize;
use spdx::{Expression, LicenseReq, Licensee, ParseMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Bans {
    multiple_versions: String,
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

fn deny() -> Deny {
    toml::from_str(&std::fs::read_to_string(Path::new(ROOT).join("deny.toml")).unwrap()).unwrap()
}

/// Returns cargo's metadata for all platforms, or only for this platform if dependencies of other platforms are not
/// available.
fn metadata() -> Metadata {
    let run = |filter: &[&str]| {
        let arguments = ["metadata", "--format-version", "1", "--all-features", "--locked"];
        Command::new(env!("CARGO")).args(arguments).args(filter).current_dir(ROOT).output().unwrap()
    };
    let mut output = run(&[]);
    if !output.status.success() {
        // Does not use `eprintln!`, because libtest captures that.
        let reason = String::from_utf8_lossy(&output.stderr);
        writeln!(std::io::stderr(), "SKIP: dependencies of other platforms: {reason}").expect("standard error");
        let host = Command::new("rustc").arg("-vV").output().unwrap();
        let host = String::from_utf8(host.stdout).unwrap();
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        output = run(&["--filter-platform", host]);
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn is_allowed(package: &Package, licenses: &Licenses) -> Result<(), String> {
    let Some(license) = &package.license else { return Err("states no licence".into()) };
    // Lax mode also accepts the old form MIT/Apache-2.0.
    let expression = Expression::parse_mode(license, ParseMode::LAX).map_err(|error| error.to_string())?;
    let of_its_own = licenses.exceptions.iter().filter(|exception| exception.name == package.name);
    let names = of_its_own.flat_map(|exception| &exception.allow).chain(&licenses.allow);
    let allowed: Vec<Licensee> = names.map(|name| Licensee::parse(name).unwrap()).collect();
    let satisfied = expression.evaluate(|required: &LicenseReq| allowed.iter().any(|one| one.satisfies(required)));
    if satisfied { Ok(()) } else { Err(format!("is under {license}")) }
}

#[test]
fn every_licence_is_allowed_and_every_source_known() {
    let (deny, metadata) = (deny(), metadata());
    assert!(metadata.packages.len() > 100, "{} packages", metadata.packages.len());
    let wrong: Vec<String> = metadata
        .packages
        .iter()
        .flat_map(|package| {
            let source = package.source.as_ref().filter(|source| {
                !deny.sources.allow_registry.iter().any(|registry| **source == format!("registry+{registry}"))
            });
            let source = source.map(|source| format!("comes from {source}"));
            let found = [is_allowed(package, &deny.licenses).err(), source];
            found.into_iter().flatten().map(|what| format!("{} {} {what}", package.name, package.version))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for exception in &deny.licenses.exceptions {
        let found = metadata.packages.iter().any(|package| package.name == exception.name);
        assert!(found, "deny.toml has an exception for {}, which nothing needs", exception.name);
    }
}

/// Checks that the test of licences can fail.
#[test]
fn other_licences_are_refused() {
    let licenses = Licenses {
        allow: vec!["MIT".into(), "Apache-2.0".into()],
        exceptions: vec![Exception { name: "excepted".into(), allow: vec!["MPL-2.0".into()] }],
    };
    let check = |name: &str, license: Option<&str>| {
        let (name, license) = (name.to_string(), license.map(str::to_string));
        is_allowed(&Package { id: String::new(), name, version: String::new(), license, source: None }, &licenses)
    };
    let good = ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "(MIT OR ISC) AND Apache-2.0"];
    let bad = ["GPL-3.0-only", "MIT AND ISC", "MPL-2.0", "MIT OR", ""];
    for license in good {
        assert_eq!(check("a", Some(license)), Ok(()), "{license}");
    }
    for license in bad {
        assert!(check("a", Some(license)).is_err(), "{license}");
    }
    assert!(check("a", None).is_err());
    assert_eq!(check("excepted", Some("MPL-2.0")), Ok(()));
}

/// No program contains two versions of a crate, except the crates that `deny.toml` names. lgreco-tests and dependencies
/// of tests are not parts of programs.
#[test]
fn crates_that_come_twice_are_known() {
    let (deny, metadata) = (deny(), metadata());
    assert_eq!(deny.bans.multiple_versions, "deny");
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let edges: BTreeMap<&str, &Vec<Edge>> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), &node.deps)).collect();
    let members = metadata.workspace_members.iter().map(String::as_str);
    let mut open: Vec<&str> = members.filter(|id| packages[id].name != "lgreco-tests").collect();
    let mut seen: BTreeSet<&str> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        for edge in edges[id] {
            let in_programs = edge.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"));
            if in_programs && seen.insert(&edge.pkg) {
                open.push(&edge.pkg);
            }
        }
    }
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for id in seen {
        versions.entry(&packages[id].name).or_default().insert(&packages[id].version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let skipped: BTreeSet<&str> = deny.bans.skip.iter().map(|skip| skip.name.as_str()).collect();
    let twice: BTreeSet<&str> = versions.keys().copied().collect();
    let unknown: Vec<_> = twice.difference(&skipped).map(|name| (name, &versions[*name])).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
