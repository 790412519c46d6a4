//! The extension module `lgreco._lgreco`: controllers and buckets for `lgreco.torch`, which passes gradients by address.
//! Users see the Python code in `python/lgreco`. The stub `_lgreco.pyi` is the contract of this module.
//!
//! The module has two pieces of global state: the thread pool (`cores.rs`), and the start time of the clock
//! (`arguments.rs`).

mod arguments;
mod bucket;
mod controller;
mod cores;
mod device;
mod error;
mod memory;
mod plan;
mod report;
mod request;
mod task;
mod window;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the `lgreco` command and returns its exit code. The arguments begin with the program's name.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| lgreco_cli::run(arguments))
}

/// The extension module. Its functions release the interpreter's lock while they work or wait.
#[pymodule(gil_used = false)]
fn _lgreco(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::add_to(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(plan::make_plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::check_plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan_page, module)?)?;
    module.add_function(wrap_pyfunction!(arguments::methods_of_options, module)?)?;
    module.add_function(wrap_pyfunction!(controller::payload_len, module)?)?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    module.add_function(wrap_pyfunction!(cores::after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(error::peer_error, module)?)?;
    module.add_class::<controller::Controller>()?;
    module.add_class::<bucket::Bucket>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<device::Bucket>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<plan::PlanPage>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<window::Window>()?;
    module.add_class::<task::PlanTask>()?;
    module.add_class::<task::PlanResult>()
}
