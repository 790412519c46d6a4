use super::context::lgreco_context;
use super::table::{TableView, c_text, lgreco_table, lgreco_table_view};
use crate::handle::{self, Immutable, kind};
use crate::pointers::{Output, exactly, fill, read_struct, read_struct_or_default, sized_struct, slice};
use crate::status::{Failure, Result, lgreco_status};
use core::ffi::c_char;
use lgreco_train::CoreError;
use lgreco_train::file::PlanFile;
use lgreco_train::plan::{Plan, Proof, Solver, Summary, budget::Budget, check, dp, exact, solve_against};
use lgreco_train::table::NamedTable;
use std::collections::BTreeMap;
use std::ffi::CString;

/// How to choose: LGRECO_SOLVER_...
pub type lgreco_solver = u32;

/// The proved optimum, or the best plan and an honest bound where `states` end the search.
pub const LGRECO_SOLVER_EXACT: lgreco_solver = 0;
/// Algorithm 1 of the L-GreCo paper on a grid of `levels` cells.
pub const LGRECO_SOLVER_DP: lgreco_solver = 1;

/// What a plan keeps within: LGRECO_LIMIT_...
pub type lgreco_limit = u32;

/// LGRECO_LIMIT_ERROR for a table that has a budget, LGRECO_LIMIT_DEFAULT_SIZE for another and for controllers.
pub const LGRECO_LIMIT_DEFAULT: lgreco_limit = 0;
/// An error, and the plan is as small as that allows: the table's budget or, without, the error of its defaults, times
/// `alpha`.
pub const LGRECO_LIMIT_ERROR: lgreco_limit = 1;
/// A size, and the plan has as little error as that allows: `size_limit`.
pub const LGRECO_LIMIT_SIZE: lgreco_limit = 2;
/// The same, of the size of the table's defaults, times `alpha`.
pub const LGRECO_LIMIT_DEFAULT_SIZE: lgreco_limit = 3;

/// How to plan. Begin with LGRECO_PLAN_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_plan_options {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// LGRECO_SOLVER_EXACT, the default, or LGRECO_SOLVER_DP.
    pub solver: lgreco_solver,
    /// DP: cells of the grid, at least 1; 10000 by default.
    pub levels: u32,
    /// Exact: partial plans kept at once, 32 bytes each; 2^19 by default; with 0 the relaxation is rounded.
    pub states: u64,
    /// The error budget, or the size of the defaults, is multiplied by this, finite and not negative; 1 by default.
    pub alpha: f64,
    /// LGRECO_LIMIT_DEFAULT by default.
    pub limit: lgreco_limit,
    /// LGRECO_LIMIT_SIZE: the most bits, or, of a controller that plans in seconds, picoseconds. Otherwise not read.
    pub size_limit: u64,
}

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!(
    "plan options",
    lgreco_plan_options { levels: dp::LEVELS, states: exact::Limits::default().states as u64, alpha: 1.0 }
);

impl lgreco_plan_options {
    pub(super) fn solver(&self) -> Result<Solver> {
        match self.solver {
            LGRECO_SOLVER_EXACT => {
                Ok(Solver::Exact(exact::Limits { states: usize::try_from(self.states).unwrap_or(usize::MAX) }))
            }
            LGRECO_SOLVER_DP => Ok(Solver::Dp { levels: self.levels }),
            found => Err(Failure::UnknownConstant { what: "solver", found }),
        }
    }

