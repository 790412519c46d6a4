//! Launches `exchange_sums.cu` for layers of a bucket that are summed by collectives: uncompressed layers and layers
//! under PowerSGD.
//!
//! The buffers of both sums have the layout of `lgreco_train`'s exchange: f32 or bf16 in the order of the layers. The
//! first buffer has uncompressed values and PowerSGD's factors `P`, the second has the factors `Q`. After the values,
//! each buffer has a status record for each rank: one f32 or three bf16. All ranks read these records.

use super::DeviceExchange;
use super::layer::PROGRAM;
use super::program::ExchangeProgram;
use super::summed::{Params, slip_values};
use crate::Error;
use crate::backend::CudaBackend;
use crate::device::Part;
use crate::gpu::looping_pieces;
use crate::kernels::{Kernel, Module};
use crate::tensor::checked;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::ExchangeSums, entry }
}

/// The kernels of the three calls of a step, in the order of the calls.
pub(super) const KERNELS: [Kernel; 10] = [
    kernel("prepare"),
    kernel("project"),
    kernel("tell_sums"),
    kernel("gram"),
    kernel("solve"),
    kernel("back_project"),
    kernel("take_off"),
    kernel("tell_factors"),
    kernel("means"),
    kernel("settle"),
];

impl ExchangeProgram {
    /// Number of values of the first buffer that all ranks sum, including status records: uncompressed values and
    /// PowerSGD's `P`, in the order of the layers. The values have the [reduce
    /// type](crate::ExchangeConfig::reduce_dtype). The number is 0 if no layer is uncompressed or under PowerSGD.
    ///
    /// ```
    /// use lgreco::{compress::{Setting, powersgd::PowerSgd}, gradient::Shape};
    /// use lgreco_cuda::{ExchangeConfig, ExchangeProgram};
    /// let power = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });
    /// let layers = [(Shape::new(512, 256)?, power), (Shape::new(512, 1)?, Setting::Dense)];
    /// let program = ExchangeProgram::new(&layers, ExchangeConfig { world: 8, ..ExchangeConfig::default() })?;
    /// assert_eq!((program.sum_values(), program.factor_values()), (4 * 512 + 512 + 8, 4 * 256 + 8));
    /// assert_eq!(program.message_bytes(), 0);
    /// # Ok::<(), lgreco_cuda::Error>(())
    /// ```
    pub fn sum_values(&self) -> usize {
        if self.summed.lens()[0] == 0 { 0 } else { self.slips.last().map_or(0, |&last| self.with_slips(last)) }
    }

    /// Number of values of the second buffer that all ranks sum, including status records: PowerSGD's `Q`. The number
    /// is 0 if no layer is under PowerSGD.
    pub fn factor_values(&self) -> usize {
        if self.summed.lens()[1] == 0 { 0 } else { self.with_slips(self.summed.lens()[1]) }
    }

    pub(super) fn with_slips(&self, values: u64) -> usize {
        values as usize + self.slip_values() * self.head.world as usize
    }

    /// Length of a rank's status record in a buffer, in values.
    pub(super) fn slip_values(&self) -> usize {
        slip_values(self.reduce_dtype) as usize
    }

    /// Bytes of `values` summed values.
    pub(super) fn summed_bytes(&self, values: usize) -> u64 {
        (values * self.reduce_dtype.bytes()) as u64
    }
}

impl DeviceExchange {
    /// The buffers that all ranks sum, with checked addresses.
    fn buffers(&self, sums: u64, factors: u64) -> Result<[Part; 2], Error> {
        let (program, align) = (&self.program, self.program.summed_bytes(1));
        let sums = checked(sums, program.summed_bytes(program.sum_values()), align)?;
        if program.factor_values() == 0 {
            return Ok([sums, sums.cut(0, 0)]);
        }
        Ok([sums, checked(factors, program.summed_bytes(program.factor_values()), align)?])
    }
}

