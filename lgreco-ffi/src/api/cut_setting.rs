use super::compressor_options::*;
use super::gradient::{LGRECO_DTYPE_F32, dtype, lgreco_dtype};
use super::setting::bits;
use crate::pointers::{SizedStruct, read_struct};
use crate::status::Failure;
use lgreco_train::feedback::Residual;
use lgreco_train::pipeline::{Codec, CutSetting, Link, LinkMemory, RowStorage, Scope, Tile};

/// How one direction of a cut is compressed: LGRECO_CODEC_...
pub type lgreco_codec = u32;

/// The values as `values`.
pub const LGRECO_CODEC_DENSE: lgreco_codec = 0;
/// Codes from the smallest to the largest value: `bits` 1 to 8, `tile`.
pub const LGRECO_CODEC_MIN_MAX: lgreco_codec = 1;
/// Codes on a grid symmetric about zero: `bits` 2 to 8, `channels`, `scale`.
pub const LGRECO_CODEC_SYMMETRIC: lgreco_codec = 2;
/// The largest magnitudes of each sample: `keep`, `values`.
pub const LGRECO_CODEC_TOPK: lgreco_codec = 3;
/// Gradients where the forward TopK of the same micro-batch kept activations: `keep` as forward, `values`.
pub const LGRECO_CODEC_SHARED_INDEX: lgreco_codec = 4;

/// What one direction of a cut remembers: LGRECO_LINK_MEMORY_...
pub type lgreco_link_memory = u32;

/// Nothing.
pub const LGRECO_LINK_MEMORY_NONE: lgreco_link_memory = 0;
/// Error feedback by position in the batch: `gain`, `reset_every`, `storage`.
pub const LGRECO_LINK_MEMORY_RESIDUAL: lgreco_link_memory = 1;
/// EF-mixed by position, for TopK: `gain`, `reset_every`, `storage`.
pub const LGRECO_LINK_MEMORY_MIXED: lgreco_link_memory = 2;
/// EF21 by position.
pub const LGRECO_LINK_MEMORY_EF21: lgreco_link_memory = 3;
/// AQ-SGD: what was last made of each sample, by its id; forward only: `capacity`, `rows`, `row_bits`.
pub const LGRECO_LINK_MEMORY_SAMPLES: lgreco_link_memory = 4;

/// What AQ-SGD's rows are kept in: LGRECO_ROWS_...
pub type lgreco_rows = u32;

/// 4 bytes per value.
pub const LGRECO_ROWS_F32: lgreco_rows = 0;
/// 2 bytes per value.
pub const LGRECO_ROWS_BF16: lgreco_rows = 1;
/// `row_bits` per value.
pub const LGRECO_ROWS_QUANTISED: lgreco_rows = 2;

/// Codec and memory of one direction of a cut. Begin with LGRECO_LINK_INIT; fields of other codecs and memories are not
/// looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_link {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// LGRECO_CODEC_MIN_MAX by default.
    pub codec: lgreco_codec,
    /// Bits per value; 4 by default.
    pub bits: u32,
    /// Min-max: so many consecutive values of a sample share a grid, 0 for the whole batch; 128 by default.
    pub tile: u32,
    /// Symmetric: samples consist of so many channels, each with a scale of its own; 0, the default, for one per sample.
    pub channels: u32,
    /// Symmetric: type of the scales; LGRECO_DTYPE_F32, the default, or BF16.
    pub scale: lgreco_dtype,
    /// TopK: values sent per sample; 1 by default.
    pub keep: u32,
    /// Dense, TopK, shared indices: type of the values sent; LGRECO_DTYPE_F32 by default.
    pub values: lgreco_dtype,
    /// LGRECO_LINK_MEMORY_NONE by default.
    pub memory: lgreco_link_memory,
    /// Residuals: how much of an error is remembered, in (0, 1]; 1 by default.
    pub gain: f32,
    /// Residuals: zeroed after every so many messages; 0, the default, for never.
    pub reset_every: u32,
    /// Residuals: LGRECO_STORAGE_F32 by default.
    pub storage: lgreco_storage,
    /// AQ-SGD: samples remembered at most, at least 1; 1024 by default.
    pub capacity: u32,
    /// AQ-SGD: LGRECO_ROWS_BF16 by default.
    pub rows: lgreco_rows,
    /// AQ-SGD, quantised rows: 2 to 8; 8 by default.
    pub row_bits: u32,
}

