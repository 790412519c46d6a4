//! Makes the picture of a plan.

use super::{Bar, Measure, Picture};
use crate::facts::Facts;
use crate::failure::{Failure, printable};
use crate::report::{self, Point};
use lgreco::plan::{Merged, Plan, exact::Limits};
use lgreco::table::NamedTable;

/// Number of points of the frontier. Each point takes up to four runs of the solver.
const POINTS: usize = 25;

impl Picture {
    /// The picture of a plan for `table`. The frontier in the picture keeps the same constraints as the plan.
    pub fn of_plan(
        title: &str,
        table: &NamedTable,
        merged: &Merged<'_>,
        plan: &Plan,
        facts: Option<&Facts>,
    ) -> Result<Picture, Failure> {
        let (view, summary) = (table.view(), plan.summary());
        let chosen = Point { error: summary.error, size: summary.size };
        let default = report::default_point(table);
        let frontier = merged.frontier(POINTS, Limits::default());
        let frontier = frontier.map_err(|error| Failure::from_core(&error, format_args!("the frontier: {error}")))?;
        let point = |point: &lgreco::plan::Point| {
            let summary = point.plan.summary();
            Point { error: summary.error, size: summary.size }
        };
        let bar = |layer: usize, option: u32| {
            let per_element =
                |option: u32| view.layer(layer)[option as usize].size as f64 / table.elements(layer).max(1) as f64;
            Bar {
                name: printable(table.name(layer)),
                label: printable(table.label(layer, option as usize)),
                chosen: per_element(option),
                mark: table.default_option(layer).map(per_element),
            }
        };
        let default_name = report::default_setting(table)
            .map_or_else(|| "default setting".into(), |label| format!("{label} everywhere"));
        let gain = default
            .and_then(|default| report::gain(default, summary))
            .map(|gain| format!("{gain} than {default_name}"));
        let (limit, used) = report::limit_use(summary, table.metric());
        Ok(Picture {
            title: printable(title),
            notes: gain.into_iter().chain([report::certificate(summary), format!("{limit} {used}")]).collect(),
            default_name,
            uncompressed: facts.map(|facts| facts.sizes.iter().sum()),
            default,
            chosen,
            frontier: frontier.points.iter().map(point).collect(),
            layers: plan.options().iter().enumerate().map(|(layer, &option)| bar(layer, option)).collect(),
            measure: Measure::BitsPerElement,
        })
    }
}
