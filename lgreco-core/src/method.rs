//! What a compressor of one's own implements: the trait [`Method`], settings of it, and the list of methods that a program
//! knows.

use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Error, Result, Word};
use core::fmt;
use core::panic::RefUnwindSafe;

/// Up to four numbers of a setting, such as bits. The method defines them; unused ones are 0. A float travels as its bits
/// (`f32::to_bits`).
pub type Parameters = [u32; 4];

/// The least [`id`](Method::id) of methods that are not lgreco's own.
pub const FIRST_ID: u8 = 0x80;

/// Names of lgreco's own methods, which others cannot have.
pub const RESERVED: [&str; 10] =
    ["dense", "qsgd", "eden", "topk", "powersgd", "clt-k", "hard-threshold", "adacomp", "loco", "sidco"];

/// Most bytes of a method's name.
pub const MAX_NAME: usize = 32;

/// A compression method from outside lgreco, without its parameters.
///
/// A setting of it ([`OwnSetting`]) takes part in everything that lgreco's own methods do: measured rows, plans and their files,
/// exchanges with error feedback, agreement between ranks, saved states. Where bytes or text must be turned into settings, the
/// program says which methods it knows ([`Methods`]).
///
/// The bytes that [`encode`](Method::encode) writes are the payload's body; lgreco writes and checks the header before it, in
/// which the parameters are. Bodies of every rank are decoded by every rank, so [`decode`](Method::decode) must give the same
/// bits on all of them, and must refuse bytes that `encode` does not write without a panic.
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
    /// The permanent number of the method in payloads, plans and states, from [`FIRST_ID`] on. Methods of one program differ
    /// in it.
    fn id(&self) -> u8;

    /// The first word of its settings as text: lowercase letters, digits and `-`, a letter first. Permanent, too.
    fn name(&self) -> &'static str;

    /// `Err` unless the parameters are in range for any tensor.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    fn check(&self, parameters: &Parameters) -> Result<()> {
        let _ = parameters;
        Ok(())
    }

    /// How many of the parameters are written in texts, all others being 0. Defaults to one.
    fn parameters(&self) -> usize {
        1
    }

    /// Bytes that [`encode`](Method::encode) writes for a gradient of this element type (f32 where error feedback is kept): exactly, if [`has_fixed_len`](Method::has_fixed_len), else at most.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the parameters do not fit the shape.
    fn body_len(&self, parameters: &Parameters, shape: Shape, dtype: Dtype) -> Result<usize>;

    /// Whether shape and element type alone decide the length of a payload. Defaults to true.
    fn has_fixed_len(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        true
    }

    /// Whether payloads decode to the gradient in expectation, with errors that are independent from worker to worker. Defaults
    /// to false.
    fn is_unbiased(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        false
    }

    /// Words of workspace that [`encode`](Method::encode) needs. Defaults to none.
    fn workspace_len(&self, parameters: &Parameters, shape: Shape, dtype: Dtype) -> usize {
        let _ = (parameters, shape, dtype);
        0
    }

    /// Compresses into the front of `body`, which has room for [`body_len`](Method::body_len) bytes, and returns the number of
    /// bytes written. Gradients are finite and have elements; random bits are those of `stream`. What `workspace` and `body` hold
    /// before is of earlier calls, not zeros. A panic ends the program.
    ///
    /// # Errors
    /// Such as [`Error::ElementOverflow`] when a number is too large for the type it is sent in.
    fn encode(
        &self,
        parameters: &Parameters,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        body: &mut [u8],
    ) -> Result<usize>;

    /// Decodes `body` into all of `values`, one per element of the shape; finite values.
    ///
    /// # Errors
    /// [`Error::PayloadBody`] or [`Error::Length`] on bytes that `encode` does not write.
    fn decode(&self, parameters: &Parameters, shape: Shape, body: &[u8], values: &mut [f32]) -> Result<()>;
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
    /// A setting whose parameters are in range.
    ///
    /// # Errors
    /// [`Error::Parameter`] as [`Method::check`], and for an id below [`FIRST_ID`].
    pub fn new(method: &'static dyn Method, parameters: Parameters) -> Result<OwnSetting> {
        let id = method.id();
        Error::require(id >= FIRST_ID, "id of a method", id.into(), "128 to 255: others are lgreco's")?;
        let unused = parameters.get(method.parameters()..).and_then(|unused| unused.iter().find(|&&number| number > 0));
        let unused = unused.copied().unwrap_or(0);
        Error::require(unused == 0, "parameter that the method does not have", unused.into(), "0")?;
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

    /// Its parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl PartialEq for OwnSetting {
    fn eq(&self, other: &OwnSetting) -> bool {
        (self.id, self.parameters) == (other.id, other.parameters)
    }
}

