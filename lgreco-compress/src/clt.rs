//! CLT-k, the cyclic local top-k of ScaleCom: one leader selects the positions of its k largest values, and all workers
//! send their values at these positions.
//!
//! At step `t`, rank `t mod W` leads. The leader selects the `keep` largest magnitudes of its compensated gradient and
//! broadcasts their positions. One all-reduce then sums all workers' values at these positions. Because all workers
//! share the positions, selecting commutes with averaging, and the traffic of a worker does not grow with the number of
//! workers.
//!
//! `lgreco-train` runs this exchange for layers with the setting [`CltK`]. The gain of the residuals corresponds to β
//! in ScaleCom's low-pass filter.
//!
//! # Source
//! Chen et al., "ScaleCom: Scalable sparsified gradient compression for communication-efficient distributed training",
//! NeurIPS 2020. Deviations: (1) The selection is exact, and ties go to the lowest positions. The paper takes the
//! largest element of each chunk. (2) Positions are coded as in [`topk`], not as 32-bit indices.

use super::describe::{Described, Known, Planned, Unit};
use super::positions::{self, Layout, Writer};
use super::topk::{self, TopK};
use super::{Aggregation, Compressor, Cost, Setting, Traits, check_finite, wire};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::{Error, Result};
use core::fmt;
use lgreco_core::method::Parameters;

/// Keeps the values at the positions of the leader's `keep` largest magnitudes.
///
/// A payload has the format of [`TopK`] with f32 values, and contains the encoder's own selection. Error tables use the
/// length of this payload: header, positions and values. In an exchange the leader sends positions and values, the
/// other ranks send 4 bytes per value, and no rank sends a header.
///
/// # Complexity
/// The complexity of [`TopK`]. In an exchange only the leader selects.
///
/// ```
/// use lgreco_compress::{Compressor, clt::CltK};
/// use lgreco_core::gradient::{Dtype, Shape};
/// let bytes = CltK { keep: 10_000 }.payload_len(Shape::new(1000, 1000)?, Dtype::F32)?;
/// assert_eq!(bytes, 16 + 4 * 10_000 + 10_703); // 8.6 bits for each position
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CltK {
    /// Number of elements kept: between 1 and the number of elements, or 0 for a tensor without elements.
    pub keep: u32,
}

impl CltK {
    const fn top(&self) -> TopK {
        TopK { keep: self.keep, values: Dtype::F32 }
    }

    fn layout(&self, elements: usize) -> Layout {
        Layout::new(elements as u32, self.keep)
    }

    /// Bytes of the positions that the leader broadcasts.
    #[doc(hidden)]
    pub fn positions_len(&self, shape: Shape) -> usize {
        self.layout(shape.elements()).bytes() as usize
    }

    /// Writes the positions of the largest magnitudes, exactly [`positions_len`](CltK::positions_len) bytes.
    #[doc(hidden)]
    pub fn lead(&self, gradient: &Gradient<'_>, workspace: &mut [u64], positions: &mut [u8]) -> Result<()> {
        let shape = gradient.shape();
        let layout = self.layout(shape.elements());
        topk::check_keep(self.keep, shape.elements())?;
        expect_len("bytes of positions", self.positions_len(shape), positions.len())?;
        expect_room("workspace words", self.encode_workspace_len(shape, Dtype::F32), workspace.len())?;
        let writer = Writer::new(layout, positions);
        if self.keep == 0 {
            return check_finite(gradient);
        }
        with_elements!(gradient.values(), v => {
            topk::write_positions(v, layout, self.keep, workspace, writer, |_| ())
        })
    }

    /// Calls `visit` with each of the leader's positions in ascending order. Returns an error unless there are exactly
    /// `keep` positions, all below the number of elements.
    #[doc(hidden)]
    pub fn for_each(&self, shape: Shape, positions: &[u8], mut visit: impl FnMut(usize)) -> Result<()> {
        let mut count = 0;
        positions::for_each(self.layout(shape.elements()), positions, |position| {
            count += 1;
            Error::require_body(count <= self.keep, "more positions than kept values")?;
            visit(position as usize);
            Ok(())
        })?;
        Error::require_body(count == self.keep, "fewer positions than kept values")
    }
}

impl Compressor for CltK {
    fn traits(&self) -> Traits {
        let cost = Cost { family: 2, element: [3.0, 0.0], kept: self.keep, value: [4.0; 2] };
        Traits { aggregation: Aggregation::SharedPositions, ..Traits::payloads(cost) }
    }

    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize> {
        self.top().payload_len(shape, dtype)
    }

    fn encode_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        self.top().encode_workspace_len(shape, dtype)
    }

    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        self.top().encode(gradient, stream, workspace, payload)
    }
}

impl Described for CltK {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [self.keep, 0, 0, 0]
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clt-k {}", self.keep)
    }

    fn method(&self) -> wire::Method {
        wire::Method::TopK
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 7,
    name: "clt-k",
    read: Some(|words| Ok(Setting::CltK(CltK { keep: words.last("a number of elements")? }))),
    from_parameters: |[keep, ..]| Ok(Setting::CltK(CltK { keep })),
};

pub(crate) const PLANNED: Planned = Planned {
    about: "Sparsification at positions that all workers share; biased",
    default: 0.01,
    bounds: Unit::DENSITIES,
    expected: Unit::A_DENSITY,
    unit: Unit::Density,
    around: [10.0, 10.0, 10.0],
    setting: |density, shape, dtype| {
        Ok(Setting::CltK(CltK { keep: TopK::with_density(density, shape.elements(), dtype)?.keep }))
    },
};
