//! Compression methods from outside lgreco: the trait [`Method`] that they implement, their settings, and a program's
//! list of methods.

use crate::error::Number;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Error, Result, Word};
use core::fmt;
use core::panic::RefUnwindSafe;

/// The parameters of a setting, such as a number of bits. A method defines up to four parameters; unused entries are 0.
/// An f32 parameter is stored as its bits (`f32::to_bits`; see [`Method::is_float`]).
pub type Parameters = [u32; 4];

/// The smallest [`id`](Method::id) that an outside method may have. Smaller ids belong to lgreco's own methods.
pub const FIRST_ID: u8 = 0x80;

/// Names of lgreco's own methods. Outside methods cannot use these names.
pub const RESERVED: [&str; 10] =
    ["dense", "qsgd", "eden", "topk", "powersgd", "clt-k", "hard-threshold", "adacomp", "loco", "sidco"];

/// Largest length of a method's name in bytes.
pub const MAX_NAME: usize = 32;

/// A compression method from outside lgreco, without its parameters.
///
/// lgreco treats settings of the method ([`OwnSetting`]) like settings of its own methods. Outside methods work in
/// measurements, plans, plan files, exchanges with error feedback, agreements between ranks, and saved states. Calls
/// that convert bytes or text to settings of outside methods take the program's list of these methods ([`Methods`]).
///
/// [`encode`](Method::encode) writes the body of a payload. lgreco writes and checks the header, which holds the
/// parameters. Every rank decodes the bodies of all ranks, so [`decode`](Method::decode) must give the same bits on
/// every rank. On bytes that `encode` never writes, `decode` must return an error and must not panic.
///
/// ```
/// use lgreco_core::method::{Method, Methods, OwnSetting, Parameters};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, with_elements, Element};
/// use lgreco_core::{Error, Result, error::expect_len, rng::Stream};
///
/// /// Sends one value for all.
/// #[derive(Debug)]
/// struct Mean;
///
/// impl Method for Mean {
///     fn id(&self) -> u8 { 0x90 }
///     fn name(&self) -> &'static str { "mean" }
///     fn parameters(&self) -> usize { 0 }
///     fn body_len(&self, _: &Parameters, _: Shape, _: Dtype) -> Result<usize> { Ok(4) }
///     fn encode(&self, _: &Parameters, gradient: &Gradient<'_>, _: Stream, _: &mut [u64], body: &mut [u8]) -> Result<usize> {
///         let sum: f32 = with_elements!(gradient.values(), v => v.iter().map(|x| x.to_f32()).sum());
///         body[..4].copy_from_slice(&(sum / gradient.shape().elements() as f32).to_le_bytes());
///         Ok(4)
///     }
///     fn decode(&self, _: &Parameters, _: Shape, body: &[u8], values: &mut [f32]) -> Result<()> {
///         expect_len("payload body bytes", 4, body.len())?;
///         values.fill(f32::from_le_bytes([body[0], body[1], body[2], body[3]]));
///         Ok(())
///     }
/// }
///
/// static KNOWN: &[&dyn Method] = &[&Mean];
/// let setting = Methods::new(KNOWN)?.parse("mean")?.unwrap();
/// assert_eq!((setting.to_string(), setting), ("mean".into(), OwnSetting::new(&Mean, [0; 4])?));
/// # Ok::<(), Error>(())
/// ```
pub trait Method: Sync + RefUnwindSafe + fmt::Debug {
    /// The permanent number of the method in payloads, plans and states, at least [`FIRST_ID`]. Each method of a
    /// program needs a different number.
    fn id(&self) -> u8;

    /// The permanent name: the first word of the method's settings as text. The name begins with a lowercase letter;
    /// lowercase letters, digits and `-` follow.
    fn name(&self) -> &'static str;

    /// Checks the parameters against limits that do not depend on the tensor. The default accepts all parameters.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a parameter out of range.
    fn check(&self, parameters: &Parameters) -> Result<()> {
        let _ = parameters;
        Ok(())
    }

    /// Number of parameters that the method has, at most 4. A setting's text contains these parameters. The other
    /// entries of [`Parameters`] are 0. Defaults to 1.
    fn parameters(&self) -> usize {
        1
    }