/// The name and the parameters that the method has.
impl fmt::Display for OwnSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.name())?;
        self.parameters.iter().take(self.method.parameters()).try_for_each(|number| write!(f, " {number}"))
    }
}

impl fmt::Debug for OwnSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// The methods that a program knows beside lgreco's own. Defaults to none.
///
/// Whatever reads settings takes one: plan files, controllers that hear of another rank's plan or restore a state, decoders of
/// payloads whose setting is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Methods(&'static [&'static dyn Method]);

/// The same ids and names.
impl PartialEq for Methods {
    fn eq(&self, other: &Methods) -> bool {
        let name = |method: &&'static dyn Method| (method.id(), method.name());
        self.0.iter().map(name).eq(other.0.iter().map(name))
    }
}

impl Methods {
    /// None.
    pub const NONE: Methods = Methods(&[]);

    /// These. [`Method`] has an example.
    ///
    /// # Errors
    /// [`Error::Parameter`] with an id that two have or that is lgreco's own; [`Error::UnknownName`] for a name that two have or
    /// that cannot be one.
    ///
    /// # Complexity
    /// O(methods²).
    pub fn new(methods: &'static [&'static dyn Method]) -> Result<Methods> {
        for (index, method) in methods.iter().enumerate() {
            OwnSetting::new(*method, [0; 4]).map(drop).or_else(|error| match error {
                Error::Parameter { what: "id of a method", .. } => Err(error),
                _ => Ok(()), // zeros need not be in range
            })?;
            let (id, name) = (method.id(), method.name());
            let count = method.parameters();
            Error::require(count <= 4, "number of parameters", count as f64, "at most 4")?;
            let others = || methods[..index].iter();
            let differ = "an id of its own: two methods have it";
            Error::require(others().all(|other| other.id() != id), "id of a method", id.into(), differ)?;
            let is_word = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            let is_word = is_word && name.starts_with(|first: char| first.is_ascii_lowercase());
            let fits = is_word && name.len() <= MAX_NAME && !RESERVED.contains(&name);
            if !fits || others().any(|other| other.name() == name) {
                let expected = "a name of its own, of up to 32 lowercase letters, digits and -, a letter first";
                return Err(Error::UnknownName { what: "method", expected });
            }
        }
        Ok(Methods(methods))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Method> + '_ {
        self.0.iter().copied()
    }

    /// The one with this id.
    pub fn find(&self, id: u8) -> Option<&'static dyn Method> {
        self.iter().find(|method| method.id() == id)
    }

    /// The setting of one of them that a text states; `None` where the first word is no name of theirs.
    ///
    /// # Errors
    /// [`Error::SettingSyntax`] on words that are not as many numbers as the method has parameters; [`Error::Parameter`] on
    /// one out of range.
    pub fn parse(&self, text: &str) -> Result<Option<OwnSetting>> {
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let Some(method) = self.iter().find(|method| method.name() == name) else { return Ok(None) };
        let mut parameters = Parameters::default();
        for number in parameters.iter_mut().take(method.parameters()) {
            let word = words.next().unwrap_or_default();
            let wrong = |_| Error::SettingSyntax { word: Word::new(word), expected: "a whole number" };
            *number = word.parse().map_err(wrong)?;
        }
        match words.next() {
            Some(word) => Err(Error::SettingSyntax { word: Word::new(word), expected: "the end" }),
            None => OwnSetting::new(method, parameters).map(Some),
        }
    }
}
