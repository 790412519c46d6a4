use super::compressor::lgreco_compressor;
use crate::status::lgreco_status;

/// Panics inside a call on `compressor`.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_testing_panic(compressor: *mut lgreco_compressor) -> lgreco_status {
    call!(compressor, |_| panic!("injected"))
}
