use super::cuda::lgreco_cuda;
use super::gradient::{Tensor, lgreco_layer};
use super::table::{TableState, lgreco_table};
use crate::cuda::{CALLS, DeviceTensor, NOWHERE, OnDevice, Row};
use crate::failure::{Failure, Result};
use crate::options::{self, SearchOptions};
use crate::pointers::{Range, address, at_least, disjoint, slice, write};
use crate::status::lgreco_status;
use crate::structs::read_structs;
use core::ffi::{c_char, c_void};
use lgreco_train::CoreError;
use lgreco_train::search::Offer;

/// A model's layers with their names.
struct Model<'a> {
    layers: Vec<lgreco_layer>,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> Model<'a> {
    /// # Safety
    /// README.md, pointers; `'a` is within the call.
    unsafe fn read(layers: *const lgreco_layer, layers_len: usize) -> Result<Model<'a>> {
        // SAFETY: passed on.
        unsafe {
            let layers = read_structs(layers, layers_len)?;
            let tensors = layers.iter().map(|layer| layer.tensor()).collect::<Result<_, _>>()?;
            Ok(Model { layers, tensors })
        }
    }

    /// What `options` offer the layers.
    ///
    /// # Safety
    /// README.md, pointers.
    unsafe fn offer(&self, options: *const *const c_char) -> Result<Offer<'a>> {
        // SAFETY: passed on.
        let options = unsafe { options::read::<SearchOptions>(options) }?;
        let search = options.search()?;
        Ok(search.offer(self.tensors.iter().map(|tensor| (tensor.name, tensor.dims, tensor.dtype)))?)
    }

    /// The rows of `offer`, with the addresses that `address` says.
    fn rows<'b>(
        &self,
        offer: &'b Offer<'_>,
        address: impl Fn(&lgreco_layer, Tensor<'a>) -> Result<u64>,
    ) -> Result<Vec<Row<'b>>>
    where
        'a: 'b,
    {
        let row = |row: lgreco_train::search::OfferedRow<'b>| {
            let tensor = self.tensors[row.layer];
            let Tensor { name, dtype, shape, .. } = tensor;
            let address = address(&self.layers[row.layer], tensor).map_err(|failure| failure.of_layer(name))?;
            let gradient = DeviceTensor { address, dtype, shape };
            Ok(Row { layer: name, gradient, candidates: row.candidates, stream: row.stream })
        };
        offer.rows().map(row).collect()
    }

    /// The rows of `offer` where they lie; `Err` if there is none.
    fn rows_on_device<'b>(&self, offer: &'b Offer<'_>) -> Result<Vec<Row<'b>>>
    where
        'a: 'b,
    {
        some(self.rows(offer, |layer, tensor| layer.address(tensor))?)
    }

    /// `Err` when `output` shares memory with a gradient of `offer`'s.
    fn check_apart(&self, offer: &Offer<'_>, output: Range) -> Result<()> {
        offer.rows().try_for_each(|row| {
            let tensor = self.tensors[row.layer];
            let gradient = self.layers[row.layer].range(tensor);
            disjoint(output, &[gradient]).map_err(|failure| failure.of_layer(tensor.name))
        })
    }
}

/// What lgreco_cuda_measure says of no rows, before anything is done.
fn some(rows: Vec<Row<'_>>) -> Result<Vec<Row<'_>>> {
    if rows.is_empty() { Err(CoreError::EmptyTable.into()) } else { Ok(rows) }
}

/// Places for the squared errors of `rows`.
fn squared_errors(rows: &[Row<'_>]) -> Vec<f64> {
    vec![0.0; rows.iter().map(|row| row.candidates.len()).sum()]
}

/// What a workspace is aligned to.
#[repr(align(256))]
struct Unit {
    _bytes: [u8; 256],
}

/// Runs a call on the rows that a search asks for, whose values are not looked at, if `calls` is a sum of constants.
///
/// # Safety
/// README.md, pointers.
unsafe fn without_values(
    cuda: &mut Box<dyn OnDevice>,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    calls: lgreco_cuda_calls,
    call: impl FnOnce(&mut Box<dyn OnDevice>, &[Row<'_>]) -> Result<()>,
) -> Result<()> {
    if calls & !CALLS.iter().sum::<u32>() != 0 {
        return Err(Failure::UnknownConstant { what: "calls", found: calls });
    }
    // SAFETY: passed on.
    let model = unsafe { Model::read(layers, layers_len) }?;
    // SAFETY: passed on.
    let offer = unsafe { model.offer(options) }?;
    call(cuda, &model.rows(&offer, |_, _| Ok(NOWHERE))?)
}

/// Calls on device memory, a sum of LGRECO_CUDA_...
pub type lgreco_cuda_calls = u32;

/// lgreco_cuda_measure.
pub const LGRECO_CUDA_MEASURE: lgreco_cuda_calls = 1;
/// lgreco_cuda_encode.
pub const LGRECO_CUDA_ENCODE: lgreco_cuda_calls = 2;
/// lgreco_cuda_decode.
pub const LGRECO_CUDA_DECODE: lgreco_cuda_calls = 4;
/// lgreco_cuda_encode_to_device.
pub const LGRECO_CUDA_ENCODE_TO_DEVICE: lgreco_cuda_calls = 8;
/// lgreco_cuda_decode_on_device.
pub const LGRECO_CUDA_DECODE_ON_DEVICE: lgreco_cuda_calls = 16;

/// Done: lgreco_table_measure for gradients in the device's memory: enqueues all layers, waits once, and only errors
/// come back. `values` of layers are device pointers; those of layers that are left out of the table are not looked at.
/// Allocates, on the device too unless that was reserved.
///
/// As lgreco_table_measure; LGRECO_UNAVAILABLE for PowerSGD with ranks above 1024 and for QSGD with buckets that are no power of
/// two from 64 to 4096; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE, which name no layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_measure(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create_on!(cuda, table, |cuda| {
        let model = Model::read(layers, layers_len)?;
        let offer = model.offer(options)?;
        let rows = model.rows(&offer, |layer, tensor| layer.address(tensor))?;
        let mut squared_errors = squared_errors(&rows);
        cuda.measure(&rows, &mut squared_errors)?;
        TableState::measured(offer.into_measured(&squared_errors)?)
    })
}

/// Tells the bytes of device memory that lgreco_cuda_enqueue_rows takes for such layers, whose `values` are not looked at, under
/// these options: to work in, and of results. The device is not asked.
///
/// As lgreco_cuda_measure, but for the values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_rows_bytes(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    workspace_bytes: *mut u64,
    results_bytes: *mut u64,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let other = Range::of(results_bytes, 1, "results_bytes");
        disjoint(Range::of(workspace_bytes, 1, "workspace_bytes"), &[other])?;
        let model = Model::read(layers, layers_len)?;
        let offer = model.offer(options)?;
        let (workspace, results) = cuda.rows_bytes(&some(model.rows(&offer, |_, _| Ok(NOWHERE))?)?)?;
        write(workspace_bytes, "workspace_bytes", || {
            write(results_bytes, "results_bytes", || Ok(results))?;
            Ok(workspace)
        })
    })
}

