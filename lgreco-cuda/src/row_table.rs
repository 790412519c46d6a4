//! Tables of layers that are measured in shared launches. Each block of a launch belongs to one layer.

use crate::Result;
use crate::device::Part;
use crate::gpu::{self, Gpu, Scratch};
use bytemuck::Pod;

/// A table of layers on the device.
pub(crate) struct RowTable {
    pub(crate) layers: Part,
    /// The layer of each block.
    pub(crate) layer_of: Part,
    pub(crate) count: u64,
    pub(crate) blocks: u64,
}

impl RowTable {
    /// Enqueued: uploads a table. `layer` makes an entry from a layer, its first block and its number of blocks.
    pub(crate) fn new<T, L: Pod>(
        gpu: &mut Gpu,
        layers: &[T],
        blocks: impl Fn(&T) -> u64,
        layer: impl Fn(&T, u32, u32) -> L,
    ) -> Result<Self> {
        let (mut entries, mut layer_of) = (Vec::new(), Vec::new());
        for (of, number) in layers.iter().zip(0u32..) {
            let blocks = blocks(of);
            entries.push(layer(of, layer_of.len() as u32, blocks as u32));
            layer_of.extend(std::iter::repeat_n(number, blocks as usize));
        }
        let tables = [bytemuck::cast_slice::<_, u8>(&entries), bytemuck::cast_slice(&layer_of)];
        let [count, blocks] = [entries.len(), layer_of.len()].map(|len| len as u64);
        let lens = tables.map(|table| table.len() as u64);
        let [layers, layer_of] = gpu.upload(Scratch::Layers, &tables.concat())?.split(lens);
        Ok(RowTable { layers, layer_of, count, blocks })
    }

    /// Returns how many of the first layers share one launch.
    pub(crate) fn together<T>(layers: &[T], blocks: impl Fn(&T) -> u64) -> usize {
        let mut all = 0;
        let fits = |&(index, layer): &(usize, &T)| {
            all += blocks(layer);
            index == 0 || all <= gpu::together()
        };
        layers.iter().enumerate().take_while(fits).count()
    }
}
