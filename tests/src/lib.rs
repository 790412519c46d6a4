//! Cross-crate tests of lgreco; see `tests/run`.

pub mod fuzz;

/// Runs the Rust code of documentation pages as doctests. `tests/documentation.rs` checks that no page is left out.
/// lgreco-wgpu includes its own README.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/src/start/rust.md")]
    pub struct Start;

    #[doc = include_str!("../../docs/src/how/planning.md")]
    pub struct Planning;
}

/// Doctests of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// Doctests of the README of lgreco-core.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco-core/README.md")]
pub struct CoreReadme;

/// Doctests of the README of lgreco.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco/README.md")]
pub struct LgrecoReadme;

/// Doctests of the README of lgreco-train.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco-train/README.md")]
pub struct TrainReadme;

/// Doctests of the README of lgreco-pipeline.
#[cfg(doctest)]
#[doc = include_str!("../../lgreco-pipeline/README.md")]
pub struct PipelineReadme;
