//! Groups and fixed settings, from the table and from the command line.

use crate::args::{ConstraintArgs, Group};
use crate::failure::Failure;
use lgreco::plan::Merged;
use lgreco::table::NamedTable;
use std::collections::BTreeMap;

/// Prepares `table` for planning within the constraints of the table and the command line. `name` is the table's name for
/// messages.
///
/// If the table and the command line fix the same layer, the command line wins.
pub fn merged<'a>(name: &str, table: &'a NamedTable, asked: &ConstraintArgs) -> Result<Merged<'a>, Failure> {
    let refused = |flag: &str, what: String| Failure::bad_input(format_args!("{name}: {flag}: {what}"));
    let find = |flag: &str, pattern: &str| {
        let found = matches(table, pattern);
        let unknown = || refused(flag, format!("layer `{pattern}`: the table has no such layer"));
        if found.is_empty() { Err(unknown()) } else { Ok(found) }
    };
    let mut constraints = table.constraints();
    for Group(patterns) in &asked.group {
        // Layers form one group if `*` matches the same text in their names.
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for pattern in patterns {
            for (layer, star) in find("--group", pattern)? {
                groups.entry(star).or_default().push(layer);
            }
        }
        for (star, layers) in groups {
            if layers.len() < patterns.len() {
                let what = format!("`{}`: where * is `{star}`, a layer is missing", patterns.join(","));
                return Err(refused("--group", what));
            }
            if let Some(twice) = (1..layers.len()).find(|&at| layers[..at].contains(&layers[at])) {
                return Err(refused("--group", format!("layer `{}` is there twice", table.name(layers[twice]))));
            }
            constraints.group(layers);
        }
    }
    let mut fixed = Vec::new();
    for text in &asked.fix {
        let (layers, setting) = split(table, text).ok_or_else(|| {
            let layer = text.rsplit_once('=').map_or(&**text, |(layer, _)| layer);
            refused("--fix", format!("layer `{layer}`: the table has no such layer"))
        })?;
        for (layer, _) in layers {
            let of = table.name(layer);
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
    }
    table.merged(&constraints).map_err(|error| Failure::from_core(&error.error, format_args!("{name}: {error}")))
}

/// The layers whose names match `pattern`, each with the text that `*` matches. A layer with exactly this name matches
/// alone.
fn matches<'a>(table: &'a NamedTable, pattern: &str) -> Vec<(usize, &'a str)> {
    if let Some(layer) = table.find(pattern) {
        return vec![(layer, "")];
    }
    let Some((before, after)) = pattern.split_once('*') else { return Vec::new() };
    let star = |layer| table.name(layer).strip_prefix(before)?.strip_suffix(after).map(|star| (layer, star));
    (0..table.layers()).filter_map(star).collect()
}

/// Splits `LAYER=SETTING` at the first `=` after which the left part names layers. Names and labels may contain `=`
/// too.
fn split<'a, 'b>(table: &'a NamedTable, text: &'b str) -> Option<(Vec<(usize, &'a str)>, &'b str)> {
    text.match_indices('=').find_map(|(at, _)| {
        let layers = matches(table, &text[..at]);
        (!layers.is_empty()).then_some((layers, &text[at + 1..]))
    })
}

/// Lists labels for a message. Of more than 12 labels, lists only the first two and the last.
fn listed(labels: &[String]) -> String {
    match labels {
        [first, second, .., last] if labels.len() > 12 => format!("{first}, {second} to {last}"),
        _ => labels.join(", "),
    }
}
