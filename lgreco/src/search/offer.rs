//! The candidates of a whole model. The code that owns the gradients measures these candidates.

use super::measured::stream;
use super::options::LayerOptions;
use super::range::Weighing;
use super::{Measured, Search};
use crate::Error;
use crate::backend::{Backend, Job, grow};
use crate::compress::Candidates;
use crate::error::expect_len;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::table::{NamedError, NamedTable};
use alloc::vec::Vec;

/// The candidates that a [`Search`] offers each layer of a model, as rows to measure.
/// [`into_measured`](Offer::into_measured) makes the table from the measured errors.
///
/// The caller measures the rows, so the gradients may also be in device memory. [`Search::measure`] does all steps for
/// gradients in host memory.
///
/// ```
/// use lgreco::backend::{Backend, Job, Portable};
/// use lgreco::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco::search::{Method, Search};
/// let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
/// let offer = Search::new(Method::Qsgd).offer([("bias", &[64][..], Dtype::F32), ("weight", &[64, 64], Dtype::F32)])?;
/// let mut errors = Vec::new();
/// for row in offer.rows() {
///     assert_eq!(row.layer, 1); // `bias` stays uncompressed
///     let gradient = Gradient::new(Values::F32(&weight), Shape::new(64, 64)?)?;
///     let mut row_errors = vec![0.0; row.candidates.len()];
///     Portable.measure(&[Job { gradient, candidates: row.candidates, stream: row.stream }], &mut [], &mut row_errors)?;
///     errors.extend(row_errors);
/// }
/// let measured = offer.into_measured(&errors)?;
/// assert_eq!((measured.table.name(0), measured.table.labels(0).len()), ("weight", 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Offer<'a> {
    layers: Vec<OfferedLayer<'a>>,
    uncompressed: Vec<usize>,
    weighing: Weighing,
    reduce_dtype: Dtype,
    seed: u64,
}

struct OfferedLayer<'a> {
    index: usize,
    name: &'a str,
    shape: Shape,
    dtype: Dtype,
    options: LayerOptions,
}

/// A row of an [`Offer`].
///
/// ```
/// # use lgreco::{gradient::Dtype, search::{Method, Search}};
/// let offer = Search::new(Method::TopK).offer([("weight", &[64, 64][..], Dtype::Bf16)])?;
/// let lens: Vec<_> = offer.rows().map(|row| (row.layer, row.candidates.len())).collect();
/// assert_eq!(lens, [(0, 100)]);
/// # Ok::<(), lgreco::table::NamedError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OfferedRow<'a> {
    /// Index of the row's layer in the model.
    pub layer: usize,
    /// The candidate settings for the layer's gradient.
    pub candidates: Candidates<'a>,
    /// The random stream, from which start matrices are drawn.
    pub stream: Stream,
}

impl Search {
    /// Lists the candidates for a model, from name, dimensions and element type of each gradient in the model's order.
    ///
    /// ```
    /// # use lgreco::{gradient::Dtype, search::{Method, Search}};
    /// let model = [("fc1", &[64, 64][..], Dtype::F32), ("fc2", &[64, 32], Dtype::Bf16)];
    /// assert_eq!(Search::new(Method::Hybrid).offer(model)?.rows().count(), 6); // three methods each
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`measure`](Search::measure), except errors for values, duplicate names and an empty table.
    ///
    /// # Complexity
    /// O(options).
    pub fn offer<'a>(
        &self,
        model: impl IntoIterator<Item = (&'a str, &'a [usize], Dtype)>,
    ) -> Result<Offer<'a>, NamedError> {
        let (weighing, reduce_dtype, seed) = (self.weighing(), self.reduce_dtype, self.seed);
        if reduce_dtype == Dtype::F16 {
            let (what, expected) = ("code of the reduce dtype", "f32 (0) or bf16 (2)");
            let error = Error::Parameter { what, value: 1.0, expected };
            return Err(NamedError { error, layer: None, option: None });
        }
        self.beside.iter().try_for_each(|setting| {
            self.knows(setting)?;
            // A layer skips a setting that does not fit its shape. A setting out of range fits no layer.
            setting.check()
        })?;
        let mut offer = Offer { layers: Vec::new(), uncompressed: Vec::new(), weighing, reduce_dtype, seed };
        for (index, (name, dims, dtype)) in model.into_iter().enumerate() {
            if !self.takes(dims) {
                offer.uncompressed.push(index);
                continue;
            }
            let named = |error| NamedError { error, layer: Some(name.into()), option: None };
            let shape = Shape::from_dims(dims).map_err(named)?;
            let options = LayerOptions::new(&self.families, &self.beside, shape, dtype).map_err(named)?;
            offer.layers.push(OfferedLayer { index, name, shape, dtype, options });
        }
        Ok(offer)
    }
}

