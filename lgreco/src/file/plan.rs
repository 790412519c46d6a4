use super::{Error, VERSION, read, read::Object};
use crate::compress::Setting;
use crate::compress::method::Methods;
use crate::plan::{Plan, Proof, Summary};
use crate::table::NamedTable;
use alloc::{format, string::String, vec::Vec};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

const KEYS: [&str; 12] = [
    "version",
    "solver",
    "size",
    "lower_bound",
    "proven",
    "error",
    "budget",
    "size_limit",
    "uncompressed_size",
    "default_size",
    "layers",
    "seconds",
];
const LAYER_KEYS: [&str; 6] = ["name", "option", "label", "setting", "size", "error"];

/// A plan file.
///
/// ```
/// use lgreco::{file::PlanFile, plan::{Plan, Proof, Summary}, table::{Choice, NamedTable}};
/// let mut builder = NamedTable::builder("l2");
/// builder.layer("fc1.weight", 8192, Some(0), [("qsgd 4".to_string(), Choice { size: 32768, error: 0.5 })]);
/// let table = builder.build()?;
/// let summary = Summary::of(&table.view(), &[0], Proof::Size { lower_bound: 32768, budget: 0.5 })?;
/// let plan = Plan::verified(&table.view(), "exact", vec![0], summary)?;
///
/// let mut file = PlanFile::new(&table, &plan);
/// assert_eq!((file.uncompressed_size, file.proven), (262144, true));
/// file.seconds.solve = Some(0.0004);
/// assert_eq!(PlanFile::parse(file.to_json().as_bytes()), Ok(file));
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanFile {
    #[serde(deserialize_with = "read::count")]
    version: u64,
    /// Who made the plan: `exact`, `dp`, `uniform`, …
    pub solver: String,
    /// Bits of the chosen options, summed.
    #[serde(deserialize_with = "read::count")]
    pub size: u64,
    /// No plan within the budget is smaller than this many bits, rounded down where f64 cannot hold it; or no plan within
    /// the size limit has less error than this.
    pub lower_bound: f64,
    /// Whether no plan within the budget is smaller than this one, or none within the size limit has less error, as
    /// [`Summary::proven`] says.
    pub proven: bool,
    /// Error of the chosen options, summed.
    pub error: f64,
    /// The error budget that the plan was made for, so that `lower_bound` is one of its size; `None` where there is a size
    /// limit instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// The most bits that the plan was allowed, so that `lower_bound` is one of its error; `None` where there is a budget
    /// instead.
    #[serde(default, deserialize_with = "read::optional_count", skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<u64>,
    /// Bits of the gradients as they are; [`PlanFile::new`] counts 32 per element where the table does not say.
    #[serde(deserialize_with = "read::count")]
    pub uncompressed_size: u64,
    /// Bits of the default options, if every layer has one.
    #[serde(default, deserialize_with = "read::optional_count", skip_serializing_if = "Option::is_none")]
    pub default_size: Option<u64>,
    /// The layers in the order of the table.
    pub layers: Vec<PlanLayer>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Seconds::is_empty")]
    pub seconds: Seconds,
}

/// One layer of a plan file.
///
/// ```
/// use lgreco::{compress::{Setting, qsgd::Qsgd}, file::PlanFile};
/// let json = r#"{"version":1, "solver":"exact", "size":4192, "lower_bound":4192, "proven":true, "error":0.5,
///     "budget":0.5, "uncompressed_size":32000,
///     "layers":[{"name":"fc1.weight", "option":0, "label":"qsgd 4", "setting":"qsgd 4", "size":4192, "error":0.5}]}"#;
/// let layer = &PlanFile::parse(json.as_bytes())?.layers[0];
/// assert_eq!((layer.name.as_str(), layer.label.as_str(), layer.size), ("fc1.weight", "qsgd 4", 4192));
/// assert_eq!(layer.setting, Some(Setting::Qsgd(Qsgd { bits: 4, ..Qsgd::default() })));
/// # Ok::<(), lgreco::file::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanLayer {
    /// Name of the layer.
    pub name: String,
    /// Index of the chosen option.
    #[serde(deserialize_with = "read::count")]
    pub option: u32,
    /// Its label.
    pub label: String,
    /// Its compressor, in the file as text; missing where the plan is for a table without settings.
    #[serde(
        default,
        deserialize_with = "read::optional_setting",
        serialize_with = "read::write_setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub setting: Option<Setting>,
    /// Its size in bits.
    #[serde(deserialize_with = "read::count")]
    pub size: u64,
    /// Its error.
    pub error: f64,
}

