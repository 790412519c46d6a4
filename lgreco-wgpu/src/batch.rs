//! Batches of work for a device. The commands of a batch are recorded and submitted together, and all their errors are
//! captured.
//!
//! A batch can also be rehearsed: recording its commands then only allocates the buffers and compiles the kernels.
//! `reserve` rehearses calls, so no other code has to compute the sizes of buffers.

use crate::Error;
use crate::gpu::{Gpu, PARAMETERS, PER_GROUP, SLOT};
use crate::kernels::Kernel;
use crate::memory::Scratch;
use crate::packing::packs;
pub(crate) use crate::part::Part;
#[cfg(test)]
pub(crate) use crate::part::Rehearsed;
use crate::scopes::Scopes;
use bytemuck::Pod;
use std::num::NonZero;
use std::sync::{Arc, Mutex};
use wgpu::{Buffer, BufferBinding, BufferUsages};

/// Commands that are recorded and then submitted together. All errors of the commands are captured.
pub(crate) struct Batch<'g> {
    pub(crate) gpu: &'g mut Gpu,
    encoder: wgpu::CommandEncoder,
    parameters: Vec<u8>,
    /// Approximate number of bytes that the commands not yet submitted read or write.
    given: u64,
    scopes: Scopes,
}

/// The work of some workgroups of a kernel, with separate parameters: see `tasks.wgsl`.
#[derive(Clone, Debug)]
pub(crate) struct Task<P> {
    pub(crate) params: P,
    pub(crate) bindings: Vec<(u32, Part)>,
    /// Number of workgroups in each of three dimensions.
    pub(crate) groups: [usize; 3],
}

impl<P> Task<P> {
    /// A task of `groups` workgroups in one dimension.
    pub(crate) fn new(params: P, bindings: &[(u32, Part)], groups: usize) -> Self {
        Task { params, bindings: bindings.to_vec(), groups: [groups, 1, 1] }
    }

    pub(crate) fn workgroups(&self) -> usize {
        self.groups.iter().product()
    }
}

/// Number of words of a task before its parameters.
const IN_FRONT: usize = 4;
/// Largest size of the tasks of one dispatch, in bytes.
const TASK_BYTES: usize = PARAMETERS / 4;

/// Approximate upper bound of the bytes that a workgroup reads or writes. The binding itself can be larger, because it
/// contains a whole table.
const GROUP_BYTES: u64 = 64 << 10;
/// Number of bytes that each workgroup is assumed to read or write at least: the values of a tile in f32.
const VALUE_BYTES: u64 = 4 * PER_GROUP as u64;

impl<'g> Batch<'g> {
    pub(crate) fn new(gpu: &'g mut Gpu) -> Result<Self, Error> {
        gpu.check_lost()?;
        let scopes = Scopes::new(&gpu.device);
        let encoder = gpu.device.create_command_encoder(&Default::default());
        if std::mem::replace(&mut gpu.unfinished, true) {
            // The last batch has failed, so its buffers may be invalid or still mapped.
            gpu.memory.forget();
        }
        Ok(Batch { gpu, encoder, parameters: Vec::new(), given: 0, scopes })
    }

