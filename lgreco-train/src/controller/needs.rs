//! How much memory a bucket takes beside the gradients.

use super::lens::{Facts, Left};
use crate::Error;
use crate::exchange::{Layout, Moment, Spec};
use crate::gradient::Dtype;

/// What the layers of a bucket take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Values that are compressed in place of the gradients, from beginning to end.
    pub offered: usize,
    /// Values that are left, while means take the gradients' place.
    pub rest: usize,
    /// Words that hold something from one call to the next.
    pub workspace: usize,
    /// Words of a call that compresses.
    pub compressing: usize,
    /// Words of the call that makes means, beside `rest`.
    pub averaging: usize,
}

/// What is known of a layer, and whether what is left of it is made where its next residual will be.
pub(super) type Known<'a> = (Spec<'a>, Facts, bool);

impl Needs {
    pub(super) fn of<'a>(layers: impl Iterator<Item = Known<'a>> + Clone, moment: &Moment) -> Result<Needs, Error> {
        let specs = layers.clone().map(|(spec, ..)| spec);
        let narrow = Layout::of(specs.clone(), moment)?;
        // With a residual, f32 is compressed.
        let wide = Layout::of(specs.map(|spec| Spec { dtype: Dtype::F32, ..spec }), moment)?;
        let values = |left: Left| layers.clone().filter(move |(_, facts, _)| facts.left == left);
        let beside = values(Left::Beside).filter(|(.., in_place)| !in_place);
        Ok(Needs {
            offered: values(Left::Instead).map(|(spec, ..)| spec.shape.elements()).sum(),
            rest: beside.map(|(spec, ..)| spec.shape.elements()).sum(),
            workspace: narrow.words().max(wide.words()),
            compressing: narrow.scratch_words().max(wide.scratch_words()),
            averaging: narrow.averaging_words().max(wide.averaging_words()),
        })
    }

    /// What is enough for both.
    pub(super) fn max(self, other: Needs) -> Needs {
        Needs {
            offered: self.offered.max(other.offered),
            rest: self.rest.max(other.rest),
            workspace: self.workspace.max(other.workspace),
            compressing: self.compressing.max(other.compressing),
            averaging: self.averaging.max(other.averaging),
        }
    }

    /// Bytes from the bucket's beginning to its end.
    pub(super) const fn lasting(&self) -> u64 {
        8 * self.workspace as u64 + 4 * self.offered as u64
    }

    /// Bytes of the call that takes the most.
    pub(super) fn passing(&self) -> u64 {
        8 * self.compressing.max(self.averaging + self.rest.div_ceil(2)) as u64
    }
}