/// Wall-clock times in seconds.
///
/// ```
/// use lgreco::file::Seconds;
/// let only_solved = Seconds { solve: Some(0.0004), ..Seconds::default() };
/// assert_eq!(only_solved.measure, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Measuring the error table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<f64>,
    /// Choosing the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solve: Option<f64>,
}

impl Seconds {
    fn is_empty(&self) -> bool {
        *self == Seconds::default()
    }
}

impl PlanFile {
    /// The file form of a plan for `table`, with the settings that the table has.
    ///
    /// ```
    /// # use lgreco::{file::PlanFile, plan::{Plan, budget::Budget}, table::{Choice, NamedTable}};
    /// let option = |label: &str, size, error| (label.to_string(), Choice { size, error });
    /// let mut builder = NamedTable::builder("l2");
    /// builder.layer("fc1.weight", 1000, Some(0), [option("qsgd 4", 4192, 0.5), option("qsgd 2", 2192, 2.0)]);
    /// let mut table = builder.build()?;
    /// table.set_setting(0, 1, "qsgd 2".parse()?);
    /// let plan = Plan::from_options(&table.view(), Budget::Absolute(2.0), "by hand", vec![1])?;
    /// let file = PlanFile::new(&table, &plan);
    /// assert!(file.to_json().contains("\"setting\": \"qsgd 2\","));
    /// assert_eq!((file.size, file.default_size, file.uncompressed_size), (2192, Some(4192), 32000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the plan was made for another table and names layers or options that this one does not have.
    pub fn new(table: &NamedTable, plan: &Plan) -> PlanFile {
        let (view, summary) = (table.view(), plan.summary());
        let layer = |(layer, &option): (usize, &u32)| {
            let choice = view.layer(layer)[option as usize];
            let (name, label) = (table.name(layer).into(), table.label(layer, option as usize).into());
            let setting = table.setting(layer, option as usize);
            PlanLayer { name, option, label, setting, size: choice.size, error: choice.error }
        };
        let default_size =
            |options: Vec<u32>| view.iter().zip(options).map(|(layer, option)| layer[option as usize].size).sum();
        let uncompressed = (0..table.layers())
            .map(|layer| table.uncompressed_size(layer).map_or(32 * u128::from(table.elements(layer)), u128::from));
        let (lower_bound, budget, size_limit) = match summary.proof {
            Proof::Size { lower_bound, budget } => (floor(lower_bound), Some(budget), None),
            Proof::Error { lower_bound, size_limit } => (lower_bound, None, Some(size_limit)),
        };
        PlanFile {
            version: VERSION,
            solver: plan.solver().into(),
            size: summary.size,
            lower_bound,
            proven: summary.proven(),
            error: summary.error,
            budget,
            size_limit,
            uncompressed_size: u64::try_from(uncompressed.sum::<u128>()).unwrap_or(u64::MAX),
            default_size: table.defaults().map(default_size),
            layers: plan.options().iter().enumerate().map(layer).collect(),
            seconds: Seconds::default(),
        }
    }

    /// What the file states about the plan; its lower bound is the size where that is proven, as f64 may have rounded the
    /// bound. A file with both a budget and a size limit counts as one with a budget, and without either as one with a
    /// budget of 0.
    ///
    /// ```
    /// use lgreco::{file::PlanFile, plan::Limit};
    /// let json = r#"{"version":1, "solver":"exact", "size":4192, "lower_bound":0.5, "proven":true, "error":0.5,
    ///     "size_limit":5000, "uncompressed_size":32000,
    ///     "layers":[{"name":"fc1.weight", "option":0, "label":"qsgd 4", "size":4192, "error":0.5}]}"#;
    /// let summary = PlanFile::parse(json.as_bytes())?.summary();
    /// assert_eq!((summary.size, summary.limit(), summary.proven()), (4192, Limit::Size(5000), true));
    /// # Ok::<(), lgreco::file::Error>(())
    /// ```
    pub fn summary(&self) -> Summary {
        let PlanFile { size, lower_bound, error, .. } = *self;
        let proof = match (self.budget, self.size_limit) {
            (None, Some(size_limit)) => Proof::Error { lower_bound, size_limit },
            (budget, _) => {
                let lower_bound = if self.proven { size } else { lower_bound as u64 };
                Proof::Size { lower_bound, budget: budget.unwrap_or(0.0) }
            }
        };
        Summary { size, error, proof }
    }

