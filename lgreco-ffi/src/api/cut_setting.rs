use super::compressor::*;
use super::context::lgreco_context;
use super::gradient::{dtype, lgreco_dtype};
use crate::pointers::{fill, read_struct, sized_struct, slice, slice_mut, write};
use crate::status::{Failure, Result, lgreco_status};
use core::ffi::{CStr, c_char};
use lgreco_pipeline::{Codec, Compatibility, CutSetting, Link, LinkMemory, RowStorage, Scope, Tile};
use lgreco_train::CoreError;
use lgreco_train::feedback::Residual;

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
/// Codes after a random rotation of blocks of 4096 values (EDEN): `bits` 1 to 8.
pub const LGRECO_CODEC_EDEN: lgreco_codec = 5;

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

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!(
    "link",
    lgreco_link {
        codec: LGRECO_CODEC_MIN_MAX,
        bits: 4,
        tile: 128,
        keep: 1,
        gain: Residual::CLASSIC.gain,
        reset_every: Residual::CLASSIC.reset_every,
        capacity: 1024,
        rows: LGRECO_ROWS_BF16,
        row_bits: 8,
    }
);

/// A number of bits that fits core's type; core says whether it makes sense.
fn bits(bits: u32) -> Result<u8, CoreError> {
    u8::try_from(bits).map_err(|_| CoreError::Parameter { what: "bits", value: bits.into(), expected: "1 to 8" })
}

