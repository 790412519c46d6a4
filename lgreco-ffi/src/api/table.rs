use super::setting::lgreco_setting;
use super::table_view::{LGRECO_NO_OPTION, TableView, lgreco_table_view};
use crate::failure::{Failure, Result};
use crate::handle::{self, Immutable, kind};
use crate::pointers::{Output, check_layer, slice, write};
use crate::status::lgreco_status;
use crate::structs::fill;
use core::ffi::c_char;
use lgreco_train::file::TableFile;
use lgreco_train::table::NamedTable;
use lgreco_train::{CoreError, search::Measured};
use std::ffi::CString;

/// An error table with names, owned by the library. It never changes.
pub struct lgreco_table {
    _private: [u8; 0],
}

kind!(lgreco_table, "table", b"lgtable\0", TableState);

impl Immutable for lgreco_table {}

pub(crate) struct TableState {
    pub(crate) table: NamedTable,
    /// For measured tables, each layer's index in the model.
    model_layers: Option<Vec<usize>>,
    pub(crate) budget: Option<f64>,
    ends: Vec<usize>,
    defaults: Option<Vec<u32>>,
    elements: Vec<u64>,
    uncompressed_sizes: Vec<u64>,
    metric: CString,
    names: Texts,
    labels: Texts,
    /// NULL if no layer has a group.
    groups: Option<Texts>,
    fixed: Option<Vec<u32>>,
}

/// C texts and the pointers to them.
#[derive(Default)]
pub(super) struct Texts {
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

// SAFETY: the pointers point to the owned texts, which never change.
unsafe impl Sync for Texts {}

impl Texts {
    /// A `None` among the texts becomes a NULL pointer.
    pub(super) fn new<'a>(
        texts: impl Iterator<Item = impl Into<Option<&'a str>>>,
        what: &'static str,
    ) -> Result<Texts> {
        let mut made = Texts::default();
        for text in texts {
            let owned = text.into().map(|text| c_text(text, what)).transpose()?;
            made.pointers.push(owned.as_ref().map_or(core::ptr::null(), |text| text.as_ptr()));
            made._owned.extend(owned);
        }
        Ok(made)
    }

    /// Returns the pointers, which are valid as long as `self`.
    pub(super) fn pointers(&self) -> &[*const c_char] {
        &self.pointers
    }
}

pub(crate) fn c_text(text: &str, what: &'static str) -> Result<CString> {
    CString::new(text).map_err(|_| Failure::Text { what, why: "holds a NUL" })
}

impl TableState {
    pub(crate) fn measured(measured: Measured) -> Result<TableState> {
        Ok(TableState { model_layers: Some(measured.layers), ..TableState::new(measured.table, None)? })
    }

    pub(crate) fn new(table: NamedTable, budget: Option<f64>) -> Result<TableState> {
        let layers = 0..table.layers();
        let size = |layer| table.uncompressed_size(layer).unwrap_or(table.elements(layer).saturating_mul(32));
        let ends = table.view().iter().scan(0, |end, options| {
            *end += options.len();
            Some(*end)
        });
        Ok(TableState {
            ends: ends.collect(),
            defaults: table.defaults(),
            elements: layers.clone().map(|layer| table.elements(layer)).collect(),
            uncompressed_sizes: layers.clone().map(size).collect(),
            metric: c_text(table.metric(), "metric")?,
            names: Texts::new(layers.clone().map(|layer| table.name(layer)), "name of a layer")?,
            groups: {
                let any = layers.clone().any(|layer| table.group(layer).is_some());
                any.then(|| Texts::new(layers.clone().map(|layer| table.group(layer)), "group of a layer"))
                    .transpose()?
            },
            fixed: {
                let any = layers.clone().any(|layer| table.fixed_option(layer).is_some());
                let option = |layer| table.fixed_option(layer).unwrap_or(LGRECO_NO_OPTION);
                any.then(|| layers.clone().map(option).collect())
            },
            labels: Texts::new(layers.flat_map(|layer| table.labels(layer)).map(String::as_str), "label of an option")?,
            table,
            model_layers: None,
            budget,
        })
    }

