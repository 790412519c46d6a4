use crate::failure::{Failure, Result};
use crate::pointers::{slice, text};
use crate::structs::{read_struct, sized_struct};
use core::ffi::c_char;
use lgreco_train::CoreError;
use lgreco_train::table::{Choice, NamedError, NamedTable, Table};

/// One option of one layer. The layout of this struct never changes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct lgreco_choice {
    /// Bits that one worker sends for the layer under this option.
    pub size: u64,
    /// Error of the option, finite and not negative. All options must use the same metric.
    pub error: f64,
}

const _: () = assert!(
    size_of::<lgreco_choice>() == size_of::<Choice>()
        && align_of::<lgreco_choice>() == align_of::<Choice>()
        && core::mem::offset_of!(lgreco_choice, size) == core::mem::offset_of!(Choice, size)
        && core::mem::offset_of!(lgreco_choice, error) == core::mem::offset_of!(Choice, error)
);

/// An error table as arrays, owned by the caller or by a table handle. Begin with LGRECO_TABLE_VIEW_INIT, which sets all
/// pointers to NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_table_view {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Number of layers, at least 1.
    pub layers: usize,
    /// Per layer, the end of its options in `choices`. The options of layer l have the indices from ends[l - 1], or 0
    /// for layer 0, to ends[l] - 1.
    pub ends: *const usize,
    /// All options, layer after layer.
    pub choices: *const lgreco_choice,
    /// Per layer, the option of the uniform setting; may be NULL. The size or error of the uniform setting can serve as
    /// a plan's limit.
    pub defaults: *const u32,
    /// The table's error budget; NULL for none.
    pub budget: *const f64,
    /// Per layer, its name in UTF-8. If NULL, the layers are named "0", "1" and so on.
    pub names: *const *const c_char,
    /// Per option, its label in UTF-8. If NULL, the labels are "0", "1" and so on.
    pub labels: *const *const c_char,
    /// Per layer, the number of elements of its gradient; NULL for 0.
    pub elements: *const u64,
    /// Per layer, the bits of its uncompressed gradient; NULL for 32 per element.
    pub uncompressed_sizes: *const u64,
    /// The metric of the errors, such as "l2"; NULL for "".
    pub metric: *const c_char,
    /// Per layer of the table, its index in the model. The library sets this field for tables that it measured. NULL
    /// for other tables.
    pub model_layers: *const usize,
    /// Per layer, the name of its group in UTF-8, or NULL for no group. Plans choose options with the same label for
    /// all layers of a group (tied weights, fused projections). NULL for no groups.
    pub groups: *const *const c_char,
    /// Per layer, the option that every plan must choose, or LGRECO_NO_OPTION. NULL for none.
    pub fixed: *const u32,
}

/// Value in `fixed` of a table view for a layer without a fixed option: plans may choose any option.
pub const LGRECO_NO_OPTION: u32 = u32::MAX;

// SAFETY: the struct is repr(C), starts with a usize, and has only integers and raw pointers.
sized_struct!("table view", lgreco_table_view {});

/// A caller's table view, with slices instead of pointers.
pub(crate) struct TableView<'a> {
    ends: &'a [usize],
    choices: &'a [Choice],
    pub(crate) defaults: Option<&'a [u32]>,
    pub(crate) budget: Option<f64>,
    names: Option<&'a [*const c_char]>,
    labels: Option<&'a [*const c_char]>,
    raw: lgreco_table_view,
}

/// Returns the caller's array as a slice, or `None` if the pointer is NULL.
///
/// # Safety
/// The requirements of `slice` apply.
unsafe fn optional<'a, T>(pointer: *const T, len: usize, what: &'static str) -> Result<Option<&'a [T]>> {
    // SAFETY: the caller meets the safety requirements of this function.
    if pointer.is_null() { Ok(None) } else { unsafe { slice(pointer, len, what) }.map(Some) }
}

impl<'a> TableView<'a> {
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md; `'a` ends within the call.
    pub(crate) unsafe fn read(view: *const lgreco_table_view) -> Result<Self> {
        // SAFETY: the caller meets the safety requirements of this function; lgreco_choice has the layout of Choice.
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
            // SAFETY: the caller's names are NULL or text, as lgreco-ffi/README.md requires.
            unsafe { text(name, "name") }.ok().map(str::to_owned)
        };
        let layer = error.layer().and_then(|layer| name(self.names, layer));
        let option = error.layer().and_then(start).zip(error.option());
        let option = option.and_then(|(start, option)| name(self.labels, start.checked_add(option)?));
        Failure::Named(NamedError { error, layer, option })
    }

    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md.
    pub(super) unsafe fn to_named_table(&self) -> Result<NamedTable> {
        let named = |names: Option<&[*const c_char]>, index: usize, number: usize, what| match names {
            // SAFETY: the caller meets the safety requirements of this function.
            Some(names) => unsafe { text(names[index], what) }.map(str::to_owned),
            None => Ok(number.to_string()),
        };
        let table = self.table()?;
        // SAFETY: the caller meets the safety requirements of this function.
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
        // SAFETY: the caller meets the safety requirements of this function.
        let (groups, fixed) = unsafe {
            (
                optional(self.raw.groups, self.raw.layers, "groups")?.unwrap_or(&[]),
                optional(self.raw.fixed, self.raw.layers, "fixed")?.unwrap_or(&[]),
            )
        };
        for (layer, &group) in groups.iter().enumerate().filter(|(_, group)| !group.is_null()) {
            // SAFETY: the caller meets the safety requirements of this function.
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
        // Merging fails for groups and fixed options that no plan can keep.
        table.merged(&table.constraints())?;
        Ok(table)
    }

    /// Returns a copy of the table with names, if the table has groups or fixed options. Otherwise returns `None`.
    ///
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md.
    pub(crate) unsafe fn constrained(&self) -> Result<Option<NamedTable>> {
        // SAFETY: the caller meets the safety requirements of this function.
        let table = || unsafe { self.to_named_table() };
        let any = !self.raw.groups.is_null() || !self.raw.fixed.is_null();
        Ok(any.then(table).transpose()?.filter(|table| !table.constraints().is_empty()))
    }
}
