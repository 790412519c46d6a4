//! The tables that kernels read in an exchange: [`Program`], which has the sizes and the status of the exchange, and
//! the table of layers.

use crate::qsgd::holds;
use crate::{Error, Result, eden};
use bytemuck::{Pod, Zeroable};
use lgreco::compress::Setting;
use lgreco::compress::eden::Eden;
use lgreco::compress::qsgd::{Rounding, Scale};
use lgreco::compress::quantised_topk;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Shape;

/// Sizes and status of an exchange, in device memory. This struct has the layout of the struct `Program` in
/// `program.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Program {
    pub(super) elements: u64,
    pub(super) apart: u64,
    pub(super) sums: u64,
    pub(super) factors: u64,
    pub(super) fault: u64,
    pub(super) told: u64,
    pub(super) step: u32,
    pub(super) half: u32,
    pub(super) spans: u32,
    pub(super) own_spans: u32,
    pub(super) world: u32,
    pub(super) rank: u32,
    pub(super) fingerprint: u32,
    pub(super) judged: u32,
    pub(super) faulty_rank: u32,
    pub(super) faults: u32,
    pub(super) found_inf: f32,
    pub(super) gain: f32,
    pub(super) keep: f32,
    pub(super) fill: u32,
    pub(super) largest: u32,
    pub(super) broken: u32,
    pub(super) done: u32,
    pub(super) sharded: u32,
    pub(super) rotated: u32,
    pub(super) own_rotated: u32,
}

#[cfg(test)]
impl Program {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("elements", std::mem::offset_of!(Program, elements)),
        ("apart", std::mem::offset_of!(Program, apart)),
        ("sums", std::mem::offset_of!(Program, sums)),
        ("factors", std::mem::offset_of!(Program, factors)),
        ("fault", std::mem::offset_of!(Program, fault)),
        ("told", std::mem::offset_of!(Program, told)),
        ("step", std::mem::offset_of!(Program, step)),
        ("half", std::mem::offset_of!(Program, half)),
        ("spans", std::mem::offset_of!(Program, spans)),
        ("own_spans", std::mem::offset_of!(Program, own_spans)),
        ("world", std::mem::offset_of!(Program, world)),
        ("rank", std::mem::offset_of!(Program, rank)),
        ("fingerprint", std::mem::offset_of!(Program, fingerprint)),
        ("judged", std::mem::offset_of!(Program, judged)),
        ("faulty_rank", std::mem::offset_of!(Program, faulty_rank)),
        ("faults", std::mem::offset_of!(Program, faults)),
        ("found_inf", std::mem::offset_of!(Program, found_inf)),
        ("gain", std::mem::offset_of!(Program, gain)),
        ("keep", std::mem::offset_of!(Program, keep)),
        ("fill", std::mem::offset_of!(Program, fill)),
        ("largest", std::mem::offset_of!(Program, largest)),
        ("broken", std::mem::offset_of!(Program, broken)),
        ("done", std::mem::offset_of!(Program, done)),
        ("sharded", std::mem::offset_of!(Program, sharded)),
        ("rotated", std::mem::offset_of!(Program, rotated)),
        ("own_rotated", std::mem::offset_of!(Program, own_rotated)),
    ];
}

/// The struct `Layer` in `layers.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Layer {
    pub(super) first: u64,
    pub(super) payload: u64,
    pub(super) header_low: u64,
    pub(super) header_high: u64,
    pub(super) first_span: u32,
    pub(super) count: u32,
    pub(super) bucket: u32,
    pub(super) buckets: u32,
    pub(super) sign_magnitude: u32,
    pub(super) min_max: u32,
    pub(super) nearest: u32,
    pub(super) bits: u32,
    pub(super) log_levels: u32,
    pub(super) id: u32,
    pub(super) rank: u32,
    pub(super) number: u32,
    pub(super) start: u32,
    pub(super) least_squares: u32,
}

#[cfg(test)]
impl Layer {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("first", std::mem::offset_of!(Layer, first)),
        ("payload", std::mem::offset_of!(Layer, payload)),
        ("header_low", std::mem::offset_of!(Layer, header_low)),
        ("header_high", std::mem::offset_of!(Layer, header_high)),
        ("first_span", std::mem::offset_of!(Layer, first_span)),
        ("count", std::mem::offset_of!(Layer, count)),
        ("bucket", std::mem::offset_of!(Layer, bucket)),
        ("buckets", std::mem::offset_of!(Layer, buckets)),
        ("sign_magnitude", std::mem::offset_of!(Layer, sign_magnitude)),
        ("min_max", std::mem::offset_of!(Layer, min_max)),
        ("nearest", std::mem::offset_of!(Layer, nearest)),
        ("bits", std::mem::offset_of!(Layer, bits)),
        ("log_levels", std::mem::offset_of!(Layer, log_levels)),
        ("id", std::mem::offset_of!(Layer, id)),
        ("rank", std::mem::offset_of!(Layer, rank)),
        ("number", std::mem::offset_of!(Layer, number)),
        ("start", std::mem::offset_of!(Layer, start)),
        ("least_squares", std::mem::offset_of!(Layer, least_squares)),
    ];
}

const _: () = assert!(HEADER_LEN == 16, "as in exchange.cu");
/// Bytes of `Program`.
pub(super) const PROGRAM: u64 = size_of::<Program>() as u64;

impl Layer {
    /// Completes the record `place` by the fields that depend on the setting. Uncompressed layers and layers under
    /// PowerSGD have no such fields.
    pub(super) fn new(place: Layer, setting: &Setting, shape: Shape) -> Result<Layer> {
        let mut bytes = [0; HEADER_LEN];
        let header = match *setting {
            Setting::Dense | Setting::PowerSgd(_) => return Ok(place),
            Setting::Qsgd(qsgd) if holds(qsgd.bucket) => qsgd.header(shape)?,
            Setting::TopK(top) => top.header(shape)?,
            Setting::QuantisedTopK(few) => quantised_topk::header(&few, shape)?,
            Setting::Eden(eden) => eden.header(shape)?,
            Setting::Qsgd(_) => {
                return Err(Error::Method("exchanges of QSGD buckets that are no power of two from 64 to 4096"));
            }
            _ => return Err(Error::Method("exchanges under this setting on the device")),
        };
        header.write(&mut bytes)?;
        let [header_low, header_high] = bytemuck::cast::<_, [[u8; 8]; 2]>(bytes).map(u64::from_le_bytes);
        let place = Layer { header_low, header_high, ..place };
        Ok(match *setting {
            Setting::Eden(Eden { bits, scale }) => {
                Layer { bits: bits.into(), least_squares: eden::least_squares(scale), ..place }
            }
            Setting::Qsgd(qsgd) => Layer {
                bucket: qsgd.bucket,
                buckets: place.count.div_ceil(qsgd.bucket),
                sign_magnitude: qsgd.sign_magnitude().into(),
                min_max: (qsgd.scale == Scale::MinMax) as u32,
                nearest: (qsgd.rounding == Rounding::Nearest) as u32,
                bits: qsgd.bits.into(),
                log_levels: qsgd.log_levels(),
                ..place
            },
            _ => place,
        })
    }
}
