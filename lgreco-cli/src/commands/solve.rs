//! `lgreco solve`: plans for a given table. The command `plan` also uses the functions of this module.

use super::{constraints, emit, outside, timed, write};
use crate::args::{BudgetArg, ConstraintArgs, Limits, Output, SizeArg, SolverArg, Solving};
use crate::facts::Facts;
use crate::failure::Failure;
use crate::page;
use crate::plot::Picture;
use crate::report::{self, Solved};
use crate::units::counted;
use lgreco::Error;
use lgreco::file::{PlanFile, TableFile};
use lgreco::plan::budget::Budget;
use lgreco::plan::{Merged, Solver, dp};
use lgreco::table::{NamedTable, Table};
use std::io::{Read, Write};
use std::path::Path;

pub fn run(
    path: &Path,
    solving: Solving,
    asked: &ConstraintArgs,
    output: &Output,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (name, TableFile { table, budget }) = read(path, output.files())?;
    let merged = constraints::merged(&name, &table, asked)?;
    let solved = solve(&name, &table, &merged, budget, solving)?;
    let times = [("solving", solved.seconds)];
    pictures(output, title(&name, table.metric()), &table, &merged, &solved, None, &times)?;
    let json = || {
        let mut file = PlanFile::new(&table, &solved.plan);
        file.seconds.solve = Some(solved.seconds);
        file.to_json()
    };
    emit(out, || report::plan(&table, &solved, None, &times), json, output.json.as_ref())
}

/// Reads a table file, or standard input for `-`. Also returns the file's name, for messages. `results` must not
/// overwrite the file.
pub fn read<'a>(
    path: &'a Path,
    results: impl Iterator<Item = (&'static str, &'a Path)>,
) -> Result<(String, TableFile), Failure> {
    let from_stdin = path == Path::new("-");
    let name = if from_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let wrong = |what: &dyn std::fmt::Display| Failure::bad_input(format_args!("{name}: {what}"));
    write::distinct((!from_stdin).then_some(path).into_iter(), results)?;
    let bytes = if from_stdin {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.map_err(|error| wrong(&error))?;
    let file = outside::read(&bytes).map_err(|error| wrong(&error))?;
    Ok((name, file))
}

/// Solves `table` within the constraints in `merged`. `name` is the table's name for messages.
///
/// The limit comes from `solving`, or else from the budget `own`, or else from the size of the default options.
pub fn solve(
    name: &str,
    table: &NamedTable,
    merged: &Merged<'_>,
    own: Option<f64>,
    solving: Solving,
) -> Result<Solved, Failure> {
    let solver = solver(solving)?;
    let defaults = table.defaults();
    let (budget, origin) = budget(name, own, defaults.as_deref(), limits(solving))?;
    let (plan, seconds) = timed(format!("solving {}", counted(table.layers() as u64, "layer")), || {
        merged.solve(budget, defaults.as_deref(), solver)
    });
    // If the uniform setting's error limits the plan, a second plan is limited by the uniform setting's size, and vice
    // versa.
    let other = match budget {
        Budget::Defaults { alpha, options } => Some(Budget::DefaultSize { alpha, options }),
        Budget::DefaultSize { alpha, options } => Some(Budget::Defaults { alpha, options }),
        _ => None,
    };
    let other = other.and_then(|budget| merged.solve(budget, defaults.as_deref(), solver).ok());
    let other = other.map(|plan| *plan.summary());
    let named = |error| {
        let range = feasible(table, merged, &error);
        Failure::from_core(&error, format_args!("{name}: {}{range}", table.name_error(error)))
    };
    Ok(Solved { plan: plan.map_err(named)?, other, origin, seconds })
}

/// For an infeasible error budget, describes the smallest plan. For an infeasible size, describes the plan with the
/// least error.
fn feasible(table: &NamedTable, merged: &Merged<'_>, error: &Error) -> String {
    let end = |budget| merged.solve(budget, None, Solver::default());
    let told = match error {
        Error::Infeasible { .. } => match end(Budget::Size(0)) {
            Err(Error::SizeInfeasible { smallest, error, .. }) => {
                format!("; the smallest plan has {}, with an error of {error}", counted(smallest, "bit"))
            }
            _ => String::new(),
        },
        Error::SizeInfeasible { .. } => match end(Budget::Absolute(0.0)) {
            Err(Error::Infeasible { smallest, size, .. }) => {
                format!("; the most exact plan has an error of {smallest}, with {}", counted(size, "bit"))
            }
            Ok(plan) => format!("; the most exact plan has no error, with {}", counted(plan.summary().size, "bit")),
            Err(_) => String::new(),
        },
        _ => return String::new(),
    };
    let options = |table: Table<'_>| table.iter().map(<[_]>::len).sum::<usize>();
    let bound = options(merged.view()) < options(table.view());
    told + if bound { " (within the groups and fixed options)" } else { "" }
}

/// The budget, and a description of its origin.
fn budget<'a>(
    name: &str,
    own: Option<f64>,
    defaults: Option<&'a [u32]>,
    limits: Limits,
) -> Result<(Budget<'a>, String), Failure> {
    let Limits { budget, size, alpha } = limits;
    expect_multiple(limits)?;
    let wrong = |what: &str| Err(Failure::bad_input(format_args!("{name}: {what}")));
    let times = |what: &str| match alpha {
        Some(factor) => format!("{factor} times the default setting's {what}"),
        None => format!("the default setting's {what}"),
    };
    let factor = alpha.unwrap_or(1.0);
    Ok(match (budget, size, own, defaults) {
        (Some(BudgetArg::Absolute(value)), ..) => (Budget::Absolute(value), "from --budget".to_owned()),
        (_, Some(SizeArg::Bits(bits)), ..) => (Budget::Size(bits), "from --size".to_owned()),
        (None, None, Some(value), _) if alpha.is_none() => (Budget::Absolute(value), "the table file's own".to_owned()),
        (Some(BudgetArg::Uniform), _, _, Some(options)) => {
            (Budget::Defaults { alpha: factor, options }, times("error"))
        }
        (None, _, _, Some(options)) => (Budget::DefaultSize { alpha: factor, options }, times("size")),
        (_, Some(SizeArg::Uniform), ..) => return wrong("--size uniform needs a default in every layer"),
        _ if alpha.is_some() => {
            return wrong("--alpha multiplies the uniform budget: it needs a default in every layer");
        }
        (Some(BudgetArg::Uniform), ..) => return wrong("--budget uniform needs a default in every layer"),
        _ => return wrong("no budget: give every layer a default, the table a budget, or use --budget or --size"),
    })
}

