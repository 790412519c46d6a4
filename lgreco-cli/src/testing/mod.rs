//! What fuzz targets check.

mod arguments;
mod safetensors;

pub use arguments::check_arguments;
pub use safetensors::safetensors;
