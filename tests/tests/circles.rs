//! Checks that modules do not depend on each other in circles: neither the modules of a crate nor the files of a
//! folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const CRATES: [&str; 11] = [
    "lgreco",
    "lgreco-compress",
    "lgreco-core",
    "lgreco-train",
    "lgreco-pipeline",
    "lgreco-cuda",
    "lgreco-wgpu",
    "lgreco-cli",
    "lgreco-ffi",
    "lgreco-python",
    "lgreco-testing",
];
/// Reads all modules below a folder. Maps each module's path to its code without comments and tests.
fn read(folder: &Path, path: &[String], modules: &mut BTreeMap<Vec<String>, String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        let own = [path, std::slice::from_ref(&name)].concat();
        match entry.extension().and_then(|extension| extension.to_str()) {
            _ if name == "tests" => {}
            None => read(&entry, &own, modules),
            Some("rs") => {
                let text = fs::read_to_string(&entry).unwrap();
                let code =
                    text.split("mod tests {").next().unwrap().lines().map(|line| line.split("//").next().unwrap());
                let is_head = ["mod", "lib", "main"].contains(&&*name);
                modules
                    .entry(if is_head { path.to_vec() } else { own })
                    .or_default()
                    .extend(code.flat_map(|line| [line, "\n"]));
            }
            Some(_) => {}
        }
    }
}

/// Reads a path or a tree of paths that begins at `at`. Returns the text after this path or tree.
fn tree<'t>(text: &'t str, mut at: Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
    if let Some(mut rest) = text.trim_start().strip_prefix('{') {
        while !rest.trim_start().starts_with('}') {
            rest = tree(rest, at.clone(), found);
            rest = rest[rest.find([',', '}']).unwrap()..].trim_start_matches(',');
        }
        return &rest.trim_start()[1..];
    }
    let text = text.trim_start();
    let (word, rest) = text.split_at(text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()));
    match word {
        "crate" => at.clear(),
        "super" => drop(at.pop()),
        "self" => {}
        word => at.push(word.into()),
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return tree(rest, at, found);
    }
    found.push(at);
    rest
}

/// All paths in the text that begin with one of the words.
fn paths(text: &str, words: &[&str], at: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (start, _) in words.iter().flat_map(|&word| text.match_indices(word)) {
        if !text[..start].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c)) {
            tree(text[start..].trim_start_matches("use "), at.to_vec(), &mut found);
        }
    }
    found
}

#[test]
fn modules_have_no_circles() {
    for name in CRATES {
        let mut modules = BTreeMap::new();
        read(&Path::new(ROOT).join(name).join("src"), &[], &mut modules);
        let mut needs: BTreeMap<&[String], BTreeMap<&String, BTreeSet<String>>> = BTreeMap::new();
        for (own, text) in &modules {
            for other in paths(text, &["crate::", "super::", "self::"], own) {
                let level = own.iter().zip(&other).take_while(|(a, b)| a == b).count();
                let (Some(from), Some(to)) = (own.get(level), other.get(level)) else { continue };
                // A folder can re-export names of one of its modules. A re-exported name is treated as its module.
                let named = modules.get(&own[..level]).map_or(vec![], |head| paths(head, &["use "], &[]));
                let to =
                    named.iter().find(|path| path.len() > 1 && path.last() == Some(to)).map_or(to, |path| &path[0]);
                // The registry lists all methods, and the methods use its `Setting`. This circle is allowed.
                let is_registry = name == "lgreco-compress" && level == 0 && to == "registry";
                if to != from
                    && !is_registry
                    && modules.contains_key(&[&own[..level], std::slice::from_ref(to)].concat())
                {
                    needs.entry(&own[..level]).or_default().entry(from).or_default().insert(to.clone());
                }
            }
        }
        for (folder, mut needs) in needs {
            // Repeatedly removes the modules that need no other module, or that no other module needs. If any modules
            // are left, there is a circle.
            let is_free = |needs: &BTreeMap<&String, BTreeSet<String>>, module: &String| {
                !needs[module].iter().any(|to| needs.contains_key(to)) || !needs.values().any(|to| to.contains(module))
            };
            while let Some(free) = needs.keys().copied().find(|module| is_free(&needs, module)) {
                needs.remove(free);
            }
            assert!(needs.is_empty(), "a circle in {name}, {folder:?}: {needs:#?}");
        }
    }
}
