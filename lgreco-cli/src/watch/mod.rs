//! A training run in progress, from the lines of `lgreco_train::controller::metrics_line`.

mod line;
mod page;
mod run;
mod source;

pub use page::html;
pub use run::Run;
pub use source::{Next, Source};

#[cfg(test)]
mod tests;
