//! Formats plans and tables as text.

use crate::facts::{Facts, LeftAlone};
use crate::failure::printable;
use crate::text_table::Rows;
use crate::units::{bits, bits_both, counted, exact_bits, grouped, ratio, seconds, shape, significant};
use lgreco::plan::budget::Budget;
use lgreco::plan::{Limit, Plan, Proof, Summary};
use lgreco::search::Metric;
use lgreco::table::NamedTable;

/// A note on comparing the errors of unbiased and biased methods under one budget.
pub const HYBRID_NOTE: &str = "
Note: these are errors of one compression. EDEN's and QSGD's are unbiased and average out over workers and steps; those
of TopK and PowerSGD are biased and need error feedback.
";

/// Error and size of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The plan's error.
    pub error: f64,
    /// The plan's size in bits.
    pub size: u64,
}

/// A plan and its origin.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The plan.
    pub plan: Plan,
    /// Summary of a second plan, under the opposite limit: the uniform setting's size if `plan` is limited by the
    /// uniform setting's error, and vice versa. `None` if the budget is not uniform.
    pub other: Option<Summary>,
    /// Describes where the limit comes from. Empty if no report shows this text.
    pub origin: String,
    /// Seconds of solving.
    pub seconds: f64,
}

/// Formats a plan layer by layer, with a summary.
pub fn plan(table: &NamedTable, solved: &Solved, facts: Option<&Facts>, times: &[(&str, f64)]) -> String {
    let plan = &solved.plan;
    let mut rows = Rows::new(&["layer", "shape", "elements", "setting", "error", "relative", "bits", "ratio"]);
    let view = table.view();
    for (layer, &option) in plan.options().iter().enumerate() {
        let choice = view.layer(layer)[option as usize];
        let of_facts = |get: &dyn Fn(&Facts) -> String| facts.map_or_else(String::new, get);
        rows.add([
            printable(table.name(layer)),
            of_facts(&|facts| shape(&facts.shapes[layer])),
            grouped(table.elements(layer)),
            printable(table.label(layer, option as usize)),
            significant(choice.error),
            of_facts(&|facts| percent(relative(table.metric(), choice.error, facts.norms[layer]))),
            grouped(choice.size),
            of_facts(&|facts| ratio(facts.sizes[layer], choice.size)),
        ]);
    }
    format!("{}\n{}", rows.render(), aligned(&plan_lines(table, solved, facts, times)))
}

/// The statements about a plan, each with its name.
pub fn plan_lines(
    table: &NamedTable,
    solved: &Solved,
    facts: Option<&Facts>,
    times: &[(&str, f64)],
) -> Vec<(&'static str, String)> {
    let summary = solved.plan.summary();
    let uncompressed = facts.map(|facts| facts.sizes.iter().sum::<u64>());
    let mut lines = Vec::new();
    let sized = |size: u64| {
        let of_whole = uncompressed.map_or_else(String::new, |whole| format!("{} smaller, ", ratio(whole, size)));
        of_whole + &bits_both(size)
    };
    if let Some(uniform) = default_point(table) {
        let over = match summary.limit() {
            Limit::Error(budget) if uniform.error > budget => ", over this budget",
            Limit::Size(limit) if uniform.size > limit => ", over this size",
            _ => "",
        };
        let setting = default_setting(table).map_or_else(String::new, |label| format!(", {label}"));
        lines.push(("uniform", sized(uniform.size) + &setting + over));
        lines.push(("this plan", sized(summary.size)));
        lines.extend(gain(uniform, summary).map(|gain| ("gain", format!("{gain} than uniform"))));
        if let Some((gain, other)) = solved.other.as_ref().and_then(|other| Some((gain(uniform, other)?, other))) {
            let with = match other.limit() {
                Limit::Error(_) => "with its error",
                Limit::Size(_) => "in its size",
            };
            lines.push(("or", format!("{gain} than uniform {with}")));
        }
    } else {
        lines.push(("this plan", sized(summary.size)));
    }
    let (limit, used) = limit_use(summary, table.metric());
    lines.push((limit, if solved.origin.is_empty() { used } else { format!("{used}; {}", solved.origin) }));
    let error = |error| format!("{} ({})", significant(error), printable(table.metric()));
    let lower_bound = match summary.proof {
        Proof::Size { lower_bound, .. } => exact_bits(lower_bound),
        Proof::Error { lower_bound, .. } => {
            lines.push(("error", error(summary.error)));
            error(lower_bound)
        }
    };
    lines.push(("lower bound", format!("{lower_bound}: {}", certificate(summary))));
    if let (Some(LeftAlone { layers, elements, size }), Some(whole)) = (facts.map(|f| f.left_alone), uncompressed)
        && layers > 0
    {
        let (them, all) = (if layers == 1 { "it" } else { "them" }, ratio(whole + size, summary.size + size));
        lines.push((
            "uncompressed",
            format!("{}; with {them} the model is {all} smaller", left_alone(layers, elements, size)),
        ));
    }
    lines.extend(device_memory(facts));
    lines.push(("time", times_taken(times)));
    lines
}