impl Offer<'_> {
    /// The rows to measure, layer after layer.
    ///
    /// ```
    /// # use lgreco::{gradient::Dtype, search::{Method, Search}};
    /// let offer = Search::new(Method::Qsgd).offer([("bias", &[64][..], Dtype::F32)])?;
    /// assert_eq!(offer.rows().count(), 0); // stays uncompressed
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    pub fn rows(&self) -> impl Iterator<Item = OfferedRow<'_>> {
        self.layers.iter().flat_map(|layer| {
            let stream = stream(self.seed, layer.index);
            layer.options.candidates().map(move |candidates| OfferedRow { layer: layer.index, candidates, stream })
        })
    }

    /// Indices of the layers that stay uncompressed.
    pub(super) fn uncompressed(&self) -> &[usize] {
        &self.uncompressed
    }

    /// Measures `rows` of this offer, and appends their squared errors to `squared_errors`.
    ///
    /// `gradient` returns the gradient of the layer with a given index in the model. The workspace grows to the length that
    /// the backend needs.
    ///
    /// # Errors
    /// The errors of the backend, with the name of the faulty layer.
    pub fn measure<'g>(
        &self,
        rows: &[OfferedRow<'g>],
        gradient: impl Fn(usize) -> Gradient<'g>,
        backend: &mut dyn Backend,
        workspace: &mut Vec<u64>,
        squared_errors: &mut Vec<f64>,
    ) -> Result<(), NamedError> {
        let job = |row: &OfferedRow<'g>| Job {
            gradient: gradient(row.layer),
            candidates: row.candidates,
            stream: row.stream,
        };
        let jobs: Vec<_> = rows.iter().map(job).collect();
        let measured = squared_errors.len();
        squared_errors.resize(measured + jobs.iter().map(|job| job.candidates.len()).sum::<usize>(), 0.0);
        let no_memory = |error| NamedError { error, layer: None, option: None };
        grow(workspace, backend.workspace_len(&jobs)).map_err(no_memory)?;
        backend.measure(&jobs, workspace, &mut squared_errors[measured..]).map_err(|failed| {
            let row = failed.job.and_then(|job| rows.get(job));
            let layer = row.and_then(|row| self.layers.iter().find(|layer| layer.index == row.layer));
            NamedError { error: failed.error, layer: layer.map(|layer| layer.name.into()), option: None }
        })
    }

    /// Makes the table from the squared errors of all [`rows`](Offer::rows), one after another.
    ///
    /// ```
    /// # use lgreco::{gradient::Dtype, search::{Method, Metric, Search}};
    /// let mut search = Search::new(Method::Qsgd);
    /// search.metric = Metric::SquaredL2;
    /// let measured = search.offer([("fc1", &[64, 64][..], Dtype::F32)])?.into_measured(&[6., 5., 4., 3., 2., 1., 0.])?;
    /// assert_eq!(measured.table.view().layer(0)[2].error, 4.0); // of 4 bits
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] unless there is one squared error per candidate. [`Error::EmptyTable`] when the search leaves all
    /// layers uncompressed. The errors of [`NamedTable`]'s [`build`](crate::table::Builder::build).
    ///
    /// # Complexity
    /// O(options).
    pub fn into_measured(self, mut squared_errors: &[f64]) -> Result<Measured, NamedError> {
        let expected = self.layers.iter().map(|layer| layer.options.measured()).sum();
        let nameless = |error: Error| NamedError { error, layer: None, option: None };
        expect_len("squared errors, one per candidate", expected, squared_errors.len()).map_err(nameless)?;
        let Offer { layers, uncompressed, weighing, reduce_dtype, seed } = self;
        let mut builder = NamedTable::builder(weighing.name());
        let (mut indices, mut defaults, mut settings) = (Vec::new(), Vec::new(), Vec::new());
        for OfferedLayer { index, name, shape, dtype, options } in layers {
            let (row, rest) = squared_errors.split_at(options.measured());
            squared_errors = rest;
            let named = |error| NamedError { error, layer: Some(name.into()), option: None };
            let options = options.into_options(shape, [dtype, reduce_dtype], row, weighing).map_err(named)?;
            builder.layer(name, shape.elements() as u64, Some(options.default), options.labelled);
            indices.push(index);
            defaults.push(options.default);
            settings.push(options.settings);
        }
        let mut table = builder.build()?;
        for (layer, settings) in settings.into_iter().enumerate() {
            for (option, setting) in settings.into_iter().enumerate() {
                table.set_setting(layer, option, setting);
            }
        }
        Ok(Measured { table, defaults, layers: indices, uncompressed, seed })
    }
}
