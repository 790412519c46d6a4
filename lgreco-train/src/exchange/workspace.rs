//! What an exchange needs of memory, and how a workspace is cut into it.

use super::bucket::{Layer, Moment, Route, factor_rank, is_gathered};
use super::division::Division;
use super::slip::{self, Slip};
use crate::Error;
use crate::compress::{Compressor, Setting, powersgd};
use crate::error::expect_room;
use crate::gradient::{Dtype, Shape};
use crate::internal::clt::Positions;

/// Words per rank for [`Ranks`].
const WORDS: usize = 4;

/// The part of a workspace that every exchange has, whatever its layers are.
pub(super) struct Ranks<'a> {
    /// Bytes of each rank's message.
    pub(super) lens: &'a mut [u64],
    /// What ranks tell each other to agree, 24 bytes each; later other lengths.
    pub(super) spare: &'a mut [u64],
}

impl<'a> Ranks<'a> {
    pub(super) fn new(world: u32, workspace: &'a mut [u64]) -> Result<(Self, &'a mut [u64]), Error> {
        let world = world as usize;
        expect_room("workspace words", WORDS.saturating_mul(world), workspace.len())?;
        let (words, rest) = workspace.split_at_mut(WORDS * world);
        let (lens, spare) = words.split_at_mut(world);
        Ok((Ranks { lens, spare }, rest))
    }
}

/// Lengths of the parts of a workspace, but for those of [`Ranks`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lens {
    world: usize,
    /// f32: dense values, `P` factors and values at shared positions. Where there are any, a slip per rank follows.
    pub(super) left: usize,
    /// f32: `Q` factors. Likewise.
    pub(super) right: usize,
    /// Bytes: shared positions.
    pub(super) positions: usize,
    /// Bytes: this rank's slip and payloads that everybody gets; the most if lengths vary.
    pub(super) message: usize,
    /// Whether the values decide the length of a message.
    pub(super) varies: bool,
    /// Bytes: slips and payloads for the owners of shares.
    pub(super) shares: usize,
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
        let mut lens = Lens { world: world as usize, ..Lens::default() };
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
                lens.message = lens.message.max(slip::LEN).saturating_add(payload);
                lens.varies |= !setting.has_fixed_len();
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

    pub(super) fn of(layers: &[Layer<'_>], moment: Moment) -> Result<Lens, Error> {
        let kinds = layers.iter().map(|layer| (layer.setting, layer.gradient.shape(), layer.gradient.dtype()));
        Lens::new(kinds, moment.route, moment.world_size)
    }

    /// With the ranks' slips, if there is anything to sum.
    fn sums(&self, values: usize) -> usize {
        if values == 0 { 0 } else { values + self.world }
    }

    /// Bytes for this rank's message while the lengths of the others' are not known.
    fn staged(&self) -> usize {
        if self.varies { self.message } else { 0 }
    }

    /// Words in all, with those of [`Ranks`].
    pub(super) fn words(&self) -> usize {
        let singles = [self.sums(self.left), self.sums(self.right), self.decoded].map(|len| len.div_ceil(2));
        let bytes = [self.positions, self.staged(), self.shares, self.received].map(|len| len.div_ceil(8));
        let ranks = [WORDS.saturating_mul(self.world)];
        singles.into_iter().chain(bytes).chain(ranks).fold(self.encode, usize::saturating_add)
    }
}

/// A workspace cut into its parts; see [`Lens`].
pub(super) struct Room<'a> {
    pub(super) ranks: Ranks<'a>,
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
    pub(super) fn new(lens: Lens, workspace: &'a mut [u64]) -> Result<Self, Error> {
        expect_room("workspace words", lens.words(), workspace.len())?;
        let (ranks, mut words) = Ranks::new(lens.world as u32, workspace)?;
        fn take<'a, T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
            words: &mut &'a mut [u64],
            len: usize,
        ) -> &'a mut [T] {
            let (part, rest) = core::mem::take(words).split_at_mut((len * size_of::<T>()).div_ceil(8));
            *words = rest;
            &mut bytemuck::cast_slice_mut(part)[..len]
        }
        Ok(Room {
            ranks,
            left: take(&mut words, lens.sums(lens.left)),
            right: take(&mut words, lens.sums(lens.right)),
            positions: take(&mut words, lens.positions),
            message: take(&mut words, lens.staged()),
            shares: take(&mut words, lens.shares),
            received: take(&mut words, lens.received),
            decoded: take(&mut words, lens.decoded),
            encode: words,
        })
    }
}

/// Bytes of all messages.
pub(super) fn sum(lens: &[u64]) -> usize {
    lens.iter().sum::<u64>() as usize
}

/// The ranks' messages, one after the other.
pub(super) fn messages<'a>(lens: &'a [u64], received: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
    lens.iter().scan(0, |at, &len| {
        let message = received.get(*at..*at + len as usize);
        *at += len as usize;
        message
    })
}

/// Puts a rank's slip behind the values of an all-reduce.
pub(super) fn put_slip(sums: &mut [f32], values: usize, rank: u32, slip: Slip) {
    let slips = &mut sums[values..];
    slips.fill(0.0);
    slips[rank as usize] = slip.to_sum();
}

/// The slips that an all-reduce has brought.
pub(super) fn slips(sums: &[f32], values: usize) -> impl Iterator<Item = Slip> + Clone {
    sums[values..].iter().map(|&sum| Slip::of_sum(sum))
}
