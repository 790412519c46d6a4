//! Where the layers of a bucket are: in flat memory, in the image of what a rank sends, in its message.
//!
//! Payloads follow each other in a message byte by byte. The device has an *image* of each rank's message instead, in which
//! whatever a shader reads begins with a word, and where TopK's positions come with how many there are before each block: the
//! host, which has the messages anyway, brings bytes into their places.

use super::matrices::Table;
use crate::Error;
use crate::cut::{self, Sample};
use crate::gpu::PER_GROUP;
use crate::methods;
use crate::params::params;
use crate::tensor::BufferGradient;
use lgreco_core::compress::powersgd::effective_rank;
use lgreco_core::compress::topk::Coding;
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::internal::quantised_topk::{self, Keep};
use lgreco_train::exchange::{Slip, Spec};
use std::ops::Range;

params! {
    /// `Params` of `exchange.wgsl`.
    offset, dtype, first, count, bucket, first_bucket, whole, sign_magnitude, min_max, nearest, bits,
    log_levels, inverse_levels, step, layer, rank, seed_low, seed_high, method, number, start,
    sums, scales, codes, values_word, starts, tables, counters, stratum, most, least, block_sums, block_counts, first_entry, most_entries, bins,
    keep, sent, largest, placement,
    low_bits, low_word, low_bit, high_word, high_bit, high_len, first_block, positions, window, window_len,
}

/// TopK's number among methods (`TOP_K` of `exchange.wgsl`).
const TOP_K: u32 = 2;

/// Buckets whose grids a workgroup holds (`FEW` of `qsgd.wgsl`).
const FEW: usize = 64;

/// Whether workgroups have all values of each bucket of a layer under QSGD, and few buckets.
fn is_whole(bucket: usize, elements: usize) -> bool {
    (PER_GROUP.is_multiple_of(bucket) || elements <= PER_GROUP) && elements.min(PER_GROUP).div_ceil(bucket) <= FEW
}

/// Bytes of a block of bits whose ones are positions.
pub(crate) const BLOCK: usize = PER_GROUP / 8;

/// A layer of a bucket on the device.
///
/// ```
/// use lgreco_core::compress::{Setting, qsgd::Qsgd};
/// use lgreco_wgpu::{BufferGradient, BufferLayer};
/// fn layer(index: u32, gradient: BufferGradient<'_>) -> BufferLayer<'_> {
///     BufferLayer { index, setting: Setting::Qsgd(Qsgd::default()), gradient }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferLayer<'a> {
    /// Index of the layer in the model; with seed, step and rank it names the random bits.
    pub index: u32,
    /// How it is compressed.
    pub setting: Setting,
    /// The gradient, in whose place the mean comes; of usages `STORAGE`, `COPY_SRC` and `COPY_DST`.
    pub gradient: BufferGradient<'a>,
}

/// A layer's part of a message, from byte `at` on, with the header that a payload of its setting has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) header: [u8; HEADER_LEN],
}

/// What a layer's mean is made of, which is also what travels for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Payloads,
    Sums,
    /// PowerSGD's.
    Factors,
}

impl Source {
    /// In the order in which the host makes what is sent.
    pub(crate) const SENT: [Source; 3] = [Source::Sums, Source::Factors, Source::Payloads];
    /// In the order in which means are made.
    pub(crate) const MADE: [Source; 3] = [Source::Factors, Source::Sums, Source::Payloads];
}

/// A layer, and its place among others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) spec: Spec<'static>,
    /// Of the gradient and its mean.
    pub(crate) dtype: Dtype,
    pub(crate) params: Params,
    /// `None` of what is summed.
    pub(crate) payload: Option<Payload>,
}

impl Member {
    pub(crate) fn shape(&self) -> Shape {
        self.spec.shape
    }

    pub(crate) fn source(&self) -> Source {
        match self.spec.setting {
            Setting::Dense => Source::Sums,
            Setting::PowerSgd(_) => Source::Factors,
            _ => Source::Payloads,
        }
    }
}

