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

/// The kind of limit that a plan keeps.
pub type lgreco_limit = u32;

/// No limit, because there is no plan.
pub const LGRECO_LIMIT_NONE: lgreco_limit = 0;
/// A limit on the error. `lower_bound` is a lower bound of the size of all plans within the limit.
pub const LGRECO_LIMIT_ERROR: lgreco_limit = 1;
/// A limit on the size. `error_lower_bound` is a lower bound of the error of all plans within the limit.
pub const LGRECO_LIMIT_SIZE: lgreco_limit = 2;

/// A plan as arrays, owned by a plan handle or by the caller. Begin with LGRECO_PLAN_VIEW_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_plan_view {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Per layer, the index of the chosen option among the layer's options.
    pub options: *const u32,
    /// Total bits of the chosen options.
    pub size: u64,
    /// If `limit` is LGRECO_LIMIT_ERROR, a lower bound, in bits, of the size of all plans within the budget. Otherwise
    /// 0. If `size` equals this bound, the plan is proved optimal.
    pub lower_bound: u64,
    /// Total error of the chosen options.
    pub error: f64,
    /// If `limit` is LGRECO_LIMIT_ERROR, the error budget of the plan; otherwise 0.
    pub budget: f64,
    /// The solver that made the plan, such as "exact". The library sets this field and does not read it.
    pub solver: *const c_char,
    /// 1 if the plan is proved optimal, else 0. The library sets this field and does not read it.
    pub proven: u32,
    /// The kind of limit that the plan keeps.
    pub limit: lgreco_limit,
    /// If `limit` is LGRECO_LIMIT_SIZE, the maximum number of bits; otherwise 0.
    pub size_limit: u64,
    /// If `limit` is LGRECO_LIMIT_SIZE, a lower bound of the error of all plans within the size limit. Otherwise 0. The
    /// plan is proved optimal if `error` exceeds this bound by at most the fraction 2^-40 of it, the resolution of the
    /// solver.
    pub error_lower_bound: f64,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers and raw pointers.
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

/// The fields of a plan view that state a proof of optimality.
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

/// A verified plan: one option per layer. It never changes.
pub struct lgreco_plan {
    _private: [u8; 0],
}

kind!(lgreco_plan, "plan", b"lgplan\0\0", PlanState);

impl Immutable for lgreco_plan {}

pub(crate) struct PlanState {
    pub(crate) plan: Plan,
    pub(crate) solver: CString,
}

/// Chooses one option per layer: the fewest bits within the error budget, or the least error within the size limit. If
/// the uniform setting is within the limit, the plan is no worse. The plan keeps the table's groups and fixed options.
/// The same input gives the same plan. Allocates its workspace.
///
/// Fails with LGRECO_INFEASIBLE when no plan meets the error budget; the message has the smallest error. Fails with
/// LGRECO_SIZE_INFEASIBLE when no plan meets the size limit; the message has the smallest size. Also fails with
/// LGRECO_UNKNOWN_OPTION or LGRECO_PARAMETER for wrong options, with LGRECO_BUDGET for a wrong budget of the table,
/// with the codes of lgreco_table_create for a wrong table, and with LGRECO_OUT_OF_MEMORY.
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

/// Verifies a plan against a table. The plan must have one option per layer, and keep groups and fixed options. The
/// plan's stated size and error must be correct, and within the stated budget or size limit. The checks of a plan use
/// exact arithmetic. The call does not prove a stated lower bound: it only checks that the bound does not exceed the
/// plan's value.
///
/// Fails with LGRECO_PLAN_MISMATCH, LGRECO_OVER_BUDGET, LGRECO_OVER_SIZE, LGRECO_NO_SUCH_OPTION, LGRECO_RULED_OUT,
/// LGRECO_BUDGET or LGRECO_LENGTH.
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

/// Fills `view` with the plan. The view's pointers are valid until the plan is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_get(plan: *const lgreco_plan, view: *mut lgreco_plan_view) -> lgreco_status {
    let read = |plan: &PlanState| self::view(plan.plan.options(), plan.plan.summary(), plan.solver.as_ptr());
    plain!(|| fill(view, || Ok(read(handle::shared(plan)?))))
}

/// Frees a plan and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_destroy(plan: *mut *mut lgreco_plan) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(plan) }
}

/// Writes a plan for `table` as JSON (schemas/plan.schema.json) with a NUL after it. The file also contains the table's
/// settings. `length` is as for lgreco_table_to_json. Allocates.
///
/// Also fails with the codes of lgreco_plan_check, such as LGRECO_PLAN_MISMATCH, when the plan does not fit this table.
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

/// Reads a plan file for `table` and verifies it. `json` has `length` bytes. The order of layers may differ. Each entry
/// must name a layer of the table, and the layer's option by index and label. The lower bound in the file is not
/// verified.
///
/// Fails with LGRECO_JSON or LGRECO_JSON_VERSION, and with LGRECO_LENGTH unless there is one entry per layer. Fails
/// with LGRECO_UNKNOWN_NAME for a layer or label that the table does not have, and with LGRECO_DUPLICATE_NAME for a
/// layer with two entries. Also fails with the codes of lgreco_setting for a setting in the file, and with the codes of
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

/// Returns `Err` unless the chosen options keep the table's groups and fixed options.
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
    // The lower bound stays valid: the cast from f64 saturates, and the bound was rounded down when the file was
    // written.
    let plan =
        Plan::verified(&table.view(), "file", options, file.summary()).map_err(|error| table.name_error(error))?;
    Ok(PlanState { plan, solver: c_text(&file.solver, "solver")? })
}
