//! A tensor on the device, divided into pieces that a dispatch can process.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::gpu::PER_GROUP;
use crate::memory::Scratch;
use lgreco::backend::Job;
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use std::ops::Range;
use wgpu::{Buffer, BufferUsages};

/// A gradient in a buffer of the device.
///
/// ```
/// use lgreco::gradient::{Dtype, Shape};
/// use lgreco_wgpu::{BufferGradient, wgpu};
/// # let (device, _) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
/// let weights = device.create_buffer(&wgpu::BufferDescriptor {
///     label: None,
///     size: 512 + 4 * 1024 * 2, // 4 × 1024 bf16 values, the first at byte 512
///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
///     mapped_at_creation: false,
/// });
/// let gradient = BufferGradient { buffer: &weights, offset: 512, dtype: Dtype::Bf16, shape: Shape::new(4, 1024)? };
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferGradient<'a> {
    /// The buffer, with usages `STORAGE` and `COPY_SRC`.
    pub buffer: &'a Buffer,
    /// Offset in bytes of the first value, a multiple of 4.
    pub offset: u64,
    /// Type of the values. A word holds two 16-bit values, the first in the lower half.
    pub dtype: Dtype,
    /// Matrix shape; values are in row-major order.
    pub shape: Shape,
}

/// A job that measures a row of the error table, for a gradient on the device.
///
/// ```
/// use lgreco::compress::Candidates;
/// use lgreco::{gradient::Dtype, rng::Stream};
/// use lgreco_wgpu::{BufferGradient, BufferJob};
/// fn densities(gradient: BufferGradient<'_>) -> BufferJob<'_> {
///     let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[10, 100, 1000] };
///     BufferJob { gradient, candidates, stream: Stream::default() }
/// }
/// ```
pub type BufferJob<'a> = Job<'a, BufferGradient<'a>>;

/// A gradient on the host or the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input<'a> {
    Host(Gradient<'a>),
    Device(BufferGradient<'a>),
}

impl<'a> From<Gradient<'a>> for Input<'a> {
    fn from(gradient: Gradient<'a>) -> Self {
        Input::Host(gradient)
    }
}

impl<'a> From<BufferGradient<'a>> for Input<'a> {
    fn from(gradient: BufferGradient<'a>) -> Self {
        Input::Device(gradient)
    }
}

/// A job that measures a row, for values on the host or the device.
pub(crate) type Work<'a> = Job<'a, Input<'a>>;

/// Converts jobs with gradients on the host or on the device.
pub(crate) fn work<'a, G: Copy + Into<Input<'a>>>(jobs: &[Job<'a, G>]) -> Vec<Work<'a>> {
    let work =
        |&Job { gradient, candidates, stream }: &Job<'a, G>| Job { gradient: gradient.into(), candidates, stream };
    jobs.iter().map(work).collect()
}

impl Input<'_> {
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Input::Host(gradient) => gradient.shape(),
            Input::Device(gradient) => gradient.shape,
        }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        match self {
            Input::Host(gradient) => gradient.values().dtype(),
            Input::Device(gradient) => gradient.dtype,
        }
    }

    /// Whether two gradients are the same memory, with the same number and type of values.
    pub(crate) fn is(&self, other: &Input<'_>) -> bool {
        let place = |input: &Input<'_>| match input {
            Input::Host(gradient) => match gradient.values() {
                Values::F32(v) => v.as_ptr().addr(),
                Values::F16(v) => v.as_ptr().addr(),
                Values::Bf16(v) => v.as_ptr().addr(),
            },
            Input::Device(_) => 0,
        };
        let same_side = match (self, other) {
            (Input::Host(_), Input::Host(_)) => true,
            (Input::Device(a), Input::Device(b)) => a.buffer == b.buffer && a.offset == b.offset,
            _ => false,
        };
        same_side
            && place(self) == place(other)
            && self.shape().elements() == other.shape().elements()
            && self.dtype() == other.dtype()
    }

    /// Bytes of the values, padded to words.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.shape().elements() * self.dtype().bytes()) as u64).next_multiple_of(4)
    }

    /// `Err` if the buffer is too small for the gradient, or shaders cannot read it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Input::Device(gradient) = self else { return Ok(()) };
        if !gradient.buffer.usage().contains(BufferUsages::STORAGE | BufferUsages::COPY_SRC) {
            return Err(Error::Buffer { what: "needs the usages STORAGE and COPY_SRC" });
        }
        if !gradient.offset.is_multiple_of(4) {
            return Err(Error::Buffer { what: "holds the gradient at an offset that is no multiple of 4" });
        }
        if gradient.offset.checked_add(self.bytes()).is_none_or(|end| end > gradient.buffer.size()) {
            return Err(Error::Buffer { what: "ends before the gradient does" });
        }
        Ok(())
    }

    /// Returns the offset in bytes at which the values begin in the buffer.
    fn offset(&self) -> u64 {
        match self {
            Input::Host(_) => 0,
            Input::Device(gradient) => gradient.offset,
        }
    }

    /// Returns the values as a tensor. `part` is the part of a buffer that is bound, and the values begin at byte
    /// `offset` of that buffer.
    fn within(&self, part: &Part, offset: u64) -> Tensor {
        let (elements, dtype) = (self.shape().elements(), self.dtype());
        let (buffer, shared) = (part.buffer.clone(), Some(part.clone()));
        Tensor { chunks: vec![Chunk { buffer, offset, first: 0, count: elements, shared }], dtype, elements }
    }

    /// Returns the values on the device. Host values are uploaded first.
    pub(crate) fn tensor(&self, batch: &mut Batch<'_>) -> Result<Tensor, Error> {
        self.check()?;
        let elements = self.shape().elements();
        let dtype = self.dtype();
        let chunks = match self {
            Input::Host(gradient) => {
                let len = batch.gpu.piece_len();
                let chunks = bytes_of(gradient).chunks(len * dtype.bytes()).enumerate().map(|(i, bytes)| {
                    let count = bytes.len() / dtype.bytes();
                    let buffer = batch.upload(bytes)?.buffer;
                    Ok(Chunk { buffer, offset: 0, first: i * len, count, shared: None })
                });
                chunks.collect::<Result<_, Error>>()?
            }
            Input::Device(gradient) => {
                vec![Chunk {
                    buffer: gradient.buffer.clone(),
                    offset: gradient.offset,
                    first: 0,
                    count: elements,
                    shared: None,
                }]
            }
        };
        Ok(Tensor { chunks, dtype, elements })
    }
}

