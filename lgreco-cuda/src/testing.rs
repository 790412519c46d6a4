//! For checking programs: a backend that runs the kernels on the CPU. For the program that compiles kernels: their
//! sources.

use crate::CudaBackend;
use crate::kernels::Module;
use crate::shipped::{self, Architecture};
use crate::simt::{Flavour, Simt};

/// A backend that runs the kernels on the processor. g++ compiles them once.
///
/// # Panics
/// At its first call, if there is no g++.
pub fn on_the_processor() -> CudaBackend {
    CudaBackend::on(Box::new(Simt::new(Flavour::Plain, 0, None).expect("g++")))
}

/// One module for one architecture, as `examples/compile_kernels` compiles it.
pub struct KernelSource {
    /// Its name in `compiled/kernels`.
    pub name: String,
    /// The module's file.
    pub file: &'static str,
    /// Its complete source text.
    pub text: String,
    /// The compiler's options.
    pub options: Vec<String>,
    /// Whether its code is PTX rather than machine code.
    pub is_ptx: bool,
    /// Its code in `compiled/kernels`, if there is any.
    pub shipped: Option<&'static [u8]>,
}

/// All modules for all architectures, in the groups that are compressed together, with the groups' names in
/// `compiled/kernels`.
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

/// An entry of `compiled/kernels`.
pub fn named(name: &str, bytes: &[u8]) -> Vec<u8> {
    shipped::entry(name, bytes)
}
