//! `include/lgreco.h` is what cbindgen makes of the source now. `LGRECO_BLESS=1` writes it instead of comparing.

use std::fs;
use std::path::Path;

fn generated(folder: &Path) -> String {
    let mut config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let part = |name: &str, number: &str| format!("#define LGRECO_VERSION_{name} {number}\n");
    config.after_includes = config.after_includes.map(|_| {
        String::from("\n// The version this header belongs to; lgreco_version() is that of the library.\n")
            + &part("MAJOR", env!("CARGO_PKG_VERSION_MAJOR"))
            + &part("MINOR", env!("CARGO_PKG_VERSION_MINOR"))
            + &part("PATCH", env!("CARGO_PKG_VERSION_PATCH"))
            + &part("STRING", &format!("{:?}", env!("CARGO_PKG_VERSION")))
            + "#define LGRECO_VERSION (LGRECO_VERSION_MAJOR * 10000 + LGRECO_VERSION_MINOR * 100 + LGRECO_VERSION_PATCH)"
    });
    let mut header = Vec::new();
    cbindgen::Builder::new()
        .with_crate(folder)
        .with_config(config)
        .generate()
        .expect("cbindgen reads the source")
        .write(&mut header);
    String::from_utf8(header).expect("a header is text")
}

/// The header's revision, and a checksum of its declarations: of all but comments, spaces, its version and revision.
fn revision(header: &str) -> String {
    const REVISION: &str = "#define LGRECO_HEADER_REVISION ";
    let code = header.split("*/").nth(1).expect("the header begins with a comment");
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let declares = |line: &&str| !line.starts_with("#define LGRECO_VERSION") && !line.starts_with(REVISION);
    let words = lines.filter(declares).flat_map(str::split_whitespace);
    // FNV-1a.
    let checksum = words
        .flat_map(|word| word.bytes().chain([b' ']))
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let number = header.lines().find_map(|line| line.strip_prefix(REVISION)).expect("the header has its revision");
    format!("revision {number} checksum {checksum:016x}\n")
}

/// A library refuses programs that were compiled with a header of another revision, so it must change with the declarations.
#[test]
fn other_declarations_have_another_revision() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (path, now) = (folder.join("tests/revision.txt"), revision(&generated(folder)));
    let before = fs::read_to_string(&path).unwrap_or_default();
    let number = |text: &str| text.split_whitespace().nth(1).map(String::from);
    let same = now == before;
    assert!(
        same || number(&now) != number(&before),
        "declarations of lgreco.h have changed: count LGRECO_HEADER_REVISION up, and run LGRECO_BLESS=1 cargo test -p lgreco-ffi \
         --test header"
    );
    if std::env::var_os("LGRECO_BLESS").is_some() {
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
    assert_eq!(one, revision(&header("// b\nint\nf(int);")));
    assert_ne!(one, revision(&header("int f(long);")));
}

#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (path, header) = (folder.join("include/lgreco.h"), generated(folder));
    if std::env::var_os("LGRECO_BLESS").is_some() {
        fs::write(&path, &header).expect("include/lgreco.h can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(header.lines()).find(|(old, new)| old != new);
    assert_eq!(differs, None, "include/lgreco.h is old: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header");
    assert_eq!(committed.len(), header.len());
}