fn bytes_of<'a>(gradient: &Gradient<'a>) -> &'a [u8] {
    with_elements!(gradient.values(), values => bytemuck::cast_slice(values))
}

/// A row to measure, for a tensor on the device.
pub(crate) struct Row<'a, C> {
    /// The number of the row's job.
    pub(crate) job: usize,
    pub(crate) tensor: &'a Tensor,
    /// The candidates to measure, at least one.
    pub(crate) sought: C,
    /// Index of the row's first result word, which begins a record.
    pub(crate) result: usize,
}

/// Returns the values of `inputs` in one binding, which must be large enough for all of them. If one binding can cover
/// all inputs in place, no values are copied. Otherwise the values are copied to a scratch buffer. All calls use the
/// same scratch buffer. So earlier work that reads this buffer must be submitted before host values are written to it.
///
/// # Errors
/// If an input's buffer does not fit its gradient, the input's index and the reason. Other errors have index 0.
pub(crate) fn in_one_binding(batch: &mut Batch<'_>, inputs: &[Input<'_>]) -> Result<Vec<Tensor>, (usize, Error)> {
    inputs.iter().enumerate().try_for_each(|(index, input)| input.check().map_err(|error| (index, error)))?;
    if let Some(part) = reach(inputs, batch.gpu.window) {
        return Ok(inputs.iter().map(|input| input.within(&part, input.offset())).collect());
    }
    let total = inputs.iter().map(Input::bytes).sum();
    let buffer = batch.scratch(Scratch::Gathered, total).map_err(|error| (0, error))?;
    let part = Part { buffer: buffer.clone(), offset: 0, size: total };
    let mut offset = 0;
    let gathered = inputs.iter().map(|input| {
        match input {
            Input::Host(gradient) => batch.write(&buffer, offset, bytes_of(gradient)),
            Input::Device(gradient) => batch.copy(gradient.buffer, gradient.offset, &buffer, offset, input.bytes()),
        }
        offset += input.bytes();
        input.within(&part, offset - input.bytes())
    });
    Ok(gathered.collect())
}

/// Returns the part of a buffer that contains all gradients, if there is such a part of at most `most` bytes.
fn reach(inputs: &[Input<'_>], most: u64) -> Option<Part> {
    let Input::Device(BufferGradient { buffer, .. }) = inputs.first()? else { return None };
    let is_there = |input: &Input<'_>| matches!(input, Input::Device(gradient) if gradient.buffer == *buffer);
    let start = inputs.iter().map(Input::offset).min()? / 256 * 256;
    let end = inputs.iter().map(|input| input.offset() + input.bytes()).max()?;
    let part = Part { buffer: (*buffer).clone(), offset: start, size: end - start };
    (inputs.iter().all(is_there) && part.size <= most).then_some(part)
}

#[derive(Clone, Debug)]
struct Chunk {
    buffer: Buffer,
    offset: u64,
    first: usize,
    count: usize,
    /// The binding that all pieces of the chunk share, if any.
    shared: Option<Part>,
}

/// Values on the device.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    chunks: Vec<Chunk>,
    pub(crate) dtype: Dtype,
    pub(crate) elements: usize,
}

/// Consecutive values that one dispatch can process.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The binding that contains the values.
    pub(crate) part: Part,
    /// Number of values in the binding before the piece.
    pub(crate) skip: u32,
    /// Position of the first value in the tensor.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Piece {
    /// Number of workgroups that process the piece.
    pub(crate) fn groups(&self) -> usize {
        self.count.div_ceil(PER_GROUP)
    }
}

