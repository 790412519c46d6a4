use super::context::lgreco_context;
use crate::handle;
use crate::status::lgreco_status;

/// Panics inside a call on `context`.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_testing_panic(context: *mut lgreco_context) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::call(context, |_| panic!("injected")) }
}
