//! Options for planning: the solver, and the limit of plans.

use super::{Known, options_of, put};
use crate::failure::{Failure, Result};
use lgreco_train::CoreError;
use lgreco_train::plan::{Solver, budget, dp, exact};

/// The solver. `Paper` stands for the solver and the limit of the L-GreCo paper.
#[derive(Clone, Copy, PartialEq)]
enum Planner {
    Exact,
    Dp,
    Paper,
}

/// The limit of plans.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    Size,
    Error,
    /// Bits, or seconds.
    Number(f64),
}

pub(crate) struct PlanOptions {
    planner: Planner,
    levels: u32,
    states: usize,
    pub(super) limit: Option<Limit>,
    pub(super) alpha: f64,
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        let (levels, states) = (dp::LEVELS, exact::Limits::default().states);
        PlanOptions { planner: Planner::Exact, levels, states, limit: None, alpha: 1.0 }
    }
}

/// Converts a budget to a whole number of bits.
pub(super) fn bits(number: f64) -> Result<u64> {
    let wrong =
        || Failure::OptionValue { name: "budget", found: number.to_string(), expected: "a whole number of bits" };
    if number >= 0.0 && number < 2f64.powi(63) && number.fract() == 0.0 { Ok(number as u64) } else { Err(wrong()) }
}

impl PlanOptions {
    /// The dynamic program, Algorithm 1 of the L-GreCo paper.
    pub(super) fn dp(&self) -> Solver {
        Solver::Dp { levels: self.levels }
    }

    pub(crate) fn solver(&self) -> Solver {
        match self.planner {
            Planner::Exact => Solver::Exact(exact::Limits { states: self.states }),
            Planner::Dp | Planner::Paper => self.dp(),
        }
    }

    /// Returns the limit from the options. If the options set no limit, the limit is the table's own budget. If the
    /// table has no budget, the limit is the uniform setting's size, or for the solver `paper` the uniform setting's
    /// error.
    pub(crate) fn budget<'a>(&self, own: Option<f64>, defaults: Option<&'a [u32]>) -> Result<budget::Budget<'a>> {
        let alpha = self.alpha;
        let limit = match (self.limit, own) {
            (Some(limit), _) => limit,
            (None, Some(_)) => Limit::Error,
            (None, None) if self.planner == Planner::Paper => Limit::Error,
            (None, None) => Limit::Size,
        };
        match (limit, own, defaults) {
            (Limit::Number(size), ..) => Ok(budget::Budget::Size(bits(size)?)),
            (Limit::Size, _, Some(options)) => Ok(budget::Budget::DefaultSize { alpha, options }),
            (Limit::Size, _, None) => Err(Failure::Null("the array of defaults of the table")),
            (Limit::Error, Some(value), _) if alpha.is_finite() && alpha >= 0.0 => {
                Ok(budget::Budget::Absolute(alpha * value))
            }
            (Limit::Error, Some(_), _) => {
                Err(CoreError::Parameter { what: "alpha", value: alpha, expected: "a finite number >= 0" }.into())
            }
            (Limit::Error, None, Some(options)) => Ok(budget::Budget::Defaults { alpha, options }),
            (Limit::Error, None, None) => Err(Failure::Null("the array of defaults of a table without budget")),
        }
    }
}

pub(super) const PLAN: &[Known<PlanOptions>] = &[
    Known {
        name: "solver",
        expected: "exact, dp or paper",
        means: "exact: an optimal plan, or the best plan found within the limit `states`, with a proved bound. dp: \
                Algorithm 1 of the L-GreCo paper. paper: like dp, but `budget` is error by default; measure the table \
                with the metric l2. Default: exact.",
        read: |to, value| {
            let words = [("exact", Planner::Exact), ("dp", Planner::Dp), ("paper", Planner::Paper)];
            put(&mut to.planner, value.word(&words))
        },
    },
    Known {
        name: "levels",
        expected: "a number of cells of at least 1",
        means: "the number of cells into which Algorithm 1 divides the limit, at least 1. Default: 10000.",
        read: |to, value| put(&mut to.levels, value.number()),
    },
    Known {
        name: "states",
        expected: "a number of partial plans",
        means: "the largest number of partial plans that the exact solver holds at once, each in 32 bytes. With 0, it \
                only rounds the solution of the linear relaxation. Default: 524288.",
        read: |to, value| put(&mut to.states, value.number()),
    },
    Known {
        name: "budget",
        expected: "size, error or a number",
        means: "the limit of a plan. size: at most the size of the uniform setting, with the least error. error: at \
                most the table's budget, or the error of the uniform setting if the table has no budget, with the \
                least size. A number: at most this many bits, a whole number below 2^63, with the least error; under a \
                controller's objective seconds, at most this many seconds, below 10^6. Default: error if the table has \
                a budget or the solver is paper, else size. If the limit needs `defaults` of the table and it is NULL, \
                the call fails with LGRECO_NULL_POINTER.",
        read: |to, value| {
            to.limit = Some(match value.found {
                "size" => Limit::Size,
                "error" => Limit::Error,
                _ => Limit::Number(value.number()?),
            });
            Ok(())
        },
    },
    Known {
        name: "alpha",
        expected: "a number of at least 0",
        means: "the factor by which the limit is multiplied if `budget` is size or error, finite and at least 0. \
                Default: 1.",
        read: |to, value| put(&mut to.alpha, value.number()),
    },
];

options_of!(PlanOptions, "a plan", PLAN);
