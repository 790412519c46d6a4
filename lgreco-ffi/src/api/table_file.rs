use super::context::lgreco_context;
use super::table::{Source, TableState, lgreco_table};
use crate::handle;
use crate::pointers::{Range, disjoint, place, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use core::ffi::c_char;
use lgreco_train::CoreError;
use lgreco_train::file::TableFile;

/// Reads a table file, `length` bytes of JSON as described by schemas/table.schema.json.
///
/// LGRECO_JSON, LGRECO_JSON_VERSION, and the codes of lgreco_table_create and lgreco_setting_from_text; the message names layer, option and field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_from_json(
    context: *mut lgreco_context,
    json: *const c_char,
    length: usize,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::create::<_, lgreco_table>(context, table, |_| {
            let file = TableFile::parse(slice(json.cast(), length, "json")?)?;
            TableState::new(Source::Given(file.table), file.budget)
        })
    }
}

/// Writes the table as JSON with a NUL after it; `length`, which must not be NULL, receives the number of bytes before
/// the NUL.
///
/// LGRECO_LENGTH when `capacity` is not above that number: `length` is then set all the same, and `json` may be NULL.
/// Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_to_json(
    table: *const lgreco_table,
    json: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    handle::call_without_handle(|| {
        // SAFETY: README.md, handles and pointers.
        unsafe {
            let table = handle::shared(table)?;
            let file = TableFile { table: table.table().clone(), budget: table.budget() };
            write_text(&file.to_json(), "json", json, capacity, length)
        }
    })
}

/// Writes `text` with a NUL after it to the argument that is called `what`.
///
/// # Safety
/// README.md, pointers.
pub(super) unsafe fn write_text(
    text: &str,
    what: &'static str,
    to: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    disjoint(Range::of(length, 1, "length"), &[Range::of(to, capacity, what)])?;
    // SAFETY: passed on.
    unsafe { place(length, "length") }?.write(text.len());
    if capacity <= text.len() {
        return Err(CoreError::Length { what, expected: text.len() + 1, found: capacity }.into());
    }
    // SAFETY: passed on.
    let to = unsafe { slice_mut(to.cast::<u8>(), capacity, what) }?;
    to[..text.len()].copy_from_slice(text.as_bytes());
    to[text.len()] = 0;
    Ok(())
}
