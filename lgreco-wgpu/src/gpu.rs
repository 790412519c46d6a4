//! A device, its kernels and scratch buffers, and batches of work for it.

use crate::Error;
use crate::kernels::{Kernel, Kernels};
use bytemuck::Pod;
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex};
use wgpu::{Buffer, BufferBinding, BufferDescriptor, BufferUsages};

/// Elements a workgroup works on.
pub(crate) const PER_GROUP: usize = 2048;

/// Least binding that every kernel's tables fit; the default of WebGPU is 128 MiB.
const LEAST_BINDING: u64 = 2 << 20;
/// Least workgroups per dimension, likewise; the default is 65,535.
const LEAST_GROUPS: u64 = 64;

/// Bytes of a dispatch's parameters, as uniform bindings must be aligned.
const SLOT: usize = 256;
/// Dispatches in a submission at most.
const SLOTS: usize = 4096;

/// Buffers that live from batch to batch; their content does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scratch {
    Results,
    Extremes,
    Grids,
    Words,
    Output,
    Totals,
    MoreTotals,
    Bins,
    Slots,
    Fine,
    Prefix,
    State,
    Blocks,
    Positions,
    P,
    Q,
    Partial,
    Inner,
}

pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    kernels: Kernels,
    scratch: HashMap<Scratch, Buffer>,
    parameters: Buffer,
    lost: Arc<Mutex<Option<String>>>,
}

/// `Err` unless the kernels can do with `limits`.
pub(crate) fn check_limits(limits: &wgpu::Limits) -> Result<(), Error> {
    let at_least = |what, needed: u64, found: u64| {
        if found >= needed { Ok(()) } else { Err(Error::Limit { what, needed, found }) }
    };
    let groups = limits.max_compute_workgroups_per_dimension.into();
    at_least("max_storage_buffer_binding_size", LEAST_BINDING, limits.max_storage_buffer_binding_size)?;
    at_least("max_compute_workgroups_per_dimension", LEAST_GROUPS, groups)?;
    at_least("max_compute_invocations_per_workgroup", 256, limits.max_compute_invocations_per_workgroup.into())?;
    at_least("max_compute_workgroup_size_x", 256, limits.max_compute_workgroup_size_x.into())?;
    at_least("max_compute_workgroup_storage_size", 16384, limits.max_compute_workgroup_storage_size.into())?;
    at_least("max_storage_buffers_per_shader_stage", 8, limits.max_storage_buffers_per_shader_stage.into())
}

impl Gpu {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, Error> {
        let limits = device.limits();
        check_limits(&limits)?;
        let lost = Arc::new(Mutex::new(None));
        let told = Arc::clone(&lost);
        device.set_device_lost_callback(move |_, message| {
            if let Ok(mut told) = told.lock() {
                *told = Some(message);
            }
        });
        let parameters = device.create_buffer(&BufferDescriptor {
            label: Some("parameters"),
            size: (SLOT * SLOTS) as u64,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Ok(Gpu { device, queue, limits, kernels: Kernels::default(), scratch: HashMap::new(), parameters, lost })
    }

    /// Bytes of scratch buffers held.
    pub(crate) fn held(&self) -> u64 {
        self.scratch.values().map(Buffer::size).sum()
    }

    /// Elements of a tensor that one dispatch can work on, whatever their type; a multiple of [`PER_GROUP`].
    pub(crate) fn piece_len(&self) -> usize {
        let binding = (self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size) - 256) / 4;
        let groups = self.limits.max_compute_workgroups_per_dimension as u64;
        ((binding / PER_GROUP as u64).min(groups) as usize) * PER_GROUP
    }

    /// Bytes of the largest binding.
    pub(crate) fn largest_binding(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size) / 4 * 4
    }

    fn check_lost(&self) -> Result<(), Error> {
        match self.lost.lock().ok().and_then(|lost| lost.clone()) {
            Some(message) => Err(Error::Lost(message)),
            None => Ok(()),
        }
    }
}

