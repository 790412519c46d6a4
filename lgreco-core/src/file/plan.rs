use super::{Error, VERSION, read::Object, table::utf8};
use crate::{plan::Plan, table::NamedTable};
use alloc::{format, string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// A plan file.
///
/// ```
/// use lgreco_core::{file::PlanFile, plan::{Plan, Summary}, table::{Choice, NamedTable}};
/// let mut builder = NamedTable::builder("l2");
/// builder.layer("fc1.weight", 8192, Some(0), [("qsgd 4".to_string(), Choice { size: 32768, error: 0.5 })]);
/// let table = builder.build()?;
/// let summary = Summary::of(&table.view(), &[0], 0.5, 32768)?;
/// let plan = Plan::verified(&table.view(), "exact", vec![0], summary)?;
///
/// let mut file = PlanFile::new(&table, &plan);
/// assert_eq!((file.uncompressed_size, file.proven), (262144, true));
/// file.seconds.solve = Some(0.0004);
/// assert_eq!(PlanFile::parse(file.to_json().as_bytes()), Ok(file));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanFile {
    version: u64,
    /// Who made the plan: `exact`, `dp`, `uniform`, …
    pub solver: String,
    /// Bits of the chosen options, summed.
    pub size: u64,
    /// No feasible plan is smaller than this many bits; rounded down where f64 cannot hold it.
    pub lower_bound: f64,
    /// Whether no feasible plan is smaller than this one.
    pub proven: bool,
    /// Error of the chosen options, summed.
    pub error: f64,
    /// The budget the plan was made for.
    pub budget: f64,
    /// Bits of the gradients as they are; [`PlanFile::new`] counts 32 per element.
    pub uncompressed_size: u64,
    /// Bits of the default options, if every layer has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_size: Option<u64>,
    /// The layers in the order of the table.
    pub layers: Vec<PlanLayer>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Seconds::is_empty")]
    pub seconds: Seconds,
}

/// One layer of a plan file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanLayer {
    /// Name of the layer.
    pub name: String,
    /// Index of the chosen option.
    pub option: u32,
    /// Its label.
    pub label: String,
    /// Its size in bits.
    pub size: u64,
    /// Its error.
    pub error: f64,
}

/// Wall-clock times in seconds.
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
    /// The file form of a plan for `table`.
    ///
    /// # Panics
    /// When the plan was made for another table and names layers or options that this one does not have.
    pub fn new(table: &NamedTable, plan: &Plan) -> PlanFile {
        let (view, summary) = (table.view(), plan.summary());
        let layer = |(layer, &option): (usize, &u32)| {
            let choice = view.layer(layer)[option as usize];
            let (name, label) = (table.name(layer).into(), table.label(layer, option as usize).into());
            PlanLayer { name, option, label, size: choice.size, error: choice.error }
        };
        let default_size =
            |options: Vec<u32>| view.iter().zip(options).map(|(layer, option)| layer[option as usize].size).sum();
        PlanFile {
            version: VERSION,
            solver: plan.solver().into(),
            size: summary.size,
            lower_bound: floor(summary.lower_bound),
            proven: summary.proven(),
            error: summary.error,
            budget: summary.budget,
            uncompressed_size: u64::try_from(32 * table.total_elements()).unwrap_or(u64::MAX),
            default_size: table.defaults().map(default_size),
            layers: plan.options().iter().enumerate().map(layer).collect(),
            seconds: Seconds::default(),
        }
    }

    /// Reads a plan file. It is not verified against any table.
    ///
    /// # Errors
    /// [`Error::Version`], or [`Error::Json`] with line and column.
    ///
    /// # Complexity
    /// O(bytes).
    pub fn parse(json: &[u8]) -> Result<PlanFile, Error> {
        let json = utf8(json)?;
        match Object::parse(String::new(), json)?.required("version", "1")? {
            VERSION => {}
            found => return Err(Error::Version { found }),
        }
        serde_json::from_str(json).map_err(|error| Error::Json { place: String::new(), what: format!("{error}") })
    }

    /// Writes a plan file.
    pub fn to_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self).expect("a struct of strings and numbers");
        json.push('\n');
        json
    }
}

/// The largest f64 that is not above `x`.
fn floor(x: u64) -> f64 {
    let near = x as f64;
    if near as u128 > u128::from(x) { near.next_down() } else { near }
}
