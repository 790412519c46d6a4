use super::context::{device, lgreco_context};
use super::gradient::lgreco_layer;
use super::setting::*;
use super::table::{TableState, lgreco_table};
use crate::device::Device;
use crate::options::{self, SearchOptions};
use crate::pointers::{Range, disjoint, slice_mut};
use crate::status::lgreco_status;
use crate::structs::read_structs;
use core::ffi::c_char;
use lgreco_train::CoreError;
use lgreco_train::backend::Job;
use lgreco_train::compress::{Compressor, Rows, Setting};
use lgreco_train::gradient::Gradient;
use lgreco_train::rng::Stream;
use lgreco_train::search::Layer;
use lgreco_train::table::NamedError;

/// Measures every layer of a model on its gradient under every candidate setting. The result is the error table for
/// lgreco_plan_solve. The table leaves out layers with one dimension or fewer, or with fewer elements than the option
/// `min_elements`. `model_layers` of the view lists the measured layers. NULL for `context` means the CPU. Allocates.
///
/// Fails with LGRECO_NON_FINITE, with LGRECO_EMPTY_TABLE when no layer is left, and with LGRECO_DUPLICATE_NAME. For
/// wrong options, fails with LGRECO_UNKNOWN_OPTION, LGRECO_UNKNOWN_NAME or LGRECO_PARAMETER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_measure(
    context: *const lgreco_context,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create!(table, || {
        let mut device = device(context)?;
        let search = options::read::<SearchOptions>(options)?.search()?;
        let mut model = Vec::new();
        for layer in read_structs(layers, layers_len)? {
            let tensor = layer.tensor()?;
            model.push(Layer::new(tensor.name, tensor.dims, layer.gradient(tensor)?.values())?);
        }
        let measured = search.measure(&model, &mut device);
        TableState::measured(measured.map_err(|error| device.in_its_words(error.into()))?)
    })
}

/// Measures one layer under given settings. squared_errors[i] is the squared L2 norm of the compression error under
/// settings[i], or its expectation for stochastic rounding. sizes[i] is the payload's size in bits, even if the size
/// depends on the values. `sizes` is NULL or has `settings_len` elements. NULL for `context` means the CPU.
///
/// Adjacent settings that differ only in their first number are measured together. Measuring them takes about one pass
/// for QSGD, TopK, CLT-k, PowerSGD and hard thresholds, and three passes for quantised TopK. `seed` and `layer_index`
/// select PowerSGD's start matrix, like the compressor options `random_seed` and `layer_index`. Allocates.
///
/// Fails with LGRECO_NON_FINITE, and with LGRECO_PARAMETER when a setting does not fit the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_measure(
    context: *const lgreco_context,
    layer: *const lgreco_layer,
    settings: *const lgreco_setting,
    settings_len: usize,
    seed: u64,
    layer_index: u32,
    squared_errors: *mut f64,
    sizes: *mut u64,
) -> lgreco_status {
    plain!(|| {
        let device = device(context)?;
        let layer = crate::structs::read_struct(layer)?;
        let (tensor, settings) = (layer.tensor()?, read_settings(settings, settings_len, "settings")?);
        let gradient = layer.gradient(tensor)?;
        let named = |error| NamedError { error, layer: Some(tensor.name.into()), option: None };
        let input = layer.range(tensor);
        let errors_range = Range::of(squared_errors, settings_len, "squared_errors");
        let sizes_len = if sizes.is_null() { 0 } else { settings_len };
        disjoint(errors_range, &[input])?;
        disjoint(Range::of(sizes, sizes_len, "sizes"), &[input, errors_range])?;
        let errors = slice_mut(squared_errors, settings_len, "squared_errors")?;
        let sizes = slice_mut(sizes, sizes_len, "sizes")?;
        let stream = Stream { seed, step: 0, layer: layer_index, rank: 0 };
        let row = measure(&device, gradient, &settings, stream);
        let row = row.map_err(|error| device.in_its_words(named(error).into()))?;
        for (index, (squared_error, bytes)) in row.into_iter().enumerate() {
            errors[index] = squared_error;
            if let Some(size) = sizes.get_mut(index) {
                *size = 8 * bytes as u64;
            }
        }
        Ok(())
    })
}

/// Returns squared error and payload bytes of each setting. Adjacent settings of a method are measured together.
pub(super) fn measure(
    device: &Device,
    gradient: Gradient<'_>,
    settings: &[Setting],
    stream: Stream,
) -> Result<Vec<(f64, usize)>, CoreError> {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let rows = Rows::of(settings);
    let mut errors = Vec::with_capacity(rows.places());
    for candidates in rows.iter() {
        let (before, places) = (errors.len(), candidates.len());
        errors.resize(before + places, 0.0);
        device.row(&Job { gradient, candidates, stream }, &mut errors[before..])?;
    }
    let len = |(setting, squared, len): (Setting, f64, Option<usize>)| {
        Ok((squared, len.map_or_else(|| setting.payload_len(shape, dtype), Ok)?))
    };
    rows.measured(&errors).map(len).collect()
}
