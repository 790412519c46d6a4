//! Status codes.

use core::ffi::{CStr, c_char};

/// Revision of these headers. The revision changes whenever a declaration changes, and the INIT macros write the
/// revision into their structs. In a program that was compiled with headers of another revision, the first call that
/// takes a struct fails with LGRECO_STRUCT_SIZE.
pub const LGRECO_HEADER_REVISION: u32 = 6;

/// The result of a call: LGRECO_OK, or the reason of the failure. Codes are permanent.
pub type lgreco_status = u32;

/// The call succeeded.
pub const LGRECO_OK: lgreco_status = 0;
/// An array or buffer does not have the length that the call needs.
pub const LGRECO_LENGTH: lgreco_status = 1;
/// A parameter or an option's value is out of range, or does not fit the other options.
pub const LGRECO_PARAMETER: lgreco_status = 2;
/// A tensor has 2^32 or more rows, columns or elements.
pub const LGRECO_TOO_MANY_ELEMENTS: lgreco_status = 3;
/// A gradient holds NaN or infinity.
pub const LGRECO_NON_FINITE: lgreco_status = 4;
/// A result does not fit the number format in which it is sent.
pub const LGRECO_OVERFLOW: lgreco_status = 5;
/// A name is unknown.
pub const LGRECO_UNKNOWN_NAME: lgreco_status = 6;
/// Memory cannot be allocated.
pub const LGRECO_OUT_OF_MEMORY: lgreco_status = 7;
/// An element is too large for the format in which it is sent.
pub const LGRECO_ELEMENT_OVERFLOW: lgreco_status = 8;
/// A device failed, or does not support the operation.
pub const LGRECO_DEVICE: lgreco_status = 9;
/// A word of a setting is unknown at its position.
pub const LGRECO_SETTING_WORD: lgreco_status = 10;
/// A setting has a wrong word or number, or ends too early.
pub const LGRECO_SETTING_SYNTAX: lgreco_status = 11;
/// A table has no layers.
pub const LGRECO_EMPTY_TABLE: lgreco_status = 20;
/// A layer has no options.
pub const LGRECO_EMPTY_LAYER: lgreco_status = 21;
/// An option's error is NaN, infinite or negative.
pub const LGRECO_OPTION_ERROR: lgreco_status = 22;
/// The sum of the layers' largest option sizes does not fit 64 bits.
pub const LGRECO_SIZE_OVERFLOW: lgreco_status = 23;
/// A number is not the index of an option of its layer.
pub const LGRECO_NO_SUCH_OPTION: lgreco_status = 24;
/// An error budget is NaN, infinite or negative.
pub const LGRECO_BUDGET: lgreco_status = 25;
/// No plan is within the error budget.
pub const LGRECO_INFEASIBLE: lgreco_status = 26;
/// The error of a plan exceeds its budget.
pub const LGRECO_OVER_BUDGET: lgreco_status = 27;
/// A plan does not have the size, error or bound that it states.
pub const LGRECO_PLAN_MISMATCH: lgreco_status = 28;
/// Two layers have the same name.
pub const LGRECO_DUPLICATE_NAME: lgreco_status = 29;
/// No plan is within the size limit.
pub const LGRECO_SIZE_INFEASIBLE: lgreco_status = 30;
/// The size of a plan exceeds its size limit.
pub const LGRECO_OVER_SIZE: lgreco_status = 31;
/// The layers of a group have no option in common.
pub const LGRECO_NO_SHARED_OPTION: lgreco_status = 32;
/// The layers of a group, matched by option index, have different numbers of options. C calls match by label, and do
/// not return this code.
pub const LGRECO_UNEQUAL_OPTIONS: lgreco_status = 33;
/// A plan chooses an option that the table's groups or fixed options exclude.
pub const LGRECO_RULED_OUT: lgreco_status = 34;
/// The bytes are not a payload of this version.
pub const LGRECO_PAYLOAD_HEADER: lgreco_status = 40;
/// The body of a payload contradicts the payload's header.
pub const LGRECO_PAYLOAD_BODY: lgreco_status = 41;
/// A header field of a payload has a value that this version does not define.
pub const LGRECO_PAYLOAD_FIELD: lgreco_status = 42;
/// Neither the library nor the program knows the method.
pub const LGRECO_UNKNOWN_METHOD: lgreco_status = 43;
/// With this setting, error feedback may amplify errors.
pub const LGRECO_NOT_CONTRACTIVE: lgreco_status = 60;
/// The compressor has no error feedback, or the memory of a cut does not fit its codec, its direction or the call.
pub const LGRECO_FEEDBACK_RULE: lgreco_status = 61;
/// The bytes are not a saved state of this version.
pub const LGRECO_SAVED_STATE: lgreco_status = 62;
/// A saved state or a sealed payload is damaged or cut short.
pub const LGRECO_CHECKSUM: lgreco_status = 63;
/// A collective callback failed.
pub const LGRECO_COLLECTIVE: lgreco_status = 80;
/// Another worker failed.
pub const LGRECO_PEER: lgreco_status = 81;
/// Workers differ in the layers or options of an exchange.
pub const LGRECO_PEER_PLAN: lgreco_status = 82;
/// A message from another worker cannot be decoded.
pub const LGRECO_PEER_MESSAGE: lgreco_status = 83;
/// A layer, gradient or bucket does not match the layers of the controller.
pub const LGRECO_LAYER_MISMATCH: lgreco_status = 100;
/// A layer's gradient holds NaN or infinity.
pub const LGRECO_NON_FINITE_GRADIENT: lgreco_status = 101;
/// A layer is in a bucket that is being exchanged.
pub const LGRECO_IN_FLIGHT: lgreco_status = 102;
/// The call is not allowed at this point of the step. For instance, no step has begun, or gradients were already
/// submitted.
pub const LGRECO_STEP_ORDER: lgreco_status = 103;
/// The call gives settings to a controller that was made without settings.
pub const LGRECO_NOT_FIXED: lgreco_status = 104;
/// The message is not the next message for this end of the cut.
pub const LGRECO_OUT_OF_STEP: lgreco_status = 120;
/// The two ends of a cut remember different values of a sample.
pub const LGRECO_SAMPLE_OUT_OF_STEP: lgreco_status = 121;
/// A batch contains a sample twice.
pub const LGRECO_DUPLICATE_SAMPLE: lgreco_status = 122;
/// There are more micro-batches in flight than the option `in_flight` allows.
pub const LGRECO_TOO_MANY_IN_FLIGHT: lgreco_status = 123;
/// No micro-batch in flight has this ticket.
pub const LGRECO_NOT_IN_FLIGHT: lgreco_status = 124;
/// The call is allowed only between steps.
pub const LGRECO_MID_STEP: lgreco_status = 125;
/// The saved end of a cut has a different setting.
pub const LGRECO_OTHER_SETTING: lgreco_status = 126;
/// A required pointer is NULL.
pub const LGRECO_NULL_POINTER: lgreco_status = 200;
/// A pointer is not aligned for its type.
pub const LGRECO_ALIGNMENT: lgreco_status = 201;
/// An output overlaps an input or another output.
pub const LGRECO_OVERLAP: lgreco_status = 202;
/// The struct_size of a struct differs from the value in this library's headers. Either the INIT macro was not used, or
/// the program was compiled with headers of another revision.
pub const LGRECO_STRUCT_SIZE: lgreco_status = 203;
/// A number is not one of the constants of its type.
pub const LGRECO_UNKNOWN_CONSTANT: lgreco_status = 204;
/// A text is not UTF-8, contains a NUL, or lacks the NUL at its end.
pub const LGRECO_TEXT: lgreco_status = 205;
/// The text is not JSON, or lacks expected fields.
pub const LGRECO_JSON: lgreco_status = 206;
/// The version of a table or plan file is not supported by this library.
pub const LGRECO_JSON_VERSION: lgreco_status = 207;
/// The pointer is not a handle, is a handle of another kind, or is a copy of a destroyed handle.
pub const LGRECO_HANDLE: lgreco_status = 208;
/// The handle is in use by another call.
pub const LGRECO_BUSY: lgreco_status = 209;
/// The device does not exist, cannot be used, or does not support the request; or the requested data do not exist yet.
pub const LGRECO_UNAVAILABLE: lgreco_status = 210;
/// The table has no compressor setting for the option, because the library did not measure the table.
pub const LGRECO_NO_SETTINGS: lgreco_status = 211;
/// The call is only for the other end of a cut.
pub const LGRECO_OTHER_END: lgreco_status = 212;
/// This build of the library does not support devices of this kind.
pub const LGRECO_NOT_BUILT_IN: lgreco_status = 213;
/// The call has no option of this name, or the option is given twice.
pub const LGRECO_UNKNOWN_OPTION: lgreco_status = 214;
/// The trainer of this rank has reported a failure by lgreco_bucket_submit_failure.
pub const LGRECO_TRAINER: lgreco_status = 215;
/// A bug in the library. The handle of the call can only be destroyed.
pub const LGRECO_PANIC: lgreco_status = 255;

