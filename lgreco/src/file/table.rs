use super::read::{self, COUNT, Count, Object};
use super::{Error, VERSION};
use crate::compress::method::Methods;
use crate::plan::{Limit, budget::Budget};
use crate::table::{Choice, NamedError, NamedTable};
use alloc::{format, string::String, vec::Vec};

/// A table file: a table with an optional error budget.
///
/// A layer may name a `group`; all layers of a group share an option. A layer may also name a `fixed` option, which
/// every plan then uses.
///
/// ```
/// use lgreco::{file::TableFile, plan::Limit};
/// let json = r#"{"version":1, "metric":"l2", "layers":[{"name":"fc1.weight", "elements":262144, "default":1,
///     "options":[{"label":"topk 0.1%", "size":16768, "error":3.25}, {"label":"topk 0.2%", "size":33536, "error":3.01}]}]}"#;
/// let file = TableFile::parse(json.as_bytes())?;
/// assert_eq!(file.table.label(0, 1), "topk 0.2%");
/// assert_eq!(file.limit().unwrap(), Some(Limit::Size(33536)));
/// assert_eq!(TableFile::parse(file.to_json().as_bytes())?, file);
///
/// let typo = json.replace("33536", "-1");
/// assert_eq!(
///     TableFile::parse(typo.as_bytes()).unwrap_err().to_string(),
///     "layer 0 (`fc1.weight`), option 1: size is -1, expected an integer from 0 to 2^64 - 1",
/// );
/// # Ok::<(), lgreco::file::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableFile {
    /// The table.
    pub table: NamedTable,
    /// The error budget, finite and at least 0. If the budget is `None`, the size of the default options is the limit.
    pub budget: Option<f64>,
}

impl TableFile {
    /// Reads a table file.
    ///
    /// # Errors
    /// [`Error`], with layer, option and field, the value found and the values allowed. For an unknown key, the error
    /// suggests a known key.
    ///
    /// # Complexity
    /// O(bytes).
    pub fn parse(json: &[u8]) -> Result<TableFile, Error> {
        TableFile::parse_with(json, &Methods::NONE)
    }

    /// Works as [`parse`](TableFile::parse), and also reads settings of outside `methods`.
    ///
    /// # Errors
    /// The errors of [`parse`](TableFile::parse).
    ///
    /// # Complexity
    /// O(bytes).
    pub fn parse_with(json: &[u8], methods: &Methods) -> Result<TableFile, Error> {
        let file = Object::parse(String::new(), read::text(json)?)?;
        file.version()?;
        file.expect_kind(read::TABLE, read::PLAN)?;
        file.only(&["version", "metric", "budget", "layers"])?;
        let finite = "a finite number >= 0";
        let budget: Option<f64> = file.optional("budget", finite)?;
        if budget.is_some_and(|budget| !(budget.is_finite() && budget >= 0.0)) {
            return Err(file.wrong("budget", finite));
        }
        let mut builder = NamedTable::builder(file.required::<String>("metric", "a string")?);
        let (mut sizes, mut all_settings, mut ties) = (Vec::new(), Vec::new(), Vec::new());
        for (index, json) in file.array("layers")?.into_iter().enumerate() {
            let layer = Object::parse(format!("layer {index}"), json)?;
            let name: String = layer.required("name", "a string")?;
            let place = format!("layer {index} (`{name}`)");
            let layer = Object::parse(place.clone(), json)?;
            layer.only(&["name", "elements", "uncompressed_size", "default", "group", "fixed", "options"])?;
            let options = layer.array("options")?.into_iter().enumerate().map(|(index, json)| {
                let option = Object::parse(format!("{place}, option {index}"), json)?;
                option.only(&["label", "setting", "size", "error"])?;
                let error = option.required("error", finite)?;
                let choice = Choice { size: option.count("size")?, error };
                Ok(((option.required("label", "a string")?, choice), option.setting("setting", methods)?))
            });
            let (options, settings): (Vec<(String, Choice)>, Vec<_>) = options.collect::<Result<_, Error>>()?;
            all_settings.push(settings);
            let index = |field| -> Result<Option<u32>, Error> {
                Ok(layer.optional(field, "the index of an option")?.map(|Count(option)| option))
            };
            let (default, fixed) = (index("default")?, index("fixed")?);
            let group: Option<String> = layer.optional("group", "the name of a group")?;
            ties.push((group, fixed, options.len()));
            builder.layer(name, layer.count("elements")?, default, options);
            sizes.push(layer.optional("uncompressed_size", COUNT)?.map(|Count(bits)| bits));
        }
        let mut table = builder.build()?;
        for (layer, bits) in sizes.into_iter().enumerate() {
            bits.into_iter().for_each(|bits| table.set_uncompressed_size(layer, bits));
        }
        for (layer, settings) in all_settings.into_iter().enumerate() {
            for (option, setting) in settings.into_iter().enumerate() {
                setting.into_iter().for_each(|setting| table.set_setting(layer, option, setting));
            }
        }
        for (layer, (group, fixed, options)) in ties.into_iter().enumerate() {
            if let Some(option) = fixed.map(|option| option as usize).filter(|&option| option >= options) {
                return Err(table.name_error(crate::Error::NoSuchOption { layer, option, options }).into());
            }
            table.set_group(layer, group);
            table.set_fixed_option(layer, fixed);
        }
        expect_solvable(&table)?;
        Ok(TableFile { table, budget })
    }

