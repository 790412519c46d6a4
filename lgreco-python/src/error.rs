//! Converts errors to Python exceptions.

use lgreco_train::{CoreError, Error};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pyo3::create_exception!(
    lgreco,
    LgrecoError,
    PyValueError,
    "Something that lgreco refuses. `code` is its permanent number, shared with the C API; `layer` the name of the layer \
     at fault, or None. Of what another rank failed with, `peer` is that rank and `peer_code` the code there."
);

/// Adds the exception class to the module. Every exception has all attributes, which are None by default.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let error = module.py().get_type::<LgrecoError>();
    for attribute in ["code", "layer", "peer", "peer_code"] {
        error.setattr(attribute, module.py().None())?;
    }
    module.add("LgrecoError", error)
}

/// The exception for an error, with the name of the layer at fault.
pub(crate) fn raised(py: Python<'_>, error: Error, names: &[String]) -> PyErr {
    let layer = error.layer().and_then(|layer| names.get(layer)).map(String::as_str);
    let text = if layer.is_some() { error.without_layer().to_string() } else { error.to_string() };
    let raised = named(py, of_layer(layer, &text), error.code(), layer);
    match error {
        Error::Peer { rank, code } => with_attributes(py, raised, |value| {
            value.setattr("peer", rank)?;
            value.setattr("peer_code", code)
        }),
        _ => raised,
    }
}

/// Sets attributes of an exception by `set`. If `set` fails, returns the error of `set` instead.
fn with_attributes(py: Python<'_>, raised: PyErr, set: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) -> PyErr {
    set(raised.value(py).as_any()).err().unwrap_or(raised)
}

/// The exception for an error of a device.
pub(crate) fn refused_by_device(py: Python<'_>, error: lgreco_cuda::Error, names: &[String]) -> PyErr {
    match error {
        lgreco_cuda::Error::Train(error) => raised(py, error, names),
        lgreco_cuda::Error::Core(error) => raised(py, error.into(), names),
        error => named(py, error.to_string(), CoreError::Device { what: "" }.code(), None),
    }
}

/// Puts the layer's name before a text.
pub(crate) fn of_layer(layer: Option<&str>, text: &str) -> String {
    layer.map_or_else(|| text.into(), |name| format!("{name}: {text}"))
}

/// The exception with this text, code and layer.
pub(crate) fn named(py: Python<'_>, text: String, code: u32, layer: Option<&str>) -> PyErr {
    with_attributes(py, LgrecoError::new_err(text), |value| {
        value.setattr("code", code)?;
        value.setattr("layer", layer)
    })
}

/// The error for a failure on another rank with this code. Code 0 means that the ranks disagree about the exchange.
#[pyfunction]
pub(crate) fn peer_error(py: Python<'_>, rank: u32, code: u32) -> Py<PyAny> {
    let error = if code == 0 { Error::PeerPlan { rank } } else { Error::Peer { rank, code } };
    raised(py, error, &[]).into_value(py).into_any()
}
