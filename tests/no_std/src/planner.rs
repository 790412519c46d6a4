//! Runs both solvers and the verifier under several budgets.

use crate::Digest;
use lgreco::Error;
use lgreco::plan::{Limit, Summary, budget::Budget, check, dp, exact};
use lgreco::rng::Stream;
use lgreco::table::{Choice, Table};

const LAYERS: usize = 12;
const OPTIONS: usize = 9;
const LEVELS: u32 = 500;
const LIMITS: exact::Limits = exact::Limits { states: 1 << 10 };

/// The digest of plans within error budgets, and of an infeasible error budget.
pub fn within_errors() -> Result<u64, Error> {
    let reference = [OPTIONS as u32 / 2; LAYERS];
    plans([0.5, 1.0, 2.0].map(|alpha| Budget::Defaults { alpha, options: &reference }), |table, workspace, options| {
        match exact::solve(table, 0.0, LIMITS, workspace, options) {
            Err(Error::Infeasible { smallest, .. }) => smallest.to_bits(),
            _ => 0,
        }
    })
}

/// The digest of plans within size limits, and of an infeasible size limit.
pub fn within_sizes() -> Result<u64, Error> {
    let reference = [OPTIONS as u32 / 2; LAYERS];
    plans(
        [0.5, 1.0, 1.5].map(|alpha| Budget::DefaultSize { alpha, options: &reference }),
        |table, workspace, options| match dp::solve(table, Limit::Size(1), LEVELS, workspace, options) {
            Err(Error::SizeInfeasible { smallest, .. }) => smallest,
            _ => 0,
        },
    )
}

/// Solves one table under several budgets with both solvers. Also checks that the verifier refuses a forged plan.
fn plans(
    budgets: [Budget<'_>; 3],
    impossible: impl FnOnce(&Table<'_>, &mut [u64], &mut [u32]) -> u64,
) -> Result<u64, Error> {
    let stream = Stream { seed: 5, ..Stream::default() };
    let mut choices = [Choice { size: 0, error: 0.0 }; LAYERS * OPTIONS];
    for (index, choice) in choices.iter_mut().enumerate() {
        let option = (index % OPTIONS) as u64;
        let word = u64::from(stream.word(index as u64));
        *choice =
            Choice { size: 64 * (option + 1) + word % 50, error: (word >> 8) as f64 / (1 << (20 + option)) as f64 };
    }
    let mut ends = [0; LAYERS];
    ends.iter_mut().enumerate().for_each(|(layer, end)| *end = (layer + 1) * OPTIONS);
    let table = Table::new(&choices, &ends)?;

    let mut workspace = [!0u64; 64 << 10];
    let mut options = [!0u32; LAYERS];
    let mut digest = Digest::new();
    for budget in budgets {
        let limit = budget.limit(&table)?;
        let proved = exact::solve(&table, limit, LIMITS, &mut workspace, &mut options)?;
        check::verify(&table, &options, &proved)?;
        add(&mut digest, &proved, &options);
        let forged = Summary { size: proved.size - 1, ..proved };
        digest.u64(u64::from(check::verify(&table, &options, &forged).is_err()));

        let published = dp::solve(&table, limit, LEVELS, &mut workspace, &mut options)?;
        check::verify(&table, &options, &published)?;
        add(&mut digest, &published, &options);
        digest.u64(u64::from(proved.proven() && is_as_good(&proved, &published)));
    }
    digest.u64(impossible(&table, &mut workspace, &mut options));
    Ok(digest.0)
}

fn is_as_good(a: &Summary, b: &Summary) -> bool {
    match a.limit() {
        Limit::Error(_) => a.size <= b.size,
        Limit::Size(_) => a.error <= b.error,
    }
}

fn add(digest: &mut Digest, summary: &Summary, options: &[u32]) {
    digest.u64(summary.size);
    digest.u64(summary.error.to_bits());
    options.iter().for_each(|&option| digest.u64(u64::from(option)));
}
