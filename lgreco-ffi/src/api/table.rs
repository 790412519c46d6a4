use super::context::lgreco_context;
use super::setting::lgreco_setting;
use crate::handle::{self, Immutable, kind};
use crate::pointers::{Output, check_layer, fill, read_struct, sized_struct, slice, text, write};
use crate::status::{Failure, Result, lgreco_status};
use core::ffi::c_char;
use lgreco_train::file::TableFile;
use lgreco_train::table::{Choice, NamedError, NamedTable, Table};
use lgreco_train::{CoreError, search::Measured};
use std::ffi::CString;

/// One option of one layer. This struct never changes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct lgreco_choice {
    /// Bits one worker sends for the layer under this option.
    pub size: u64,
    /// How much the option hurts: finite, not negative, in any one metric.
    pub error: f64,
}

const _: () = assert!(
    size_of::<lgreco_choice>() == size_of::<Choice>()
        && align_of::<lgreco_choice>() == align_of::<Choice>()
        && core::mem::offset_of!(lgreco_choice, size) == core::mem::offset_of!(Choice, size)
        && core::mem::offset_of!(lgreco_choice, error) == core::mem::offset_of!(Choice, error)
);

/// An error table in arrays: the caller's own, or what is in a table handle. Begin with LGRECO_TABLE_VIEW_INIT, all NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_table_view {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Number of layers, at least 1.
    pub layers: usize,
    /// Per layer, where its options end in `choices`: layer l has ends[l - 1] .. ends[l], layer 0 begins at 0.
    pub ends: *const usize,
    /// All options, layer after layer.
    pub choices: *const lgreco_choice,
    /// Per layer, the option of the uniform setting, whose size or error a limit may be; may be NULL.
    pub defaults: *const u32,
    /// The table's own error budget; NULL for none.
    pub budget: *const f64,
    /// Per layer, its name, UTF-8; NULL for names like "0", "1".
    pub names: *const *const c_char,
    /// Per option, its label, UTF-8; NULL for labels like "0", "1".
    pub labels: *const *const c_char,
    /// Per layer, the number of elements of its gradient; NULL for 0.
    pub elements: *const u64,
    /// Per layer, the bits of its gradient as it is; NULL for 32 per element.
    pub uncompressed_sizes: *const u64,
    /// What errors are measured in, such as "l2"; NULL for "".
    pub metric: *const c_char,
    /// Filled by the library for measured tables: which of the model's layers each layer of the table is; else NULL.
    pub model_layers: *const usize,
    /// Per layer, the name of its group, UTF-8, or NULL: plans give all layers of a group options of one label (tied weights,
    /// fused projections). NULL for no groups.
    pub groups: *const *const c_char,
    /// Per layer, the option that every plan has, or LGRECO_NO_OPTION. NULL for none.
    pub fixed: *const u32,
}

/// Of `fixed` in a table view: plans choose the layer's option.
pub const LGRECO_NO_OPTION: u32 = u32::MAX;

// SAFETY: repr(C), starts with a usize; integers and raw pointers only.
sized_struct!("table view", lgreco_table_view {});

/// A caller's view with its arrays as slices.
pub(crate) struct TableView<'a> {
    ends: &'a [usize],
    choices: &'a [Choice],
    pub(crate) defaults: Option<&'a [u32]>,
    pub(crate) budget: Option<f64>,
    names: Option<&'a [*const c_char]>,
    labels: Option<&'a [*const c_char]>,
    raw: lgreco_table_view,
}

/// An array that may be NULL.
///
/// # Safety
/// As `slice`.
unsafe fn optional<'a, T>(pointer: *const T, len: usize, what: &'static str) -> Result<Option<&'a [T]>> {
    // SAFETY: passed on.
    if pointer.is_null() { Ok(None) } else { unsafe { slice(pointer, len, what) }.map(Some) }
}

