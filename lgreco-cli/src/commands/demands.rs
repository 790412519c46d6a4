//! Groups and fixed settings: a table's own, and those of the command line.

use crate::args::{Demands, Fixed, Group};
use crate::failure::Failure;
use lgreco_core::plan::{Constraints, Merged};
use lgreco_core::table::NamedTable;

/// `table`, which is called `name`, with what plans for it must do. The command line fixes layers that the table fixes
/// otherwise.
pub fn merged<'a>(name: &str, table: &'a NamedTable, demands: &Demands) -> Result<Merged<'a>, Failure> {
    let refused = |flag: &str, what: String| Failure::bad_input(format_args!("{name}: {flag}: {what}"));
    let find = |flag: &str, layer: &str| {
        let unknown = || refused(flag, format!("layer `{layer}`: the table has no such layer"));
        table.find(layer).ok_or_else(unknown)
    };
    let mut constraints = Constraints::of(table);
    for Group(layers) in &demands.group {
        let layers = layers.iter().map(|layer| find("--group", layer));
        constraints.group(layers.collect::<Result<Vec<_>, Failure>>()?);
    }
    let mut fixed = Vec::new();
    for Fixed { layer: of, setting } in &demands.fix {
        let layer = find("--fix", of)?;
        if fixed.contains(&layer) {
            return Err(refused("--fix", format!("layer `{of}` is there twice")));
        }
        fixed.push(layer);
        let unknown = || {
            let labels = table.labels(layer).iter().map(|label| format!("`{label}`")).collect::<Vec<_>>();
            refused("--fix", format!("layer `{of}`: no option is `{setting}`; it has {}", listed(&labels)))
        };
        constraints.fix(layer, table.find_option(layer, setting).ok_or_else(unknown)?);
    }
    Merged::named(table, &constraints)
        .map_err(|error| Failure::from_core(&error.error, format_args!("{name}: {error}")))
}

/// All of a few, and the ends of many.
fn listed(labels: &[String]) -> String {
    match labels {
        [first, second, .., last] if labels.len() > 12 => format!("{first}, {second} to {last}"),
        _ => labels.join(", "),
    }
}
