//! Compiles all kernels for all architectures that the crate supports, and writes `compiled/kernels`. With `--check`,
//! this program compares the compiled code with `compiled/kernels` instead.
//!
//! ```sh
//! python3 -m venv target/nvrtc && target/nvrtc/bin/pip install nvidia-cuda-nvrtc-cu12==12.9.86
//! cargo run --release -p lgreco-cuda --features testing --example compile_kernels -- \
//!     target/nvrtc/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
//! ```
//!
//! Without `--check`, this program also needs the program xz.

mod nvrtc;

use lgreco_cuda::testing::{kernel_sources, named};
use nvrtc::Nvrtc;
use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The version of NVRTC that the kernels are compiled with. NVRTC 13 cannot compile for compute capability 7.0. A newer
/// version also writes newer PTX, which needs newer drivers.
const VERSION: (i32, i32) = (12, 9);

fn main() -> Result<(), Box<dyn Error>> {
    let (mut check, mut library) = (false, PathBuf::from("libnvrtc.so.12"));
    for argument in std::env::args_os().skip(1) {
        if argument == "--check" {
            check = true;
        } else {
            library = argument.into();
        }
    }
    let nvrtc = Nvrtc::load(&library).map_err(|error| format!("{}: {error}", library.display()))?;
    let version = nvrtc.version()?;
    if version != VERSION {
        return Err(format!("{} is NVRTC {version:?}, expected {VERSION:?}", library.display()).into());
    }
    let (mut archive, mut others) = (Vec::new(), Vec::new());
    for (group, sources) in kernel_sources() {
        let mut modules = Vec::new();
        for source in sources {
            let code = nvrtc.compile(source.file, &source.text, &source.options, source.is_ptx)?;
            if source.shipped != Some(&code[..]) {
                others.push(source.name.clone());
            }
            modules.extend(named(&source.name, &code));
        }
        if !check {
            archive.extend(named(&group, &compressed(&modules)?));
        }
    }
    if !check {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/compiled/kernels");
        std::fs::write(path, &archive)?;
        println!("{path}: {} bytes", archive.len());
    } else if !others.is_empty() {
        return Err(format!("compiled/kernels has other code, or none, of {}", others.join(", ")).into());
    }
    Ok(())
}

/// Compresses bytes to LZMA with the program `xz`. The options `lc=4,pb=4` suit GPU code, whose instructions have 16
/// bytes each.
fn compressed(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut xz = Command::new("xz");
    let xz = xz.args(["--format=lzma", "--lzma1=preset=9e,lc=4,pb=4"]);
    let mut xz = xz.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| format!("xz: {error}"))?;
    let mut to = xz.stdin.take().ok_or("xz takes no input")?;
    let output = std::thread::scope(|scope| {
        let writing = scope.spawn(move || to.write_all(bytes));
        let output = xz.wait_with_output();
        writing.join().map_err(|_| "a thread panicked")??;
        Ok::<_, Box<dyn Error>>(output?)
    })?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("xz: {}", output.status).into()) }
}
