use super::context::lgreco_context;
use super::gradient::{dtype, lgreco_dtype, lgreco_layer};
use super::setting::*;
use super::table::{TableState, lgreco_table};
use crate::device::Device;
use crate::pointers::{Range, disjoint, read_struct_or_default, read_structs, sized_struct, slice_mut, text};
use crate::status::{Failure, lgreco_status, one_of};
use core::ffi::c_char;
use core::num::NonZero;
use lgreco_train::CoreError;
use lgreco_train::backend::Job;
use lgreco_train::compress::{Compressor, Rows, Setting};
use lgreco_train::gradient::Gradient;
use lgreco_train::rng::Stream;
use lgreco_train::search::{Layer, Method, Metric, Range as Parameters, Search, Width};
use lgreco_train::table::NamedError;

/// What errors of tables are measured in: LGRECO_METRIC_...
pub type lgreco_metric = u32;

/// The L2 norm, as in the L-GreCo paper.
pub const LGRECO_METRIC_L2: lgreco_metric = 0;
/// The squared L2 norm, which adds up over layers.
pub const LGRECO_METRIC_SQUARED_L2: lgreco_metric = 1;

/// Of search options' `widths`: kept values in the gradient's own type.
pub const LGRECO_WIDTH_FULL: u64 = 1;

/// What to offer each layer of a model. Begin with LGRECO_SEARCH_OPTIONS_INIT.
///
/// Methods are "qsgd", "topk", "powersgd", "eden", "clt-k", "sidco", "hard-threshold", "adacomp", "loco", several of them with
/// commas between, the first of which says what is uniform, or "hybrid", the default: EDEN, TopK and PowerSGD, that about
/// rank 8. Parameters are
/// those of the first method: bits per element for QSGD (1 to 8; 4 by default) and EDEN (3), the density for TopK, CLT-k and
/// SIDCo (above 0, to 1; 0.01), the rank for PowerSGD (1 to 65536; 4), the least magnitude for hard thresholds (0.01), elements
/// per bin for AdaComp (500) and per group for LoCo (512).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_search_options {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// The methods, UTF-8; NULL, the default, for "hybrid". Not kept.
    pub methods: *const c_char,
    /// LGRECO_METRIC_SQUARED_L2, the default, or LGRECO_METRIC_L2, the paper's.
    pub metric: lgreco_metric,
    /// The uniform setting that the budget is taken from; 0, the default, for the method's.
    pub parameter: f64,
    /// Smallest parameter offered; 0 in this and the next two, the default, for L-GreCo's range about `parameter`, and for EDEN's 1 to 8 bits.
    pub first: f64,
    /// Largest parameter offered.
    pub last: f64,
    /// Distance of two parameters.
    pub step: f64,
    /// Layers with fewer elements stay uncompressed and are not in the table; 1024 by default.
    pub min_elements: usize,
    /// Seed of random start matrices: give compressors the same; 0 by default.
    pub seed: u64,
    /// TopK, also among several: how the values it keeps may be sent, LGRECO_WIDTH_FULL and 1 << bits for each of 1 to 8
    /// bits, added up; 0, the default, for full ones alone. `parameter`'s are full.
    pub widths: u64,
    /// How many workers' payloads are averaged, which decides between methods where they mix: the squared errors of EDEN and of QSGD with
    /// stochastic rounding, which are independent from worker to worker, are divided by it. 0, the default, for 1, in a
    /// controller for its world size.
    pub workers: u32,
    /// The type in which values that are summed on the wire travel: uncompressed ones, PowerSGD's factors, and those at shared
    /// positions. LGRECO_DTYPE_F32, the default, or LGRECO_DTYPE_BF16, of half the size, which are summed by
    /// LGRECO_REQUEST_ALL_REDUCE_SUM_BF16.
    pub reduce_dtype: lgreco_dtype,
}

// SAFETY: repr(C), starts with a usize; numbers and a raw pointer only.
sized_struct!(
    "search options",
    lgreco_search_options { metric: LGRECO_METRIC_SQUARED_L2, min_elements: Search::new(Method::Hybrid).min_elements }
);