impl CudaBackend {
    /// Enqueued, in three launches at most: makes this rank's part of the first sum. Uncompressed layers contribute
    /// `residual + gradient`. Layers under PowerSGD contribute `P = M Q`, where `M` is `residual + gradient` and `Q` is
    /// the mean `Q` of the last step. If a column of the mean `Q` is zero, the same column of the random start matrix
    /// takes its place. The columns of `Q` are scaled to magnitudes around 1. This rank's part also has its status
    /// record. If the exchange has layers under QSGD, EDEN or TopK, first call
    /// [`encode_exchange`](CudaBackend::encode_exchange). The call does nothing if no layer is summed. The call may be
    /// captured into a graph.
    ///
    /// After this call, all ranks add up their `sums`, by an all-reduce of [`sum_values`](ExchangeProgram::sum_values)
    /// values of the type [`reduce_dtype`](crate::ExchangeConfig::reduce_dtype): f32 or bf16.
    ///
    /// ```no_run
    /// use lgreco_cuda::{CudaBackend, DeviceExchange, Error};
    /// /// `all_reduce` adds up f32 in place, on the backend's stream.
    /// fn step(
    ///     cuda: &mut CudaBackend,
    ///     exchange: &DeviceExchange,
    ///     [gradients, sums, factors]: [u64; 3],
    ///     all_reduce: impl Fn(u64),
    /// ) -> Result<(), Error> {
    ///     // SAFETY: all memory is large enough, and only work on the backend's stream uses it.
    ///     unsafe {
    ///         cuda.project_exchange(exchange, gradients, sums)?;
    ///         all_reduce(sums);
    ///         cuda.back_project_exchange(exchange, sums, factors)?;
    ///         all_reduce(factors);
    ///         cuda.average_exchange(exchange, sums, factors, gradients) // the means replace the gradients
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if an address is 0 or not a multiple of its type's size; errors of the device. The call does
    /// not report values that are not finite. The device detects them, and the step fails: see
    /// [`average_exchange`](CudaBackend::average_exchange).
    ///
    /// # Complexity
    /// The call reads gradients and residuals once, and writes the sum of gradient and residual once. It takes O(rows ·
    /// cols · rank) operations, for four columns at a time. From PowerSGD rank 17 on, the call reads the matrices again
    /// for every 16 columns.
    ///
    /// # Safety
    /// `gradients` is valid memory of all layers' values, one layer after the other. `sums` is valid memory of
    /// [`sum_values`](ExchangeProgram::sum_values) values. Both memories are in the backend's context and do not
    /// overlap. Any other work on these memories is ordered before or after this call on the backend's stream. The
    /// exchange was begun on this backend.
    pub unsafe fn project_exchange(
        &mut self,
        exchange: &DeviceExchange,
        gradients: u64,
        sums: u64,
    ) -> Result<(), Error> {
        let DeviceExchange { program, memory, residuals } = exchange;
        let params = program.sums_params;
        let slips = exchange.slips();
        if program.sum_values() == 0 {
            return Ok(());
        }
        let gradients = checked(gradients, program.value_bytes(), program.dtype.bytes() as u64)?;
        let sums = checked(sums, program.summed_bytes(program.sum_values()), program.summed_bytes(1))?;
        let (head, of) = (memory.cut(0, PROGRAM), program.places(*memory));
        let gpu = self.gpu_mut();
        let mut launch = |entry, parts: &[Part], pieces| {
            if pieces == 0 {
                Ok(())
            } else {
                gpu.launch_capturable(kernel(entry), params, parts, looping_pieces(pieces))
            }
        };
        let parts = [of.dense, of.matrices, head, gradients, *residuals, of.remembered, of.q, sums];
        launch("prepare", &parts, u64::from(params.columns) + u64::from(params.dense_spans))?;
        let parts = [of.matrices, head, gradients, *residuals, of.q, of.partial, of.counters, sums];
        launch("project", &parts, params.products.into())?;
        launch("tell_sums", &[head, slips, sums], 1)
    }