    fn budget<'a>(&self, view: &TableView<'a>) -> Result<Budget<'a>> {
        let alpha = self.alpha;
        let limit = match (self.limit, view.budget) {
            (LGRECO_LIMIT_DEFAULT, Some(_)) => LGRECO_LIMIT_ERROR,
            (LGRECO_LIMIT_DEFAULT, None) => LGRECO_LIMIT_DEFAULT_SIZE,
            (limit, _) => limit,
        };
        match (limit, view.budget, view.defaults) {
            (LGRECO_LIMIT_SIZE, ..) => Ok(Budget::Size(self.size_limit)),
            (LGRECO_LIMIT_DEFAULT_SIZE, _, Some(options)) => Ok(Budget::DefaultSize { alpha, options }),
            (LGRECO_LIMIT_DEFAULT_SIZE, _, None) => Err(Failure::Null("the array of defaults of the table")),
            (LGRECO_LIMIT_ERROR, Some(value), _) if alpha.is_finite() && alpha >= 0.0 => {
                Ok(Budget::Absolute(alpha * value))
            }
            (LGRECO_LIMIT_ERROR, Some(_), _) => {
                Err(CoreError::Parameter { what: "alpha", value: alpha, expected: "a finite number >= 0" }.into())
            }
            (LGRECO_LIMIT_ERROR, None, Some(options)) => Ok(Budget::Defaults { alpha, options }),
            (LGRECO_LIMIT_ERROR, None, None) => Err(Failure::Null("the array of defaults of a table without budget")),
            (found, ..) => Err(Failure::UnknownConstant { what: "limit of a plan", found }),
        }
    }
}

/// A plan in arrays: what is in a plan handle, or the caller's own. Begin with LGRECO_PLAN_VIEW_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_plan_view {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Per layer, the index of the chosen option among the layer's options.
    pub options: *const u32,
    /// Bits of the chosen options in all.
    pub size: u64,
    /// LGRECO_LIMIT_ERROR: no plan within the budget is smaller than this many bits; the plan is proved optimal when `size`
    /// equals it. Otherwise 0.
    pub lower_bound: u64,
    /// Error of the chosen options in all.
    pub error: f64,
    /// LGRECO_LIMIT_ERROR: the error budget the plan was made for. Otherwise 0.
    pub budget: f64,
    /// Who made it, such as "exact"; filled by the library, not read.
    pub solver: *const c_char,
    /// 1 when the plan is proved optimal, else 0; filled by the library, not read.
    pub proven: u32,
    /// What the plan was made for: LGRECO_LIMIT_ERROR or LGRECO_LIMIT_SIZE.
    pub limit: lgreco_limit,
    /// LGRECO_LIMIT_SIZE: the most bits that the plan may have. Otherwise 0.
    pub size_limit: u64,
    /// LGRECO_LIMIT_SIZE: no plan within the size limit has less error than this; the plan is proved optimal when `error` is
    /// within 2^-40 of it, which is how finely the solver tells errors apart. Otherwise 0.
    pub error_lower_bound: f64,
}

// SAFETY: repr(C), starts with a usize; numbers and raw pointers only.
sized_struct!("plan view", lgreco_plan_view { limit: LGRECO_LIMIT_ERROR });

fn view(options: &[u32], summary: &Summary, solver: *const c_char) -> lgreco_plan_view {
    let Stated { limit, lower_bound, budget, size_limit, error_lower_bound } = summary.proof.into();
    lgreco_plan_view {
        struct_size: crate::pointers::size_of_struct::<lgreco_plan_view>(),
        layers: options.len(),
        options: options.as_ptr(),
        size: summary.size,
        lower_bound,
        error: summary.error,
        budget,
        solver,
        proven: summary.proven().into(),
        limit,
        size_limit,
        error_lower_bound,
    }
}

/// A proof in fields.
#[derive(Default)]
pub(super) struct Stated {
    pub(super) limit: lgreco_limit,
    pub(super) lower_bound: u64,
    pub(super) budget: f64,
    pub(super) size_limit: u64,
    pub(super) error_lower_bound: f64,
}

impl From<Proof> for Stated {
    fn from(proof: Proof) -> Stated {
        match proof {
            Proof::Size { lower_bound, budget } => {
                Stated { limit: LGRECO_LIMIT_ERROR, lower_bound, budget, ..Stated::default() }
            }
            Proof::Error { lower_bound: error_lower_bound, size_limit } => {
                Stated { limit: LGRECO_LIMIT_SIZE, size_limit, error_lower_bound, ..Stated::default() }
            }
        }
    }
}