impl<'a> TableView<'a> {
    /// # Safety
    /// README.md, pointers; `'a` is within the call.
    pub(crate) unsafe fn read(view: *const lgreco_table_view) -> Result<Self> {
        // SAFETY: passed on; lgreco_choice has the layout of Choice.
        unsafe {
            let raw = read_struct(view)?;
            let ends: &[usize] = slice(raw.ends, raw.layers, "ends")?;
            let options = ends.last().copied().unwrap_or(0);
            Ok(TableView {
                ends,
                choices: slice(raw.choices.cast(), options, "choices")?,
                defaults: optional(raw.defaults, raw.layers, "defaults")?,
                budget: optional(raw.budget, 1, "budget")?.map(|budget| budget[0]),
                names: optional(raw.names, raw.layers, "names")?,
                labels: optional(raw.labels, options, "labels")?,
                raw,
            })
        }
    }

    pub(crate) fn table(&self) -> Result<Table<'a>> {
        Table::new(self.choices, self.ends).map_err(|error| self.named(error))
    }

    /// Adds the names of layer and option to an error about this table.
    pub(crate) fn named(&self, error: CoreError) -> Failure {
        let start = |layer: usize| if layer == 0 { Some(0) } else { self.ends.get(layer - 1).copied() };
        let name = |names: Option<&[*const c_char]>, index: usize| {
            let name = *names?.get(index)?;
            // SAFETY: README.md, pointers: the caller's names are NULL or text.
            unsafe { text(name, "name") }.ok().map(str::to_owned)
        };
        let layer = error.layer().and_then(|layer| name(self.names, layer));
        let option = error.layer().and_then(start).zip(error.option());
        let option = option.and_then(|(start, option)| name(self.labels, start.checked_add(option)?));
        Failure::Named(NamedError { error, layer, option })
    }

    /// # Safety
    /// README.md, pointers.
    unsafe fn to_named_table(&self) -> Result<NamedTable> {
        let named = |names: Option<&[*const c_char]>, index: usize, number: usize, what| match names {
            // SAFETY: passed on.
            Some(names) => unsafe { text(names[index], what) }.map(str::to_owned),
            None => Ok(number.to_string()),
        };
        let table = self.table()?;
        // SAFETY: passed on.
        let (elements, sizes, metric) = unsafe {
            (
                optional(self.raw.elements, self.raw.layers, "elements")?,
                optional(self.raw.uncompressed_sizes, self.raw.layers, "uncompressed_sizes")?,
                if self.raw.metric.is_null() { "" } else { text(self.raw.metric, "metric")? },
            )
        };
        let mut builder = NamedTable::builder(metric);
        let mut start = 0;
        for layer in 0..table.layers() {
            let labelled = |(option, &choice): (usize, &Choice)| {
                Ok((named(self.labels, start + option, option, "label of an option")?, choice))
            };
            let options = table.layer(layer).iter().enumerate().map(labelled).collect::<Result<Vec<_>>>()?;
            let name = named(self.names, layer, layer, "name of a layer")?;
            let default = self.defaults.map(|defaults| defaults[layer]);
            builder.layer(name, elements.map_or(0, |elements| elements[layer]), default, options);
            start = self.ends[layer];
        }
        let mut table = builder.build()?;
        for (layer, &bits) in sizes.unwrap_or(&[]).iter().enumerate() {
            table.set_uncompressed_size(layer, bits);
        }
        // SAFETY: passed on.
        let (groups, fixed) = unsafe {
            (
                optional(self.raw.groups, self.raw.layers, "groups")?.unwrap_or(&[]),
                optional(self.raw.fixed, self.raw.layers, "fixed")?.unwrap_or(&[]),
            )
        };
        for (layer, &group) in groups.iter().enumerate().filter(|(_, group)| !group.is_null()) {
            // SAFETY: passed on.
            table.set_group(layer, Some(unsafe { text(group, "group of a layer") }?.into()));
        }
        for (layer, &option) in fixed.iter().enumerate().filter(|&(_, &option)| option != LGRECO_NO_OPTION) {
            let options = table.labels(layer).len();
            if option as usize >= options {
                let error = CoreError::NoSuchOption { layer, option: option as usize, options };
                return Err(self.named(error));
            }
            table.set_fixed_option(layer, Some(option));
        }
        // What cannot be kept is told now.
        table.merged(&table.constraints())?;
        Ok(table)
    }

    /// The table with its groups and fixed options, if it has any.
    ///
    /// # Safety
    /// README.md, pointers.
    pub(crate) unsafe fn constrained(&self) -> Result<Option<NamedTable>> {
        // SAFETY: passed on.
        let table = || unsafe { self.to_named_table() };
        let any = !self.raw.groups.is_null() || !self.raw.fixed.is_null();
        Ok(any.then(table).transpose()?.filter(|table| !table.constraints().is_empty()))
    }
}

