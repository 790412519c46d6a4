//! Two compressors that lgreco does not have, and the list of them for lgreco.
//!
//! ```
//! use lgreco::backend::Portable;
//! use lgreco::gradient::Values;
//! use lgreco::search::{Layer, Method, Search};
//! let gradient: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
//! let layers = [Layer::new("fc.weight", &[64, 64], Values::F32(&gradient))?];
//! let mut search = Search::new(Method::Qsgd);
//! search.methods = own_compressor::methods();
//! search.beside = vec![own_compressor::setting("sign"), own_compressor::setting("natural")];
//! let measured = search.measure(&layers, &mut Portable)?;
//! assert_eq!(measured.table.labels(0)[7..], ["sign", "natural"]);
//! # Ok::<(), lgreco::table::NamedError>(())
//! ```

mod natural;
mod sign;

pub use natural::Natural;
pub use sign::Sign;

use lgreco::compress::Setting;
use lgreco::compress::method::{Method, Methods};

static METHODS: &[&dyn Method] = &[&Sign, &Natural];

/// All outside methods of this crate.
pub fn methods() -> Methods {
    Methods::new(METHODS).expect("ids and names that differ")
}

/// Parses a setting of a method of this crate or of lgreco.
///
/// # Panics
/// Panics if the text is not a setting.
pub fn setting(text: &str) -> Setting {
    Setting::parse(text, &methods()).expect("a setting")
}
