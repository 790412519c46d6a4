//! The exported functions, one file per noun.

// The order of the header, kept by the empty lines.
mod version;

mod context;

mod gradient;

mod setting;

mod setting_bytes;

mod setting_text;

mod measure;
mod row;

mod table;

mod table_file;

mod plan;

mod plan_file;

mod encoded;

mod compressor_options;

mod compressor;

mod memory;

mod sealed;

mod collective;

mod controller_options;

mod controller;

mod request;

mod step;

mod bucket;

mod plan_task;

mod inspect;

mod saved;

mod cut_setting;

mod cut_setting_bytes;

mod cut;

mod cut_messages;

mod cut_state;

mod cuda;

mod cuda_measure;

mod cuda_payload;

mod cuda_bucket;

#[cfg(feature = "testing")]
mod testing;

pub use bucket::*;
pub use collective::*;
pub use compressor::*;
pub use compressor_options::*;
pub use context::*;
pub use controller::*;
pub use controller_options::*;
pub use cuda::*;
pub use cuda_bucket::*;
pub use cuda_measure::*;
pub use cuda_payload::*;
pub use cut::*;
pub use cut_messages::*;
pub use cut_setting::*;
pub use cut_setting_bytes::*;
pub use cut_state::*;
pub use gradient::*;
pub use inspect::*;
pub use measure::*;
pub use memory::*;
pub use plan::*;
pub use plan_file::*;
pub use plan_task::*;
pub use request::*;
pub use saved::*;
pub use sealed::*;
pub use setting::*;
pub use setting_bytes::*;
pub use setting_text::*;
pub use step::*;
pub use table::*;
pub use table_file::*;
#[cfg(feature = "testing")]
pub use testing::*;
pub use version::*;
