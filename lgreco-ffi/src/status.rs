//! Status codes.

use core::ffi::{CStr, c_char};

/// Number of the headers, which changes with every declaration in them. The INIT macros put it into their structs. The first
/// call that is given a struct by a program that was compiled with other headers than the library's fails with
/// LGRECO_STRUCT_SIZE.
pub const LGRECO_HEADER_REVISION: u32 = 5;

/// How a call ended: LGRECO_OK, or why it failed. Codes are permanent.
pub type lgreco_status = u32;

/// Done.
pub const LGRECO_OK: lgreco_status = 0;
/// An array or buffer has not the length the call needs.
pub const LGRECO_LENGTH: lgreco_status = 1;
/// A parameter is outside its range.
pub const LGRECO_PARAMETER: lgreco_status = 2;
/// A tensor with 2^32 rows, columns or elements, or more.
pub const LGRECO_TOO_MANY_ELEMENTS: lgreco_status = 3;
/// A gradient holds NaN or infinity.
pub const LGRECO_NON_FINITE: lgreco_status = 4;
/// A result does not fit the number format it is sent in.
pub const LGRECO_OVERFLOW: lgreco_status = 5;
/// A word that names nothing.
pub const LGRECO_UNKNOWN_NAME: lgreco_status = 6;
/// There is no memory for a workspace.
pub const LGRECO_OUT_OF_MEMORY: lgreco_status = 7;
/// An element is too large for the format it is to be sent in.
pub const LGRECO_ELEMENT_OVERFLOW: lgreco_status = 8;
/// A device failed or cannot do this.
pub const LGRECO_DEVICE: lgreco_status = 9;
/// A word that no setting has there.
pub const LGRECO_SETTING_WORD: lgreco_status = 10;
/// A text that is not a setting, although all words before the place at fault are known.
pub const LGRECO_SETTING_SYNTAX: lgreco_status = 11;
/// A table without layers.
pub const LGRECO_EMPTY_TABLE: lgreco_status = 20;
/// A layer without options.
pub const LGRECO_EMPTY_LAYER: lgreco_status = 21;
/// An option's error is NaN, infinite or negative.
pub const LGRECO_OPTION_ERROR: lgreco_status = 22;
/// The sizes of the largest options do not fit 64 bits in all.
pub const LGRECO_SIZE_OVERFLOW: lgreco_status = 23;
/// A choice names an option its layer does not have.
pub const LGRECO_NO_SUCH_OPTION: lgreco_status = 24;
/// A budget that is NaN, infinite or negative.
pub const LGRECO_BUDGET: lgreco_status = 25;
/// No plan meets the budget.
pub const LGRECO_INFEASIBLE: lgreco_status = 26;
/// A plan's choices cost more error than its budget.
pub const LGRECO_OVER_BUDGET: lgreco_status = 27;
/// A plan's statement about itself does not hold.
pub const LGRECO_PLAN_MISMATCH: lgreco_status = 28;
/// Two layers have one name.
pub const LGRECO_DUPLICATE_NAME: lgreco_status = 29;
/// No plan is within the size limit.
pub const LGRECO_SIZE_INFEASIBLE: lgreco_status = 30;
/// A plan's choices are larger than its size limit.
pub const LGRECO_OVER_SIZE: lgreco_status = 31;
/// Layers of one group have no option left that all of them can have.
pub const LGRECO_NO_SHARED_OPTION: lgreco_status = 32;
/// Layers of one group differ in their number of options, where these are matched by their index.
pub const LGRECO_UNEQUAL_OPTIONS: lgreco_status = 33;
/// A plan's choice that the table's groups or fixed options rule out.
pub const LGRECO_RULED_OUT: lgreco_status = 34;
/// Bytes that are not a payload of this version.
pub const LGRECO_PAYLOAD_HEADER: lgreco_status = 40;
/// A payload whose body contradicts its header.
pub const LGRECO_PAYLOAD_BODY: lgreco_status = 41;
/// A header field of a payload beyond what this version defines.
pub const LGRECO_PAYLOAD_FIELD: lgreco_status = 42;
/// A method that is neither the library's own nor known to the program.
pub const LGRECO_UNKNOWN_METHOD: lgreco_status = 43;
/// A compressor under which feedback may amplify errors.
pub const LGRECO_NOT_CONTRACTIVE: lgreco_status = 60;
/// A feedback rule used where it does not work.
pub const LGRECO_FEEDBACK_RULE: lgreco_status = 61;
/// Bytes that are not a saved state of this version.
pub const LGRECO_SAVED_STATE: lgreco_status = 62;
/// A saved state or a sealed payload that is not as it was written: damaged or cut short.
pub const LGRECO_CHECKSUM: lgreco_status = 63;
/// A collective callback failed.
pub const LGRECO_COLLECTIVE: lgreco_status = 80;
/// Another worker could not take part.
pub const LGRECO_PEER: lgreco_status = 81;
/// Workers want to exchange different things.
pub const LGRECO_PEER_PLAN: lgreco_status = 82;
/// What another worker sent cannot be decoded.
pub const LGRECO_PEER_MESSAGE: lgreco_status = 83;
/// What is handed to a controller is not the layer it was made for.
pub const LGRECO_LAYER_MISMATCH: lgreco_status = 100;
/// A layer's gradient holds NaN or infinity.
pub const LGRECO_NON_FINITE_GRADIENT: lgreco_status = 101;
/// A layer is in a bucket that is being exchanged.
pub const LGRECO_IN_FLIGHT: lgreco_status = 102;
/// A call that does not fit where the step is: before it has begun, say, or twice.
pub const LGRECO_STEP_ORDER: lgreco_status = 103;
/// Settings given to a controller that was made without.
pub const LGRECO_NOT_FIXED: lgreco_status = 104;
/// A message of a cut is not the one that comes next.
pub const LGRECO_OUT_OF_STEP: lgreco_status = 120;
/// The two ends of a cut remember different things of a sample.
pub const LGRECO_SAMPLE_OUT_OF_STEP: lgreco_status = 121;
/// A batch holds a sample twice.
pub const LGRECO_DUPLICATE_SAMPLE: lgreco_status = 122;
/// More micro-batches on their way than a cut keeps tickets for.
pub const LGRECO_TOO_MANY_IN_FLIGHT: lgreco_status = 123;
/// A ticket that no micro-batch in flight has.
pub const LGRECO_NOT_IN_FLIGHT: lgreco_status = 124;
/// A call that has to wait for the end of the step.
pub const LGRECO_MID_STEP: lgreco_status = 125;
/// A saved cut that was set otherwise.
pub const LGRECO_OTHER_SETTING: lgreco_status = 126;
/// A pointer is NULL that must not be.
pub const LGRECO_NULL_POINTER: lgreco_status = 200;
/// A pointer is not aligned for its type.
pub const LGRECO_ALIGNMENT: lgreco_status = 201;
/// An output overlaps an input or another output.
pub const LGRECO_OVERLAP: lgreco_status = 202;
/// A struct's struct_size is not that of this library: the INIT macro was not used, or the program was compiled with another
/// header than the library's.
pub const LGRECO_STRUCT_SIZE: lgreco_status = 203;
/// A number that should be one of a list of constants is none of them.
pub const LGRECO_UNKNOWN_CONSTANT: lgreco_status = 204;
/// Text is not UTF-8, holds a NUL, or has none at its end.
pub const LGRECO_TEXT: lgreco_status = 205;
/// Not JSON, or not the JSON expected there.
pub const LGRECO_JSON: lgreco_status = 206;
/// A table or plan file of a version this library does not read.
pub const LGRECO_JSON_VERSION: lgreco_status = 207;
/// Not a handle, one of another kind, or a copy of one that has been destroyed.
pub const LGRECO_HANDLE: lgreco_status = 208;
/// The handle is in use by another call.
pub const LGRECO_BUSY: lgreco_status = 209;
/// The device, or what is asked of it, does not exist.
pub const LGRECO_UNAVAILABLE: lgreco_status = 210;
/// The table has no compressor setting for the option, as those that the library did not measure.
pub const LGRECO_NO_SETTINGS: lgreco_status = 211;
/// The call is for the other end of a cut.
pub const LGRECO_OTHER_END: lgreco_status = 212;
/// Devices of this kind were left out of this build of the library.
pub const LGRECO_NOT_BUILT_IN: lgreco_status = 213;
/// The name of an option that the call does not have, or one that is given twice.
pub const LGRECO_UNKNOWN_OPTION: lgreco_status = 214;
/// The trainer of this rank has failed, as it has said by lgreco_bucket_submit_failure.
pub const LGRECO_TRAINER: lgreco_status = 215;
/// A bug in the library. The handle it happened in can only be destroyed.
pub const LGRECO_PANIC: lgreco_status = 255;

/// The name of the constant, such as "LGRECO_INFEASIBLE"; of other numbers "unknown status". Static text.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_status_name(status: lgreco_status) -> *const c_char {
    name(status).unwrap_or(c"unknown status").as_ptr()
}

/// Writes the function `name`, which knows the names of these constants.
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
