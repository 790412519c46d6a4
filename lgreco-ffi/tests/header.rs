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