impl Default for lgreco_link {
    fn default() -> Self {
        lgreco_link {
            struct_size: size_of::<lgreco_link>(),
            codec: LGRECO_CODEC_MIN_MAX,
            bits: 4,
            tile: 128,
            channels: 0,
            scale: LGRECO_DTYPE_F32,
            keep: 1,
            values: LGRECO_DTYPE_F32,
            memory: LGRECO_LINK_MEMORY_NONE,
            gain: Residual::CLASSIC.gain,
            reset_every: Residual::CLASSIC.reset_every,
            storage: LGRECO_STORAGE_F32,
            capacity: 1024,
            rows: LGRECO_ROWS_BF16,
            row_bits: 8,
        }
    }
}

// SAFETY: repr(C), starts with a usize, numbers only.
unsafe impl SizedStruct for lgreco_link {
    const WHAT: &'static str = "link";
}

impl lgreco_link {
    fn to_core(self) -> Result<Link, Failure> {
        let residual = || {
            let storage = storage(self.storage)?;
            Ok::<_, Failure>(Residual { gain: self.gain, reset_every: self.reset_every, storage })
        };
        let codec = match self.codec {
            LGRECO_CODEC_DENSE => Codec::Dense { values: dtype(self.values)? },
            LGRECO_CODEC_MIN_MAX => {
                let tile = if self.tile == 0 { Tile::Batch } else { Tile::Elements(self.tile) };
                Codec::MinMax { bits: bits(self.bits)?, tile }
            }
            LGRECO_CODEC_SYMMETRIC => {
                let channels = self.channels;
                let scope = if channels == 0 { Scope::Sample } else { Scope::Channel { channels } };
                Codec::Symmetric { bits: bits(self.bits)?, scope, scale: dtype(self.scale)? }
            }
            LGRECO_CODEC_TOPK => Codec::TopK { keep: self.keep, values: dtype(self.values)? },
            LGRECO_CODEC_SHARED_INDEX => Codec::SharedIndex { keep: self.keep, values: dtype(self.values)? },
            found => return Err(Failure::UnknownConstant { what: "codec", found }),
        };
        let memory = match self.memory {
            LGRECO_LINK_MEMORY_NONE => LinkMemory::None,
            LGRECO_LINK_MEMORY_RESIDUAL => LinkMemory::Residual(residual()?),
            LGRECO_LINK_MEMORY_MIXED => LinkMemory::Mixed(residual()?),
            LGRECO_LINK_MEMORY_EF21 => LinkMemory::Ef21,
            LGRECO_LINK_MEMORY_SAMPLES => LinkMemory::Samples {
                capacity: self.capacity,
                storage: match self.rows {
                    LGRECO_ROWS_F32 => RowStorage::F32,
                    LGRECO_ROWS_BF16 => RowStorage::Bf16,
                    LGRECO_ROWS_QUANTISED => RowStorage::Quantised { bits: bits(self.row_bits)? },
                    found => return Err(Failure::UnknownConstant { what: "rows", found }),
                },
            },
            found => return Err(Failure::UnknownConstant { what: "memory of a link", found }),
        };
        Ok(Link { codec, memory })
    }

