//! Between messages and images.

use super::plan::{BLOCK, Member, Payload, Plan};
use lgreco_core::Error as CoreError;
use lgreco_core::compress::topk::Coding;
use lgreco_core::compress::wire::{self, HEADER_LEN, Method};
use lgreco_core::compress::{Setting, qsgd, topk};
use lgreco_core::internal::quantised_topk;
use lgreco_train::Error;

/// Where the parts of a payload's body are: its length in bytes, and a word of the image.
fn parts(member: &Member, payload: &Payload) -> [(usize, usize); 2] {
    let (params, body) = (&member.params, payload.len - HEADER_LEN);
    match member.spec.setting {
        Setting::Qsgd(c) => {
            let scales = crate::qsgd::scales_len(c, member.shape().elements().div_ceil(c.bucket as usize));
            [(scales, params.scales as usize), (body - scales, params.codes as usize)]
        }
        _ => [(body, params.values_word as usize), (0, 0)],
    }
}

/// Writes the payloads of an image into a message.
pub(crate) fn write_message(plan: &Plan, image: &[u8], message: &mut [u8]) {
    for (member, payload) in plan.payloads() {
        let (header, mut body) = message[payload.at..][..payload.len].split_at_mut(HEADER_LEN);
        header.copy_from_slice(&payload.header);
        for (len, word) in parts(member, payload) {
            let (part, rest) = body.split_at_mut(len);
            part.copy_from_slice(&image[4 * word..][..len]);
            body = rest;
        }
    }
}

/// Makes an image of a rank's message, and finds fault with it where the core does without looking at each value.
///
/// # Errors
/// [`Error::PeerMessage`].
pub(crate) fn read_message(plan: &Plan, rank: u32, message: &[u8], image: &mut [u32]) -> Result<(), Error> {
    for (member, payload) in plan.payloads() {
        let bytes = &message[payload.at..][..payload.len];
        check(member, payload, bytes).map_err(|error| Error::PeerMessage { rank, code: error.code() })?;
        let mut body = &bytes[HEADER_LEN..];
        for (len, word) in parts(member, payload) {
            let (part, rest) = body.split_at(len);
            let words = &mut image[word..][..len.div_ceil(4)];
            if let Some(last) = words.last_mut() {
                *last = 0;
            }
            bytemuck::cast_slice_mut(words)[..len].copy_from_slice(part);
            body = rest;
        }
        if method(member) != Method::Qsgd {
            count(member, &bytes[HEADER_LEN..], image)
                .then_some(())
                .ok_or_else(|| Error::PeerMessage { rank, code: fault(member, bytes).code() })?;
        }
    }
    Ok(())
}

/// What is wrong with a payload's header, or with what goes before its values.
fn check(member: &Member, payload: &Payload, bytes: &[u8]) -> Result<(), CoreError> {
    if bytes[..HEADER_LEN] != payload.header {
        return Err(fault(member, bytes));
    }
    let parsed = wire::Payload::parse(bytes)?;
    match method(member) {
        Method::Qsgd => qsgd::of_payload(&parsed).map(|_| ()),
        Method::QuantisedTopK => quantised_topk::of_payload(&parsed).map(|_| ()),
        _ => topk::of_payload(&parsed).map(|_| ()),
    }
}

/// The method of a layer's payloads.
fn method(member: &Member) -> Method {
    match member.spec.setting {
        Setting::Qsgd(_) => Method::Qsgd,
        Setting::QuantisedTopK(_) => Method::QuantisedTopK,
        _ => Method::TopK,
    }
}

/// What the core finds wrong with a payload, of which it is known that something is.
pub(crate) fn fault(member: &Member, bytes: &[u8]) -> CoreError {
    let other = CoreError::PayloadBody { what: "its header is not that of the layer's setting" };
    let decode = || {
        let payload = wire::Payload::parse(bytes)?;
        if (payload.header.method, payload.header.shape) != (method(member), member.shape()) {
            return Err(other);
        }
        lgreco_core::compress::decode(bytes, &mut vec![0.0; member.shape().elements()])
    };
    decode().err().unwrap_or(other)
}

/// Writes down how many ones there are before each block of positions; whether there are as many as values.
fn count(member: &Member, body: &[u8], image: &mut [u32]) -> bool {
    let params = &member.params;
    if params.placement == Coding::All as u32 {
        return true;
    }
    let high = &body[body.len() - params.high_len as usize / 8..];
    let (mut sum, starts) = (0, &mut image[params.starts as usize..]);
    for (block, start) in high.chunks(BLOCK).zip(starts) {
        *start = sum as u32;
        sum += crate::positions::count_ones(block);
    }
    sum == params.keep as usize
}
