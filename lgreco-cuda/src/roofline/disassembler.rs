//! NVIDIA's disassembler, which comes from PyPI into the virtual environment that has NVRTC.

use crate::simt::unavailable_of;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The `nvdisasm` of a virtual environment, of `VIRTUAL_ENV`'s, or of those that the shell finds.
fn find() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda/venv");
    let environments = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from).into_iter().chain([own]);
    let folders = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let nvidia = environments
        .flat_map(move |environment| folders(environment.join("lib")))
        .flat_map(move |python| folders(python.join("site-packages/nvidia")));
    let programs = nvidia.map(|package| package.join("bin/nvdisasm")).filter(|program| program.is_file());
    let runs =
        |program: &PathBuf| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    programs.chain([PathBuf::from("nvdisasm")]).find(runs)
}

/// What it prints of a cubin; `None`, said aloud, where it is missing.
pub(super) fn disassemble(name: &str, cubin: &[u8]) -> Option<String> {
    let Some(program) = find() else {
        unavailable_of("nvdisasm", "no nvdisasm");
        return None;
    };
    let file = crate::simt::target().join(format!("{name}-{}.cubin", std::process::id()));
    std::fs::write(&file, cubin).expect("a file for nvdisasm");
    let output = Command::new(program).arg("-c").arg(&file).output().expect("nvdisasm");
    std::fs::remove_file(&file).expect("the file just written");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("text"))
}
