//! A device whose buffers have a size but no memory. With such a device, tests inspect the commands that a call would
//! record.

use super::devices::small;
use crate::WgpuBackend;
use crate::batch::{Part, Rehearsed};
use bytemuck::Pod;
use wgpu::{Buffer, BufferUsages};

/// Number of values of a piece: the largest multiple of 4096 that fits a binding of 128 MiB. Up to 256 bytes of the
/// binding may lie before the tensor's start.
pub(super) const PIECE: u64 = ((128 << 20) - 256) / 4 / 4096 * 4096;

/// Returns a backend on a device that seems to have WebGPU's default limits, except for the size of buffers. Buffers of
/// more than 2 MiB have no memory.
pub(super) fn imagined(max_buffer_size: u64) -> WgpuBackend {
    let required_limits = small(wgpu::Limits::default());
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor { required_limits, ..Default::default() });
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let gpu = backend.gpu();
    gpu.limits = wgpu::Limits { max_buffer_size, ..wgpu::Limits::default() };
    gpu.window = gpu.largest_binding().min(gpu.submission);
    (gpu.memory.pretends, gpu.rehearsing) = (true, true);
    assert_eq!(gpu.piece_len() as u64, PIECE);
    backend
}

/// Returns a buffer as a caller of the backend would make it, but without memory.
pub(super) fn buffer(backend: &WgpuBackend, size: u64) -> Buffer {
    let _refused = backend.device().push_error_scope(wgpu::ErrorFilter::Validation);
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    backend.device().create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

/// Returns the commands that a call would record.
pub(super) fn rehearsed(backend: &mut WgpuBackend, call: impl FnOnce(&mut WgpuBackend)) -> Vec<Rehearsed> {
    backend.gpu().rehearsed.clear();
    backend.gpu().rehearsing = true;
    call(backend);
    std::mem::take(&mut backend.gpu().rehearsed)
}

/// The work of consecutive workgroups, as a test reads it from a dispatch.
pub(super) struct Told<P> {
    pub(super) params: P,
    pub(super) bindings: Vec<(u32, Part)>,
    pub(super) workgroups: u64,
}

impl<P> Told<P> {
    pub(super) fn bound(&self, binding: u32) -> &Part {
        &self.bindings.iter().find(|(number, _)| *number == binding).unwrap().1
    }
}

/// Returns the tasks of all dispatches of an entry point. Checks that workgroups find their tasks, and that bindings
/// lie within their buffers.
pub(super) fn tasks<P: Pod>(recorded: &[Rehearsed], kernel: &str) -> Vec<Told<P>> {
    let mut told = Vec::new();
    for recorded in recorded {
        let Rehearsed::Dispatch { entry, parameters, bindings, groups } = recorded else { continue };
        for (_, part) in bindings {
            assert!(part.offset % 256 == 0 && part.size <= 128 << 20 && part.offset + part.size <= part.buffer.size());
        }
        if *entry != kernel {
            continue;
        }
        let mut first = 0;
        for task in parameters.chunks(16 + size_of::<P>()) {
            let [at, sides @ ..]: [u32; 4] = bytemuck::pod_read_unaligned(&task[..16]);
            assert_eq!(u64::from(at), first, "{kernel}");
            let workgroups = sides.map(u64::from).iter().product();
            first += workgroups;
            told.push(Told {
                params: bytemuck::pod_read_unaligned(&task[16..]),
                bindings: bindings.clone(),
                workgroups,
            });
        }
        let all: u64 = groups.map(|side| side as u64).iter().product();
        assert!(first <= all && all <= u32::MAX.into() && groups.iter().all(|side| (1..=65_535).contains(side)));
    }
    assert!(!told.is_empty(), "{kernel}");
    told
}

/// The position of a piece of the values, and the number of workgroups that read the piece.
pub(super) struct Seen {
    pub(super) part: Part,
    pub(super) offset: u32,
    pub(super) first: Option<u32>,
    pub(super) count: u32,
    pub(super) workgroups: u64,
    pub(super) most_of_each: u64,
}

/// A tensor. `start` is the offset of the first byte in the tensor's buffer, or `None` if every [`PIECE`] values have a
/// separate buffer.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    pub(super) start: Option<u64>,
    pub(super) bytes: u64,
    pub(super) elements: u64,
}

impl Whole {
    /// Asserts that the pieces lie one after another and cover all values. Returns how many times they cover all
    /// values.
    pub(super) fn check(&self, seen: impl IntoIterator<Item = Seen>) -> u64 {
        let (mut next, mut times) = (0, 0);
        for piece in seen {
            let at = piece.part.offset + self.bytes * u64::from(piece.offset);
            assert_eq!(at, self.start.map_or(self.bytes * (next % PIECE), |start| start + self.bytes * next));
            assert!(piece.first.is_none_or(|first| u64::from(first) == next));
            let end = u64::from(piece.offset) + u64::from(piece.count);
            assert!((self.bytes * end).next_multiple_of(4) <= piece.part.size, "beyond the binding");
            assert!(piece.workgroups * piece.most_of_each >= piece.count.into() && piece.count > 0);
            next += u64::from(piece.count);
            assert!(next <= self.elements);
            if next == self.elements {
                (next, times) = (0, times + 1);
            }
        }
        assert_eq!(next, 0, "pieces are missing");
        times
    }
}