    /// Bytes that [`encode`](Method::encode) writes for a gradient of this shape and element type. The number is exact
    /// if [`has_fixed_len`](Method::has_fixed_len) returns true, and otherwise an upper bound. With error feedback, the
    /// element type is f32.
    ///
    /// The number must be the same at every call with the same arguments. lgreco does not call this function for empty
    /// tensors, whose bodies are empty.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the parameters do not fit the shape.
    fn body_len(&self, parameters: &Parameters, shape: Shape, dtype: Dtype) -> Result<usize>;

    /// Whether shape and element type alone determine the length of a payload. Defaults to true.
    fn has_fixed_len(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        true
    }

    /// Whether a payload decodes to the gradient in expectation, with errors that are independent between workers. Defaults
    /// to false.
    fn is_unbiased(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        false
    }

    /// Whether residuals stay bounded even if a payload contains no part of the gradient. Threshold methods return
    /// true, because they send a value as soon as its sum with the residual reaches the threshold. Defaults to false.
    ///
    /// In a method that returns false, a layer's residual could grow without limit when the squared error is at least
    /// the gradient's squared norm. So controllers leave such layers uncompressed.
    fn is_bounded(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        false
    }

    /// Whether the parameter with this index is an f32. For such a parameter, the setting's text shows the number
    /// (`0.001`), not its bits. Defaults to false.
    fn is_float(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// 8-byte words of workspace that [`encode`](Method::encode) needs. Not called for empty tensors. Defaults to none.
    fn workspace_len(&self, parameters: &Parameters, shape: Shape, dtype: Dtype) -> usize {
        let _ = (parameters, shape, dtype);
        0
    }

    /// Compresses `gradient` into the front of `body`, and returns the number of bytes written.
    ///
    /// `body` has [`body_len`](Method::body_len) bytes. Gradients are finite and not empty. Random bits come from
    /// `stream`. `workspace` and `body` hold arbitrary old content, not zeros. If this function panics, the program
    /// ends.
    ///
    /// # Errors
    /// For example [`Error::ElementOverflow`], when a number is too large for the type in which it is sent.
    fn encode(
        &self,
        parameters: &Parameters,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        body: &mut [u8],
    ) -> Result<usize>;

    /// Decodes `body` and writes all of `values`, one finite value per element of the shape.
    ///
    /// # Errors
    /// [`Error::PayloadBody`] or [`Error::Length`] on bytes that `encode` never writes.
    fn decode(&self, parameters: &Parameters, shape: Shape, body: &[u8], values: &mut [f32]) -> Result<()>;
}

const WRONG_NAME: Error = Error::UnknownName {
    what: "method",
    expected: "a name of its own, of up to 32 lowercase letters, digits and -, a letter first",
};

/// Checks the name of an outside method. Settings as text begin with the name, so it must not read as anything else.
fn check_name(name: &str) -> Result<()> {
    let is_word = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let is_word = is_word && name.starts_with(|first: char| first.is_ascii_lowercase());
    if is_word && name.len() <= MAX_NAME && !RESERVED.contains(&name) { Ok(()) } else { Err(WRONG_NAME) }
}

/// A [`Method`] with its parameters.
///
/// ```
/// # use lgreco_core::method::{Method, OwnSetting};
/// /// Works with any.
/// fn name(method: &'static dyn Method) -> String {
///     OwnSetting::new(method, [3, 0, 0, 0]).map_or_else(|error| error.to_string(), |setting| setting.to_string())
/// }
/// ```
#[derive(Clone, Copy)]
pub struct OwnSetting {
    id: u8,
    method: &'static dyn Method,
    parameters: Parameters,
}

impl OwnSetting {
    /// Pairs a method with parameters, after checking their ranges.
    ///
    /// # Errors
    /// [`Error::Parameter`] if [`Method::check`] refuses the parameters, for an id below [`FIRST_ID`], for an unused
    /// parameter that is not 0, and for a float that is not finite. [`Error::UnknownName`] for a name that is not allowed.
    pub fn new(method: &'static dyn Method, parameters: Parameters) -> Result<OwnSetting> {
        let id = method.id();
        Error::require(id >= FIRST_ID, "id of a method", id.into(), "128 to 255: others are lgreco's")?;
        check_name(method.name())?;
        let unused = parameters.get(method.parameters()..).and_then(|unused| unused.iter().find(|&&number| number > 0));
        let unused = unused.copied().unwrap_or(0);
        Error::require(unused == 0, "parameter that the method does not have", unused.into(), "0")?;
        for (_, number) in parameters.iter().enumerate().filter(|(index, _)| method.is_float(*index)) {
            let number = f32::from_bits(*number);
            Error::require(number.is_finite(), "parameter of the method", number.into(), "a finite number")?;
        }
        method.check(&parameters)?;
        Ok(OwnSetting { id, method, parameters })
    }

