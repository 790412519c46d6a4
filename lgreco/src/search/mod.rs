//! Chooses the candidates of each layer of a model, and measures them into an error table.
//!
//! A [`Search`] turns methods, defaults and ranges into candidates per layer. [`Search::measure`] measures these
//! candidates on real gradients. The result is the named table for the planner, with the [`Setting`] of every option.
//!
//! Layers with fewer than two dimensions, or with fewer than `min_elements` elements, stay uncompressed and are not in
//! the table.
//!
//! One option `dense` with error 0 replaces all candidates that are not smaller than the uncompressed tensor. So no
//! plan compresses a layer without saving bits.

mod layer;
mod measured;
mod offer;
mod options;
mod range;

pub use layer::Layer;
pub use measured::Measured;
pub use offer::{Offer, OfferedRow};
pub use range::{MAX_OPTIONS, Method, Metric, Range, Width};

use crate::backend::Backend;
use crate::checksum::Hash;
use crate::compress::method::Methods;
use crate::compress::{Setting, check_finite};
use crate::error::distinct;
use crate::gradient::{Dtype, Shape};
use crate::table::NamedError;
use crate::{Error, Result, Word};
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use options::LayerOptions;
use range::{Family, Weighing, Widths};

/// Parameters of a measurement: the candidates for every layer, the error metric, and the layers to leave uncompressed.
///
/// ```
/// use lgreco::backend::Portable;
/// use lgreco::gradient::Values;
/// use lgreco::plan::{self, Solver, budget::Budget};
/// use lgreco::search::{Layer, Method, Search};
///
/// let (w1, w2): (Vec<f32>, Vec<f32>) =
///     ((0..4096).map(|i| (i as f32).sin()).collect(), (0..4096).map(|i| 0.01 * (i as f32).cos()).collect());
/// let layers = [
///     Layer::new("fc1.weight", &[64, 64], Values::F32(&w1))?,
///     Layer::new("fc2.weight", &[64, 64], Values::F32(&w2))?,
/// ];
/// let measured = Search::new(Method::Qsgd).measure(&layers, &mut Portable)?;
/// let table = measured.table.view();
/// let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
/// let plan = plan::solve(&table, budget, Solver::default())?;
/// assert!(plan.summary().proven());
/// for (layer, &option) in plan.options().iter().enumerate() {
///     println!("{}: {}", measured.table.name(layer), measured.setting(layer, option as usize)?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// The methods from outside lgreco that the program knows. Controllers need these methods to read other ranks'
    /// plans and saved states.
    pub methods: Methods,
    /// Additional settings for every layer. Each setting belongs to one of lgreco's methods or of
    /// [`methods`](Search::methods). Layers skip a setting that does not fit, such as a `topk` of more elements than
    /// the layer has. A setting that is out of range for any layer is an error.
    pub beside: Vec<Setting>,
    /// The methods with their ranges, at least one. The budget is derived from the default of the first method.
    families: Vec<Family>,
    /// The metric that turns squared errors into errors.
    pub metric: Metric,
    /// Number of workers whose payloads are averaged. The number matters when the search has both biased and unbiased
    /// methods.
    ///
    /// Errors of unbiased methods ([`Setting::is_unbiased`]) are independent between workers. So the mean over W
    /// workers has 1/W of one worker's squared error. The table divides the squared errors of unbiased methods by W.
    /// Biased methods drop the same part of equal gradients on all workers, so their squared errors are not divided.
    /// `None` means 1, or the number of workers if a controller uses the search.
    pub workers: Option<NonZeroU32>,
    /// Layers with fewer elements stay uncompressed. Defaults to 1024.
    pub min_elements: usize,
    /// Element type of values that are summed on the wire: [`Dtype::F32`], the default, or [`Dtype::Bf16`].
    /// [`Setting::exchanged_len`] describes how this type changes sizes. In two-level training, the ranks of a node
    /// also send each other gradients in this type.
    ///
    /// The table's errors do not include the rounding to `reduce_dtype`. Each rounding to bf16 adds a squared error of
    /// at most `2^-16` of the values' squared norm, or more for subnormal values. For PowerSGD, the rounded factor `P`
    /// spans a slightly different space. The different space raises or lowers the squared error by up to about `2^-8`
    /// of the gradient's squared norm.
    pub reduce_dtype: Dtype,
    /// Seed of random start matrices. The stream of a row has this seed and the layer's index in the model (see
    /// [`Measured::stream`]).
    pub seed: u64,
}

