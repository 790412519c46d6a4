//! The kernels on the processor, for programs that check them.

use crate::CudaBackend;
use crate::simt::{Flavour, Simt};

/// A backend whose kernels g++ compiles, once, for the processor.
///
/// # Panics
/// At its first call, when there is no g++.
pub fn on_the_processor() -> CudaBackend {
    CudaBackend::on(Box::new(Simt::new(Flavour::Plain, 0, None).expect("g++")))
}