    /// The file's budget. Without a budget, the size of the default options is the limit. `None` if there is no budget
    /// and a layer has no default option.
    ///
    /// ```
    /// # use lgreco::{file::TableFile, plan::Limit};
    /// let json = r#"{"version":1, "metric":"l2", "layers":[{"name":"fc1", "elements":9, "default":0,
    ///     "options":[{"label":"qsgd 4", "size":200, "error":0.5}]}]}"#;
    /// let mut file = TableFile::parse(json.as_bytes())?;
    /// assert_eq!(file.limit()?, Some(Limit::Size(200))); // the default's size
    /// file.budget = Some(2.0);
    /// assert_eq!(file.limit()?, Some(Limit::Error(2.0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Budget::limit`].
    pub fn limit(&self) -> Result<Option<Limit>, crate::Error> {
        match (self.budget, self.table.defaults()) {
            (Some(budget), _) => Budget::Absolute(budget).limit(&self.table.view()).map(Some),
            (None, Some(options)) => {
                Budget::DefaultSize { alpha: 1.0, options: &options }.limit(&self.table.view()).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// Writes a table file, one line per layer. [`parse`](TableFile::parse) refuses the file if the budget is negative or
    /// not finite.
    pub fn to_json(&self) -> String {
        let table = &self.table;
        let text = |text: &str| serde_json::Value::from(text);
        let mut json = format!("{{\"version\":{VERSION},\"metric\":{}", text(table.metric()));
        if let Some(budget) = self.budget {
            // JSON has no NaN and no infinity. `null` would read as no budget, so these values are written as text.
            let budget = if budget.is_finite() { budget.into() } else { text(&format!("{budget}")) };
            json += &format!(",\"budget\":{budget}");
        }
        json += ",\"layers\":[";
        for layer in 0..table.layers() {
            let (name, elements) = (text(table.name(layer)), table.elements(layer));
            json += &format!("{}\n{{\"name\":{name},\"elements\":{elements}", if layer == 0 { "" } else { "," });
            if let Some(bits) = table.uncompressed_size(layer) {
                json += &format!(",\"uncompressed_size\":{bits}");
            }
            if let Some(default) = table.default_option(layer) {
                json += &format!(",\"default\":{default}");
            }
            if let Some(group) = table.group(layer) {
                json += &format!(",\"group\":{}", text(group));
            }
            if let Some(fixed) = table.fixed_option(layer) {
                json += &format!(",\"fixed\":{fixed}");
            }
            json += ",\"options\":[";
            for (option, (choice, label)) in table.view().layer(layer).iter().zip(table.labels(layer)).enumerate() {
                let (label, error) = (text(label), serde_json::Value::from(choice.error));
                let comma = if option == 0 { "" } else { "," };
                json += &format!("{comma}{{\"label\":{label}");
                if let Some(setting) = table.setting(layer, option) {
                    json += &format!(",\"setting\":{}", text(&format!("{setting}")));
                }
                json += &format!(",\"size\":{},\"error\":{error}}}", choice.size);
            }
            json += "]}";
        }
        json + "\n]}\n"
    }
}

/// Rejects groups whose layers have no common option.
fn expect_solvable(table: &NamedTable) -> Result<(), NamedError> {
    let constraints = table.constraints();
    if constraints.is_empty() { Ok(()) } else { table.merged(&constraints).map(drop) }
}
