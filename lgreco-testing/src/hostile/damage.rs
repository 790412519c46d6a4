//! Turns bytes into choices, and into damage to other bytes.

/// Turns bytes into choices. After the last byte, all choices are 0.
#[derive(Clone, Debug)]
pub struct Choices<'a>(&'a [u8]);

/// Numbers that often reveal errors in readers and sums: the smallest and largest integers, limits of counts, NaN,
/// infinities, the largest and the smallest magnitudes of f32 and f64, and −0. Some words contain two f32 numbers.
const WORDS: [u64; 16] = [
    0,
    1,
    2,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    (1 << 63) - 1,
    1 << 32,
    (1 << 32) - 1,
    0x7ff8_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7f7f_ffff_7f7f_ffff,
    0x7f80_0000_ff80_0000,
    0x0000_0001_8000_0001,
    0x8000_0000_8000_0000,
];

impl<'a> Choices<'a> {
    /// Choices from `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(bytes)
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    /// A number below `count`; 0 if `count` is 0. It takes two bytes.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % count.max(1)
    }

    /// One of `options`.
    ///
    /// # Panics
    /// Panics if `options` is empty.
    pub fn of<'b, T>(&mut self, options: &'b [T]) -> &'b T {
        &options[usize::from(self.byte()) % options.len()]
    }

    /// The remaining bytes.
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Changes a bit, a byte, four or eight bytes, to arbitrary values or to one of `WORDS`, or copies eight bytes
    /// from elsewhere. The number of bytes stays the same.
    pub fn damage(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let (kind, at) = (self.byte(), self.below(bytes.len()));
        // Fields mostly lie at multiples of their sizes.
        let field = |size: usize| if kind & 0x80 == 0 { at / size * size } else { at };
        let mut put = |at: usize, field: &[u8]| bytes[at..].iter_mut().zip(field).for_each(|(to, &byte)| *to = byte);
        match kind % 6 {
            0 => bytes[at] ^= 1 << (self.byte() % 8),
            1 => bytes[at] = self.byte(),
            2 => put(field(4), &[self.byte(), self.byte(), self.byte(), self.byte()]),
            3 => put(field(4), &self.of(&WORDS).to_le_bytes()[..4]),
            4 => put(field(8), &self.of(&WORDS).to_le_bytes()),
            _ => {
                let from = self.below(bytes.len());
                let copied: Vec<u8> = bytes[from / 8 * 8..].iter().copied().take(8).collect();
                bytes[field(8)..].iter_mut().zip(copied).for_each(|(to, byte)| *to = byte);
            }
        }
    }

    /// Like [`damage`](Choices::damage), but may also cut off, insert or repeat bytes.
    pub fn damage_any(&mut self, bytes: &mut Vec<u8>) {
        match self.byte() % 16 {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => {
                let at = self.below(bytes.len() + 1) / 8 * 8;
                bytes.splice(at..at, self.of(&WORDS).to_le_bytes());
            }
            2 => {
                let (at, len) = (self.below(bytes.len() + 1), self.below(64));
                let copied: Vec<u8> = bytes[at..].iter().copied().take(len).collect();
                bytes.splice(at..at, copied);
            }
            3 => {
                let (at, len) = (self.below(bytes.len() + 1), self.below(64));
                bytes.drain(at..(at + len).min(bytes.len()));
            }
            _ => self.damage(bytes),
        }
    }
}