/// Enqueued: what lgreco_cuda_measure does before it waits, in `workspace` and `results` on the device, aligned to 256 and to 8, of at
/// least lgreco_cuda_rows_bytes. Nothing is allocated on the device. The first call on a handle loads kernels, and one with more
/// layers or options than those before may make more room for them in page-locked memory: these wait, all others do not. A copy of the results to
/// host memory, behind it on the same stream, is for lgreco_cuda_read_rows. Allocates on the host.
///
/// As lgreco_cuda_rows_bytes; LGRECO_LENGTH when there is less memory, LGRECO_ALIGNMENT; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE, which name
/// no layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_enqueue_rows(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    workspace: *mut c_void,
    workspace_bytes: u64,
    results: *mut c_void,
    results_bytes: u64,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let model = Model::read(layers, layers_len)?;
        let offer = model.offer(options)?;
        let rows = model.rows_on_device(&offer)?;
        let needed = cuda.rows_bytes(&rows)?;
        at_least(needed.0, workspace_bytes, "bytes of the rows' workspace")?;
        at_least(needed.1, results_bytes, "bytes of the rows' results")?;
        let units = (needed.0 as usize).div_ceil(size_of::<Unit>());
        let workspace_address = address(workspace.cast::<Unit>(), units, "workspace")?;
        let results_address = address(results.cast::<u64>(), needed.1 as usize / 8, "results")?;
        let workspace = Range::of(workspace.cast::<u8>(), needed.0 as usize, "workspace");
        let results = Range::of(results.cast::<u8>(), needed.1 as usize, "results");
        disjoint(workspace, &[results])?;
        model.check_apart(&offer, workspace)?;
        model.check_apart(&offer, results)?;
        cuda.enqueue_rows(&rows, workspace_address, results_address)
    })
}

/// Makes the table of lgreco_cuda_measure out of a copy of what lgreco_cuda_enqueue_rows has left in `results`, for the same layers and
/// options: when the copy is there, by an event behind it, say. It need not be aligned. The device is asked only where a gradient is
/// not finite, or nearly leaves its type: then the call waits, and looks at the gradients, which must still be what they were
/// (LGRECO_DEVICE if what is wrong is not found). Allocates.
///
/// As lgreco_cuda_measure; LGRECO_LENGTH unless `copy_bytes` are the bytes of the results. Of a copy of something else the numbers are
/// others, or LGRECO_OPTION_ERROR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_read_rows(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    copy: *const c_void,
    copy_bytes: usize,
    table: *mut *mut lgreco_table,
) -> lgreco_status {
    create_on!(cuda, table, |cuda| {
        let model = Model::read(layers, layers_len)?;
        let offer = model.offer(options)?;
        let rows = model.rows_on_device(&offer)?;
        let mut squared_errors = squared_errors(&rows);
        cuda.read_rows(&rows, slice(copy.cast(), copy_bytes, "copy")?, &mut squared_errors)?;
        TableState::measured(offer.into_measured(&squared_errors)?)
    })
}

/// Tells the bytes of device memory that `calls` work in on such layers, whose `values` are not looked at, under any
/// setting that `options` offer them: what lgreco_cuda_held_bytes tells when a handle that held none has reserved them.
/// The device is not asked.
///
/// As lgreco_cuda_measure, but for the values; LGRECO_UNKNOWN_CONSTANT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_workspace_bytes(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    calls: lgreco_cuda_calls,
    bytes: *mut u64,
) -> lgreco_status {
    call!(cuda, |cuda| {
        without_values(cuda, layers, layers_len, options, calls, |cuda, rows| {
            write(bytes, "bytes", || cuda.workspace_bytes(rows, calls))
        })
    })
}

/// Done: allocates that memory, and compiles and loads the kernels, so that later `calls` for such layers, under any
/// setting that `options` offer them, allocate nothing on the device and load nothing.
///
/// As lgreco_cuda_workspace_bytes; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_reserve(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const *const c_char,
    calls: lgreco_cuda_calls,
) -> lgreco_status {
    call!(cuda, |cuda| without_values(cuda, layers, layers_len, options, calls, |cuda, rows| cuda.reserve(rows, calls)))
}
