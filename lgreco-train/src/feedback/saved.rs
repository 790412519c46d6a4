//! The bytes of a saved memory.
//!
//! | bytes | field, little-endian |
//! |---|---|
//! | 0..2 | `LM` |
//! | 2 | version, 2 |
//! | 3 | 0 |
//! | 4 | storage: 0 f32, 1 bf16, 2 int8 |
//! | 5..8 | 0 |
//! | 8..12 | gain, f32 |
//! | 12..16 | steps between resets, 0 for never |
//! | 16..20 | rows |
//! | 20..24 | columns |
//! | 24..32 | steps so far |
//! | 32.. | the elements; for int8 the codes, then the exponent fields of the groups |
//! | the last 8 | checksum of all bytes before it; absent if the memory is part of a larger saved state |

use super::storage::{EXPONENT_MAX, GROUP};
use super::{Memory, Residual, Storage};
use crate::checksum;
use crate::gradient::Shape;
use crate::{CoreError, Error};
use lgreco::error::{expect_len, expect_room};

/// Bytes before the elements of a saved memory.
const SAVED_HEADER_LEN: usize = 32;
const MAGIC: u16 = u16::from_le_bytes(*b"LM");
const VERSION: u8 = 2;

impl<W: AsRef<[u64]> + AsMut<[u64]>> Memory<W> {
    /// Exact number of bytes that [`save`](Memory::save) writes.
    pub fn saved_len(&self) -> usize {
        self.part_len() + checksum::LEN
    }

    /// Exact number of bytes that [`save_part`](Memory::save_part) writes.
    pub(crate) fn part_len(&self) -> usize {
        SAVED_HEADER_LEN + self.residual.storage.bytes(self.shape.elements()) as usize
    }

    /// Writes the whole memory to `bytes[..saved_len]`, and returns that length.
    ///
    /// The bytes are a header of 32 bytes (`LM`, version, 0, storage, gain, reset period, shape, steps), the elements,
    /// and a checksum. All numbers are little-endian, so the bytes are the same on every machine. The caller must
    /// record the layer and the rank of the memory, which the bytes do not contain.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `bytes` is shorter than [`saved_len`](Memory::saved_len).
    pub fn save(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        let len = self.saved_len();
        expect_room("saved state bytes", len, bytes.len())?;
        self.save_part(&mut bytes[..len - checksum::LEN]);
        checksum::seal(&mut bytes[..len]);
        Ok(len)
    }

    /// Writes the memory without a checksum to `bytes`, which has [`part_len`](Memory::part_len) bytes.
    pub(crate) fn save_part(&self, bytes: &mut [u8]) {
        let Residual { gain, reset_every, storage } = self.residual;
        let (header, body) = bytes.split_at_mut(SAVED_HEADER_LEN);
        header[..2].copy_from_slice(&MAGIC.to_le_bytes());
        header[2..8].copy_from_slice(&[VERSION, 0, storage as u8, 0, 0, 0]);
        header[8..12].copy_from_slice(&gain.to_le_bytes());
        header[12..16].copy_from_slice(&reset_every.to_le_bytes());
        header[16..20].copy_from_slice(&(self.shape.rows() as u32).to_le_bytes());
        header[20..24].copy_from_slice(&(self.shape.cols() as u32).to_le_bytes());
        header[24..].copy_from_slice(&self.steps.to_le_bytes());
        body.copy_from_slice(&bytemuck::cast_slice::<u64, u8>(self.words.as_ref())[..body.len()]);
        to_or_from_little_endian(storage, body);
    }
}

/// A saved memory whose bytes have been checked.
///
/// ```
/// use lgreco_train::feedback::{Memory, Residual, SavedState};
/// use lgreco_train::{gradient::Shape, rng::Stream};
/// let shape = Shape::new(2, 2)?;
/// let mut memory = Memory::owned(Residual::LOCO, shape)?;
/// memory.set(&[1.0, -0.5, 0.25, 0.0], Stream::default())?;
/// let mut bytes = vec![0; memory.saved_len()];
/// memory.save(&mut bytes)?;
///
/// let saved = SavedState::parse(&bytes)?;
/// assert_eq!((saved.residual(), saved.shape(), saved.steps()), (Residual::LOCO, shape, 0));
/// let words = vec![0; saved.residual().state_len(saved.shape())];
/// let restored = saved.restore(words)?;
/// assert_eq!(restored.squared_norm(), memory.squared_norm());
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SavedState<'a> {
    residual: Residual,
    shape: Shape,
    steps: u64,
    body: &'a [u8],
}

