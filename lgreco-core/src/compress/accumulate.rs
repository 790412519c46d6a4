//! How decoders put values where others are.

/// How decoded values meet those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// They are added.
    Add,
    /// They are subtracted.
    Subtract,
}

impl Combine {
    /// `place`, combined with a decoded value.
    #[inline(always)]
    pub(super) fn put(self, place: &mut f32, value: f32) {
        match self {
            Combine::Add => *place += value,
            Combine::Subtract => *place -= value,
        }
    }
}