    /// Returns a scratch buffer of at least `bytes` bytes that fits a binding. Its content is lost.
    pub(crate) fn scratch(&mut self, name: Scratch, bytes: u64) -> Result<Buffer, Error> {
        let largest = self.gpu.largest_binding();
        if bytes > largest {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::TooLarge { what: "a table", bytes, limit, largest });
        }
        self.gpu.scratch(name, bytes)
    }

    /// Returns a buffer of at least `size` bytes, for use until the batch ends. Its content is arbitrary.
    pub(crate) fn buffer(&mut self, size: u64, usage: BufferUsages) -> Result<Buffer, Error> {
        self.gpu.take(size, usage)
    }

    /// Uploads `bytes`, padded to words. Returns the part of a buffer that holds the uploaded bytes.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> Result<Part, Error> {
        let size = (bytes.len() as u64).next_multiple_of(4).max(4);
        let buffer = self.buffer(size, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)?;
        self.write(&buffer, 0, bytes);
        Ok(Part { buffer, offset: 0, size })
    }

    /// Writes `bytes`, padded to words, at `offset`. The write happens before all commands of the current submission.
    pub(crate) fn write(&mut self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        if self.gpu.rehearsing {
            return;
        }
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

    /// Records a command that sets the first `bytes` of a buffer to zeros. For the limit of a submission, the
    /// dispatches that bind the buffer count these bytes.
    pub(crate) fn clear(&mut self, buffer: &Buffer, bytes: u64) {
        if !self.gpu.rehearsing {
            self.encoder.clear_buffer(buffer, 0, Some(bytes.next_multiple_of(4)));
        }
    }

    pub(crate) fn copy(&mut self, from: &Buffer, at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        #[cfg(test)]
        if self.gpu.rehearsing {
            let part = |buffer: &Buffer, offset| Part { buffer: buffer.clone(), offset, size: bytes };
            self.gpu.rehearsed.push(Rehearsed::Copy { from: part(from, at), to: part(to, to_at) });
        }
        if bytes > 0 && !self.gpu.rehearsing {
            self.make_room(2 * bytes);
            self.encoder.copy_buffer_to_buffer(from, at, to, to_at, Some(bytes.next_multiple_of(4)));
        }
    }

    /// Submits the recorded commands if another command of `given` bytes would exceed the limit of a submission.
    fn make_room(&mut self, given: u64) {
        if self.given > 0 && self.given + given > self.gpu.submission {
            self.submit();
        }
        self.given += given;
    }

    /// Records a dispatch of a kernel that has its parameters in a uniform buffer.
    #[cfg(feature = "train")]
    pub(crate) fn dispatch<P: Pod>(&mut self, kernel: Kernel, parameters: P, bindings: &[(u32, Part)], groups: usize) {
        if groups > 0 {
            self.record(kernel, bytemuck::bytes_of(&parameters), bindings, [groups, 1, 1]);
        }
    }

    /// Records `tasks`, which are independent. Consecutive tasks with the same bindings share a dispatch, up to the
    /// limits on the size of parameters and of a submission.
    pub(crate) fn run<P: Pod>(&mut self, kernel: Kernel, tasks: Vec<Task<P>>) {
        let most = self.gpu.most_groups();
        let bytes_of_task = 4 * IN_FRONT + size_of::<P>();
        let tasks: Vec<Task<P>> = tasks.into_iter().filter(|task| !task.groups.contains(&0)).collect();
        let groups = |tasks: &[Task<P>]| tasks.iter().map(Task::workgroups).sum::<usize>();
        let submission = self.gpu.submission;
        let fits = |tasks: &[Task<P>]| {
            tasks[0].bindings == tasks[tasks.len() - 1].bindings
                && bytes_of_task * tasks.len() <= TASK_BYTES
                && VALUE_BYTES * groups(tasks) as u64 <= submission
        };
        for pack in packs(&tasks, fits) {
            let mut bytes = Vec::with_capacity(bytes_of_task * pack.len());
            let mut first = 0;
            for task in pack {
                let [across, down, deep] = task.groups;
                bytes.extend_from_slice(bytemuck::cast_slice(&[first, across, down, deep].map(|n| n as u32)));
                bytes.extend_from_slice(bytemuck::bytes_of(&task.params));
                first += task.workgroups();
            }
            let total = groups(pack);
            #[cfg(test)]
            if pack.len() > 1 {
                self.gpu.widest = self.gpu.widest.max(VALUE_BYTES * total as u64);
            }
            let across = total.min(most);
            let down = total.div_ceil(across).min(most);
            self.record(kernel, &bytes, &pack[0].bindings, [across, down, total.div_ceil(across * down)]);
        }
    }

    fn record(&mut self, kernel: Kernel, parameters: &[u8], bindings: &[(u32, Part)], groups: [usize; 3]) {
        if self.gpu.rehearsing {
            self.gpu.kernels.get(&self.gpu.device, kernel);
            #[cfg(test)]
            {
                let (parameters, bindings) = (parameters.to_vec(), bindings.to_vec());
                self.gpu.rehearsed.push(Rehearsed::Dispatch { entry: kernel.entry, parameters, bindings, groups });
            }
            return;
        }
        #[cfg(test)]
        let before = self.contents(bindings);
        let workgroups = groups.iter().product::<usize>() as u64;
        let bound: u64 = bindings.iter().map(|(_, part)| part.size).sum();
        let given = bound.max(VALUE_BYTES * workgroups).min(GROUP_BYTES * workgroups);
        if self.parameters.len() + parameters.len() > PARAMETERS {
            self.submit();
        }
        self.make_room(given);
        let at = self.parameters.len();
        self.parameters.extend_from_slice(parameters);
        self.parameters.resize(self.parameters.len().next_multiple_of(SLOT), 0);
        let pipeline = self.gpu.kernels.get(&self.gpu.device, kernel);
        let bind = |buffer, offset, size| {
            wgpu::BindingResource::Buffer(BufferBinding { buffer, offset, size: NonZero::new(size) })
        };
        let uniform = bind(&self.gpu.parameters, at as u64, parameters.len() as u64);
        let entries: Vec<_> = [wgpu::BindGroupEntry { binding: 0, resource: uniform }]
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
        #[cfg(test)]
        {
            drop(pass);
            self.gpu.dispatches += 1;
            self.remember(kernel, parameters, bindings, groups, before);
        }
    }

    /// Submits the recorded commands.
    pub(crate) fn submit(&mut self) {
        if self.gpu.rehearsing {
            return;
        }
        let next = self.gpu.device.create_command_encoder(&Default::default());
        let commands = std::mem::replace(&mut self.encoder, next).finish();
        if !self.parameters.is_empty() {
            self.gpu.queue.write_buffer(&self.gpu.parameters, 0, &self.parameters);
            self.parameters.clear();
        }
        self.given = 0;
        self.gpu.queue.submit([commands]);
        #[cfg(test)]
        {
            self.gpu.submissions += 1;
        }
    }

    /// Submits the recorded work and waits for it. After the call, [`buffer`](Batch::buffer) may return the same
    /// buffers again.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.gpu.memory.give_back();
        if self.gpu.rehearsing {
            return Ok(());
        }
        self.submit();
        self.gpu.wait()?;
        self.gpu.check_lost()
    }

    /// Submits, waits, and returns the bytes of `parts`, one after another. All sizes and offsets must be multiples of
    /// 4.
    pub(crate) fn read(mut self, parts: &[Part]) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.size as usize).sum());
        let result = self.collect(parts, &mut bytes);
        self.end(result).map(|()| bytes)
    }

    /// Submits without a wait. After the call, [`buffer`](Batch::buffer) may return the same buffers again, for later
    /// work.
    pub(crate) fn enqueue(mut self) -> Result<(), Error> {
        self.submit();
        self.end(Ok(()))
    }

    fn end(self, result: Result<(), Error>) -> Result<(), Error> {
        // A lost device also causes other errors, so the loss is reported in place of them.
        let Batch { gpu, scopes, .. } = self;
        let caught = scopes.end();
        gpu.check_lost()?;
        caught.and(result)?;
        gpu.memory.give_back();
        gpu.unfinished = false;
        Ok(())
    }

    fn collect(&mut self, parts: &[Part], bytes: &mut Vec<u8>) -> Result<(), Error> {
        let mut staged = Vec::new();
        for group in in_groups(parts, self.gpu.largest_binding()) {
            let size = group.iter().map(|part| part.size).sum();
            let target = self.buffer(size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
            let mut at = 0;
            for part in group {
                self.copy(&part.buffer, part.offset, &target, at, part.size);
                at += part.size;
            }
            staged.push((target, size));
        }
        if self.gpu.rehearsing {
            bytes.resize(parts.iter().map(|part| part.size as usize).sum(), 0);
            return Ok(());
        }
        self.submit();
        #[cfg(test)]
        {
            self.gpu.reads += staged.len();
        }
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        for (target, _) in &staged {
            let outcomes = Arc::clone(&outcomes);
            target.map_async(wgpu::MapMode::Read, .., move |result| {
                if let Ok(mut outcomes) = outcomes.lock() {
                    outcomes.push(result);
                }
            });
        }
        let refused = |error: &dyn std::fmt::Display| Error::Refused(error.to_string());
        self.gpu.wait()?;
        let outcomes = outcomes.lock().map(|outcomes| outcomes.clone()).unwrap_or_default();
        if outcomes.len() < staged.len() {
            return Err(refused(&"a buffer was not mapped"));
        }
        outcomes.into_iter().collect::<Result<(), _>>().map_err(|error| refused(&error))?;
        for (target, size) in &staged {
            bytes.extend_from_slice(&target.get_mapped_range(..*size).map_err(|error| refused(&error))?);
            target.unmap();
        }
        Ok(())
    }
}

/// Cuts `parts` into groups of at most 64 MiB and `largest` bytes each.
fn in_groups(parts: &[Part], largest: u64) -> Vec<Vec<Part>> {
    let most = largest.min(64 << 20);
    let mut groups: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let mut part = part.clone();
        while part.size > 0 {
            if room == 0 {
                groups.push(Vec::new());
                room = most;
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
