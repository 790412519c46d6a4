//! The part of a bucket that each rank averages.

use super::moment::Route;
use super::slip;
use super::spec::Spec;
use crate::Error;
use crate::compress::{Compressor, Setting};
use crate::gradient::{Dtype, Shape};
use core::ops::Range;

/// Divides all elements that travel in pieces into equal shares, one per rank. Boundaries of shares move to positions at which a
/// tensor can be cut. With [`Route::Sharded`], the parts are the layers' shards.
#[derive(Clone, Copy)]
pub(super) struct Division {
    elements: u64,
    world: u32,
    sharded: bool,
}

/// One rank's part of one layer; never empty. The rank that averages a piece is the owner of the piece. A piece is encoded like
/// an independent tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The elements of the layer that belong to the piece.
    pub range: Range<usize>,
    /// The setting of the layer, with TopK's `keep` in proportion to the piece.
    pub setting: Setting,
    /// The shape in which the piece is compressed: one column.
    pub shape: Shape,
    /// Length of the piece's payload in bytes.
    pub payload_len: usize,
}

impl Division {
    pub(super) fn new<'a>(layers: impl Iterator<Item = Spec<'a>>, route: Route, world: u32) -> Self {
        let elements = layers.filter(|spec| is_scattered(&spec.setting)).map(|spec| spec.shape.elements() as u64);
        Division { elements: elements.sum(), world, sharded: route == Route::Sharded }
    }

    /// The first element of `owner`'s equal share.
    fn boundary(&self, owner: u32) -> u64 {
        let (world, owner) = (self.world as u64, owner as u64);
        self.elements / world * owner + owner.min(self.elements % world)
    }

    pub(super) fn cursor(&self, owner: u32) -> Cursor {
        let shard = self.sharded.then_some(owner);
        Cursor { share: self.boundary(owner)..self.boundary(owner + 1), first: 0, shard }
    }

    /// Bytes of a message with `owner`'s pieces: a status record, and the payloads of the pieces.
    pub(super) fn message_len<'a>(&self, layers: impl Iterator<Item = Spec<'a>>, owner: u32) -> Result<usize, Error> {
        let mut cursor = self.cursor(owner);
        let mut lens = layers.map(|spec| cursor.next(&spec));
        lens.try_fold(slip::LEN, |len, piece| Ok(len + piece?.map_or(0, |piece| piece.payload_len)))
    }

    /// Bytes of all owners' messages together, and the largest number of bytes that a rank receives at a time. Both lengths are
    /// zero if nothing travels in pieces.
    pub(super) fn buffer_lens<'a>(
        &self,
        layers: impl Iterator<Item = Spec<'a>> + Clone,
    ) -> Result<(usize, usize), Error> {
        let (mut all, mut largest) = (0, 0);
        if self.elements == 0 {
            return Ok((0, 0));
        }
        for owner in 0..self.world {
            let message = self.message_len(layers.clone(), owner)?;
            all += message;
            largest = largest.max(message);
        }
        Ok((all, all.max(largest * (self.world as usize).saturating_sub(1))))
    }
}

/// Finds one owner's pieces in the layers of a bucket, in order.
pub(super) struct Cursor {
    share: Range<u64>,
    /// Number of elements of earlier layers that travel in pieces.
    first: u64,
    /// The owner, if pieces are shards.
    shard: Option<u32>,
}

impl Cursor {
    /// The owner's piece of the next layer.
    pub(super) fn next(&mut self, spec: &Spec<'_>) -> Result<Option<Piece>, Error> {
        let (setting, elements) = (spec.setting, spec.shape.elements());
        let Some(unit) = setting.traits().piece else { return Ok(None) };
        let cut = |boundary: u64| match boundary.saturating_sub(self.first) {
            local if local >= elements as u64 => elements,
            local => local as usize / unit * unit,
        };
        let range = match self.shard {
            Some(owner) => spec.shard(owner),
            None => cut(self.share.start)..cut(self.share.end),
        };
        self.first += elements as u64;
        if range.is_empty() { Ok(None) } else { Piece::new(range, setting, elements).map(Some) }
    }
}

impl Piece {
    fn new(range: Range<usize>, setting: Setting, elements: usize) -> Result<Piece, Error> {
        let setting = setting.of_piece(range.clone(), elements);
        let shape = Shape::new(range.len(), 1)?;
        // The payload of a piece never depends on the element type.
        let payload_len = setting.payload_len(shape, Dtype::F32)?;
        Ok(Piece { range, setting, shape, payload_len })
    }
}

/// Whether payloads of this setting travel in pieces.
pub(super) fn is_scattered(setting: &Setting) -> bool {
    setting.traits().piece.is_some()
}