/// Returns the name of the constant, such as "LGRECO_INFEASIBLE", or "unknown status" for other numbers. The text is
/// static.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_status_name(status: lgreco_status) -> *const c_char {
    name(status).unwrap_or(c"unknown status").as_ptr()
}

/// Defines the function `name`, which maps a status code to the name of its constant.
macro_rules! named_constants {
    ($($constant:ident,)*) => {
        fn name(status: lgreco_status) -> Option<&'static CStr> {
            let name = match status {
                $($constant => concat!(stringify!($constant), "\0"),)*
                _ => return None,
            };
            CStr::from_bytes_with_nul(name.as_bytes()).ok()
        }
    };
}

named_constants! {
    LGRECO_OK, LGRECO_LENGTH, LGRECO_PARAMETER, LGRECO_TOO_MANY_ELEMENTS, LGRECO_NON_FINITE, LGRECO_OVERFLOW,
    LGRECO_UNKNOWN_NAME, LGRECO_OUT_OF_MEMORY, LGRECO_ELEMENT_OVERFLOW, LGRECO_DEVICE, LGRECO_SETTING_WORD,
    LGRECO_SETTING_SYNTAX, LGRECO_EMPTY_TABLE, LGRECO_EMPTY_LAYER, LGRECO_OPTION_ERROR, LGRECO_SIZE_OVERFLOW,
    LGRECO_NO_SUCH_OPTION, LGRECO_BUDGET, LGRECO_INFEASIBLE, LGRECO_OVER_BUDGET, LGRECO_PLAN_MISMATCH,
    LGRECO_DUPLICATE_NAME, LGRECO_SIZE_INFEASIBLE, LGRECO_OVER_SIZE, LGRECO_NO_SHARED_OPTION, LGRECO_UNEQUAL_OPTIONS, LGRECO_RULED_OUT,
    LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_BODY, LGRECO_PAYLOAD_FIELD, LGRECO_UNKNOWN_METHOD, LGRECO_NOT_CONTRACTIVE, LGRECO_FEEDBACK_RULE, LGRECO_SAVED_STATE, LGRECO_CHECKSUM,
    LGRECO_COLLECTIVE, LGRECO_PEER, LGRECO_PEER_PLAN, LGRECO_PEER_MESSAGE, LGRECO_LAYER_MISMATCH,
    LGRECO_NON_FINITE_GRADIENT, LGRECO_IN_FLIGHT, LGRECO_STEP_ORDER, LGRECO_NOT_FIXED, LGRECO_OUT_OF_STEP,
    LGRECO_SAMPLE_OUT_OF_STEP, LGRECO_DUPLICATE_SAMPLE, LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_NOT_IN_FLIGHT,
    LGRECO_MID_STEP, LGRECO_OTHER_SETTING, LGRECO_NULL_POINTER, LGRECO_ALIGNMENT, LGRECO_OVERLAP,
    LGRECO_STRUCT_SIZE, LGRECO_UNKNOWN_CONSTANT, LGRECO_TEXT, LGRECO_JSON, LGRECO_JSON_VERSION, LGRECO_HANDLE,
    LGRECO_BUSY, LGRECO_UNAVAILABLE, LGRECO_NO_SETTINGS, LGRECO_OTHER_END, LGRECO_NOT_BUILT_IN, LGRECO_UNKNOWN_OPTION, LGRECO_TRAINER,
    LGRECO_PANIC,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_status_have_no_name() {
        assert_eq!((name(12), name(199), name(u32::MAX)), (None, None, None));
    }
}
