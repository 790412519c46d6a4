//! The kernels on the processor, for programs that check them, and compiled for all devices, for the crate.

#[cfg(feature = "train")]
#[allow(unsafe_code)]
pub mod graphs;
#[cfg(feature = "train")]
#[allow(unsafe_code)]
pub mod memory;
#[cfg(feature = "train")]
#[allow(unsafe_code)]
pub mod space;
#[cfg(feature = "train")]
#[allow(unsafe_code)]
pub mod window;

use crate::CudaBackend;
use crate::simt::{Flavour, Simt};

/// A backend whose kernels g++ compiles, once, for the processor.
///
/// # Panics
/// At its first call, when there is no g++.
pub fn on_the_processor() -> CudaBackend {
    CudaBackend::on(Box::new(Simt::new(Flavour::Plain, 0, None).expect("g++")))
}

/// The archive of all modules' code, for `compiled/kernels`, and what made it.
///
/// # Errors
/// What is wrong with the NVRTC 12 that is found or with `xz`, and what a source is wrong about.
#[cfg(feature = "train")]
pub fn compiled_kernels() -> Result<(Vec<u8>, String), Box<dyn std::error::Error>> {
    use crate::compiler::Compiler;
    use crate::kernels::Module;
    use crate::shipped::{SASS, TOGETHER, entry, name, names};
    // What the oldest of the devices needs: NVRTC 13 begins with 7.5.
    let (compiler, _) = Compiler::find((12, 9), SASS[0])?;
    let mut archive = Vec::new();
    for together in TOGETHER {
        let mut modules = Vec::new();
        for &architecture in together {
            for module in Module::ALL {
                let (code, _) = compiler.compile(module.name(), &module.source(), architecture, &[])?;
                modules.extend(entry(&name(module, architecture), &code));
            }
        }
        archive.extend(entry(&names(together), &compressed(&modules)?));
    }
    let (major, minor) = compiler.version;
    Ok((archive, format!("by NVRTC {major}.{minor}")))
}

/// As LZMA, by the program `xz`, for instructions of 16 bytes.
#[cfg(feature = "train")]
fn compressed(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut xz = Command::new("xz");
    let mut xz = xz
        .args(["--format=lzma", "--lzma1=preset=9e,lc=4,pb=4"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut to = xz.stdin.take().ok_or("xz takes no input")?;
    let output = std::thread::scope(|scope| {
        let writing = scope.spawn(move || to.write_all(bytes));
        let output = xz.wait_with_output();
        writing.join().map_err(|_| "a thread panicked")??;
        Ok::<_, Box<dyn std::error::Error>>(output?)
    })?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("xz: {}", output.status).into()) }
}
