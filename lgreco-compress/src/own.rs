//! Payloads of methods from outside lgreco.
//!
//! In the header, `method` is the method's id, `parameter` is the first parameter, and `variant` is the number of
//! further parameters. After the header:
//!
//! | bytes | content |
//! |---|---|
//! | 4 × `variant` | the further parameters up to the last that is not 0, little-endian |
//! | 4 | length of the body |
//! | remaining | the body, in the method's format |

use super::describe::Described;
use super::wire::{HEADER_LEN, Header, Method, Payload, payload_len};
use super::{Compressor, Cost, ResidualKind, Traits, check_finite};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Error, Result};
use core::fmt;
use lgreco_core::method::{FIRST_ID, Methods, OwnSetting, Parameters};

/// Number of parameters after the header.
fn more(parameters: &Parameters) -> usize {
    parameters.iter().rposition(|&number| number > 0).unwrap_or(0)
}

/// Bytes before the body.
fn before_body(more: usize) -> usize {
    HEADER_LEN + 4 * more + 4
}

impl Compressor for OwnSetting {
    fn traits(&self) -> Traits {
        let unbiased = self.method().is_unbiased(self.parameters());
        let residual = if unbiased { ResidualKind::Optional } else { ResidualKind::Classic };
        let family = Cost::FIRST_OUTSIDE + usize::from(self.method().id().saturating_sub(FIRST_ID));
        let bounded = self.method().is_bounded(self.parameters());
        Traits { unbiased, residual, bounded, ..Traits::whole(Cost::of_elements(family, 4.0, 1.0)) }
    }

    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize> {
        // The body of an empty tensor is empty, because the method is not called for empty tensors.
        let body = match shape.elements() {
            0 => 0,
            _ => self.method().body_len(self.parameters(), shape, dtype)? as u64,
        };
        Error::require(body <= u32::MAX.into(), "bytes of a body", body as f64, "below 2^32")?;
        payload_len((before_body(more(self.parameters())) - HEADER_LEN) as u64 + body, shape)
    }

    fn has_fixed_len(&self) -> bool {
        self.method().has_fixed_len(self.parameters())
    }

    fn encode_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        if shape.elements() == 0 { 0 } else { self.method().workspace_len(self.parameters(), shape, dtype) }
    }

    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        let (shape, dtype, parameters) = (gradient.shape(), gradient.values().dtype(), self.parameters());
        let most = self.payload_len(shape, dtype)?;
        expect_room("payload bytes", most, payload.len())?;
        let words = self.encode_workspace_len(shape, dtype);
        expect_room("workspace words", words, workspace.len())?;
        check_finite(gradient)?;
        let (more, method) = (more(parameters), Method::Own(self.method().id()));
        Header { method, variant: more as u8, parameter: parameters[0], shape }.write(payload)?;
        for (place, number) in payload[HEADER_LEN..].chunks_exact_mut(4).zip(&parameters[1..=more]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let (before, body) = payload[..most].split_at_mut(before_body(more));
        let len = match shape.elements() {
            0 => 0,
            _ => self.method().encode(parameters, gradient, stream, &mut workspace[..words], body)?,
        };
        // Checks the promised length, because all ranks allocate buffers of this length.
        match self.has_fixed_len() {
            true => expect_len("bytes of a body, as the method promises", body.len(), len)?,
            false => expect_len("bytes of a body, as the method promises at most", len.min(body.len()), len)?,
        }
        let place = before.len() - 4;
        before[place..].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(before.len() + len)
    }
}

impl Described for OwnSetting {
    fn id(&self) -> u8 {
        OwnSetting::id(self)
    }

    fn parameters(&self) -> Parameters {
        *OwnSetting::parameters(self)
    }

    fn check(&self) -> Result<()> {
        OwnSetting::method(self).check(OwnSetting::parameters(self))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn method(&self) -> Method {
        Method::Own(OwnSetting::id(self))
    }

    fn decode(&self, payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
        decode_as(payload, self, values)
    }
}

/// Splits a payload into its parameters and its body.
fn parts<'a>(payload: &Payload<'a>) -> Result<(Parameters, &'a [u8])> {
    let more = usize::from(payload.header.variant);
    if more > 3 {
        return Err(Error::PayloadField { what: "number of further parameters", largest: 3, found: more as u64 });
    }
    let before = before_body(more) - HEADER_LEN;
    expect_room("payload body bytes", before, payload.body.len())?;
    let (numbers, body) = payload.body.split_at(before);
    let number = |index: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| numbers[4 * index + byte]));
    let mut parameters = [payload.header.parameter, 0, 0, 0];
    (0..more).for_each(|index| parameters[index + 1] = number(index));
    let len = number(more) as usize;
    expect_room("payload body bytes", len, body.len())?;
    Error::require_body(parameters[more] > 0 || more == 0, "its last parameter is 0")?;
    Ok((parameters, &body[..len]))
}

