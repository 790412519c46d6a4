//! Checks the documentation: all links have a target, every page is in the site, and every block of Rust is a doctest.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const SITE: &str = "docs/src";
/// Largest allowed number of words of each file. Longer texts belong on separate pages.
const WORDS: [(&str, usize); 7] = [
    ("README.md", 900),
    ("ARCHITECTURE.md", 1_500),
    ("BENCHMARKS.md", 1_650),
    ("lgreco-cuda/README.md", 550),
    ("lgreco-ffi/README.md", 550),
    ("lgreco-python/README.md", 850),
    ("lgreco-wgpu/README.md", 550),
];

/// Paths from the root of all files below `folder` with this extension. Skips hidden folders and build folders.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && !["target", "__pycache__"].contains(&&*name) {
                found.extend(files(&path, extension));
            }
        } else if Path::new(&name).extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The lines of a page: line number, text, and the language of the code block that contains the line, if there is one.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    let mut block = None;
    text.lines().enumerate().map(move |(number, line)| {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, block) {
            (Some(language), None) => block = Some(language.trim()),
            (Some(_), Some(_)) => {
                let ended = block.take();
                return (number + 1, line, ended);
            }
            _ => {}
        }
        (number + 1, line, block)
    })
}

/// The line without the text between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The targets of a page's links and pictures, each with its line number.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line, block) in lines(text) {
        if block.is_none() {
            let line = without_code(line);
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(targets.map(|target| (number, target.to_owned())));
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line, block) in lines(text) {
        let title = line.trim_start_matches('#');
        if block.is_none() && title.len() < line.len() && title.starts_with(' ') {
            let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
            let slug: String = title.trim().to_lowercase().chars().filter(kept).collect();
            let slug = slug.replace(' ', "-");
            let same = (1..).map(|n| format!("{slug}-{n}"));
            let free = [slug.clone()].into_iter().chain(same).find(|slug| !found.contains(slug));
            found.extend(free);
        }
    }
    found
}

/// Converts `target`, a path relative to the file `from`, to a path from the repository's root. Returns `None` if the
/// path is outside the root.
fn resolved(from: &str, target: &str) -> Option<String> {
    let mut path = PathBuf::from(from);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => path.pop().then_some(())?,
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    path.into_os_string().into_string().ok()
}

/// The reason why a link of the page `from` is broken; `None` for a valid link.
fn broken(from: &str, link: &str) -> Option<String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (target, anchor) = link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
    let Some(path) = (if target.is_empty() { Some(from.to_owned()) } else { resolved(from, target) }) else {
        return Some("leads out of the repository".into());
    };
    if from.starts_with(SITE) && !path.starts_with(SITE) {
        return Some("leads out of the site: name the file, without a link".into());
    }
    if !Path::new(ROOT).join(&path).exists() {
        return Some(format!("{path} does not exist"));
    }
    let anchor = anchor?;
    (!anchors(&read(&path)).contains(anchor)).then(|| format!("{path} has no heading with the anchor {anchor}"))
}

#[test]
fn links_lead_somewhere() {
    let mut failures = Vec::new();
    let mut count = 0;
    for page in files("", "md") {
        for (line, link) in links(&read(&page)) {
            count += 1;
            failures.extend(broken(&page, &link).map(|why| format!("{page}:{line}: {link}: {why}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 200, "{count} links");
}

#[test]
fn broken_links_are_found() {
    for (from, link) in [
        ("README.md", "docs/src/nothing.md"),
        ("README.md", "docs/src/index.md#nothing"),
        ("README.md", "../README.md"),
        ("README.md", "/README.md"),
        ("docs/src/index.md", "../../README.md"),
    ] {
        assert!(broken(from, link).is_some(), "{from}: {link}");
    }
    assert_eq!(broken("docs/src/index.md", "start/c.md#a-training-step"), None);
    let text = "# A `b` of C++\n```c\n# no\n[no](no)\n```\n## A b of c\n`[no](no)` [d](e.md)\n";
    assert_eq!(links(text), [(7, "e.md".to_owned())]);
    assert_eq!(anchors(text), ["a-b-of-c".to_owned(), "a-b-of-c-1".to_owned()].into());
}

#[test]
fn every_page_is_in_the_site() {
    let summary = format!("{SITE}/SUMMARY.md");
    let listed: Vec<String> = links(&read(&summary)).iter().filter_map(|(_, link)| resolved(&summary, link)).collect();
    let pages: BTreeSet<String> = files(SITE, "md").into_iter().filter(|page| *page != summary).collect();
    assert_eq!(listed.len(), listed.iter().collect::<BTreeSet<_>>().len(), "SUMMARY.md lists a page twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), pages);
}

#[test]
fn every_picture_is_shown() {
    let shown: BTreeSet<String> = files("", "md")
        .iter()
        .flat_map(|page| {
            links(&read(page)).into_iter().filter_map(|(_, link)| resolved(page, &link)).collect::<Vec<_>>()
        })
        .collect();
    for picture in files(&format!("{SITE}/pictures"), "svg") {
        assert!(shown.contains(&picture), "no page shows {picture}");
    }
}

/// This test is for pages. rustdoc tests the blocks in the crates' comments.
#[test]
fn every_block_of_rust_is_a_doctest() {
    let mut tested = BTreeSet::new();
    for source in files("", "rs") {
        if source.ends_with("src/lib.rs") {
            let text = read(&source);
            let included = text.split("doc = include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            tested.extend(included.filter_map(|target| resolved(&source, target)));
        }
    }
    for page in files("", "md") {
        let text = read(&page);
        let mut fences = lines(&text).filter(|(_, line, _)| line.trim_start().starts_with("```rust"));
        let Some((line, fence, _)) = fences.next() else { continue };
        assert!(tested.contains(&page), "{page}:{line}: no library's doctests include this page");
        let fence = fences.map(|(_, fence, _)| fence).chain([fence]).find(|fence| fence.trim() != "```rust");
        assert_eq!(fence, None, "{page}: a block that doctests would leave out");
    }
    for page in tested {
        assert!(read(&page).contains("```rust"), "{page} is included for doctests and has none");
    }
}

/// The table of the way from a gradient to the mean has at most 25 rows. Each row names a file or a folder.
#[test]
fn the_way_of_a_gradient_is_there() {
    let text = read("ARCHITECTURE.md");
    let way = text.split("## From a gradient to the mean").nth(1).and_then(|text| text.split("\n## ").next()).unwrap();
    let rows: Vec<&str> =
        way.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split('`').nth(1)).collect();
    assert!((10..=25).contains(&rows.len()), "{} rows", rows.len());
    for row in rows {
        let path = if row.starts_with("lgreco-") { row.into() } else { format!("lgreco-train/src/{row}") };
        assert!(Path::new(ROOT).join(&path).exists(), "there is no {path}");
    }
}

#[test]
fn first_pages_are_short() {
    for (page, most) in WORDS {
        let count = read(page).split_whitespace().count();
        assert!(count <= most, "{page} has {count} words, {most} at most: move something to {SITE}");
    }
}
