use super::context::lgreco_context;
use super::plan::{PlanState, lgreco_plan};
use super::table::{c_text, lgreco_table};
use super::table_file::write_text;
use crate::handle;
use crate::pointers::slice;
use crate::status::{Failure, lgreco_status};
use core::ffi::c_char;
use lgreco_train::CoreError;
use lgreco_train::file::PlanFile;
use lgreco_train::plan::{Plan, check};
use lgreco_train::table::NamedTable;
use std::collections::BTreeMap;

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
            let (plan, table) = (handle::shared(plan)?, handle::shared(table)?.table());
            check::verify(&table.view(), plan.plan.options(), plan.plan.summary())?;
            let mut file = PlanFile::new(table, &plan.plan);
            file.solver = plan.solver.to_string_lossy().into_owned();
            write_text(&file.to_json(), "json", json, capacity, length)
        }
    })
}

/// Reads a plan file for `table`, `length` bytes of JSON, and verifies it: layers may stand in another order, but each
/// must name a layer of the table and its option by index and label. That no plan is smaller than the bound in the file is
/// taken on trust.
///
/// LGRECO_JSON, LGRECO_JSON_VERSION; the codes of lgreco_setting_from_text for a setting in it; LGRECO_LENGTH when it does not have one entry per layer; LGRECO_UNKNOWN_NAME for a
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
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::create::<_, lgreco_plan>(context, plan, |_| {
            let table = handle::shared(table)?.table();
            let file = PlanFile::parse(slice(json.cast(), length, "json")?)?;
            verified(table, &file)
        })
    }
}

fn verified(table: &NamedTable, file: &PlanFile) -> Result<PlanState, Failure> {
    let layers = table.layers();
    if file.layers.len() != layers {
        return Err(CoreError::Length { what: "layers of the plan", expected: layers, found: file.layers.len() }.into());
    }
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
        let label = label.ok_or_else(|| at(no_such_option(layer, entry.option, labels.len())))?;
        if *label != entry.label {
            return Err(
                at(CoreError::UnknownName { what: "label", expected: "that of the option in the table" }).into()
            );
        }
        if options[layer].replace(entry.option).is_some() {
            return Err(at(CoreError::DuplicateName { layer, first: layer }).into());
        }
    }
    let options = options.into_iter().flatten().collect();
    // A cast from f64 saturates; the file's bound was rounded down.
    let plan =
        Plan::verified(&table.view(), "file", options, file.summary()).map_err(|error| table.name_error(error))?;
    Ok(PlanState { plan, solver: c_text(&file.solver, "solver")? })
}

fn no_such_option(layer: usize, option: u32, options: usize) -> CoreError {
    CoreError::NoSuchOption { layer, option: option as usize, options }
}
