//! Cross-crate tests of lgreco; see `tests/run`.

pub mod fuzz;

/// The README's examples, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// Those of the core's.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco-core/README.md")]
pub struct CoreReadme;

/// Those of what measures and plans.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco/README.md")]
pub struct LgrecoReadme;

/// Those of training's.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco-train/README.md")]
pub struct TrainReadme;

/// Those of pipeline cuts'.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco-pipeline/README.md")]
pub struct PipelineReadme;