/// One option per layer, verified. It never changes.
pub struct lgreco_plan {
    _private: [u8; 0],
}

kind!(lgreco_plan, "plan", b"lgplan\0\0", PlanState);

impl Immutable for lgreco_plan {}

pub(crate) struct PlanState {
    pub(crate) plan: Plan,
    pub(crate) solver: CString,
}

/// Chooses one option per layer: the fewest bits within the error budget, or the least error within the size limit, and never
/// more than the defaults of the table have, where those are within it. It keeps the groups and fixed options of the table.
/// `options` may be NULL. The same input gives the same plan.
///
/// LGRECO_INFEASIBLE when no plan meets the budget: the message tells the smallest error; LGRECO_SIZE_INFEASIBLE when none
/// meets the size limit: the message tells the smallest size; codes from 20 on about the table. Allocates its workspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_solve(
    context: *mut lgreco_context,
    table: *const lgreco_table_view,
    options: *const lgreco_plan_options,
    plan: *mut *mut lgreco_plan,
) -> lgreco_status {
    create!(context, plan, |_| {
        let (view, options) = (TableView::read(table)?, read_struct_or_default(options)?);
        let (table, solver, budget) = (view.table()?, options.solver()?, options.budget(&view)?);
        let plan = match view.constrained()? {
            Some(table) => table.merged(&table.constraints())?.solve(budget, view.defaults, solver),
            None => solve_against(&table, budget, view.defaults, solver),
        };
        let plan = plan.map_err(|error| view.named(error))?;
        let solver = CString::new(plan.solver()).map_err(|_| Failure::Panicked)?;
        Ok(PlanState { plan, solver })
    })
}

/// Verifies a plan against a table: one option per layer, size and error as stated, error within the stated budget or size
/// within the stated limit, groups and fixed options kept. What is checked is decided in exact arithmetic; a lower bound is only compared with what it is a
/// bound of.
///
/// LGRECO_PLAN_MISMATCH, LGRECO_OVER_BUDGET, LGRECO_OVER_SIZE, LGRECO_NO_SUCH_OPTION, LGRECO_RULED_OUT, LGRECO_BUDGET,
/// LGRECO_LENGTH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_check(
    context: *mut lgreco_context,
    table: *const lgreco_table_view,
    plan: *const lgreco_plan_view,
) -> lgreco_status {
    call!(context, |_| {
        let (view, plan) = (TableView::read(table)?, read_struct(plan)?);
        let options = slice(plan.options, plan.layers, "options of the plan")?;
        let lgreco_plan_view { size, error, lower_bound, budget, size_limit, error_lower_bound, .. } = plan;
        let proof = match plan.limit {
            LGRECO_LIMIT_ERROR => Proof::Size { lower_bound, budget },
            LGRECO_LIMIT_SIZE => Proof::Error { lower_bound: error_lower_bound, size_limit },
            found => return Err(Failure::UnknownConstant { what: "limit of a plan view", found }),
        };
        let summary = Summary { size, error, proof };
        if let Some(table) = view.constrained()? {
            keeps_constraints(&table, options)?;
        }
        check::verify(&view.table()?, options, &summary).map_err(|error| view.named(error))
    })
}

/// Fills `view` with the plan and a pointer to its choices, valid until the plan is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_get(plan: *const lgreco_plan, view: *mut lgreco_plan_view) -> lgreco_status {
    handle::call_without_handle(|| {
        let read = |plan: &PlanState| self::view(plan.plan.options(), plan.plan.summary(), plan.solver.as_ptr());
        // SAFETY: README.md, handles and pointers.
        unsafe { fill(view, || Ok(read(handle::shared(plan)?))) }
    })
}

/// Frees a plan and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_destroy(plan: *mut *mut lgreco_plan) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(plan) }
}

