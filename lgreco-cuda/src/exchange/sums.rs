//! What of a bucket travels by sums: uncompressed layers, and PowerSGD's factors. What `exchange_sums.cu` is asked to do.
//!
//! Both buffers are those of `lgreco_train`'s exchange: f32 or bf16 in the order of the layers, uncompressed values and `P` in
//! the first, `Q` in the second, and behind each one f32, or three bf16, per rank, its slip, by which all hear how each fares.

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

/// The kernels of all three calls, in their order.
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
    /// Values of the first buffer that all ranks sum, their slips included, in the [type](crate::ExchangeConfig::reduce_dtype) in which
    /// they travel: uncompressed values and PowerSGD's `P`, in the order of the layers. 0 where there is no such layer.
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

    /// Values of the second buffer that all ranks sum, likewise: PowerSGD's `Q`.
    pub fn factor_values(&self) -> usize {
        if self.summed.lens()[1] == 0 { 0 } else { self.with_slips(self.summed.lens()[1]) }
    }

    pub(super) fn with_slips(&self, values: u64) -> usize {
        values as usize + self.slip_values() * self.head.world as usize
    }

    /// Values of a buffer that a rank's slip takes.
    pub(super) fn slip_values(&self) -> usize {
        slip_values(self.reduce_dtype) as usize
    }

    /// Bytes of so many values that are summed.
    pub(super) fn summed_bytes(&self, values: usize) -> u64 {
        (values * self.reduce_dtype.bytes()) as u64
    }
}

impl DeviceExchange {
    /// The buffers that all ranks sum, checked.
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
    /// Enqueued, in three launches at most: this rank's part of the first sum. Of uncompressed layers `residual + gradient`,
    /// of layers under PowerSGD `P = M Q` of that matrix and the last step's mean `Q`, or of the start matrix where that is
    /// zero, its columns scaled to magnitudes near 1; and this rank's slip. Where the program has layers under QSGD,
    /// [`encode_exchange`](CudaBackend::encode_exchange) comes before. Nothing where nothing is summed. May be captured into a
    /// graph.
    ///
    /// Then all ranks' `sums` are added up, by an all-reduce of [`sum_values`](ExchangeProgram::sum_values) f32 or, where
    /// [`reduce_dtype`](crate::ExchangeConfig::reduce_dtype) says so, bf16.
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
    ///     // SAFETY: all is large enough, and used on the backend's stream alone.
    ///     unsafe {
    ///         cuda.project_exchange(exchange, gradients, sums)?;
    ///         all_reduce(sums);
    ///         cuda.back_project_exchange(exchange, sums, factors)?;
    ///         all_reduce(factors);
    ///         cuda.average_exchange(exchange, sums, factors, gradients) // the means take the gradients' places
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] when an address is 0, or no multiple of its type's size; those of the device. What is wrong with values
    /// is found on the device: see [`average_exchange`](CudaBackend::average_exchange).
    ///
    /// # Complexity
    /// One read of gradients and residuals, one write of their sum. O(rows · cols · rank), four columns at a time; from rank 17
    /// on matrices are read again for every 16 columns.
    ///
    /// # Safety
    /// The gradients are valid memory of all layers' values, one after the other, and `sums` of that many, in the backend's
    /// context, apart from each other, which nothing else uses, other than work ordered before or after on the
    /// backend's stream. The exchange was begun on this backend.
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

    /// Enqueued, in seven launches: of the summed `P`, whose columns become orthonormal in f32, this rank's part of the second
    /// sum, `Q = Mᵀ P`, and its slip; and what is to be remembered, what this rank's own `P Qᵀ` leaves of `M`.
    /// Nothing where no layer is under PowerSGD. May be captured into a graph.
    ///
    /// Then all ranks' `factors` are added up, by an all-reduce of [`factor_values`](ExchangeProgram::factor_values), likewise.
    ///
    /// # Errors
    /// As [`project_exchange`](CudaBackend::project_exchange).
    ///
    /// # Complexity
    /// Two reads of the matrices and one write. O(rows · cols · rank), and O((rows + rank) · rank²) in f64; from rank 17 on
    /// matrices are read again for every 16 columns.
    ///
    /// # Safety
    /// As [`project_exchange`](CudaBackend::project_exchange), for both buffers.
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

    /// Enqueued, in two launches: the means of uncompressed layers and of those under PowerSGD, `P Qᵀ` of the mean `Q`, which
    /// is remembered; and the step's end, unless the program has layers under QSGD: then
    /// [`finish_exchange`](CudaBackend::finish_exchange) comes after. Where a rank has failed, or is at another step, or has
    /// another program, means are what [`OnFault`](crate::OnFault) says, and residuals and remembered factors stay as they
    /// were, on all ranks; so do they where a sum over the ranks leaves its type or a mean its own. The same bits on all ranks.
    /// The means may take the gradients' places. Nothing where nothing is summed. May be captured into a graph.
    ///
    /// # Errors
    /// As [`project_exchange`](CudaBackend::project_exchange); `factors` is not looked at where no layer is under PowerSGD.
    ///
    /// # Complexity
    /// One write of the means. O(rows · cols · rank).
    ///
    /// # Safety
    /// As [`project_exchange`](CudaBackend::project_exchange), for both buffers, as
    /// [`back_project_exchange`](CudaBackend::back_project_exchange) and the collectives have left them, and the means of all
    /// layers' values.
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
