//! Checks that fuzz targets and tests share.

mod arguments;
mod safetensors;

pub use arguments::check_arguments;
pub use safetensors::safetensors;
