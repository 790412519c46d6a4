//! Errors as exceptions.

use lgreco_train::Error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pyo3::create_exception!(
    lgreco,
    LgrecoError,
    PyValueError,
    "Something that lgreco refuses. `code` is its permanent number, shared with the C API; `layer` the name of the layer \
     at fault, or None."
);

/// The exception for an error, with the name of the layer that it is about.
pub(crate) fn raised(py: Python<'_>, error: Error, names: &[String]) -> PyErr {
    let layer = error.layer().and_then(|layer| names.get(layer));
    let text = match layer {
        Some(name) => format!("{name}: {error}"),
        None => error.to_string(),
    };
    let raised = LgrecoError::new_err(text);
    let value = raised.value(py);
    match value.setattr("code", error.code()).and_then(|()| value.setattr("layer", layer)) {
        Ok(()) => raised,
        Err(other) => other,
    }
}
