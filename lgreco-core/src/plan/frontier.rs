//! The size–error frontier: the plans that no other plan beats in both size and error.

use super::{Merged, Plan, Proof, Solver, budget::Budget, exact};
use crate::{Error, Result};
use alloc::vec::Vec;

/// The size–error frontier of a table.
///
/// ```
/// use lgreco_core::plan::{Constraints, Merged, exact::Limits};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(80, 0.0), (40, 1.0), (60, 0.0), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let frontier = Merged::new(&table, &Constraints::default())?.frontier(100, Limits::default())?;
/// let points = frontier.points.iter().map(|point| (point.plan.summary().size, point.plan.summary().error));
/// assert_eq!(points.collect::<Vec<_>>(), [(70, 3.0), (100, 1.0), (140, 0.0)]);
/// assert!(frontier.complete && frontier.proven && frontier.points.iter().all(|point| point.proven()));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Frontier {
    /// The points, in order of increasing size.
    pub points: Vec<Point>,
    /// Whether `points` is proved to contain all points of the frontier.
    pub complete: bool,
    /// Whether [`Point::proven`] holds for all computed points, including those that were left out because another plan
    /// beats them. If `proven` is true and `complete` is false, the frontier has more points.
    pub proven: bool,
}

/// A plan on the frontier, with its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The plan. The plan's budget is the least error that the solver found within a size limit. The plan's lower bound
    /// holds for all plans within this budget.
    pub plan: Plan,
    /// Lower bound of the error of all plans with at most this plan's size.
    pub error_bound: f64,
}

impl Point {
    /// Whether the point is proved to be on the frontier. In this case, no plan with at most the point's error is
    /// smaller. Also, no plan of at most the point's size has less error (to [`Proof::RESOLUTION`]).
    pub fn proven(&self) -> bool {
        let summary = self.plan.summary();
        summary.proven() && summary.error <= self.error_bound + self.error_bound * Proof::RESOLUTION
    }
}

impl Merged<'_> {
    /// Finds the plans within the constraints that no other plan beats in both size and error.
    ///
    /// Returns all such plans if their number is at most `most`. Otherwise returns up to `most` of these plans, at
    /// sizes that grow by a constant factor. Errors are treated as equal if their relative difference is at most
    /// [`Proof::RESOLUTION`].
    ///
    /// If the exact solver reaches its `limits` for a point, [`Point::proven`] is false, and adjacent points may be
    /// missing. If another plan beats an unproved point, the point is left out and [`Frontier::proven`] is false.
    ///
    /// # Errors
    /// [`Error::Parameter`] when `most` is below 2, or when the error of every plan overflows f64. [`Error::OutOfMemory`]
    /// when a workspace cannot be allocated.
    ///
    /// # Complexity
    /// Two runs of the exact solver for each point, or four if the frontier has more than `most` points.
    pub fn frontier(&self, most: usize, limits: exact::Limits) -> Result<Frontier> {
        Error::require(most >= 2, "points of the frontier", most as f64, "at least 2")?;
        let solver = Solver::Exact(limits);
        let view = self.low();
        let sum = |pick: fn(u64, u64) -> u64| -> u64 {
            view.iter().filter_map(|row| row.iter().map(|choice| choice.size).reduce(pick)).sum()
        };
        let smallest = sum(u64::min);
        let mut points = alloc::vec![self.point(sum(u64::max), solver)?];
        let size = |points: &[Point]| points[points.len() - 1].plan.summary().size;
        while size(&points) > smallest && points.len() < most {
            match self.point(size(&points) - 1, solver) {
                Ok(point) => points.push(point),
                Err(error) if is_beyond(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let ended = size(&points) == smallest || points.len() < most;
        // `proven` includes the dominated points that are removed below: even a dominated point may hide other points
        // if it is unproved.
        let mut proven = points.iter().all(Point::proven);
        let complete = ended && proven;
        if !ended {
            points.truncate(1);
            let (largest, steps) = (size(&points), most - 1);
            for step in (0..steps).rev() {
                match self.point(between(smallest, largest, step, steps), solver) {
                    Ok(point) => points.push(point),
                    Err(error) if is_beyond(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            proven &= points.iter().all(Point::proven);
        }
        Ok(Frontier { points: undominated(points), complete, proven })
    }

    /// Finds the least error within `size` bits, then the smallest plan with at most this error.
    fn point(&self, size: u64, solver: Solver) -> Result<Point> {
        let within = self.solve(Budget::Size(size), None, solver)?;
        let error_bound = match within.summary().proof {
            Proof::Error { lower_bound, .. } => lower_bound,
            Proof::Size { .. } => 0.0,
        };
        let options = within.options();
        let plan = self.solve(Budget::Defaults { alpha: 1.0, options }, Some(options), solver)?;
        Ok(Point { plan, error_bound })
    }
}

/// Whether a solver failed because the errors of all plans within the size limit overflow f64.
fn is_beyond(error: &Error) -> bool {
    matches!(error, Error::Parameter { .. })
}

/// Size number `step` of `steps`, on a geometric scale from `smallest` to `largest`. If `smallest` is 0, the scale
/// starts at 1 bit, but step 0 returns 0.
fn between(smallest: u64, largest: u64, step: usize, steps: usize) -> u64 {
    let from = smallest.max(1) as f64;
    let factor = num_traits::Float::powf(largest as f64 / from, step as f64 / steps as f64);
    if step == 0 { smallest } else { (num_traits::Float::round(from * factor) as u64).clamp(smallest, largest) }
}

/// Removes the points that another point beats, and sorts the remaining points by increasing size.
fn undominated(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| {
        let (a, b) = (a.plan.summary(), b.plan.summary());
        a.size.cmp(&b.size).then(a.error.total_cmp(&b.error))
    });
    let mut least = f64::INFINITY;
    points.retain(|point| {
        let error = point.plan.summary().error;
        let is_less = error < least;
        least = least.min(error);
        is_less
    });
    points
}
