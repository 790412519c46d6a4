//! Budgets, solvers and the verifier.

use crate::Digest;
use lgreco_core::Error;
use lgreco_core::plan::{Limit, Summary, budget::Budget, check, dp, exact};
use lgreco_core::rng::Stream;
use lgreco_core::table::{Choice, Table};

const LAYERS: usize = 12;
const OPTIONS: usize = 9;
const LEVELS: u32 = 500;

/// Solves one table at several budgets and size limits by both methods; a forged plan must be refused, and a budget and a
/// limit that cannot be met.
pub fn plans() -> Result<u64, Error> {
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

    let limits = exact::Limits { states: 1 << 10 };
    let mut workspace = [!0u64; 64 << 10];
    let mut options = [!0u32; LAYERS];
    let mut digest = Digest::new();
    let reference = [OPTIONS as u32 / 2; LAYERS];
    let of_error = [0.5, 1.0, 2.0].map(|alpha| Budget::Defaults { alpha, options: &reference });
    let of_size = [0.5, 1.0, 1.5].map(|alpha| Budget::DefaultSize { alpha, options: &reference });
    for budget in of_error.iter().chain(&of_size) {
        let limit = budget.limit(&table)?;
        let proved = exact::solve(&table, limit, limits, &mut workspace, &mut options)?;
        check::verify(&table, &options, &proved)?;
        add(&mut digest, &proved, &options);
        let forged = Summary { size: proved.size - 1, ..proved };
        digest.u64(u64::from(check::verify(&table, &options, &forged).is_err()));

        let published = dp::solve(&table, limit, LEVELS, &mut workspace, &mut options)?;
        check::verify(&table, &options, &published)?;
        add(&mut digest, &published, &options);
        digest.u64(u64::from(proved.proven() && is_as_good(&proved, &published)));
    }
    match exact::solve(&table, 0.0, limits, &mut workspace, &mut options) {
        Err(Error::Infeasible { smallest, .. }) => digest.u64(smallest.to_bits()),
        _ => digest.u64(0),
    }
    match dp::solve(&table, Limit::Size(1), LEVELS, &mut workspace, &mut options) {
        Err(Error::SizeInfeasible { smallest, .. }) => digest.u64(smallest),
        _ => digest.u64(0),
    }
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