impl<'a> SavedState<'a> {
    /// Checks the bytes of a saved memory. Bytes from untrusted sources may be given.
    ///
    /// # Errors
    /// [`CoreError::Checksum`] when the bytes of a saved memory were changed; for other bytes [`CoreError::Length`],
    /// [`CoreError::SavedState`], [`CoreError::Parameter`] (gain), [`CoreError::TooManyElements`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        expect_room("saved state bytes", SAVED_HEADER_LEN + checksum::LEN, bytes.len())?;
        check_version(bytes)?;
        Self::parse_part(checksum::open(bytes)?)
    }

    /// Checks bytes that [`Memory::save_part`] has written.
    pub(crate) fn parse_part(bytes: &'a [u8]) -> Result<Self, Error> {
        expect_room("saved state bytes", SAVED_HEADER_LEN, bytes.len())?;
        check_version(bytes)?;
        let (header, body) = bytes.split_at(SAVED_HEADER_LEN);
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        CoreError::require_saved(header[5..8] == [0; 3], "reserved field", (word(4) >> 8).into())?;
        let code = header[4];
        let storage = Storage::ALL.into_iter().find(|&s| s as u8 == code);
        let storage = storage.ok_or(CoreError::SavedState { what: "storage", found: code as u64 })?;
        let residual = Residual { gain: f32::from_bits(word(8)), reset_every: word(12), storage };
        CoreError::require_saved(header[3] == 0, "rule", header[3].into())?;
        residual.check()?;
        let shape = Shape::new(word(16) as usize, word(20) as usize)?;
        let expected = storage.bytes(shape.elements());
        expect_len("saved elements, bytes", usize::try_from(expected).unwrap_or(usize::MAX), body.len())?;
        check_elements(storage, body)?;
        Ok(SavedState { residual, shape, steps: word(24) as u64 | (word(28) as u64) << 32, body })
    }

    /// How the residual was kept: its gain, resets and format.
    pub const fn residual(&self) -> Residual {
        self.residual
    }

    /// The shape of the memory's layer. The caller must compare this shape with that of the layer for which the memory
    /// is restored.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of updates before the memory was saved.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Restores the memory, which continues bit for bit from where it was saved.
    ///
    /// # Errors
    /// The errors of [`Memory::new`].
    pub fn restore<W: AsRef<[u64]> + AsMut<[u64]>>(&self, words: W) -> Result<Memory<W>, Error> {
        let mut memory = Memory::new(self.residual, self.shape, words)?;
        let body = &mut bytemuck::cast_slice_mut::<u64, u8>(memory.words.as_mut())[..self.body.len()];
        body.copy_from_slice(self.body);
        to_or_from_little_endian(self.residual.storage, body);
        memory.steps = self.steps;
        Ok(memory)
    }
}

fn check_version(bytes: &[u8]) -> Result<(), Error> {
    let magic = u16::from_le_bytes([bytes[0], bytes[1]]);
    CoreError::require_saved(magic == MAGIC, "magic", magic.into())?;
    Ok(CoreError::require_saved(bytes[2] == VERSION, "version", bytes[2].into())?)
}

fn to_or_from_little_endian(storage: Storage, body: &mut [u8]) {
    if cfg!(target_endian = "big") {
        match storage {
            Storage::F32 => body.as_chunks_mut::<4>().0.iter_mut().for_each(|x| x.reverse()),
            Storage::Bf16 => body.as_chunks_mut::<2>().0.iter_mut().for_each(|x| x.reverse()),
            Storage::Int8 => {}
        }
    }
}

/// `Err` unless all elements are finite.
fn check_elements(storage: Storage, body: &[u8]) -> Result<(), Error> {
    let wrong = match storage {
        Storage::F32 => {
            body.as_chunks::<4>().0.iter().map(|&x| u32::from_le_bytes(x)).find(|x| !f32::from_bits(*x).is_finite())
        }
        Storage::Bf16 => {
            let values = body.as_chunks::<2>().0.iter().map(|&x| u16::from_le_bytes(x) as u32);
            values.into_iter().find(|x| x & 0x7f80 == 0x7f80)
        }
        Storage::Int8 => {
            let (codes, exponents) = body.split_at(body.len() - body.len().div_ceil(GROUP + 1));
            let code = codes.iter().find(|&&code| code == 0x80);
            code.or_else(|| exponents.iter().find(|&&exponent| exponent > EXPONENT_MAX)).map(|&x| x as u32)
        }
    };
    wrong.map_or(Ok(()), |found| Err(CoreError::SavedState { what: "an element", found: found as u64 }.into()))
}
