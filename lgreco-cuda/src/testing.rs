//! Functions for other programs: a backend that runs the kernels on the CPU, for checks. Also the sources of the
//! kernels, for the program that compiles the kernels.

use crate::CudaBackend;
use crate::kernels::Module;
use crate::shipped::{self, Architecture};
use crate::simt::{Flavour, Simt};

/// Returns a backend that runs the kernels on the CPU. g++ compiles the kernels on first use.
///
/// # Panics
/// If there is no g++.
pub fn on_the_processor() -> CudaBackend {
    CudaBackend::on(Box::new(Simt::new(Flavour::Plain, 0, None).expect("g++")))
}

/// One module for one architecture, as `examples/compile_kernels` compiles it.
pub struct KernelSource {
    /// The name of the code in `compiled/kernels`.
    pub name: String,
    /// The module's file.
    pub file: &'static str,
    /// The module's complete source text.
    pub text: String,
    /// The compiler's options.
    pub options: Vec<String>,
    /// Whether the code is PTX rather than machine code.
    pub is_ptx: bool,
    /// The code in `compiled/kernels`, if there is any.
    pub shipped: Option<&'static [u8]>,
}

/// Returns all modules for all architectures, in the groups that are compressed together. Each group is listed with its
/// name in `compiled/kernels`.
pub fn kernel_sources() -> Vec<(String, Vec<KernelSource>)> {
    let group = |together: &[Architecture]| {
        let of_architecture = |&architecture| Module::ALL.map(|module| source(module, architecture));
        (shipped::names(together), together.iter().flat_map(of_architecture).collect())
    };
    shipped::TOGETHER.into_iter().map(group).collect()
}

fn source(module: Module, architecture: Architecture) -> KernelSource {
    let target = format!("--gpu-architecture={}", architecture.name());
    KernelSource {
        name: shipped::name(module, architecture),
        file: module.name(),
        text: module.source(),
        options: shipped::OPTIONS.into_iter().map(str::to_owned).chain([target]).collect(),
        is_ptx: matches!(architecture, Architecture::Ptx(_)),
        shipped: shipped::code(module, architecture).ok(),
    }
}

/// Returns the bytes of an entry of `compiled/kernels`.
pub fn named(name: &str, bytes: &[u8]) -> Vec<u8> {
    shipped::entry(name, bytes)
}