/// Rejects `--alpha` with a limit that is not uniform.
pub fn expect_multiple(limits: Limits) -> Result<(), Failure> {
    match limits {
        Limits { budget: Some(BudgetArg::Absolute(_)), alpha: Some(_), .. } => {
            Err(Failure::bad_input("--alpha multiplies the uniform budget: not with --budget NUMBER"))
        }
        Limits { size: Some(SizeArg::Bits(_)), alpha: Some(_), .. } => {
            Err(Failure::bad_input("--alpha multiplies the uniform size: not with --size BITS"))
        }
        _ => Ok(()),
    }
}

/// The limits on the command line. `--paper` sets the budget to the uniform setting's error.
fn limits(solving: Solving) -> Limits {
    if solving.paper { Limits { budget: Some(BudgetArg::Uniform), ..solving.limits } } else { solving.limits }
}

fn solver(solving: Solving) -> Result<Solver, Failure> {
    if solving.paper {
        return Ok(Solver::Dp { levels: dp::LEVELS });
    }
    match (solving.solver, solving.levels) {
        (SolverArg::Exact, None) => Ok(Solver::default()),
        (SolverArg::Exact, Some(_)) => Err(Failure::bad_input("--levels is for --solver dp")),
        (SolverArg::Dp, levels) => Ok(Solver::Dp { levels: levels.unwrap_or(dp::LEVELS) }),
    }
}

/// The heading of a picture: the file's name without its folder, and the text `what`.
pub fn title(name: &str, what: &str) -> String {
    let file = Path::new(name).file_name().map_or(name.into(), |file| file.to_string_lossy());
    crate::failure::printable(&format!("{file} · {what}"))
}

/// Writes the picture and the page that the user requested.
pub fn pictures(
    output: &Output,
    title: String,
    table: &NamedTable,
    merged: &Merged<'_>,
    solved: &Solved,
    facts: Option<&Facts>,
    times: &[(&str, f64)],
) -> Result<(), Failure> {
    if output.plot.is_none() && output.html.is_none() {
        return Ok(());
    }
    let picture = Picture::of_plan(&title, table, merged, &solved.plan, facts)?;
    if let Some(path) = &output.plot {
        write::file(path, &picture.svg())?;
    }
    match &output.html {
        Some(path) => write::file(path, &page::drawn(&picture, table, solved, facts, times)),
        None => Ok(()),
    }
}
