//! Sets the soname of the shared library. Before 1.0, every minor version has its own soname, because its ABI may
//! change.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let part = |name: &str| std::env::var(name).expect("cargo sets it");
    if part("CARGO_CFG_TARGET_OS") == "linux" {
        let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liblgreco.so.{major}.{minor}");
    }
}
