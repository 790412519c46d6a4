//! Plans that own their choices.

use super::{Summary, check};
use crate::{Error, table::Table};
use alloc::vec::Vec;

/// One option per layer, with what it was solved for; exists only if [`check::verify`] accepts it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    options: Vec<u32>,
    summary: Summary,
    solver: &'static str,
}

impl Plan {
    /// Takes over choices that `solver`, a name for people, made for `table`.
    ///
    /// # Errors
    /// Those of [`check::verify`].
    pub fn verified(table: &Table, solver: &'static str, options: Vec<u32>, summary: Summary) -> Result<Plan, Error> {
        check::verify(table, &options, &summary)?;
        Ok(Plan { options, summary, solver })
    }

    /// The option of each layer.
    pub fn options(&self) -> &[u32] {
        &self.options
    }

    /// Size, error, budget and lower bound.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Who made the plan: `exact`, `dp`, `uniform`, …
    pub fn solver(&self) -> &'static str {
        self.solver
    }
}
