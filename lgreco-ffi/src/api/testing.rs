use super::context::lgreco_context;
use crate::status::lgreco_status;

/// Panics inside a call on `context`.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_testing_panic(context: *mut lgreco_context) -> lgreco_status {
    call!(context, |_| panic!("injected"))
}