/// Formats a table layer by layer, with the ranges of its options.
pub fn measured(table: &NamedTable, facts: &Facts, times: &[(&str, f64)]) -> String {
    let mut rows = Rows::new(&["layer", "shape", "elements", "options", "bits", "error", "default"]);
    let view = table.view();
    for (layer, options) in view.iter().enumerate() {
        let span = |get: &dyn Fn(usize) -> f64, write: &dyn Fn(f64) -> String| {
            let values = (0..options.len()).map(get);
            let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
            format!("{} … {}", write(low), write(high))
        };
        rows.add([
            printable(table.name(layer)),
            shape(&facts.shapes[layer]),
            grouped(table.elements(layer)),
            grouped(options.len() as u64),
            span(&|option| options[option].size as f64, &|size| grouped(size as u64)),
            span(&|option| options[option].error, &significant),
            table
                .default_option(layer)
                .map_or_else(String::new, |option| printable(table.label(layer, option as usize))),
        ]);
    }
    let LeftAlone { layers, elements, size } = facts.left_alone;
    let mut lines = vec![
        (
            "table",
            format!(
                "{}, {}, metric {}",
                counted(table.layers() as u64, "layer"),
                counted(view.choices().len() as u64, "option"),
                table.metric()
            ),
        ),
        ("uncompressed", left_alone(layers, elements, size)),
    ];
    lines.extend(device_memory(Some(facts)));
    lines.push(("time", times_taken(times)));
    format!("{}\n{}", rows.render(), aligned(&lines))
}

/// Describes the tensors that stay uncompressed.
fn left_alone(layers: usize, elements: u64, size: u64) -> String {
    format!("{}, {}, {}", counted(layers as u64, "tensor"), counted(elements, "element"), bits(size))
}

/// The label of the default option, if it is the same in every layer.
pub fn default_setting(table: &NamedTable) -> Option<String> {
    let labels: Option<Vec<&str>> =
        (0..table.layers()).map(|layer| Some(table.label(layer, table.default_option(layer)? as usize))).collect();
    let labels = labels?;
    labels.windows(2).all(|pair| pair[0] == pair[1]).then(|| printable(labels[0]))
}

/// Error and size of the default options, if every layer has one.
pub fn default_point(table: &NamedTable) -> Option<Point> {
    let (view, options) = (table.view(), table.defaults()?);
    let Ok(Limit::Error(error)) = Budget::Defaults { alpha: 1.0, options: &options }.limit(&view) else { return None };
    Some(Point { error, size: view.chosen(&options).ok()?.map(|choice| choice.size).sum() })
}

/// The used part of the budget, such as `99.98 %`. The percentage is rounded down, so 100 % means that the whole budget
/// is used, up to float rounding. If the error exceeds the budget, the text says `over`.
pub fn share(error: f64, budget: f64) -> String {
    let percent = |round: fn(f64) -> f64| round(1e4 * (error / budget)) / 100.0;
    match error {
        0.0 => "0 %".into(),
        _ if error > budget => format!("{:.2} % (over)", percent(f64::ceil)),
        _ => format!("{:.2} %", percent(|x| (x + 1e-8).floor())),
    }
}

/// Describes what the lower bound proves about a plan.
pub fn certificate(summary: &Summary) -> String {
    match summary.gap() {
        _ if summary.proven() => "proven optimal".into(),
        gap if gap.is_finite() => format!("at most {} % above the optimum", significant(100.0 * gap)),
        _ => "not proven".into(),
    }
}