/// Work recorded to be submitted together, with every error it meets caught.
pub(crate) struct Batch<'g> {
    pub(crate) gpu: &'g mut Gpu,
    encoder: wgpu::CommandEncoder,
    parameters: Vec<u8>,
    scopes: [wgpu::ErrorScopeGuard; 3],
    submissions: usize,
}

/// Part of a buffer, as a kernel sees it.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl From<&Buffer> for Part {
    fn from(buffer: &Buffer) -> Self {
        Part { buffer: buffer.clone(), offset: 0, size: buffer.size() }
    }
}

impl<'g> Batch<'g> {
    pub(crate) fn new(gpu: &'g mut Gpu) -> Result<Self, Error> {
        gpu.check_lost()?;
        let filters = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
        let mut scopes = filters.map(|filter| gpu.device.push_error_scope(filter));
        // Scopes end, here and when they are dropped, in the order of the array.
        scopes.reverse();
        let encoder = gpu.device.create_command_encoder(&Default::default());
        Ok(Batch { gpu, encoder, parameters: Vec::new(), scopes, submissions: 0 })
    }

    /// A scratch buffer of at least `bytes`; what it held is lost.
    pub(crate) fn scratch(&mut self, name: Scratch, bytes: u64) -> Result<Buffer, Error> {
        let bytes = bytes.next_multiple_of(4).max(16);
        if let Some(buffer) = self.gpu.scratch.get(&name).filter(|buffer| buffer.size() >= bytes) {
            return Ok(buffer.clone());
        }
        let largest = self.gpu.largest_binding();
        if bytes > largest {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::TooLarge { what: "a table", bytes, limit, largest });
        }
        let size = bytes.next_power_of_two().min(largest);
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.buffer(size, usage)?;
        self.gpu.scratch.insert(name, buffer.clone());
        Ok(buffer)
    }

    pub(crate) fn buffer(&mut self, size: u64, usage: BufferUsages) -> Result<Buffer, Error> {
        let largest = self.gpu.limits.max_buffer_size;
        if size > largest {
            return Err(Error::TooLarge { what: "a buffer", bytes: size, limit: "max_buffer_size", largest });
        }
        Ok(self.gpu.device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false }))
    }

    /// A buffer that holds `bytes`, padded to words.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> Result<Buffer, Error> {
        let size = (bytes.len() as u64).next_multiple_of(4).max(16);
        let buffer = self.buffer(size, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)?;
        self.write(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// Writes `bytes`, padded to words, at `offset`, before anything of the current submission.
    pub(crate) fn write(&mut self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
        if !words.is_empty() {
            self.gpu.queue.write_buffer(buffer, offset, words);
        }
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.gpu.queue.write_buffer(buffer, offset + words.len() as u64, &last);
        }
    }

    pub(crate) fn clear(&mut self, buffer: &Buffer, bytes: u64) {
        self.encoder.clear_buffer(buffer, 0, Some(bytes.next_multiple_of(4)));
    }

    pub(crate) fn copy(&mut self, from: &Buffer, at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        if bytes > 0 {
            self.encoder.copy_buffer_to_buffer(from, at, to, to_at, Some(bytes.next_multiple_of(4)));
        }
    }

    pub(crate) fn dispatch<P: Pod>(&mut self, kernel: Kernel, parameters: P, bindings: &[(u32, Part)], groups: usize) {
        self.dispatch_3d(kernel, parameters, bindings, [groups, 1, 1]);
    }

    pub(crate) fn dispatch_3d<P: Pod>(
        &mut self,
        kernel: Kernel,
        parameters: P,
        bindings: &[(u32, Part)],
        groups: [usize; 3],
    ) {
        if groups.contains(&0) {
            return;
        }
        if self.parameters.len() == SLOT * SLOTS {
            self.submit();
        }
        let at = self.parameters.len();
        self.parameters.extend_from_slice(bytemuck::bytes_of(&parameters));
        self.parameters.resize(at + SLOT, 0);
        let pipeline = self.gpu.kernels.get(&self.gpu.device, kernel);
        let bind = |buffer, offset, size| {
            wgpu::BindingResource::Buffer(BufferBinding { buffer, offset, size: NonZero::new(size) })
        };
        let parameters = bind(&self.gpu.parameters, at as u64, size_of::<P>() as u64);
        let entries: Vec<_> = [wgpu::BindGroupEntry { binding: 0, resource: parameters }]
            .into_iter()
            .chain(bindings.iter().map(|(binding, part)| wgpu::BindGroupEntry {
                binding: *binding,
                resource: bind(&part.buffer, part.offset, part.size),
            }))
            .collect();
        let group = self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.entry),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut pass = self.encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &group, &[]);
        let [x, y, z] = groups.map(|count| count as u32);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Hands over what is recorded.
    pub(crate) fn submit(&mut self) {
        let next = self.gpu.device.create_command_encoder(&Default::default());
        let commands = std::mem::replace(&mut self.encoder, next).finish();
        if !self.parameters.is_empty() {
            self.gpu.queue.write_buffer(&self.gpu.parameters, 0, &self.parameters);
            self.parameters.clear();
        }
        self.gpu.queue.submit([commands]);
        self.submissions += 1;
    }

    /// Waits for what is submitted, which frees what only it needed.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.submit();
        self.gpu.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| Error::Refused(error.to_string()))?;
        self.gpu.check_lost()
    }

    /// Submits, waits and returns the bytes of `parts`, one after another, all sizes and offsets multiples of 4.
    pub(crate) fn read(mut self, parts: &[Part]) -> Result<Vec<u8>, Error> {
        let total: u64 = parts.iter().map(|part| part.size).sum();
        let mut bytes = Vec::with_capacity(total as usize);
        let result = self.collect(parts, &mut bytes);
        // What the device says of its own accord comes before what follows from it.
        let Batch { gpu, scopes, .. } = self;
        let errors = scopes.into_iter().map(|scope| pollster::block_on(scope.pop())).collect::<Vec<_>>();
        gpu.check_lost()?;
        match errors.into_iter().flatten().next() {
            Some(error) => Err(error.into()),
            None => result.map(|()| bytes),
        }
    }

    fn collect(&mut self, parts: &[Part], bytes: &mut Vec<u8>) -> Result<(), Error> {
        let mut staged = Vec::new();
        for group in in_groups(parts) {
            let size = group.iter().map(|part| part.size).sum();
            let target = self.buffer(size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
            let mut at = 0;
            for part in group {
                self.copy(&part.buffer, part.offset, &target, at, part.size);
                at += part.size;
            }
            staged.push(target);
        }
        self.submit();
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        for target in &staged {
            let outcomes = Arc::clone(&outcomes);
            target.map_async(wgpu::MapMode::Read, .., move |result| {
                if let Ok(mut outcomes) = outcomes.lock() {
                    outcomes.push(result);
                }
            });
        }
        let refused = |error: &dyn std::fmt::Display| Error::Refused(error.to_string());
        self.gpu.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| refused(&error))?;
        let outcomes = outcomes.lock().map(|outcomes| outcomes.clone()).unwrap_or_default();
        if outcomes.len() < staged.len() {
            return Err(refused(&"a buffer was not mapped"));
        }
        outcomes.into_iter().collect::<Result<(), _>>().map_err(|error| refused(&error))?;
        for target in &staged {
            bytes.extend_from_slice(&target.get_mapped_range(..).map_err(|error| refused(&error))?);
        }
        Ok(())
    }
}

/// Cuts `parts` into groups of at most 64 MiB each.
fn in_groups(parts: &[Part]) -> Vec<Vec<Part>> {
    const MOST: u64 = 64 << 20;
    let mut groups: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let mut part = part.clone();
        while part.size > 0 {
            if room == 0 {
                groups.push(Vec::new());
                room = MOST;
            }
            let size = part.size.min(room);
            groups.last_mut().expect("a group with room").push(Part { size, ..part.clone() });
            part.offset += size;
            part.size -= size;
            room -= size;
        }
    }
    groups
}