    /// Enqueued, in seven launches: makes this rank's part of the second sum. The call first makes the columns of the
    /// summed `P` orthonormal, in f32. This rank's part is `Q = Mᵀ P`, followed by its status record. The next residual
    /// is `M` minus this rank's own `P Qᵀ`. The call does nothing if no layer is under PowerSGD. The call may be
    /// captured into a graph.
    ///
    /// After this call, all ranks add up their `factors`, by an all-reduce of
    /// [`factor_values`](ExchangeProgram::factor_values) values of the reduce type.
    ///
    /// # Errors
    /// The errors of [`project_exchange`](CudaBackend::project_exchange).
    ///
    /// # Complexity
    /// The call reads the matrices twice and writes them once. It takes O(rows · cols · rank) operations, and O((rows +
    /// rank) · rank²) operations in f64. From PowerSGD rank 17 on, the call reads the matrices again for every 16
    /// columns.
    ///
    /// # Safety
    /// The conditions of [`project_exchange`](CudaBackend::project_exchange), for `sums` and `factors`.
    pub unsafe fn back_project_exchange(
        &mut self,
        exchange: &DeviceExchange,
        sums: u64,
        factors: u64,
    ) -> Result<(), Error> {
        let DeviceExchange { program, memory, residuals } = exchange;
        let params = program.sums_params;
        if program.factor_values() == 0 {
            return Ok(());
        }
        let [sums, factors] = exchange.buffers(sums, factors)?;
        let (head, of) = (memory.cut(0, PROGRAM), program.places(*memory));
        let gpu = self.gpu_mut();
        let mut launch = |entry, params, parts: &[Part], pieces: u32| {
            gpu.launch_capturable(kernel(entry), params, parts, looping_pieces(pieces.into()))
        };
        for second in [0, 1] {
            let params = Params { second, ..params };
            let parts = [of.matrices, head, sums, of.of_rows, of.grams, of.triangles, of.counters];
            launch("gram", params, &parts, params.grams)?;
            launch("solve", params, &[of.matrices, head, sums, of.of_rows, of.triangles], params.solves)?;
        }
        let parts = [of.matrices, head, *residuals, sums, of.of_rows, of.partial, of.counters, factors];
        launch("back_project", params, &parts, params.backs)?;
        let parts = [of.matrices, head, *residuals, sums, of.of_rows, factors];
        launch("take_off", params, &parts, params.tiles)?;
        launch("tell_factors", params, &[head, sums, factors], 1)
    }

    /// Enqueued, in two launches: makes the means of uncompressed layers and of layers under PowerSGD. The means of a
    /// layer under PowerSGD are `P Qᵀ` with the mean `Q`, which the next step uses. The call also ends the step, unless
    /// the exchange has layers under QSGD, EDEN or TopK. With such layers, call
    /// [`finish_exchange`](CudaBackend::finish_exchange) after this call.
    ///
    /// A step fails if a rank has failed, is at another step, or has another [`ExchangeProgram`]. In a failed step, all
    /// ranks set the means to the value that [`OnFault`](crate::OnFault) defines, and keep their residuals and
    /// remembered factors. All ranks also keep residuals and factors if a sum over the ranks, or a mean, exceeds the
    /// range of its type. The means have the same bits on all ranks. The means may replace the gradients in place. The
    /// call does nothing if no layer is summed. The call may be captured into a graph.
    ///
    /// # Errors
    /// The errors of [`project_exchange`](CudaBackend::project_exchange). `factors` is ignored if no layer is under
    /// PowerSGD.
    ///
    /// # Complexity
    /// The call writes the means once, and takes O(rows · cols · rank) operations.
    ///
    /// # Safety
    /// The conditions of [`project_exchange`](CudaBackend::project_exchange), for `sums` and `factors`. `sums` and
    /// `factors` hold the results of the collectives after [`project_exchange`](CudaBackend::project_exchange) and
    /// [`back_project_exchange`](CudaBackend::back_project_exchange). `means` is valid memory of all layers' values.
    pub unsafe fn average_exchange(
        &mut self,
        exchange: &DeviceExchange,
        sums: u64,
        factors: u64,
        means: u64,
    ) -> Result<(), Error> {
        let DeviceExchange { program, memory, .. } = exchange;
        let params = program.sums_params;
        let own = program.summed.own(params);
        if program.sum_values() == 0 {
            return Ok(());
        }
        let [sums, factors] = exchange.buffers(sums, factors)?;
        let means = checked(means, program.value_bytes(), program.dtype.bytes() as u64)?;
        let (head, of) = (memory.cut(0, PROGRAM), program.places(*memory));
        let pieces = u64::from(own.tiles) + u64::from(own.dense_spans);
        let gpu = self.gpu_mut();
        let parts = [of.dense, of.matrices, head, sums, of.of_rows, factors, of.remembered, means];
        gpu.launch_capturable(kernel("means"), own, &parts, looping_pieces(pieces.max(1)))?;
        gpu.launch_capturable(kernel("settle"), params, &[head, sums, factors], 1)
    }
}