/// The name of a plan's limit, and how much of it the plan uses.
pub fn limit_use(summary: &Summary, metric: &str) -> (&'static str, String) {
    match summary.limit() {
        Limit::Error(budget) => {
            let used = share(summary.error, budget);
            ("error budget", format!("{} ({}), {used} of it used", significant(budget), printable(metric)))
        }
        Limit::Size(limit) => {
            ("size limit", format!("{}, {} of it used", exact_bits(limit), size_share(summary.size, limit)))
        }
    }
}

/// For a limited error, how many times smaller or larger the plan is than `uniform`. For a limited size, how many times
/// less or more error the plan has. `None` if one of the two compared numbers is 0.
pub fn gain(uniform: Point, summary: &Summary) -> Option<String> {
    let (plan, own) = (summary.size, uniform.size);
    match summary.limit() {
        Limit::Error(_) if plan == 0 || own == 0 => None,
        Limit::Error(_) if plan <= own => Some(format!("{} smaller", ratio(own, plan))),
        Limit::Error(_) => Some(format!("{} larger", ratio(plan, own))),
        Limit::Size(_) => {
            let (plan, own) = (summary.error, uniform.error);
            match plan <= own {
                _ if plan == 0.0 || own == 0.0 => None,
                true => Some(format!("{} less error", times(own, plan))),
                false => Some(format!("{} more error", times(plan, own))),
            }
        }
    }
}

/// A ratio as text: `1.23×`.
pub fn times(whole: f64, part: f64) -> String {
    format!("{}×", significant(whole / part))
}

/// The used part of a size limit, in the form of [`share`].
pub fn size_share(size: u64, limit: u64) -> String {
    match (size, limit) {
        (0, _) => "0 %".into(),
        _ if size == limit => "100.00 %".into(),
        _ if size > limit => share(size as f64 / limit as f64, 1.0),
        _ => share((size as f64 / limit as f64).min(0.9999), 1.0),
    }
}

/// The L2 error of a layer, divided by the L2 norm of its gradient. `metric` determines whether `error` is squared.
pub fn relative(metric: &str, error: f64, norm: f64) -> f64 {
    let l2 = if metric.starts_with(Metric::L2.name()) { error } else { error.sqrt() };
    if norm == 0.0 { 0.0 } else { l2 / norm }
}

fn percent(part: f64) -> String {
    format!("{} %", significant(100.0 * part))
}

fn device_memory(facts: Option<&Facts>) -> Option<(&'static str, String)> {
    let bytes = facts?.device_memory?;
    Some(("device memory", format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)))
}

pub fn times_taken(times: &[(&str, f64)]) -> String {
    times.iter().map(|(what, s)| format!("{what} {}", seconds(*s))).collect::<Vec<_>>().join(", ")
}

/// Formats names and values in two columns.
pub fn aligned(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(name, value)| format!("{name:14}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_budget_is_told_from_what_uses_it_up() {
        let third = 1.0 / 3.0;
        assert_eq!(share(3.0 * third, 1.0), "100.00 %");
        assert_eq!(share(1f64.next_down(), 1.0), "100.00 %");
        assert_eq!(share(0.99999, 1.0), "99.99 %");
        assert_eq!(share(1.00001, 1.0), "100.01 % (over)");
        assert_eq!((share(0.0, 0.0), share(0.0, 1.0)), ("0 %".into(), "0 %".into()));
        assert_eq!(share(1.0, 0.0), "inf % (over)");
        assert_eq!((share(1e305, 1e305), share(f64::MAX, 1e308)), ("100.00 %".into(), "179.77 % (over)".into()));
    }

    #[test]
    fn a_size_is_used_up_only_to_its_last_bit() {
        let shares = [(0, 0), (0, 5), (5, 5), (1, 0), (4, 5)].map(|(size, limit)| size_share(size, limit));
        assert_eq!(shares, ["0 %", "0 %", "100.00 %", "inf % (over)", "80.00 %"]);
        assert_eq!(size_share(u64::MAX - 1, u64::MAX), "99.99 %");
    }
}