/// A bucket's layers and how much memory they take.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) members: Vec<Member>,
    /// Of each workgroup its layer: of values, of TopK's layers in few bits, of blocks of positions.
    pub(crate) of_values: Vec<u32>,
    pub(crate) of_few: Vec<u32>,
    pub(crate) of_blocks: Vec<u32>,
    /// TopK's layers, and words of what is gathered of them, behind a record of each workgroup of values.
    pub(crate) topk: usize,
    pub(crate) entries: usize,
    /// Sums of TopK's workgroups, in words.
    pub(crate) block_sums: usize,
    /// Whether layers under QSGD are encoded when they are offered. Where there are any under TopK, of which all go over what is
    /// offered once more, that would be a dispatch more.
    encodes_at_once: bool,
    /// QSGD's layers for which that is done, of whose buckets workgroups have all values, and the buckets of its other layers.
    pub(crate) whole: usize,
    pub(crate) buckets: usize,
    /// Whether there are any layers but those.
    pub(crate) has_others: bool,
    /// Of what is not compressed.
    pub(crate) dense: usize,
    /// Values that are summed on the wire first: those, and PowerSGD's `P`.
    pub(crate) sums: usize,
    /// PowerSGD's layers, and the steps in which each dispatch makes the chunks of their `P` orthonormal, and then triangles.
    pub(crate) table: Table,
    pub(crate) steps: [Vec<Range<usize>>; 2],
    /// Words of an image.
    pub(crate) image: usize,
    /// Values that TopK keeps.
    pub(crate) kept: usize,
    /// Bytes of a message.
    pub(crate) message: usize,
}

