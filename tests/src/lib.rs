//! Cross-crate tests of lgreco; see `tests/run`.

pub mod fuzz;

/// Blocks of Rust on pages, as doctests. `tests/documentation.rs` checks that no page is left out; that of lgreco-wgpu is in
/// its crate.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/src/start/rust.md")]
    pub struct Start;

    #[doc = include_str!("../../docs/src/how/planning.md")]
    pub struct Planning;
}

/// Those of the core's README.
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
