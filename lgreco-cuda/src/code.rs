//! Where a device's machine code comes from: the crate, or else NVRTC.

use crate::Error;
use crate::compiler::{Architecture, Compiler};
use crate::kernels::Module;
use crate::shipped;
use std::path::Path;

/// The origin of all modules of one device.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    driver: (u32, u32),
    device: u32,
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Origin {
    Shipped(Architecture),
    Compiled(Compiler, Architecture),
}

impl Code {
    /// For a device of compute capability `device` and a driver of CUDA's version `driver`. `Err` when there is neither
    /// compiled code nor an NVRTC that does.
    pub(crate) fn find(driver: (u32, u32), device: u32) -> Result<Self, Error> {
        let all_there = |&architecture: &Architecture| shipped::code(Module::Magnitude, architecture).is_some();
        let origin = match shipped::architecture(driver, device).filter(all_there) {
            Some(architecture) => Origin::Shipped(architecture),
            None => compiled(driver, device)?,
        };
        Ok(Code { driver, device, origin })
    }

    /// What the kernels are compiled by and for.
    pub(crate) fn name(&self) -> String {
        match &self.origin {
            Origin::Shipped(architecture) => format!("compiled for {}", architecture.name()),
            Origin::Compiled(compiler, architecture) => {
                let (major, minor) = compiler.version;
                format!("NVRTC {major}.{minor} for {}", architecture.name())
            }
        }
    }

    /// What `load` makes of the module's code. Where the crate has none of these sources, or the driver does not take it, an
    /// NVRTC is looked for; without one, the driver's words are told.
    pub(crate) fn load<T>(
        &mut self,
        module: Module,
        folder: Option<&Path>,
        load: impl Fn(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Origin::Shipped(architecture) = self.origin {
            let refused = match shipped::code(module, architecture).map(|code| load(&code)) {
                Some(Ok(loaded)) => return Ok(loaded),
                Some(Err(error)) => Some(error),
                None => None,
            };
            self.origin = compiled(self.driver, self.device).map_err(|missing| refused.unwrap_or(missing))?;
        }
        match &self.origin {
            Origin::Compiled(compiler, architecture) => compiler.load(module, *architecture, folder, load),
            Origin::Shipped(_) => Err(Error::NoCompiler),
        }
    }

    /// Puts what NVRTC has made of the module into a folder that does not have it.
    pub(crate) fn keep(&self, module: Module, folder: &Path) {
        if let Origin::Compiled(compiler, architecture) = &self.origin {
            compiler.keep(module, *architecture, folder);
        }
    }
}

fn compiled(driver: (u32, u32), device: u32) -> Result<Origin, Error> {
    Compiler::find(driver, device).map(|(compiler, architecture)| Origin::Compiled(compiler, architecture))
}