impl Tensor {
    /// Makes a tensor of `elements` f32 values or words in new buffers, with arbitrary content.
    pub(crate) fn room(batch: &mut Batch<'_>, elements: usize) -> Result<Tensor, Error> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        Tensor::of_chunks(batch, elements, |batch, _, bytes| batch.buffer(bytes, usage))
    }

    /// Like [`room`](Tensor::room), but in scratch buffers that are named by the number of the chunk. All values in one
    /// buffer have the same binding.
    pub(crate) fn scratch(
        batch: &mut Batch<'_>,
        name: impl Fn(usize) -> Scratch,
        elements: usize,
    ) -> Result<Tensor, Error> {
        let tensor = Tensor::of_chunks(batch, elements, |batch, chunk, bytes| batch.scratch(name(chunk), bytes))?;
        let chunks = tensor.chunks.into_iter().map(|chunk| Chunk { shared: Some((&chunk.buffer).into()), ..chunk });
        Ok(Tensor { chunks: chunks.collect(), ..tensor })
    }

    fn of_chunks(
        batch: &mut Batch<'_>,
        elements: usize,
        buffer: impl Fn(&mut Batch<'_>, usize, u64) -> Result<Buffer, Error>,
    ) -> Result<Tensor, Error> {
        let len = batch.gpu.piece_len();
        let chunk = |(number, first): (usize, usize)| {
            let count = len.min(elements - first);
            Ok(Chunk { buffer: buffer(batch, number, 4 * count as u64)?, offset: 0, first, count, shared: None })
        };
        let chunks = (0..elements).step_by(len).enumerate().map(chunk).collect::<Result<_, Error>>()?;
        Ok(Tensor { chunks, dtype: Dtype::F32, elements })
    }

    /// Returns a tensor of `elements` f32 values of `buffer`, from byte `offset` on.
    pub(crate) fn of_buffer(buffer: &Buffer, offset: u64, elements: usize) -> Tensor {
        let chunk = Chunk { buffer: buffer.clone(), offset, first: 0, count: elements, shared: None };
        Tensor { chunks: vec![chunk], dtype: Dtype::F32, elements }
    }

    /// Records a copy of `count` f32 values from the start of `from` to this tensor, from value `first` on.
    pub(crate) fn take(&self, batch: &mut Batch<'_>, from: &Buffer, first: usize, count: usize) {
        for chunk in &self.chunks {
            let (start, end) = (first.max(chunk.first), (first + count).min(chunk.first + chunk.count));
            if start < end {
                let to = chunk.offset + 4 * (start - chunk.first) as u64;
                batch.copy(from, 4 * (start - first) as u64, &chunk.buffer, to, 4 * (end - start) as u64);
            }
        }
    }

    /// Returns the parts of buffers with the tensor's f32 values.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.chunks.iter().map(|chunk| Part {
            buffer: chunk.buffer.clone(),
            offset: chunk.offset,
            size: 4 * chunk.count as u64,
        })
    }

    /// Returns the pieces of a range. The range and its pieces begin at multiples of 32.
    pub(crate) fn pieces(&self, batch: &Batch<'_>, range: Range<usize>) -> Vec<Piece> {
        let (len, bytes) = (batch.gpu.piece_len(), self.dtype.bytes());
        let mut pieces = Vec::new();
        for chunk in &self.chunks {
            let end = range.end.min(chunk.first + chunk.count);
            let mut first = range.start.max(chunk.first);
            while first < end {
                let count = len.min(end - first);
                let at = chunk.offset + ((first - chunk.first) * bytes) as u64;
                let aligned = at / 256 * 256;
                let size = (at + (count * bytes) as u64 - aligned).next_multiple_of(4);
                let own = || Part { buffer: chunk.buffer.clone(), offset: aligned, size };
                let part = chunk.shared.clone().unwrap_or_else(own);
                let skip = ((at - part.offset) as usize / bytes) as u32;
                pieces.push(Piece { part, skip, first, count });
                first += count;
            }
        }
        pieces
    }

    /// All pieces of the tensor.
    pub(crate) fn all(&self, batch: &Batch<'_>) -> Vec<Piece> {
        self.pieces(batch, 0..self.elements)
    }

    /// Returns the part with the word that contains element `index`.
    pub(crate) fn word_of(&self, index: usize) -> Part {
        let chunk = &self.chunks[self.chunks.partition_point(|chunk| chunk.first + chunk.count <= index)];
        let at = chunk.offset + ((index - chunk.first) * self.dtype.bytes()) as u64;
        Part { buffer: chunk.buffer.clone(), offset: at / 4 * 4, size: 4 }
    }

    /// Returns the value of element `index`, which `word` contains.
    pub(crate) fn value_in(&self, word: u32, index: usize) -> f32 {
        let half = (word >> (16 * (index % 2))) as u16;
        match self.dtype {
            Dtype::F32 => f32::from_bits(word),
            Dtype::F16 => F16(half).to_f32(),
            Dtype::Bf16 => Bf16(half).to_f32(),
        }
    }
}
