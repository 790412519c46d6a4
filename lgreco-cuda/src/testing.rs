//! The kernels on the processor, for programs that check them, and compiled for all devices, for the crate.

use crate::CudaBackend;
#[cfg(feature = "train")]
pub use crate::roofline::{Gpu, OPERATIONS, Operation, Prediction, ROWS_OF_MODEL, commands_of_rows, report, resnet_50};
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
/// [`NoCompiler`](crate::Error::NoCompiler) and what else is wrong with the NVRTC 12 that is found;
/// [`Compile`](crate::Error::Compile).
#[cfg(feature = "train")]
pub fn compiled_kernels() -> Result<(Vec<u8>, String), crate::Error> {
    use crate::compiler::{Architecture, Compiler};
    use crate::kernels::Module;
    use crate::shipped::{PTX, SASS, entry, name};
    // What the oldest of the devices needs: NVRTC 13 begins with 7.5.
    let (compiler, _) = Compiler::find((12, 9), SASS[0])?;
    let mut archive = Vec::new();
    for module in Module::ALL {
        for architecture in SASS.map(Architecture::Sass).into_iter().chain([Architecture::Ptx(PTX)]) {
            let (code, _) = compiler.compile(module.name(), &module.source(), architecture, &[])?;
            archive.extend(entry(&name(module, architecture), &code));
        }
    }
    let (major, minor) = compiler.version;
    Ok((archive, format!("by NVRTC {major}.{minor}")))
}
