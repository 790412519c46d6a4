//! The headers in `include` match the templates and the source, and their revision changes with every declaration.
//! `LGRECO_BLESS=1` writes the headers instead of comparing them.

mod compose;

use compose::{HEADERS, headers};
use std::fs;
use std::path::Path;

const REVISION: &str = "#define LGRECO_HEADER_REVISION ";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn is_blessed() -> bool {
    std::env::var_os("LGRECO_BLESS").is_some()
}

/// Returns the header without its comments.
fn code(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").expect("a comment that ends").1;
    }
    (code + rest).lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// Returns the revision, and a checksum of all declarations. The checksum ignores comments, spaces, version and
/// revision.
fn revision(headers: &str) -> String {
    let code = code(headers);
    let declares = |line: &&str| !line.starts_with("#define LGRECO_VERSION") && !line.starts_with(REVISION);
    let words = code.lines().filter(declares).flat_map(str::split_whitespace);
    // The checksum is FNV-1a.
    let checksum = words
        .flat_map(|word| word.bytes().chain([b' ']))
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let number = headers.lines().find_map(|line| line.strip_prefix(REVISION)).expect("a revision");
    format!("revision {number} checksum {checksum:016x}\n")
}

/// A library refuses programs that were compiled with headers of another revision, so every changed declaration needs a
/// new revision.
#[test]
fn other_declarations_have_another_revision() {
    let all: String = headers(folder()).into_iter().map(|(_, text)| text).collect();
    let (path, now) = (folder().join("tests/revision.txt"), revision(&all));
    let before = fs::read_to_string(&path).unwrap_or_default();
    let number = |text: &str| text.split_whitespace().nth(1).map(String::from);
    assert!(
        now == before || number(&now) != number(&before),
        "declarations of the headers have changed: count LGRECO_HEADER_REVISION up, and run LGRECO_BLESS=1 cargo test -p \
         lgreco-ffi --test header"
    );
    if is_blessed() {
        fs::write(&path, &now).expect("tests/revision.txt can be written");
    }
    let blessed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(blessed, now, "tests/revision.txt is old: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header");
}

#[test]
fn the_checksum_is_that_of_declarations_alone() {
    let header =
        |body: &str| format!("/* lgreco.h */\n#define LGRECO_VERSION 1\n#define LGRECO_HEADER_REVISION 4\n{body}");
    let one = revision(&header("int f(int);  // a\n"));
    assert!(one.starts_with("revision 4 checksum "));
    assert_eq!(one, revision(&header("// b\nint /* c */\nf(int);")));
    assert_ne!(one, revision(&header("int f(long);")));
}

#[test]
fn the_headers_are_up_to_date() {
    for (name, text) in headers(folder()) {
        let path = folder().join("include").join(name);
        if is_blessed() {
            fs::write(&path, &text).expect("a header can be written");
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        let differs = committed.lines().zip(text.lines()).find(|(old, new)| old != new);
        assert_eq!(differs, None, "include/{name} is old: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header");
        assert_eq!(committed.len(), text.len(), "{name}");
    }
}

/// lgreco.h has few functions, and its first function appears early.
#[test]
fn the_first_header_is_short() {
    let (_, text) = headers(folder()).swap_remove(0);
    let code = code(&text);
    // A declaration of a function begins with its return type, at the start of a line.
    let functions = code.lines().filter(|line| line.starts_with("lgreco_") || line.starts_with("const char *lgreco_"));
    let count = functions.count();
    assert!((15..=20).contains(&count), "lgreco.h has {count} functions");
    let first = text.lines().position(|line| line.starts_with("const char *lgreco_")).expect("a function");
    assert!(first < 149, "the first function of lgreco.h is on line {}", first + 1);
}

/// The headers declare every library name that their comments mention.
#[test]
fn comments_name_what_there_is() {
    let all: Vec<(&str, String)> = headers(folder());
    let declared: String = all.iter().map(|(_, text)| code(text)).collect();
    let is_declared = |name: &str| declared.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    for (header, text) in &all {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let named = words.filter(|word| word.starts_with("lgreco_") || word.starts_with("LGRECO_"));
        for name in named.filter(|name| !name.ends_with('_') && *name != "LGRECO_BLESS") {
            let is_file = HEADERS.iter().any(|header| header.trim_end_matches(".h") == name);
            assert!(is_file || is_declared(name), "{header} names {name}, which is not declared");
        }
    }
}