    /// Reads a plan file. It is not verified against any table.
    ///
    /// # Errors
    /// [`Error::Version`]; [`Error::Kind`] for a table; [`Error::Field`] when there is no readable version, no layer, a number below 0, or not one of
    /// budget and size limit;
    /// [`Error::Setting`] for a setting that is not one or out of range (whether it fits its layer,
    /// [`settings`](PlanFile::settings) says); [`Error::Key`]; else [`Error::Json`] with line and column.
    ///
    /// # Complexity
    /// O(bytes).
    pub fn parse(json: &[u8]) -> Result<PlanFile, Error> {
        PlanFile::parse_with(json, &Methods::NONE)
    }

    /// [`parse`](PlanFile::parse), with settings of methods from outside lgreco, too.
    ///
    /// # Errors
    /// As [`parse`](PlanFile::parse).
    ///
    /// # Complexity
    /// O(bytes).
    pub fn parse_with(json: &[u8], methods: &Methods) -> Result<PlanFile, Error> {
        let json = read::text(json)?;
        let file = Object::parse(String::new(), json)?;
        file.version()?;
        file.expect_kind(read::PLAN, read::TABLE)?;
        file.only(&KEYS)?;
        let layers = file.array("layers").unwrap_or_default().into_iter().enumerate();
        let layers = layers.map(|(index, layer)| {
            let layer = Object::parse(format!("layer {index}"), layer)?;
            layer.only(&LAYER_KEYS)?;
            let setting = layer.setting("setting", methods)?;
            Ok((layer, setting))
        });
        let (layers, settings): (Vec<_>, Vec<_>) = layers.collect::<Result<_, Error>>()?;
        let seconds = match file.optional::<&RawValue>("seconds", "") {
            Ok(Some(seconds)) => Some(Object::parse("seconds".into(), seconds.get())?),
            _ => None,
        };
        seconds.iter().try_for_each(|seconds| seconds.only(&["measure", "solve"]))?;
        let mut plan = without_settings(json, methods)
            .map_err(|error| Error::Json { place: String::new(), what: format!("{error}") })?;
        plan.layers.iter_mut().zip(settings).for_each(|(layer, setting)| layer.setting = setting);
        if plan.layers.is_empty() {
            return Err(file.wrong("layers", "at least one layer"));
        }
        let not_negative = |object: &Object<'_>, field, value: f64| match value < 0.0 {
            true => Err(object.wrong(field, "a number >= 0")),
            false => Ok(()),
        };
        match (plan.budget, plan.size_limit) {
            (None, None) => return Err(file.wrong("budget", "a number >= 0, unless there is a size_limit")),
            (Some(_), Some(_)) => return Err(file.wrong("size_limit", "none beside a budget")),
            _ => {}
        }
        let budget = plan.budget.unwrap_or(0.0);
        let numbers = [("lower_bound", plan.lower_bound), ("error", plan.error), ("budget", budget)];
        numbers.into_iter().try_for_each(|(field, value)| not_negative(&file, field, value))?;
        layers.iter().zip(&plan.layers).try_for_each(|(json, layer)| not_negative(json, "error", layer.error))?;
        if let Some(seconds) = &seconds {
            not_negative(seconds, "measure", plan.seconds.measure.unwrap_or(0.0))?;
            not_negative(seconds, "solve", plan.seconds.solve.unwrap_or(0.0))?;
        }
        Ok(plan)
    }

    /// Writes a plan file.
    pub fn to_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self).expect("a struct of strings and numbers");
        json.push('\n');
        json
    }
}

/// The file; where there are `methods` without its layers' settings, which may be of those.
fn without_settings(json: &str, methods: &Methods) -> serde_json::Result<PlanFile> {
    if *methods == Methods::NONE {
        return serde_json::from_str(json);
    }
    let mut value: serde_json::Value = serde_json::from_str(json)?;
    for layer in value["layers"].as_array_mut().into_iter().flatten() {
        layer.as_object_mut().and_then(|layer| layer.remove("setting"));
    }
    serde_json::from_value(value)
}

/// The largest f64 that is not above `x`.
fn floor(x: u64) -> f64 {
    let near = x as f64;
    if near as u128 > u128::from(x) { near.next_down() } else { near }
}