/// An error table with names, owned by the library. It never changes.
pub struct lgreco_table {
    _private: [u8; 0],
}

kind!(lgreco_table, "table", b"lgtable\0", TableState);

impl Immutable for lgreco_table {}

pub(crate) struct TableState {
    pub(crate) table: NamedTable,
    /// Of measured tables, which of the model's layers are in it.
    model_layers: Option<Vec<usize>>,
    pub(crate) budget: Option<f64>,
    ends: Vec<usize>,
    defaults: Option<Vec<u32>>,
    elements: Vec<u64>,
    uncompressed_sizes: Vec<u64>,
    metric: CString,
    names: Texts,
    labels: Texts,
    /// Without any, nothing.
    groups: Option<Texts>,
    fixed: Option<Vec<u32>>,
}

/// Texts as C wants them.
#[derive(Default)]
pub(super) struct Texts {
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

// SAFETY: the pointers are to the owned texts, which never change.
unsafe impl Sync for Texts {}

impl Texts {
    /// `None` becomes NULL.
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

    /// Valid as long as the texts.
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
            struct_size: crate::pointers::size_of_struct::<lgreco_table_view>(),
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

/// Copies a table into a handle and checks it whole: names and labels too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_create(
    context: *mut lgreco_context,
    view: *const lgreco_table_view,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create!(context, table, |_| {
        let view = TableView::read(view)?;
        TableState::new(view.to_named_table()?, view.budget)
    })
}

/// Frees a table and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_destroy(table: *mut *mut lgreco_table) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(table) }
}

/// Fills `view` with pointers into the table, valid until it is destroyed. `names`, `labels`, `elements`,
/// `uncompressed_sizes` and `metric` are then never NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_get(table: *const lgreco_table, view: *mut lgreco_table_view) -> lgreco_status {
    handle::call_without_handle(|| {
        // SAFETY: README.md, handles and pointers.
        unsafe { fill(view, || Ok(handle::shared(table)?.view())) }
    })
}

/// Fills `setting` with the compressor behind an option of a table that was measured by the library, now or before it was
/// written to a file.
///
/// LGRECO_NO_SETTINGS for tables of other origin; LGRECO_NO_SUCH_OPTION; LGRECO_LENGTH when there
/// is no such layer.
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
    handle::call_without_handle(|| {
        // SAFETY: README.md, handles and pointers.
        unsafe { write(setting, "setting", || find(handle::shared(table)?)) }
    })
}

/// Reads a table file, `length` bytes of JSON as described by schemas/table.schema.json.
///
/// LGRECO_JSON, LGRECO_JSON_VERSION, and the codes of lgreco_table_create and lgreco_setting; the message names layer, option and field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_table_from_json(
    context: *mut lgreco_context,
    json: *const c_char,
    length: usize,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create!(context, table, |_| {
        let file = TableFile::parse(slice(json.cast(), length, "json")?)?;
        TableState::new(file.table, file.budget)
    })
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
            let file = TableFile { table: table.table.clone(), budget: table.budget };
            Output { what: "json", to: json, capacity, length }.write_text(&file.to_json())
        }
    })
}
