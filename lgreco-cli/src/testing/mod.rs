//! What fuzz targets and tests of pictures check.

mod arguments;
pub mod labels;
mod safetensors;

pub use arguments::check_arguments;
pub use safetensors::safetensors;