impl lgreco_search_options {
    /// # Safety
    /// README.md, pointers.
    pub(super) unsafe fn search(&self) -> Result<Search, Failure> {
        // SAFETY: passed on.
        let methods = if self.methods.is_null() { "hybrid" } else { unsafe { text(self.methods, "methods") }? };
        let methods = methods.split(',').map(|method| method.trim().parse::<Method>());
        let mut search = Search::of(&methods.collect::<Result<Vec<_>, _>>()?)?;
        if self.parameter != 0.0 {
            search = search.with_default(self.parameter)?;
        }
        let (first, last, step) = (self.first, self.last, self.step);
        if (first, last, step) != (0.0, 0.0, 0.0) {
            search = search.with_range(Parameters { first, last, step })?;
        }
        if self.widths != 0 {
            let width = |bit| if bit == 0 { Width::Full } else { Width::Bits(bit) };
            let widths: Vec<Width> = (0..64).filter(|&bit| self.widths >> bit & 1 == 1).map(width).collect();
            search = search.with_widths(&widths)?;
        }
        search.metric = one_of("metric", self.metric, [Metric::L2, Metric::SquaredL2])?;
        (search.min_elements, search.seed) = (self.min_elements, self.seed);
        search.workers = NonZero::new(self.workers);
        search.reduce_dtype = dtype(self.reduce_dtype)?;
        Ok(search)
    }
}

/// Measures every layer of a model on its gradient under every candidate: the error table to plan on, each option with
/// its setting (lgreco_table_setting). Layers with one dimension or fewer, or few elements, are left out: `model_layers`
/// of the view tells which are in. `options` may be NULL. Allocates.
///
/// LGRECO_NON_FINITE, LGRECO_EMPTY_TABLE when no layer is left, LGRECO_DUPLICATE_NAME, LGRECO_PARAMETER; of `methods`
/// LGRECO_UNKNOWN_NAME for a word that is no method, one that is there twice, or hybrid among others, LGRECO_TEXT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_measure(
    context: *mut lgreco_context,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const lgreco_search_options,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create!(context, table, |context| {
        let search = read_struct_or_default(options)?.search()?;
        let mut model = Vec::new();
        for layer in read_structs(layers, layers_len)? {
            let tensor = layer.tensor()?;
            model.push(Layer::new(tensor.name, tensor.dims, layer.gradient(tensor)?.values())?);
        }
        TableState::measured(search.measure(&model, &mut context.device)?)
    })
}

/// Measures one layer under given settings: squared_errors[i] is the squared L2 norm of what compression by settings[i]
/// does to the gradient (for stochastic rounding its expectation), sizes[i] the bits of its payload, also where the values
/// decide them; `sizes` may be NULL, else it has `settings_len` places too. Settings next to each other that differ in the
/// first number alone are measured together, for QSGD, TopK, CLT-k, PowerSGD and hard thresholds in about one pass, for
/// quantised TopK in three. `seed` and `layer_index` name PowerSGD's start matrix, as in lgreco_compressor_options. Allocates.
///
/// LGRECO_NON_FINITE, LGRECO_PARAMETER when a setting does not fit the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_measure(
    context: *mut lgreco_context,
    layer: *const lgreco_layer,
    settings: *const lgreco_setting,
    settings_len: usize,
    seed: u64,
    layer_index: u32,
    squared_errors: *mut f64,
    sizes: *mut u64,
) -> lgreco_status {
    call!(context, |context| {
        let layer = crate::pointers::read_struct(layer)?;
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
        let row = measure(&context.device, gradient, &settings, stream).map_err(named)?;
        for (index, (squared_error, bytes)) in row.into_iter().enumerate() {
            errors[index] = squared_error;
            if let Some(size) = sizes.get_mut(index) {
                *size = 8 * bytes as u64;
            }
        }
        Ok(())
    })
}

/// Squared error and payload bytes of each setting; neighbours of a method are measured together.
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
