//! What an exchange needs of memory, and how a workspace is cut into it.

use super::bucket::{Route, factor_rank, is_gathered};
use super::division::Division;
use crate::Error;
use crate::compress::{Compressor, Setting, powersgd};
use crate::error::expect_room;
use crate::gradient::{Dtype, Shape};
use crate::internal::clt::Positions;

/// Lengths of the parts of a workspace, but for the greeting.
#[derive(Clone, Copy, Default)]
pub(super) struct Lens {
    /// f32: dense values, `P` factors and values at shared positions.
    left: usize,
    /// f32: `Q` factors.
    right: usize,
    /// Bytes: shared positions.
    positions: usize,
    /// Bytes: this rank's payloads that everybody gets.
    message: usize,
    /// Bytes: payloads for the owners of shares.
    shares: usize,
    /// Bytes.
    received: usize,
    /// f32: one decoded payload.
    decoded: usize,
    /// Words: what compressors need.
    encode: usize,
}

impl Lens {
    pub(super) fn new(
        layers: impl Iterator<Item = (Setting, Shape, Dtype)> + Clone,
        route: Route,
        world: u32,
    ) -> Result<Lens, Error> {
        let mut lens = Lens::default();
        for (setting, shape, dtype) in layers.clone() {
            let payload = setting.payload_len(shape, dtype)?;
            let mut encode = setting.encode_workspace_len(shape, dtype);
            match setting {
                Setting::Dense => lens.left += shape.elements(),
                Setting::PowerSgd(c) => {
                    let rank = factor_rank(&setting, shape);
                    lens.left += shape.rows() * rank;
                    lens.right += shape.cols() * rank;
                    encode = powersgd::steps_workspace_len(shape, c.rank);
                }
                Setting::CltK(c) => {
                    lens.left += c.keep as usize;
                    lens.positions += c.positions_len(shape);
                }
                _ => {
                    lens.decoded = lens.decoded.max(shape.elements());
                    // The mean that scatter-reduce compresses again is f32.
                    encode = encode.max(setting.encode_workspace_len(shape, Dtype::F32));
                }
            }
            if is_gathered(&setting, route) {
                lens.message = lens.message.saturating_add(payload);
            }
            lens.encode = lens.encode.max(encode);
        }
        lens.received = lens.message.saturating_mul(world as usize);
        if route == Route::ScatterReduce {
            let layers = layers.map(|(setting, shape, _)| (setting, shape));
            let (shares, received) = Division::new(layers.clone(), world).buffer_lens(layers)?;
            lens.shares = shares;
            lens.received = lens.received.max(received);
        }
        Ok(lens)
    }

    pub(super) fn words(&self) -> usize {
        let singles = [self.left, self.right, self.decoded].map(|len| len.div_ceil(2));
        let bytes = [self.positions, self.message, self.shares, self.received].map(|len| len.div_ceil(8));
        singles.into_iter().chain(bytes).fold(self.encode, usize::saturating_add)
    }
}

/// A workspace cut into its parts; see [`Lens`].
pub(super) struct Room<'a> {
    pub(super) left: &'a mut [f32],
    pub(super) right: &'a mut [f32],
    pub(super) positions: &'a mut [u8],
    pub(super) message: &'a mut [u8],
    pub(super) shares: &'a mut [u8],
    pub(super) received: &'a mut [u8],
    pub(super) decoded: &'a mut [f32],
    pub(super) encode: &'a mut [u64],
}

impl<'a> Room<'a> {
    pub(super) fn new(lens: Lens, mut words: &'a mut [u64]) -> Result<Self, Error> {
        expect_room("workspace words after the greeting", lens.words(), words.len())?;
        fn take<'a, T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
            words: &mut &'a mut [u64],
            len: usize,
        ) -> &'a mut [T] {
            let (part, rest) = core::mem::take(words).split_at_mut((len * size_of::<T>()).div_ceil(8));
            *words = rest;
            &mut bytemuck::cast_slice_mut(part)[..len]
        }
        Ok(Room {
            left: take(&mut words, lens.left),
            right: take(&mut words, lens.right),
            positions: take(&mut words, lens.positions),
            message: take(&mut words, lens.message),
            shares: take(&mut words, lens.shares),
            received: take(&mut words, lens.received),
            decoded: take(&mut words, lens.decoded),
            encode: words,
        })
    }
}
