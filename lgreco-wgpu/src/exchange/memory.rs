//! What a bucket has on the device.

use super::faults::Faults;
use super::plan::Plan;
use crate::Error;
use crate::batch::Batch;
use crate::blocks::BINS;
use crate::cut::RECORD;
use wgpu::{Buffer, BufferDescriptor, BufferUsages};

/// Of all buffers that are worked on.
pub(super) const USAGES: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Memory of the device.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) layers: Buffer,
    pub(super) of_values: Buffer,
    pub(super) of_few: Buffer,
    pub(super) of_blocks: Buffer,
    /// Gradients, and then means, in the layers' types.
    pub(super) values: Buffer,
    /// What is remembered, and what takes its place when the flight has ended.
    pub(super) residual: Buffer,
    pub(super) offered: Buffer,
    /// Of QSGD's buckets, and by which TopK's largest are found.
    pub(super) extremes: Buffer,
    pub(super) sums: Buffer,
    pub(super) image: Buffer,
    /// All ranks' images.
    pub(super) images: Buffer,
    pub(super) totals: Buffer,
    pub(super) positions: Buffer,
    /// What is gathered of layers under TopK, by workgroup, and how many of each workgroup's values are kept.
    pub(super) entries: Buffer,
    pub(super) blocks: Buffer,
    /// And, where values travel in few bits, of which magnitudes they are.
    pub(super) bins: Buffer,
    pub(super) faults: Buffer,
    /// An f32: 1 from the beginning of a step until it has ended well, else 0.
    pub(super) found_inf: Buffer,
    /// PowerSGD's layers, triangles of their `P`, and of each workgroup what it works on.
    pub(super) matrices: Buffer,
    pub(super) triangles: Buffer,
    pub(super) pieces: Buffer,
    /// The last step's mean `Q`, and this step's, which takes its place when the flight has ended. `P` is among the sums.
    pub(super) remembered: Buffer,
    pub(super) factors: Buffer,
    pub(super) partial: Buffer,
    pub(super) inner: Buffer,
}

impl Memory {
    /// All of it, with residuals and factors of zeros.
    pub(super) fn new(batch: &mut Batch<'_>, plan: &Plan, world: usize, feedback: bool) -> Result<Memory, Error> {
        let (flat, topk, table) = (4 * plan.flat() as u64, plan.kept > 0, &plan.table);
        let pieces = table.all_pieces();
        let room = |what, bytes: u64| {
            let largest = batch.gpu.largest_binding();
            if bytes > largest {
                return Err(Error::TooLarge { what, bytes, limit: "max_storage_buffer_binding_size", largest });
            }
            // Nothing of what is bound may be empty, nor smaller than a layer.
            let size = bytes.next_multiple_of(4).max(256);
            let descriptor = BufferDescriptor { label: Some(what), size, usage: USAGES, mapped_at_creation: false };
            Ok(batch.gpu.device.create_buffer(&descriptor))
        };
        let params: Vec<_> = plan.members.iter().map(|member| member.params).collect();
        let words = |words: usize| 4 * words as u64;
        let memory = Memory {
            layers: room("a bucket's layers", size_of_val(&params[..]) as u64)?,
            of_values: room("a bucket's workgroups", words(plan.of_values.len()))?,
            of_few: room("a bucket's workgroups", words(plan.of_few.len()))?,
            of_blocks: room("a bucket's workgroups", words(plan.of_blocks.len()))?,
            values: room("a bucket", flat)?,
            residual: room("a bucket", if feedback { flat } else { 0 })?,
            offered: room("a bucket", flat)?,
            extremes: room("a bucket's extremes", words(plan.counted()))?,
            sums: room("a bucket's sums", words(plan.sums))?,
            image: room("a bucket's payloads", words(plan.image))?,
            images: room("all ranks' payloads", words(plan.image * world))?,
            totals: room("a bucket", if plan.has_totals() { flat } else { 0 })?,
            positions: room("all ranks' positions", words(plan.kept * world))?,
            entries: room(
                "a bucket's largest",
                if topk { words(RECORD * plan.of_values.len() + plan.entries) } else { 0 },
            )?,
            blocks: room(
                "a bucket's counts",
                if topk { words(plan.block_sums + 2 * plan.of_values.len()) } else { 0 },
            )?,
            bins: room("a bucket's bins", BINS * plan.of_few.len().max(1) as u64)?,
            faults: room("a bucket's faults", Faults::bytes(plan, world))?,
            found_inf: room("whether a step has failed", 4)?,
            matrices: room("a bucket's layers", size_of_val(&table.matrices[..]) as u64)?,
            triangles: room("a bucket's layers", size_of_val(&table.triangles[..]) as u64)?,
            pieces: room("a bucket's workgroups", size_of_val(&pieces[..]) as u64)?,
            remembered: room("a bucket's factors", words(table.q))?,
            factors: room("a bucket's factors", words(table.q))?,
            partial: room("a bucket's products", words(table.partial))?,
            inner: room("a bucket's triangles", words(table.inner))?,
        };
        batch.write(&memory.layers, 0, bytemuck::cast_slice(&params));
        for (buffer, of) in
            [(&memory.of_values, &plan.of_values), (&memory.of_few, &plan.of_few), (&memory.of_blocks, &plan.of_blocks)]
        {
            batch.write(buffer, 0, bytemuck::cast_slice(of));
        }
        batch.write(&memory.matrices, 0, bytemuck::cast_slice(&table.matrices));
        batch.write(&memory.triangles, 0, bytemuck::cast_slice(&table.triangles));
        batch.write(&memory.pieces, 0, bytemuck::cast_slice(&pieces));
        batch.clear(&memory.found_inf, 4);
        batch.clear(&memory.residual, memory.residual.size());
        batch.clear(&memory.remembered, memory.remembered.size());
        Ok(memory)
    }
}