    fn view(&self) -> lgreco_table_view {
        fn pointer<T>(values: Option<&[T]>) -> *const T {
            values.map_or(core::ptr::null(), <[T]>::as_ptr)
        }
        lgreco_table_view {
            struct_size: crate::structs::size_of_struct::<lgreco_table_view>(),
            layers: self.ends.len(),
            ends: self.ends.as_ptr(),
            choices: self.table.view().choices().as_ptr().cast(),
            defaults: pointer(self.defaults.as_deref()),
            budget: pointer(self.budget.as_ref().map(core::slice::from_ref)),
            names: self.names.pointers().as_ptr(),
            labels: self.labels.pointers().as_ptr(),
            elements: self.elements.as_ptr(),
            uncompressed_sizes: self.uncompressed_sizes.as_ptr(),
            metric: self.metric.as_ptr(),
            model_layers: pointer(self.model_layers.as_deref()),
            groups: pointer(self.groups.as_ref().map(Texts::pointers)),
            fixed: pointer(self.fixed.as_deref()),
        }
    }
}

/// Copies a table into a handle, and checks the whole table, including names and labels.
///
/// Fails with LGRECO_LENGTH when `ends` does not ascend, with LGRECO_EMPTY_TABLE, LGRECO_EMPTY_LAYER,
/// LGRECO_OPTION_ERROR and LGRECO_SIZE_OVERFLOW, and with LGRECO_NO_SUCH_OPTION for an entry of `defaults` or `fixed`.
/// Fails with LGRECO_DUPLICATE_NAME for two layers of one name, with LGRECO_TEXT for a name that is not UTF-8, and with
/// LGRECO_NO_SHARED_OPTION for a group whose layers have no allowed label in common.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_create(
    view: *const lgreco_table_view,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create!(table, || {
        let view = TableView::read(view)?;
        TableState::new(view.to_named_table()?, view.budget)
    })
}

/// Frees a table and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_destroy(table: *mut *mut lgreco_table) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(table) }
}

/// Fills `view` with pointers into the table, which are valid until the table is destroyed. `names`, `labels`,
/// `elements`, `uncompressed_sizes` and `metric` are never NULL in the filled view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_get(table: *const lgreco_table, view: *mut lgreco_table_view) -> lgreco_status {
    plain!(|| fill(view, || Ok(handle::shared(table)?.view())))
}

/// Fills `setting` with the compressor of an option. The library must have measured the table, in this run or before it was
/// written to a file.
///
/// Fails with LGRECO_NO_SETTINGS for other tables, with LGRECO_LENGTH for an unknown layer, and with
/// LGRECO_NO_SUCH_OPTION.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_setting(
    table: *const lgreco_table,
    layer: usize,
    option: u32,
    setting: *mut lgreco_setting,
) -> lgreco_status {
    let find = |state: &TableState| {
        let table = &state.table;
        check_layer(layer, table.layers())?;
        let (option, options) = (option as usize, table.labels(layer).len());
        if option >= options {
            return Err(CoreError::NoSuchOption { layer, option, options }.into());
        }
        Ok(table.setting(layer, option).ok_or(Failure::NoSettings)?.into())
    };
    plain!(|| write(setting, "setting", || find(handle::shared(table)?)))
}

/// Reads a table file: `length` bytes of JSON as described by schemas/table.schema.json.
///
/// Fails with LGRECO_JSON or LGRECO_JSON_VERSION, and the codes of lgreco_table_create and lgreco_setting. The message
/// names layer, option and field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_from_json(
    json: *const c_char,
    length: usize,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create!(table, || {
        let file = TableFile::parse(slice(json.cast(), length, "json")?)?;
        TableState::new(file.table, file.budget)
    })
}

/// Writes the table as JSON with a NUL after it. `length` must not be NULL and receives the number of bytes before the NUL.
/// Allocates.
///
/// Fails with LGRECO_LENGTH unless `capacity` exceeds that number of bytes. Even then `length` is set, and `json` may
/// be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_to_json(
    table: *const lgreco_table,
    json: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    plain!(|| {
        let table = handle::shared(table)?;
        let file = TableFile { table: table.table.clone(), budget: table.budget };
        Output { what: "json", to: json, capacity, length }.write_text(&file.to_json())
    })
}
