//! Checks for fuzz targets and for tests of pictures.

mod arguments;
pub mod labels;
mod safetensors;

pub use arguments::check_arguments;
pub use safetensors::safetensors;