/// Number of bytes after the header, as stated in the payload.
pub(super) fn stated(payload: &Payload<'_>) -> Result<usize> {
    let (_, body) = parts(payload)?;
    Ok(before_body(usize::from(payload.header.variant)) - HEADER_LEN + body.len())
}

/// Decodes a payload with the method and parameters that it states.
pub(super) fn decode(payload: &Payload<'_>, methods: &Methods, values: &mut [f32]) -> Result<()> {
    let Method::Own(id) = payload.header.method else {
        return Err(Error::PayloadBody { what: "its method is lgreco's own" });
    };
    let method = methods.find(id).ok_or(Error::UnknownMethod { id })?;
    let (parameters, _) = parts(payload)?;
    decode_as(payload, &OwnSetting::new(method, parameters)?, values)
}

/// Decodes a payload that must have this setting.
fn decode_as(payload: &Payload<'_>, setting: &OwnSetting, values: &mut [f32]) -> Result<()> {
    let shape = payload.header.shape;
    let (parameters, body) = parts(payload)?;
    payload.header.expect_method(Method::Own(setting.method().id()))?;
    Error::require_body(parameters == *setting.parameters(), "its parameters are not those of the setting")?;
    expect_len("payload body bytes", stated(payload)?, payload.body.len())?;
    expect_len("values", shape.elements(), values.len())?;
    if shape.elements() == 0 {
        return expect_len("bytes of an empty tensor's body", 0, body.len());
    }
    // Fills `values` with NaN, so that an element that the method leaves out does not keep its old value.
    values.fill(f32::NAN);
    setting.method().decode(&parameters, shape, body, values)?;
    Error::require_body(
        values.iter().all(|x| x.is_finite()),
        "it decodes to a value that is not finite, or leaves out an element",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::Values;
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// A method that promises at most 8 bytes and reports that it wrote `parameters[0]` bytes. If `parameters[0]` is 0,
    /// the method requires `usize::MAX` words of workspace. If `parameters[0]` is odd, decoding leaves out the last
    /// element.
    #[derive(Debug)]
    struct Untrue;

    impl lgreco_core::method::Method for Untrue {
        fn id(&self) -> u8 {
            FIRST_ID
        }
        fn name(&self) -> &'static str {
            "untrue"
        }
        fn has_fixed_len(&self, _: &Parameters) -> bool {
            false
        }
        fn body_len(&self, _: &Parameters, _: Shape, _: Dtype) -> Result<usize> {
            Ok(8)
        }
        fn workspace_len(&self, parameters: &Parameters, _: Shape, _: Dtype) -> usize {
            if parameters[0] == 0 { usize::MAX } else { 0 }
        }
        fn encode(
            &self,
            parameters: &Parameters,
            _: &Gradient<'_>,
            _: Stream,
            _: &mut [u64],
            _: &mut [u8],
        ) -> Result<usize> {
            Ok(parameters[0] as usize)
        }
        fn decode(&self, parameters: &Parameters, _: Shape, _: &[u8], values: &mut [f32]) -> Result<()> {
            let filled = values.len() - (parameters[0] % 2) as usize;
            values[..filled].fill(0.0);
            Ok(())
        }
    }

    #[test]
    fn a_body_above_the_promised_length_is_refused() {
        let gradient = Gradient::new(Values::F32(&[1.0; 4]), Shape::new(4, 1).unwrap()).unwrap();
        let encoded = |len| {
            let setting = OwnSetting::new(&Untrue, [len, 0, 0, 0]).unwrap();
            setting.encode(&gradient, Stream::default(), &mut [], &mut [0; 64])
        };
        assert_eq!(encoded(8), Ok(before_body(0) + 8));
        let what = "bytes of a body, as the method promises at most";
        assert_eq!(encoded(9), Err(Error::Length { what, expected: 8, found: 9 }));
    }

    #[test]
    fn an_element_that_decoding_leaves_out_is_an_error() {
        let gradient = Gradient::new(Values::F32(&[1.0; 4]), Shape::new(4, 1).unwrap()).unwrap();
        let decoded = |len| {
            let setting = OwnSetting::new(&Untrue, [len, 0, 0, 0]).unwrap();
            let mut payload = [0; 64];
            let len = setting.encode(&gradient, Stream::default(), &mut [], &mut payload).unwrap();
            let mut values = [5.0; 4];
            setting.decode(&Payload::parse(&payload[..len]).unwrap(), &mut values).map(|()| values)
        };
        assert_eq!(decoded(8), Ok([0.0; 4]));
        assert_eq!(
            decoded(7),
            Err(Error::PayloadBody { what: "it decodes to a value that is not finite, or leaves out an element" })
        );
    }

    /// A method whose bodies have 4 bytes for the first call of `body_len`, and 4,000 bytes more for each later call.
    /// Panics if it is called for an empty tensor.
    #[derive(Debug)]
    struct Growing(AtomicUsize);

    impl lgreco_core::method::Method for Growing {
        fn id(&self) -> u8 {
            FIRST_ID + 1
        }
        fn name(&self) -> &'static str {
            "growing"
        }
        fn body_len(&self, _: &Parameters, shape: Shape, _: Dtype) -> Result<usize> {
            assert!(shape.elements() > 0, "called for an empty tensor");
            Ok(4 + 4000 * self.0.fetch_add(1, Ordering::Relaxed))
        }
        fn workspace_len(&self, _: &Parameters, shape: Shape, _: Dtype) -> usize {
            assert!(shape.elements() > 0, "called for an empty tensor");
            0
        }
        fn encode(&self, _: &Parameters, _: &Gradient<'_>, _: Stream, _: &mut [u64], _: &mut [u8]) -> Result<usize> {
            Ok(4)
        }
        fn decode(&self, _: &Parameters, _: Shape, _: &[u8], values: &mut [f32]) -> Result<()> {
            values.fill(0.0);
            Ok(())
        }
    }

    #[test]
    fn a_length_that_changes_between_calls_is_an_error() {
        static GROWING: Growing = Growing(AtomicUsize::new(0));
        let gradient = Gradient::new(Values::F32(&[1.0; 4]), Shape::new(4, 1).unwrap()).unwrap();
        let setting = OwnSetting::new(&GROWING, [0; 4]).unwrap();
        let error = setting.measure(&gradient, Stream::default(), &mut [0; 16]).unwrap_err();
        assert!(matches!(error, Error::Length { what: "payload bytes", .. }), "{error}");
        let error = setting.measure(&gradient, Stream::default(), &mut [0; 16]).unwrap_err();
        assert!(matches!(error, Error::Length { what: "workspace words", .. }), "{error}");
    }

    #[test]
    fn methods_are_not_called_for_empty_tensors() {
        static GROWING: Growing = Growing(AtomicUsize::new(0));
        let setting = OwnSetting::new(&GROWING, [0; 4]).unwrap();
        let shape = Shape::new(0, 4).unwrap();
        assert_eq!(setting.payload_len(shape, Dtype::F32), Ok(before_body(0)));
        assert_eq!(setting.encode_workspace_len(shape, Dtype::F32), 0);
        let gradient = Gradient::new(Values::F32(&[]), shape).unwrap();
        let mut payload = [0; 32];
        assert_eq!(setting.encode(&gradient, Stream::default(), &mut [], &mut payload), Ok(before_body(0)));
    }

    /// A method with this name.
    #[derive(Debug)]
    struct Named(&'static str);

    impl lgreco_core::method::Method for Named {
        fn id(&self) -> u8 {
            FIRST_ID + 2
        }
        fn name(&self) -> &'static str {
            self.0
        }
        fn body_len(&self, _: &Parameters, _: Shape, _: Dtype) -> Result<usize> {
            Ok(0)
        }
        fn encode(&self, _: &Parameters, _: &Gradient<'_>, _: Stream, _: &mut [u64], _: &mut [u8]) -> Result<usize> {
            Ok(0)
        }
        fn decode(&self, _: &Parameters, _: Shape, _: &[u8], _: &mut [f32]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn names_that_settings_cannot_have_are_refused() {
        static WRONG: [Named; 5] = [Named("qsgd"), Named("my \"m\""), Named("M"), Named("1a"), Named("")];
        for method in &WRONG {
            let error = OwnSetting::new(method, [4, 0, 0, 0]).unwrap_err();
            assert!(matches!(error, Error::UnknownName { what: "method", .. }), "{method:?}: {error}");
        }
        static RIGHT: Named = Named("own-2");
        assert!(OwnSetting::new(&RIGHT, [4, 0, 0, 0]).is_ok());
    }

    #[test]
    fn any_length_of_workspace_can_be_stated() {
        let setting = OwnSetting::new(&Untrue, [0; 4]).unwrap();
        assert_eq!(setting.measure_workspace_len(Shape::new(4, 1).unwrap(), Dtype::F32), usize::MAX);
    }
}