impl Plan {
    /// The layers in this order; `feedback` says whether they have residuals.
    ///
    /// # Errors
    /// [`Error::Method`] for methods that are not exchanged on the device, the core's when a setting does not fit its shape.
    pub(crate) fn new(layers: &[BufferLayer<'_>], feedback: bool) -> Result<Plan, Error> {
        let is_topk = |layer: &BufferLayer<'_>| matches!(layer.setting, Setting::TopK(_) | Setting::QuantisedTopK(_));
        let encodes_at_once = !layers.iter().any(is_topk);
        let mut plan = Plan { message: Slip::LEN, encodes_at_once, ..Plan::default() };
        for layer in layers {
            plan.add(layer, feedback)?;
        }
        if plan.message == Slip::LEN {
            plan.message = 0;
        }
        plan.steps = plan.table.steps();
        let (mut tables, mut counters) = (plan.tables().start, plan.tables().end);
        for member in plan.members.iter_mut().filter(|member| member.params.method == TOP_K) {
            let params = &mut member.params;
            (params.tables, params.counters) = (tables as u32, counters as u32);
            if params.keep > 0 {
                tables += cut::TABLES;
                counters += cut::COUNTERS;
            }
            params.first_entry += (cut::RECORD * plan.of_values.len()) as u32;
            params.block_counts = plan.block_sums as u32;
        }
        Ok(plan)
    }

    fn add(&mut self, layer: &BufferLayer<'_>, feedback: bool) -> Result<(), Error> {
        let BufferGradient { dtype, shape, .. } = layer.gradient;
        let (setting, elements, number) = (layer.setting, shape.elements(), self.members.len() as u32);
        let of = if feedback { Dtype::F32 } else { dtype };
        let spec = Spec { index: layer.index, ..Spec::from((setting, shape, of)) };
        let start = self.of_values.len() * PER_GROUP;
        let mut params = Params {
            offset: if dtype == Dtype::F32 { start } else { 2 * start } as u32,
            dtype: dtype as u32,
            count: elements as u32,
            layer: layer.index,
            number,
            start: start as u32,
            ..Params::default()
        };
        self.of_values.extend(std::iter::repeat_n(number, elements.div_ceil(PER_GROUP)));
        let mut header = [0; HEADER_LEN];
        match setting {
            Setting::Dense => {
                params.sums = self.sums as u32;
                self.sums += elements;
                self.dense += elements;
            }
            Setting::PowerSgd(c) => {
                setting.payload_len(shape, of)?;
                let rank = effective_rank(shape, c.rank);
                params.method = 3;
                self.table.add(shape, rank, (number, layer.index), (start, self.sums))?;
                self.sums += shape.rows() * rank;
            }
            Setting::Qsgd(c) => {
                c.header(shape)?.write(&mut header)?;
                let buckets = elements.div_ceil(c.bucket as usize);
                let scales = self.take(crate::qsgd::scales_len(c, buckets));
                let codes = self.take(elements.div_ceil(32) * 4 * c.bits as usize);
                let of_qsgd = crate::qsgd::of_setting(c);
                let whole = self.encodes_at_once && is_whole(c.bucket as usize, elements);
                params = Params {
                    method: 1,
                    bucket: c.bucket,
                    first_bucket: if whole { 0 } else { 0u32.wrapping_sub(self.buckets as u32) },
                    whole: whole.into(),
                    sign_magnitude: of_qsgd.sign_magnitude,
                    min_max: of_qsgd.min_max,
                    nearest: of_qsgd.nearest,
                    bits: of_qsgd.bits,
                    log_levels: of_qsgd.log_levels,
                    inverse_levels: of_qsgd.inverse_levels,
                    scales,
                    codes,
                    ..params
                };
                if whole {
                    self.whole += 1;
                } else {
                    self.buckets += buckets;
                }
            }
            Setting::TopK(c) => {
                c.header(shape)?.write(&mut header)?;
                params = self.add_topk(c.into(), setting.payload_len(shape, of)? - HEADER_LEN, params)?;
            }
            Setting::QuantisedTopK(c) => {
                quantised_topk::header(&c, shape)?.write(&mut header)?;
                let body = setting.payload_len(shape, of)? - HEADER_LEN;
                params = self.add_topk(c.into(), body, params)?;
            }
            _ => return Err(Error::Method(methods::of_setting(&setting))),
        }
        self.has_others |= params.whole == 0 && elements > 0;
        let payload = match setting {
            Setting::Dense | Setting::PowerSgd(_) => None,
            _ => {
                let len = setting.payload_len(shape, of)?;
                let at = self.message;
                self.message += len;
                Some(Payload { at, len, header })
            }
        };
        self.members.push(Member { spec, dtype, params, payload });
        Ok(())
    }

    fn add_topk(&mut self, kept: Keep, body: usize, params: Params) -> Result<Params, Error> {
        let Keep { top, bits } = kept;
        let layout = top.layout(params.count)?;
        let (keep, number, elements) = (top.keep as usize, params.number, params.count as usize);
        let words = self.take(body);
        let Sample { stratum, most, least } = Sample::new(top.keep, params.count);
        let most_entries = cut::entries(elements);
        let [means, sent] = kept.bytes().map(|bytes| bytes as usize);
        let low = means + sent;
        let high = low + layout.low_bytes as usize;
        let blocks = if layout.coding == Coding::All { 0 } else { (body - high).div_ceil(BLOCK) };
        let place = |byte: usize| (words + (byte / 4) as u32, (byte % 4 * 8) as u32);
        let ((low_word, low_bit), (high_word, high_bit)) = (place(low), place(high));
        let params = Params {
            method: TOP_K,
            bits: bits.into(),
            values_word: words,
            codes: words + (means / 4) as u32,
            starts: self.take(4 * blocks),
            stratum,
            most,
            least,
            block_sums: self.block_sums as u32,
            first_entry: self.entries as u32,
            most_entries: most_entries as u32,
            bins: self.of_few.len() as u32,
            keep: top.keep,
            sent: top.values as u32,
            largest: crate::topk::overflow(top.values),
            placement: layout.coding as u32,
            low_bits: layout.low_bits,
            low_word,
            low_bit,
            high_word,
            high_bit,
            high_len: (8 * (body - high)) as u32,
            first_block: self.of_blocks.len() as u32,
            positions: self.kept as u32,
            window_len: u32::MAX,
            ..params
        };
        self.of_blocks.extend(std::iter::repeat_n(number, blocks));
        // Of a layer without elements nothing is looked for.
        if keep > 0 {
            self.of_few.extend((bits > 0).then_some(number));
            self.topk += 1;
            self.entries += most_entries;
            self.block_sums += cut::sums(elements.div_ceil(PER_GROUP));
        }
        self.kept += keep;
        Ok(params)
    }

    /// Words of the image for so many bytes.
    fn take(&mut self, bytes: usize) -> u32 {
        let at = self.image;
        self.image += bytes.div_ceil(4);
        at as u32
    }

    /// TopK's tables among words of what is counted, behind QSGD's extremes; behind them are its counters.
    pub(crate) fn tables(&self) -> Range<usize> {
        let start = 3 * self.buckets;
        start..start + cut::TABLES * self.topk
    }

    /// Words of what is counted.
    pub(crate) fn counted(&self) -> usize {
        self.tables().end + cut::COUNTERS * self.topk
    }

    /// Values of flat memory.
    pub(crate) fn flat(&self) -> usize {
        self.of_values.len() * PER_GROUP
    }

    /// Whether totals of layers in f32 come before their means.
    pub(crate) fn has_totals(&self) -> bool {
        self.kept > 0 || self.table.q > 0
    }

    /// Layers with payloads, and these.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = (&Member, &Payload)> {
        self.members.iter().filter_map(|member| member.payload.as_ref().map(|payload| (member, payload)))
    }
}