/// Writes a plan for `table` as JSON (schemas/plan.schema.json) with a NUL after it, and in it the settings that the table
/// has; `length` as for lgreco_table_to_json.
///
/// Also LGRECO_PLAN_MISMATCH and the other codes of lgreco_plan_check when the plan is not one for this table. Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_to_json(
    plan: *const lgreco_plan,
    table: *const lgreco_table,
    json: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    handle::call_without_handle(|| {
        // SAFETY: README.md, handles and pointers.
        unsafe {
            let (plan, table) = (handle::shared(plan)?, &handle::shared(table)?.table);
            check::verify(&table.view(), plan.plan.options(), plan.plan.summary())?;
            let mut file = PlanFile::new(table, &plan.plan);
            file.solver = plan.solver.to_string_lossy().into_owned();
            Output { what: "json", to: json, capacity, length }.write_text(&file.to_json())
        }
    })
}

/// Reads a plan file for `table`, `length` bytes of JSON, and verifies it: layers may stand in another order, but each
/// must name a layer of the table and its option by index and label. That no plan is smaller than the bound in the file is
/// taken on trust.
///
/// LGRECO_JSON, LGRECO_JSON_VERSION; the codes of lgreco_setting for a setting in it; LGRECO_LENGTH when it does not have one entry per layer; LGRECO_UNKNOWN_NAME for a
/// layer or label that is not the table's, LGRECO_DUPLICATE_NAME; LGRECO_PLAN_MISMATCH and the other codes of
/// lgreco_plan_check. The message names the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_from_json(
    context: *mut lgreco_context,
    table: *const lgreco_table,
    json: *const c_char,
    length: usize,
    plan: *mut *mut lgreco_plan,
) -> lgreco_status {
    create!(context, plan, |_| {
        let table = &handle::shared(table)?.table;
        let file = PlanFile::parse(slice(json.cast(), length, "json")?)?;
        verified(table, &file)
    })
}

/// `Err` unless a plan keeps the table's groups and fixed options.
fn keeps_constraints(table: &NamedTable, options: &[u32]) -> Result<()> {
    let constraints = table.constraints();
    if constraints.is_empty() {
        return Ok(());
    }
    table.merged(&constraints)?.check(options).map_err(|error| table.name_error(error))?;
    Ok(())
}

fn verified(table: &NamedTable, file: &PlanFile) -> Result<PlanState> {
    let layers = table.layers();
    exactly(layers, file.layers.len(), "layers of the plan")?;
    let mut options = vec![None; layers];
    let places: BTreeMap<&str, usize> = (0..layers).map(|layer| (table.name(layer), layer)).collect();
    for entry in &file.layers {
        let at = |error| lgreco_train::table::NamedError {
            error,
            layer: Some(entry.name.clone()),
            option: Some(entry.label.clone()),
        };
        let layer = places.get(&*entry.name).copied();
        let layer = layer.ok_or(at(CoreError::UnknownName { what: "layer", expected: "one of the table's" }))?;
        let labels = table.labels(layer);
        let label = labels.get(entry.option as usize);
        let label = label.ok_or_else(|| {
            at(CoreError::NoSuchOption { layer, option: entry.option as usize, options: labels.len() })
        })?;
        if *label != entry.label {
            return Err(
                at(CoreError::UnknownName { what: "label", expected: "that of the option in the table" }).into()
            );
        }
        if options[layer].replace(entry.option).is_some() {
            return Err(at(CoreError::DuplicateName { layer, first: layer }).into());
        }
    }
    let options: Vec<u32> = options.into_iter().flatten().collect();
    keeps_constraints(table, &options)?;
    // A cast from f64 saturates; the file's bound was rounded down.
    let plan =
        Plan::verified(&table.view(), "file", options, file.summary()).map_err(|error| table.name_error(error))?;
    Ok(PlanState { plan, solver: c_text(&file.solver, "solver")? })
}
