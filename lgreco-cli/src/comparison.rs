//! The report of `lgreco compare`: plans of several solvers and baselines.

use crate::report::{Point, aligned, share, size_share, times, times_taken};
use crate::text_table::Rows;
use crate::units::{exact_bits, grouped, ratio, seconds, significant};
use lgreco::plan::{Limit, Proof, Summary};
use std::cmp::Ordering;

/// Plans of several solvers and baselines for one table, within the same limit.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name of the method, or names such as `qsgd,topk`.
    pub method: String,
    /// The metric of the errors.
    pub metric: &'static str,
    /// The error budget or the size limit.
    pub limit: Limit,
    /// Size of the uncompressed layers in bits.
    pub uncompressed: u64,
    /// Error and size of the default options.
    pub uniform: Point,
    /// Seconds of measurement.
    pub measure: f64,
    /// The plans. If the limit is infeasible, this list has only the plan of the default options.
    pub schemes: Vec<Scheme>,
    /// The smallest possible error or size, if the limit is infeasible.
    pub smallest: Option<Limit>,
}

/// A solver or baseline, and its plan.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Its name.
    pub name: &'static str,
    /// Size of the plan in bits.
    pub size: u64,
    /// Error of the plan.
    pub error: f64,
    /// Whether the plan is within the limit.
    pub within_budget: bool,
    /// The proof, for solvers that give one.
    pub proof: Option<Proof>,
    /// Seconds that the scheme took. `None` for the default options, which need no choice.
    pub seconds: Option<f64>,
}

/// Formats the plans of solvers and baselines, method after method.
pub fn compared(comparisons: &[Comparison]) -> String {
    let head = ["method", "limit", "scheme", "bits", "ratio", "error", "gain", "limit used", "above optimum", "time"];
    let mut rows = Rows::new(&head);
    for comparison in comparisons {
        let limit = match comparison.limit {
            Limit::Error(_) => "error",
            Limit::Size(_) => "size",
        };
        for scheme in &comparison.schemes {
            let (gain, used) = match comparison.limit {
                Limit::Error(budget) => (ratio(comparison.uniform.size, scheme.size), share(scheme.error, budget)),
                Limit::Size(limit) => (times(comparison.uniform.error, scheme.error), size_share(scheme.size, limit)),
            };
            rows.add([
                comparison.method.clone(),
                limit.into(),
                scheme.name.into(),
                grouped(scheme.size),
                ratio(comparison.uncompressed, scheme.size),
                significant(scheme.error),
                gain,
                used,
                comparison.above_optimum(scheme),
                scheme.seconds.map_or_else(String::new, seconds),
            ]);
        }
        if let Some(smallest) = comparison.smallest {
            let dash = || "-".to_owned();
            let told = match smallest {
                Limit::Error(error) => format!("infeasible (smallest error {error})"),
                Limit::Size(size) => format!("infeasible (smallest size {})", exact_bits(size)),
            };
            let (method, limit) = (comparison.method.clone(), limit.into());
            rows.add([method, limit, told, dash(), dash(), dash(), dash(), dash(), dash(), String::new()]);
        }
    }
    let mut times: Vec<_> = comparisons.iter().map(|comparison| (&*comparison.method, comparison.measure)).collect();
    times.dedup();
    let gain = "within an error, how many times smaller than uniform; within a size, how many times less error";
    format!("{}\n{}", rows.render(), aligned(&[("gain", gain.into()), ("measuring", times_taken(&times))]))
}

impl Comparison {
    /// How far a plan is above the optimum within the limit. If the optimum is not proved, the result is an upper
    /// bound.
    fn above_optimum(&self, scheme: &Scheme) -> String {
        if !scheme.within_budget {
            return "-".into();
        }
        let bound = |scheme: &Scheme| match scheme.proof? {
            Proof::Size { lower_bound, .. } => Some(lower_bound as f64),
            Proof::Error { lower_bound, .. } => Some(lower_bound),
        };
        let best = self.schemes.iter().filter(|scheme| bound(scheme).is_some());
        let Some(proof) = best.max_by(|a, b| bound(a).partial_cmp(&bound(b)).unwrap_or(Ordering::Equal)) else {
            return String::new();
        };
        let against = |scheme: &Scheme| {
            let (size, error) = (scheme.size, scheme.error);
            proof.proof.map(|proof| Summary { size, error, proof })
        };
        let proven = |scheme: &Scheme| against(scheme).is_some_and(|summary| summary.proven());
        if proven(scheme) {
            return "optimal".into();
        }
        let gap = against(scheme).map_or(f64::INFINITY, |summary| summary.gap());
        if gap.is_infinite() {
            return "not proven".into();
        }
        let percent = significant(100.0 * gap);
        match self.schemes.iter().any(|scheme| scheme.within_budget && proven(scheme)) {
            true => format!("{percent} %"),
            false => format!("at most {percent} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_measured_against_the_largest_proved_bound() {
        let scheme = |size, within_budget, lower_bound: Option<u64>| Scheme {
            name: "s",
            size,
            error: 1.0,
            within_budget,
            proof: lower_bound.map(|lower_bound| Proof::Size { lower_bound, budget: 1.0 }),
            seconds: None,
        };
        let mut comparison = Comparison {
            method: "qsgd".into(),
            metric: "l2",
            limit: Limit::Error(1.0),
            uncompressed: 1,
            uniform: Point { error: 1.0, size: 1 },
            measure: 0.0,
            smallest: None,
            schemes: vec![scheme(150, true, None), scheme(90, false, None), scheme(110, true, Some(100))],
        };
        let told = |c: &Comparison| c.schemes.iter().map(|s| c.above_optimum(s)).collect::<Vec<_>>();
        assert_eq!(told(&comparison), ["at most 50.0 %", "-", "at most 10.0 %"]);
        comparison.schemes.push(scheme(100, true, Some(100)));
        assert_eq!(told(&comparison), ["50.0 %", "-", "10.0 %", "optimal"]);
    }

    #[test]
    fn errors_are_measured_against_the_largest_proved_bound() {
        let scheme = |error, lower_bound: Option<f64>| Scheme {
            name: "s",
            size: 9,
            error,
            within_budget: true,
            proof: lower_bound.map(|lower_bound| Proof::Error { lower_bound, size_limit: 9 }),
            seconds: None,
        };
        let comparison = Comparison {
            method: "qsgd".into(),
            metric: "l2",
            limit: Limit::Size(9),
            uncompressed: 1,
            uniform: Point { error: 1.0, size: 1 },
            measure: 0.0,
            smallest: None,
            schemes: vec![scheme(1.5, None), scheme(1.25, Some(0.5)), scheme(1.0 + 1e-14, Some(1.0))],
        };
        let told: Vec<_> = comparison.schemes.iter().map(|s| comparison.above_optimum(s)).collect();
        assert_eq!(told, ["50.0 %", "25.0 %", "optimal"]);
        assert!(compared(&[comparison]).contains("qsgd"));
    }
}