    pub(super) fn from_core(link: Link) -> lgreco_link {
        let mut to = lgreco_link::default();
        match link.codec {
            Codec::Dense { values } => (to.codec, to.values) = (LGRECO_CODEC_DENSE, values as lgreco_dtype),
            Codec::MinMax { bits, tile } => {
                let tile = match tile {
                    Tile::Batch => 0,
                    Tile::Elements(tile) => tile,
                };
                (to.codec, to.bits, to.tile) = (LGRECO_CODEC_MIN_MAX, bits.into(), tile);
            }
            Codec::Symmetric { bits, scope, scale } => {
                to.channels = match scope {
                    Scope::Sample => 0,
                    Scope::Channel { channels } => channels,
                };
                (to.codec, to.bits, to.scale) = (LGRECO_CODEC_SYMMETRIC, bits.into(), scale as lgreco_dtype);
            }
            Codec::TopK { keep, values } => {
                (to.codec, to.keep, to.values) = (LGRECO_CODEC_TOPK, keep, values as lgreco_dtype);
            }
            Codec::SharedIndex { keep, values } => {
                (to.codec, to.keep, to.values) = (LGRECO_CODEC_SHARED_INDEX, keep, values as lgreco_dtype);
            }
        }
        to.memory = match link.memory {
            LinkMemory::None => LGRECO_LINK_MEMORY_NONE,
            LinkMemory::Residual(_) => LGRECO_LINK_MEMORY_RESIDUAL,
            LinkMemory::Mixed(_) => LGRECO_LINK_MEMORY_MIXED,
            LinkMemory::Ef21 => LGRECO_LINK_MEMORY_EF21,
            LinkMemory::Samples { .. } => LGRECO_LINK_MEMORY_SAMPLES,
        };
        match link.memory {
            LinkMemory::Residual(residual) | LinkMemory::Mixed(residual) => {
                (to.gain, to.reset_every) = (residual.gain, residual.reset_every);
                to.storage = residual.storage as lgreco_storage;
            }
            LinkMemory::Samples { capacity, storage } => {
                to.capacity = capacity;
                to.rows = match storage {
                    RowStorage::F32 => LGRECO_ROWS_F32,
                    RowStorage::Bf16 => LGRECO_ROWS_BF16,
                    RowStorage::Quantised { bits } => {
                        to.row_bits = bits.into();
                        LGRECO_ROWS_QUANTISED
                    }
                };
            }
            LinkMemory::None | LinkMemory::Ef21 => {}
        }
        to
    }
}

/// Everything about a cut that both ends must agree on. Begin with LGRECO_CUT_SETTING_INIT; `batch` and `features` must
/// be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_cut_setting {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Activations; NULL for LGRECO_LINK_INIT. Not kept.
    pub forward: *const lgreco_link,
    /// Gradients, which need milder compression; NULL for LGRECO_LINK_INIT with 8 bits. Not kept.
    pub backward: *const lgreco_link,
    /// Which cut of the model; 0 by default.
    pub cut: u32,
    /// Samples per message: in training with a memory by position exactly so many, else at most; at least 1.
    pub batch: u32,
    /// Values per sample, at least 1.
    pub features: u32,
    /// Micro-batches that may be on their way forward and back at a time, at least 1; 8 by default.
    pub in_flight: u32,
}

impl Default for lgreco_cut_setting {
    fn default() -> Self {
        lgreco_cut_setting {
            struct_size: size_of::<lgreco_cut_setting>(),
            forward: core::ptr::null(),
            backward: core::ptr::null(),
            cut: 0,
            batch: 0,
            features: 0,
            in_flight: CutSetting::new(0, 1, 1).in_flight,
        }
    }
}

// SAFETY: repr(C), starts with a usize, numbers and raw pointers only.
unsafe impl SizedStruct for lgreco_cut_setting {
    const WHAT: &'static str = "cut setting";
}

impl lgreco_cut_setting {
    /// # Safety
    /// README.md, pointers.
    pub(super) unsafe fn to_core(self) -> Result<CutSetting, Failure> {
        let mut setting = CutSetting::new(self.cut, self.batch, self.features);
        setting.in_flight = self.in_flight;
        for (link, to) in [(self.forward, &mut setting.forward), (self.backward, &mut setting.backward)] {
            if !link.is_null() {
                // SAFETY: passed on.
                *to = unsafe { read_struct(link) }?.to_core()?;
            }
        }
        Ok(setting)
    }
}
