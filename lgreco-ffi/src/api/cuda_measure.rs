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

/// A model's layers with their names and shapes.
struct Model<'a> {
    layers: Vec<lgreco_layer>,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> Model<'a> {
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md; `'a` ends within the call.
    unsafe fn read(layers: *const lgreco_layer, layers_len: usize) -> Result<Model<'a>> {
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe {
            let layers = read_structs(layers, layers_len)?;
            let tensors = layers.iter().map(|layer| layer.tensor()).collect::<Result<_, _>>()?;
            Ok(Model { layers, tensors })
        }
    }

    /// Returns the candidate settings of each layer under `options`.
    ///
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md.
    unsafe fn offer(&self, options: *const *const c_char) -> Result<Offer<'a>> {
        // SAFETY: the caller meets the safety requirements of this function.
        let options = unsafe { options::read::<SearchOptions>(options) }?;
        let search = options.search()?;
        Ok(search.offer(self.tensors.iter().map(|tensor| (tensor.name, tensor.dims, tensor.dtype)))?)
    }

    /// Returns the rows of `offer`; `address` gives the device address of each gradient.
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

    /// Returns the rows of `offer` with the gradients' device addresses, or `Err` if `offer` has no rows.
    fn rows_on_device<'b>(&self, offer: &'b Offer<'_>) -> Result<Vec<Row<'b>>>
    where
        'a: 'b,
    {
        some(self.rows(offer, |layer, tensor| layer.address(tensor))?)
    }

    /// Returns `Err` when `output` shares memory with a gradient in `offer`.
    fn check_apart(&self, offer: &Offer<'_>, output: Range) -> Result<()> {
        offer.rows().try_for_each(|row| {
            let tensor = self.tensors[row.layer];
            let gradient = self.layers[row.layer].range(tensor);
            disjoint(output, &[gradient]).map_err(|failure| failure.of_layer(tensor.name))
        })
    }
}

/// Returns the rows. Fails with LGRECO_EMPTY_TABLE for an empty list, before any work is enqueued.
fn some(rows: Vec<Row<'_>>) -> Result<Vec<Row<'_>>> {
    if rows.is_empty() { Err(CoreError::EmptyTable.into()) } else { Ok(rows) }
}

/// Returns zeros, one for each squared error of `rows`.
fn squared_errors(rows: &[Row<'_>]) -> Vec<f64> {
    vec![0.0; rows.iter().map(|row| row.candidates.len()).sum()]
}

/// A type with the alignment of a workspace.
#[repr(align(256))]
struct Unit {
    _bytes: [u8; 256],
}

/// Runs `call` on the rows of the error table that belongs to `layers` and `options`. Reads no gradients: the rows have
/// a placeholder instead of the gradients' addresses.
///
/// # Safety
/// Pointers meet the requirements of lgreco-ffi/README.md.
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
    // SAFETY: the caller meets the safety requirements of this function.
    let model = unsafe { Model::read(layers, layers_len) }?;
    // SAFETY: the caller meets the safety requirements of this function.
    let offer = unsafe { model.offer(options) }?;
    call(cuda, &model.rows(&offer, |_, _| Ok(NOWHERE))?)
}

/// Kinds of calls on device memory, as a sum of LGRECO_CUDA_...
pub type lgreco_cuda_calls = u32;

/// Calls of lgreco_cuda_measure.
pub const LGRECO_CUDA_MEASURE: lgreco_cuda_calls = 1;
/// Calls of lgreco_cuda_encode.
pub const LGRECO_CUDA_ENCODE: lgreco_cuda_calls = 2;
/// Calls of lgreco_cuda_decode.
pub const LGRECO_CUDA_DECODE: lgreco_cuda_calls = 4;
/// Calls of lgreco_cuda_encode_to_device.
pub const LGRECO_CUDA_ENCODE_TO_DEVICE: lgreco_cuda_calls = 8;
/// Calls of lgreco_cuda_decode_on_device.
pub const LGRECO_CUDA_DECODE_ON_DEVICE: lgreco_cuda_calls = 16;

/// Blocking: like lgreco_table_measure, but for gradients in the device's memory. The call enqueues all layers and
/// waits once. The call copies only the measured errors to the host. `values` of layers are device pointers. The call
/// does not read the values of layers that are left out of the table. Allocates on the host. Allocates on the device
/// unless lgreco_cuda_reserve has reserved the memory.
///
/// Fails like lgreco_table_measure. Fails with LGRECO_UNAVAILABLE for PowerSGD with ranks above 1024. Also fails with
/// LGRECO_UNAVAILABLE for QSGD with bucket sizes that are not a power of two from 64 to 4096. With LGRECO_OUT_OF_MEMORY
/// and LGRECO_DEVICE, the message names no layer.
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

/// Reports the bytes of workspace and of results that lgreco_cuda_enqueue_rows needs on the device for these layers and
/// options. `values` are not read, and the device is not used.
///
/// Fails like lgreco_cuda_measure, except for errors about values.
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

/// Enqueued: like lgreco_cuda_measure, but without waiting for the results. The work uses `workspace` and `results` on
/// the device. `workspace` and `results` have at least the sizes that lgreco_cuda_rows_bytes reports, and are aligned
/// to 256 and 8 bytes. The call allocates on the host, but not on the device. The first call on a handle waits while
/// kernels are loaded. A call with more layers or options than before may wait for page-locked memory. Any other call
/// does not wait. After this call, enqueue a copy of the results to host memory, and pass the copy to
/// lgreco_cuda_read_rows.
///
/// Fails like lgreco_cuda_rows_bytes. Also fails with LGRECO_LENGTH when the memory is too small, and with
/// LGRECO_ALIGNMENT when it is not aligned. With LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE, the message names no layer.
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

/// Makes the table of lgreco_cuda_measure from a host copy of the `results` of lgreco_cuda_enqueue_rows, for the same
/// layers and options. Make this call once the copy has arrived, for instance after an event that follows the copy. The
/// copy need not be aligned. The device is used only if a gradient is not finite or almost exceeds its type. In that
/// case the call waits and reads the gradients, which must still be unchanged. If it finds no error in the gradients,
/// the call fails with LGRECO_DEVICE. Allocates.
///
/// Fails like lgreco_cuda_measure, and with LGRECO_LENGTH unless `copy_bytes` is the number of bytes of the results. If
/// the copy holds other bytes, the call returns meaningless numbers or LGRECO_OPTION_ERROR.
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

/// Reports the bytes of device memory that `calls` need for these layers, under every candidate setting of `options`.
/// `values` are not read, and the device is not used. When a new handle has reserved this memory,
/// lgreco_cuda_held_bytes reports the same number.
///
/// Fails like lgreco_cuda_measure, except for errors about values, and with LGRECO_UNKNOWN_CONSTANT.
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

/// Blocking: allocates the memory that lgreco_cuda_workspace_bytes reports, and compiles and loads the kernels. After
/// that, `calls` for these layers, under every candidate setting of `options`, allocate nothing on the device and load
/// nothing.
///
/// Fails like lgreco_cuda_workspace_bytes, and with LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE.
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