impl lgreco_link {
    fn to_core(self) -> Result<Link> {
        let residual = || {
            Ok::<_, Failure>(Residual {
                gain: self.gain,
                reset_every: self.reset_every,
                storage: storage(self.storage)?,
            })
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
            LGRECO_CODEC_EDEN => Codec::Eden { bits: bits(self.bits)? },
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
                (to.codec, to.bits) = (LGRECO_CODEC_MIN_MAX, bits.into());
                to.tile = if let Tile::Elements(tile) = tile { tile } else { 0 };
            }
            Codec::Symmetric { bits, scope, scale } => {
                (to.codec, to.bits, to.scale) = (LGRECO_CODEC_SYMMETRIC, bits.into(), scale as lgreco_dtype);
                to.channels = if let Scope::Channel { channels } = scope { channels } else { 0 };
            }
            Codec::TopK { keep, values } => {
                (to.codec, to.keep, to.values) = (LGRECO_CODEC_TOPK, keep, values as lgreco_dtype);
            }
            Codec::SharedIndex { keep, values } => {
                (to.codec, to.keep, to.values) = (LGRECO_CODEC_SHARED_INDEX, keep, values as lgreco_dtype);
            }
            Codec::Eden { bits } => (to.codec, to.bits) = (LGRECO_CODEC_EDEN, bits.into()),
        }
        to.memory = match link.memory {
            LinkMemory::None => LGRECO_LINK_MEMORY_NONE,
            LinkMemory::Residual(_) => LGRECO_LINK_MEMORY_RESIDUAL,
            LinkMemory::Mixed(_) => LGRECO_LINK_MEMORY_MIXED,
            LinkMemory::Ef21 => LGRECO_LINK_MEMORY_EF21,
            LinkMemory::Samples { .. } => LGRECO_LINK_MEMORY_SAMPLES,
        };
        if let LinkMemory::Residual(residual) | LinkMemory::Mixed(residual) = link.memory {
            (to.gain, to.reset_every) = (residual.gain, residual.reset_every);
            to.storage = residual.storage as lgreco_storage;
        }
        if let LinkMemory::Samples { capacity, storage } = link.memory {
            (to.capacity, to.rows) = match storage {
                RowStorage::F32 => (capacity, LGRECO_ROWS_F32),
                RowStorage::Bf16 => (capacity, LGRECO_ROWS_BF16),
                RowStorage::Quantised { bits } => {
                    to.row_bits = bits.into();
                    (capacity, LGRECO_ROWS_QUANTISED)
                }
            };
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

// SAFETY: repr(C), starts with a usize; numbers and raw pointers only.
sized_struct!("cut setting", lgreco_cut_setting { in_flight: CutSetting::new(0, 1, 1).in_flight });

impl lgreco_cut_setting {
    /// # Safety
    /// README.md, pointers.
    pub(super) unsafe fn to_core(self) -> Result<CutSetting> {
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

/// Bytes of a saved cut setting.
pub const LGRECO_CUT_SETTING_BYTES: usize = 76;

const _: () = assert!(LGRECO_CUT_SETTING_BYTES == CutSetting::BYTES);

/// Whether a model trained with one setting of a cut may be run with another: LGRECO_COMPATIBILITY_...
pub type lgreco_compatibility = u32;

/// The settings are the same.
pub const LGRECO_COMPATIBILITY_SAME: lgreco_compatibility = 0;
/// Evaluation gives the same numbers, training goes on differently.
pub const LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY: lgreco_compatibility = 1;
/// Evaluation is of another model than was trained.
pub const LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY: lgreco_compatibility = 2;

/// Writes a setting to bytes[0 .. LGRECO_CUT_SETTING_BYTES], read_struct and the same on every machine. Compression at a cut
/// becomes part of the model: save this with it.
///
/// LGRECO_LENGTH when `capacity` is less; codes of lgreco_cut_create for what makes no sense in the setting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_to_bytes(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    bytes: *mut u8,
    capacity: usize,
) -> lgreco_status {
    call!(context, |_| {
        let setting = read_struct(setting)?.to_core()?;
        setting.check()?;
        let to = slice_mut(bytes, capacity, "bytes")?.first_chunk_mut();
        let expected = LGRECO_CUT_SETTING_BYTES;
        *to.ok_or(CoreError::Length { what: "bytes", expected, found: capacity })? = setting.to_bytes();
        Ok(())
    })
}

/// Fills `setting`, and `forward` and `backward`, to which the setting then points, with what lgreco_cut_setting_to_bytes
/// wrote. Any bytes may be given.
///
/// LGRECO_CHECKSUM for a setting that is damaged; LGRECO_LENGTH, LGRECO_SAVED_STATE for bytes that are no setting; codes of
/// lgreco_cut_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_from_bytes(
    context: *mut lgreco_context,
    bytes: *const u8,
    length: usize,
    setting: *mut lgreco_cut_setting,
    forward: *mut lgreco_link,
    backward: *mut lgreco_link,
) -> lgreco_status {
    call!(context, |_| {
        let saved = CutSetting::from_bytes(slice(bytes, length, "bytes")?)?;
        fill(setting, || {
            fill(forward, || {
                fill(backward, || Ok(lgreco_link::from_core(saved.backward)))?;
                Ok(lgreco_link::from_core(saved.forward))
            })?;
            let CutSetting { cut, batch, features, in_flight, .. } = saved;
            Ok(lgreco_cut_setting { forward, backward, cut, batch, features, in_flight, ..Default::default() })
        })
    })
}

/// Tells what running with `setting` means for a model trained with `trained`, and in `what`, unless it is NULL, the first
/// field that differs: static text, such as "forward codec"; "" when none does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_compare(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    trained: *const lgreco_cut_setting,
    compatibility: *mut lgreco_compatibility,
    what: *mut *const c_char,
) -> lgreco_status {
    call!(context, |_| {
        let (code, field) = match read_struct(setting)?.to_core()?.compare(&read_struct(trained)?.to_core()?) {
            Compatibility::Same => (LGRECO_COMPATIBILITY_SAME, ""),
            Compatibility::TrainsDifferently { what } => (LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY, what),
            Compatibility::EvaluatesDifferently { what } => (LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY, what),
        };
        write(compatibility, "compatibility", || {
            if !what.is_null() {
                write(what, "what", || Ok(static_text(field)?.as_ptr()))?;
            }
            Ok(code)
        })
    })
}

/// The core's names of fields, as C wants them.
fn static_text(field: &str) -> Result<&'static CStr> {
    let fields = [
        c"",
        c"cut",
        c"features",
        c"forward codec",
        c"forward memory",
        c"backward codec",
        c"backward memory",
        c"batch",
        c"micro-batches in flight",
    ];
    let found = fields.into_iter().find(|name| name.to_bytes() == field.as_bytes());
    found.ok_or(Failure::Text { what: "name of a field", why: "is none that the C API knows" })
}