    /// The method's id.
    pub const fn id(&self) -> u8 {
        self.id
    }

    /// The method.
    pub fn method(&self) -> &'static dyn Method {
        self.method
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl PartialEq for OwnSetting {
    fn eq(&self, other: &OwnSetting) -> bool {
        (self.id, self.parameters) == (other.id, other.parameters)
    }
}

/// Writes the name and the parameters that the method uses, such as `mean` or `other 3`.
impl fmt::Display for OwnSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.name())?;
        let mut numbers = self.parameters.iter().enumerate().take(self.method.parameters());
        numbers.try_for_each(|(index, &number)| match self.method.is_float(index) {
            true => write!(f, " {}", Number(&f32::from_bits(number))),
            false => write!(f, " {number}"),
        })
    }
}

impl fmt::Debug for OwnSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// The outside methods that a program knows. Defaults to none.
///
/// All code that reads settings takes this list: readers of plan files, and decoders of payloads with unknown settings.
/// Controllers need the list for plans from other ranks and for saved states.
#[derive(Clone, Copy, Debug, Default)]
pub struct Methods(&'static [&'static dyn Method]);

/// Two lists are equal if their ids and names are the same.
impl PartialEq for Methods {
    fn eq(&self, other: &Methods) -> bool {
        let name = |method: &&'static dyn Method| (method.id(), method.name());
        self.0.iter().map(name).eq(other.0.iter().map(name))
    }
}

impl Methods {
    /// The empty list.
    pub const NONE: Methods = Methods(&[]);

    /// Checks a list of methods. [`Method`] has an example.
    ///
    /// # Errors
    /// [`Error::Parameter`] for an id that two methods share or that is below [`FIRST_ID`], and for more than 4 parameters.
    /// [`Error::UnknownName`] for a name that two methods share or that is not allowed.
    ///
    /// # Complexity
    /// O(methods²).
    pub fn new(methods: &'static [&'static dyn Method]) -> Result<Methods> {
        for (index, method) in methods.iter().enumerate() {
            OwnSetting::new(*method, [0; 4]).map(drop).or_else(|error| match error {
                Error::Parameter { what: "id of a method", .. } | Error::UnknownName { .. } => Err(error),
                _ => Ok(()), // checks only id and name: zeros may be out of the method's range
            })?;
            let (id, name) = (method.id(), method.name());
            let count = method.parameters();
            Error::require(count <= 4, "number of parameters", count as f64, "at most 4")?;
            let others = || methods[..index].iter();
            let differ = "an id of its own: two methods have it";
            Error::require(others().all(|other| other.id() != id), "id of a method", id.into(), differ)?;
            if others().any(|other| other.name() == name) {
                return Err(WRONG_NAME);
            }
        }
        Ok(Methods(methods))
    }

    /// All methods in the given order.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Method> + '_ {
        self.0.iter().copied()
    }

    /// The method with this id.
    pub fn find(&self, id: u8) -> Option<&'static dyn Method> {
        self.iter().find(|method| method.id() == id)
    }

    /// Parses the text of a setting. Returns `None` when the first word is not the name of a method in the list.
    ///
    /// # Errors
    /// [`Error::SettingSyntax`] unless exactly one number per parameter follows the name. [`Error::Parameter`] for a
    /// number out of range.
    pub fn parse(&self, text: &str) -> Result<Option<OwnSetting>> {
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let Some(method) = self.iter().find(|method| method.name() == name) else { return Ok(None) };
        let mut parameters = Parameters::default();
        for (index, number) in parameters.iter_mut().enumerate().take(method.parameters()) {
            let word = words.next().unwrap_or_default();
            let wrong = |expected| Error::SettingSyntax { word: Word::new(word), expected };
            *number = match method.is_float(index) {
                true => word.parse::<f32>().map_err(|_| wrong("a number"))?.to_bits(),
                false => word.parse().map_err(|_| wrong("a whole number"))?,
            };
        }
        match words.next() {
            Some(word) => Err(Error::SettingSyntax { word: Word::new(word), expected: "the end" }),
            None => OwnSetting::new(method, parameters).map(Some),
        }
    }
}