impl Search {
    /// A search of one method with its defaults.
    ///
    /// | method | default | range |
    /// |---|---|---|
    /// | QSGD | 4 bits | 2 to 8 bits |
    /// | TopK | 1 % | 0.1 % to 10 % |
    /// | PowerSGD | rank 4 | rank 2 to 8 |
    /// | EDEN | 3 bits | 1 to 8 bits |
    ///
    /// The ranges of QSGD, TopK and PowerSGD come from L-GreCo §4.
    ///
    /// Hybrid offers EDEN, TopK and PowerSGD (here with rank 8 as the default and 4 to 16 as the range). The reference
    /// of Hybrid's budget is uniform 3-bit EDEN. Hybrid leaves out QSGD, because EDEN has less error at equal size on
    /// the gradients of BENCHMARKS.md.
    ///
    /// ```
    /// # use lgreco::search::{Method, Search};
    /// let search = Search::new(Method::PowerSgd);
    /// ```
    pub fn new(method: Method) -> Self {
        Search::over(match method {
            Method::Hybrid => Method::HYBRID.map(|(method, default)| Family::new(method, default)).into(),
            _ => vec![Family::of(method)],
        })
    }

    /// A search of several methods, each over its default range. For each layer, the planner chooses among the methods.
    /// The first method's default is the reference of the budget.
    ///
    /// ```
    /// use lgreco::search::{Method, Search};
    /// let search = Search::of(&[Method::Qsgd, Method::TopK, Method::Sidco])?;
    /// assert_eq!((search.method(), search.default_parameter()), (Method::Hybrid, 4.0));
    /// assert!(Search::of(&[Method::Qsgd, Method::Qsgd]).is_err());
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] without methods. [`Error::UnknownName`] when a method occurs twice, or [`Method::Hybrid`]
    /// occurs together with other methods.
    pub fn of(methods: &[Method]) -> Result<Self> {
        if let [method] = methods {
            return Ok(Search::new(*method));
        }
        for (index, method) in methods.iter().enumerate() {
            if *method == Method::Hybrid || methods[..index].contains(method) {
                let expected = "each method once, and hybrid only alone";
                return Err(Error::UnknownName { what: "list of methods", expected });
            }
        }
        if methods.is_empty() {
            return Err(Error::Length { what: "methods to search", expected: 1, found: 0 });
        }
        Ok(Search::over(methods.iter().map(|&method| Family::of(method)).collect()))
    }

    /// Sets the reference of the budget: a method with its parameter, such as `qsgd 4`, `topk 1%` (or `topk 0.01`) or
    /// `powersgd 4`.
    ///
    /// The search then offers this method too, with the method's usual range around the parameter.
    ///
    /// ```
    /// use lgreco::search::{Method, Search};
    /// let search = Search::new(Method::Hybrid).with_reference("topk 1%")?;
    /// assert_eq!((search.method(), search.default_parameter()), (Method::Hybrid, 0.01));
    /// assert_eq!(Search::new(Method::Qsgd).with_reference("qsgd").unwrap_err().to_string(), "setting: found nothing, expected a number");
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownName`] for an unknown method. [`Error::SettingSyntax`] when the number is missing, or is not the
    /// last word. [`Error::Parameter`] for a number out of range.
    pub fn with_reference(mut self, setting: &str) -> Result<Self> {
        let mut words = setting.split_ascii_whitespace();
        let method: Method = words.next().unwrap_or_default().parse()?;
        let word = words.next().unwrap_or_default();
        let (digits, unit) = word.strip_suffix('%').map_or((word, 1.0), |digits| (digits, 100.0));
        let wrong = |word, expected| Error::SettingSyntax { word: Word::new(word), expected };
        let parameter: f64 = digits.parse().map_err(|_| wrong(word, "a number"))?;
        if let Some(more) = words.next() {
            return Err(wrong(more, "the end"));
        }
        if method == Method::Hybrid {
            return Err(Error::UnknownName { what: "method", expected: "a single method" });
        }
        let mut family = Family::checked(method, parameter / unit, None)?;
        if let Some(at) = self.families.iter().position(|family| family.method == method) {
            family.widths = self.families.remove(at).widths;
        }
        self.families.insert(0, family);
        Ok(self)
    }

    fn over(families: Vec<Family>) -> Self {
        Search {
            families,
            metric: Metric::SquaredL2,
            workers: None,
            min_elements: 1024,
            reduce_dtype: Dtype::F32,
            seed: 0,
            methods: Methods::NONE,
            beside: Vec::new(),
        }
    }

    /// Replaces the default of the first method (bits, density or rank), and replaces its range by L-GreCo's range
    /// around that default.
    ///
    /// Bits and ranks range from half the default, rounded up, to twice the default. Densities range from a tenth to
    /// ten times the default; SIDCo's densities range from half to twice the default. Ranges end at the method's
    /// bounds. EDEN's range is always 1 to 8 bits.
    ///
    /// ```
    /// # use lgreco::search::{Method, Search};
    /// # use lgreco::{backend::Portable, gradient::Values, search::Layer};
    /// # let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
    /// # let model = [Layer::new("weight", &[64, 64], Values::F32(&weight))?];
    /// let table = Search::new(Method::PowerSgd).with_default(8.0)?.measure(&model, &mut Portable)?.table;
    /// assert!(matches!(table.labels(0), [first, .., last] if first == "powersgd 4" && last == "powersgd 16"));
    /// assert!(Search::new(Method::Qsgd).with_default(9.0).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parameter`] when the default is outside the method's bounds.
    pub fn with_default(mut self, default: f64) -> Result<Self> {
        let Family { method, widths, .. } = self.families[0];
        self.families[0] = Family { widths, ..Family::checked(method, default, None)? };
        Ok(self)
    }

    /// Replaces the range of the first method. The method's default stays, and is always a candidate.
    ///
    /// ```
    /// # use lgreco::search::{Method, Range, Search};
    /// # use lgreco::{backend::Portable, gradient::Values, search::Layer};
    /// # let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
    /// # let model = [Layer::new("weight", &[64, 64], Values::F32(&weight))?];
    /// let search = Search::new(Method::Qsgd).with_range(Range { first: 3.0, last: 7.0, step: 2.0 })?;
    /// let table = search.measure(&model, &mut Portable)?.table;
    /// assert_eq!(table.labels(0), ["qsgd 3", "qsgd 4", "qsgd 5", "qsgd 7"]); // 4 is the default
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parameter`] when the range is outside the method's bounds.
    pub fn with_range(mut self, range: Range) -> Result<Self> {
        let Family { method, default, widths, .. } = self.families[0];
        self.families[0] = Family { widths, ..Family::checked(method, default, Some(range))? };
        Ok(self)
    }

    /// Replaces the widths of TopK's kept values. By default, kept values are sent in full. Each density is offered
    /// with each width.
    ///
    /// The default option keeps full values, and is always a candidate if TopK is the first method.
    ///
    /// ```
    /// # use lgreco::search::{Method, Range, Search, Width};
    /// # use lgreco::{backend::Portable, gradient::Values, search::Layer};
    /// # let weight: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
    /// # let model = [Layer::new("weight", &[64, 64], Values::F32(&weight))?];
    /// let search = Search::new(Method::TopK).with_range(Range { first: 0.01, last: 0.02, step: 0.01 })?;
    /// let table = search.with_widths(&[Width::Full, Width::Bits(2)])?.measure(&model, &mut Portable)?.table;
    /// assert_eq!(table.labels(0), ["topk 1%", "topk 2%", "topk 1% bits 2", "topk 2% bits 2"]);
    /// assert!(Search::new(Method::Qsgd).with_widths(&[Width::Full]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownName`] when the search does not offer TopK. [`Error::Parameter`] when bits are not 1 to 8.
    /// [`Error::Length`] without widths.
    pub fn with_widths(mut self, widths: &[Width]) -> Result<Self> {
        let widths = Widths::new(widths)?;
        let mut families = self.families.iter_mut();
        let topk = families.find(|family| family.method.has_widths());
        let expected = "topk, or several methods with topk among them";
        topk.ok_or(Error::UnknownName { what: "method for widths", expected })?.widths = widths;
        Ok(self)
    }

    /// A copy of this search with an intermediate default of the first method, between `first` and the final default.
    ///
    /// `done`, from 0 to 1, is the completed part of the ramp. The default changes exponentially, like DGC's densities;
    /// bits and ranks are rounded. L-GreCo's range moves with the default. A range set by
    /// [`with_range`](Search::with_range) stays.
    ///
    /// ```
    /// use lgreco::search::{Method, Search};
    /// let search = Search::new(Method::PowerSgd).with_default(2.0)?;
    /// assert_eq!(search.ramped(8.0, 0.5)?, search.clone().with_default(4.0)?);
    /// assert_eq!(search.ramped(8.0, 1.0)?, search);
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parameter`] when `first` is outside the method's bounds, or `done` is not from 0 to 1.
    pub fn ramped(&self, first: f64, done: f64) -> Result<Self> {
        Error::require((0.0..=1.0).contains(&done), "done part of a ramp-up", done, "from 0 to 1")?;
        let mut search = self.clone();
        search.families[0] = self.families[0].ramped(first, done)?;
        Ok(search)
    }

    /// The only method of the search, or [`Method::Hybrid`] if the search has several methods.
    ///
    /// ```
    /// use lgreco::search::{Method, Search};
    /// assert_eq!(Search::new(Method::Hybrid).method(), Method::Hybrid);
    /// ```
    pub fn method(&self) -> Method {
        match &self.families[..] {
            [family] => family.method,
            _ => Method::Hybrid,
        }
    }

    /// The methods that the search chooses among: one, or several in a hybrid search.
    ///
    /// ```
    /// use lgreco::search::{Method, Search};
    /// let methods: Vec<Method> = Search::new(Method::Hybrid).single_methods().collect();
    /// assert_eq!(methods, [Method::Eden, Method::TopK, Method::PowerSgd]);
    /// ```
    pub fn single_methods(&self) -> impl Iterator<Item = Method> {
        self.families.iter().map(|family| family.method)
    }

    /// The default of the first method: bits, density or rank.
    ///
    /// ```
    /// use lgreco::search::{Method, Search};
    /// assert_eq!(Search::new(Method::TopK).with_default(0.1)?.default_parameter(), 0.1);
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    pub fn default_parameter(&self) -> f64 {
        self.families[0].default
    }

    /// A checksum of all methods with their defaults, ranges and widths. Ranks compare their checksums to verify that
    /// their searches agree.
    ///
    /// ```
    /// use lgreco::search::{Method, Range, Search};
    /// let search = Search::new(Method::Qsgd);
    /// let narrow = search.clone().with_range(Range { first: 3.0, last: 5.0, step: 1.0 })?;
    /// assert_ne!(search.checksum(), narrow.checksum());
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    pub fn checksum(&self) -> u64 {
        let words = self.families.iter().flat_map(|Family { method, default, range, widths }| {
            let Range { first, last, step } = range;
            let [default, first, last, step] = [default, first, last, step].map(|number| number.to_bits());
            [*method as u64, default, first, last, step, widths.word()]
        });
        words.fold(Hash::START, Hash::add).0
    }

    /// Returns an error unless the setting belongs to one of lgreco's methods or of [`methods`](Search::methods).
    ///
    /// # Errors
    /// [`Error::UnknownMethod`] for a setting of another method.
    pub fn knows(&self, setting: &Setting) -> Result<()> {
        setting.expect_known(&self.methods)
    }

    /// Whether the search compresses a tensor of these dimensions.
    pub fn takes(&self, dims: &[usize]) -> bool {
        let elements = if dims.contains(&0) { 0 } else { dims.iter().fold(1usize, |n, &dim| n.saturating_mul(dim)) };
        dims.len() > 1 && elements > 0 && elements >= self.min_elements
    }

    /// The first method's default as a setting for one tensor: the uniform setting. Nothing is measured.
    ///
    /// The setting is uncompressed if the search [leaves the tensor alone](Search::takes), or if compression would save
    /// nothing.
    ///
    /// ```
    /// # use lgreco::search::{Method, Search};
    /// # use lgreco::gradient::Dtype;
    /// let search = Search::new(Method::PowerSgd).with_default(8.0)?;
    /// assert_eq!(search.uniform(&[512, 256], Dtype::F32)?.to_string(), "powersgd 8 iterations 5");
    /// assert_eq!(search.uniform(&[512], Dtype::F32)?.to_string(), "dense");
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooManyElements`] from 2^32 elements on.
    pub fn uniform(&self, dims: &[usize], dtype: Dtype) -> Result<Setting> {
        let shape = Shape::from_dims(dims)?;
        if !self.takes(dims) {
            return Ok(Setting::Dense);
        }
        let Family { method, default, .. } = self.families[0];
        let range = Range { first: default, last: default, step: 1.0 };
        let options = LayerOptions::new(&[Family { method, default, range, widths: Widths::FULL }], &[], shape, dtype)?;
        let nothing = vec![0.0; options.measured()];
        Ok(options.into_options(shape, [dtype, self.reduce_dtype], &nothing, self.weighing())?.settings[0])
    }

    fn weighing(&self) -> Weighing {
        Weighing { metric: self.metric, workers: self.workers.map_or(1.0, |workers| workers.get().into()) }
    }

    /// Converts an `error` in this search's table back to the squared l2 error of one worker's payload of `setting`.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use lgreco::{compress::{Setting, qsgd::Qsgd}, search::{Method, Metric, Search}};
    /// let mut search = Search::new(Method::Qsgd);
    /// (search.workers, search.metric) = (NonZero::new(4), Metric::L2);
    /// assert_eq!(search.squared_error(&Setting::Qsgd(Qsgd::default()), 3.0), 36.0); // the mean of four has an l2 error of 3
    /// ```
    pub fn squared_error(&self, setting: &Setting, error: f64) -> f64 {
        self.weighing().squared(setting, error)
    }

    /// Whether `parameter` (bits, density or rank) is a candidate of the first method.
    pub fn offers(&self, parameter: f64) -> bool {
        let close = |offered: f64| (offered - parameter).abs() <= 1e-9 * parameter;
        self.families[0].parameters().into_iter().any(close)
    }

    /// Measures every layer with every candidate.
    ///
    /// Several parameters may give the same setting on a layer: densities that keep equally many elements, or ranks
    /// above the layer's smaller side. A repeated setting is offered once, with the label of the first parameter. One
    /// option `dense` with error 0 replaces all candidates that are not smaller than the uncompressed tensor.
    ///
    /// ```
    /// # use lgreco::{backend::Portable, gradient::Values};
    /// # use lgreco::search::{Layer, Method, Search};
    /// let mut weight = vec![0.25; 4096];
    /// weight[77] = f32::NAN;
    /// let model = [Layer::new("fc1.weight", &[64, 64], Values::F32(&weight))?];
    /// let failed = Search::new(Method::Qsgd).measure(&model, &mut Portable).unwrap_err();
    /// assert_eq!(failed.to_string(), "layer `fc1.weight`: element 77 is NaN: gradients must be finite");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An error that names a layer with NaN or infinity. [`Error::EmptyTable`] when no layer is left to compress.
    /// [`Error::Length`] without methods. [`Error::DuplicateName`] when layers share a name. These errors also concern
    /// layers that the search leaves uncompressed. [`Error::Parameter`] for a setting of [`beside`](Search::beside) that
    /// is out of range for any layer. The errors of the backend, with the layer's name if an error concerns a layer. The
    /// errors of [`NamedTable`](crate::table::NamedTable)'s [`build`](crate::table::Builder::build).
    ///
    /// # Complexity
    /// Per method and layer, the complexity of [`Candidates::measure`](crate::compress::Candidates::measure), with 5
    /// power iterations for PowerSGD. Allocates the rows and the backend's workspace.
    pub fn measure(&self, model: &[Layer<'_>], backend: &mut dyn Backend) -> Result<Measured, NamedError> {
        distinct(model.iter().map(|layer| layer.name)).map_err(|error| {
            let layer = error.layer().map(|layer| model[layer].name.into());
            NamedError { error, layer, option: None }
        })?;
        let offer = self.offer(model.iter().map(|layer| (layer.name, layer.dims, layer.dtype())))?;
        for &layer in offer.uncompressed() {
            let Layer { name, gradient, .. } = &model[layer];
            check_finite(gradient).map_err(|error| NamedError { error, layer: Some((*name).into()), option: None })?;
        }
        let mut rows = Vec::new();
        offer.measure(
            &offer.rows().collect::<Vec<_>>(),
            |layer| model[layer].gradient,
            backend,
            &mut Vec::new(),
            &mut rows,
        )?;
        offer.into_measured(&rows)
    }
}
