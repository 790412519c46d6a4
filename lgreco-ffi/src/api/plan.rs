use super::table::{c_text, lgreco_table};
use super::table_view::{TableView, lgreco_table_view};
use crate::failure::{Failure, Result};
use crate::handle::{self, Immutable, kind};
use crate::options::{self, PlanOptions};
use crate::pointers::{Output, exactly, slice};
use crate::status::lgreco_status;
use crate::structs::{fill, read_struct, sized_struct};
use core::ffi::c_char;
use lgreco_train::CoreError;
use lgreco_train::file::PlanFile;
use lgreco_train::plan::{Plan, Proof, Summary, check, solve_against};
use lgreco_train::table::NamedTable;
use std::collections::BTreeMap;
use std::ffi::CString;

/// What a plan was made to keep within.
pub type lgreco_limit = u32;

/// Nothing: there is no plan.
pub const LGRECO_LIMIT_NONE: lgreco_limit = 0;
/// An error: no plan within it is smaller than `lower_bound`.
pub const LGRECO_LIMIT_ERROR: lgreco_limit = 1;
/// A size: no plan within it has less error than `error_lower_bound`.
pub const LGRECO_LIMIT_SIZE: lgreco_limit = 2;

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
    /// What the plan was made for.
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
        struct_size: crate::structs::size_of_struct::<lgreco_plan_view>(),
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
/// more than the uniform setting has, where that is within it. It keeps the groups and fixed options of the table. The same
/// input gives the same plan. Allocates its workspace.
///
/// LGRECO_INFEASIBLE when no plan meets the error budget: the message tells the smallest error; LGRECO_SIZE_INFEASIBLE when
/// none meets the size limit: the message tells the smallest size; LGRECO_UNKNOWN_OPTION, LGRECO_PARAMETER for options; codes
/// from 20 on about the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_solve(
    table: *const lgreco_table_view,
    options: *const *const c_char,
    plan: *mut *mut lgreco_plan,
) -> lgreco_status {
    create!(plan, || {
        let (view, options) = (TableView::read(table)?, options::read::<PlanOptions>(options)?);
        let (table, solver, budget) = (view.table()?, options.solver(), options.budget(view.budget, view.defaults)?);
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
    table: *const lgreco_table_view,
    plan: *const lgreco_plan_view,
) -> lgreco_status {
    plain!(|| {
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
    let read = |plan: &PlanState| self::view(plan.plan.options(), plan.plan.summary(), plan.solver.as_ptr());
    plain!(|| fill(view, || Ok(read(handle::shared(plan)?))))
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
    plain!(|| {
        let (plan, table) = (handle::shared(plan)?, &handle::shared(table)?.table);
        check::verify(&table.view(), plan.plan.options(), plan.plan.summary())?;
        let mut file = PlanFile::new(table, &plan.plan);
        file.solver = plan.solver.to_string_lossy().into_owned();
        Output { what: "json", to: json, capacity, length }.write_text(&file.to_json())
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
    table: *const lgreco_table,
    json: *const c_char,
    length: usize,
    plan: *mut *mut lgreco_plan,
) -> lgreco_status {
    create!(plan, || {
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
