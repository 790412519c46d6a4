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
    /// Name of the solver: `exact`, `dp`, `uniform`, …
    pub solver: String,
    /// Sum of the chosen options' sizes in bits.
    #[serde(deserialize_with = "read::count")]
    pub size: u64,
    /// Lower bound of the minimised quantity. Under an error budget, no plan has fewer bits; the bound is rounded down
    /// to an f64. Under a size limit, no plan has less error.
    pub lower_bound: f64,
    /// Whether the plan is proved optimal within its limit, as defined by [`Summary::proven`].
    pub proven: bool,
    /// Sum of the chosen options' errors.
    pub error: f64,
    /// The error budget, or `None` if the plan has a size limit. Under an error budget, `lower_bound` bounds the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// The size limit in bits, or `None` if the plan has an error budget. Under a size limit, `lower_bound` bounds the
    /// error.
    #[serde(default, deserialize_with = "read::optional_count", skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<u64>,
    /// Size of the uncompressed gradients in bits. [`PlanFile::new`] assumes 32 bits per element for layers whose
    /// uncompressed size the table does not state.
    #[serde(deserialize_with = "read::count")]
    pub uncompressed_size: u64,
    /// Sum of the default options' sizes in bits, if every layer has a default.
    #[serde(default, deserialize_with = "read::optional_count", skip_serializing_if = "Option::is_none")]
    pub default_size: Option<u64>,
    /// The layers in the order of the table.
    pub layers: Vec<PlanLayer>,
    /// The times that measuring and solving took.
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
    /// The option's label.
    pub label: String,
    /// The option's setting. Files store the setting as text. `None` in plans for a table without settings.
    #[serde(
        default,
        deserialize_with = "read::optional_setting",
        serialize_with = "read::write_setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub setting: Option<Setting>,
    /// The option's size in bits.
    #[serde(deserialize_with = "read::count")]
    pub size: u64,
    /// The option's error.
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
    /// Time to measure the error table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<f64>,
    /// Time to choose the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solve: Option<f64>,
}

impl Seconds {
    fn is_empty(&self) -> bool {
        *self == Seconds::default()
    }
}

impl PlanFile {
    /// Makes the file of a plan for `table`, with the table's settings.
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
    /// When the plan was made for another table, and `table` lacks layers or options of the plan.
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

    /// The plan's size, error and proof, as the file states them.
    ///
    /// The file's bound may have been rounded to f64. So if the file states that the size is proved optimal, the
    /// summary's lower bound is the size. If both a budget and a size limit are set, the summary has the budget. If
    /// neither is set, the summary has a budget of 0.
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

    /// Reads a plan file. The plan is not verified against any table.
    ///
    /// # Errors
    /// [`Error::Version`] for another version. [`Error::Kind`] for a table file. [`Error::Field`] when there is no readable
    /// version, no layer, a number below 0, a lower bound above the size (with a size limit: above the error), or not
    /// exactly one of budget and size limit. [`Error::Setting`] for a setting
    /// that is wrong or out of range; [`settings`](PlanFile::settings) checks whether a setting fits its layer.
    /// [`Error::Key`] for an unknown key. [`Error::Json`], with line and column, for everything else.
    ///
    /// # Complexity
    /// O(bytes).
    pub fn parse(json: &[u8]) -> Result<PlanFile, Error> {
        PlanFile::parse_with(json, &Methods::NONE)
    }

    /// Works as [`parse`](PlanFile::parse), and also reads settings of outside `methods`.
    ///
    /// # Errors
    /// The errors of [`parse`](PlanFile::parse).
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
        let (most, expected) = match plan.budget {
            Some(_) => (plan.size as f64, "a number of at most the size"),
            None => (plan.error + plan.error * Proof::RESOLUTION, "a number of at most the error"),
        };
        if plan.lower_bound > most {
            return Err(file.wrong("lower_bound", expected));
        }
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

/// Parses the file. If there are outside `methods`, the function leaves out the layers' settings, because serde reads
/// only settings of lgreco's own methods.
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

/// The largest f64 that does not exceed `x`.
fn floor(x: u64) -> f64 {
    let near = x as f64;
    if near as u128 > u128::from(x) { near.next_down() } else { near }
}
