//! Shared by tests of calls: an allocator that counts, settings, options and gradients.

use lgreco_c::lgreco_setting;
use lgreco_train::compress::Setting;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::ptr::null;

/// The system's allocator. The allocator counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static FREED_TAGS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the memory has the size of its layout, and is still allocated.
        let tagged = layout.size() > 8 && unsafe { pointer.cast::<[u8; 8]>().read_volatile() } == *b"lgcontrl";
        FREED_TAGS.with(|count| count.set(count.get() + u64::from(tagged)));
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of this thread during `call`.
#[allow(dead_code, reason = "not every test needs it")]
pub fn allocations(call: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

/// Number of controller handles that this thread has freed without clearing their tag.
#[allow(dead_code, reason = "not every test needs it")]
pub fn freed_tags() -> u64 {
    FREED_TAGS.get()
}

/// Returns the setting in the form in which the library writes it.
#[allow(dead_code, reason = "not every test needs it")]
pub fn setting(text: &str) -> lgreco_setting {
    text.parse::<Setting>().unwrap().into()
}

/// Options as an array of names and values, as a C program writes them.
pub struct List {
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl List {
    #[allow(dead_code, reason = "not every test needs it")]
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> List {
        let texts = pairs.into_iter().flat_map(|(name, value)| [name, value]).map(|text| CString::new(text).unwrap());
        let texts: Vec<CString> = texts.collect();
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([null()]).collect();
        List { _texts: texts, pointers }
    }

    #[allow(dead_code, reason = "not every test needs it")]
    pub fn pointer(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Values of a gradient with little regularity.
#[allow(dead_code, reason = "not every test needs it")]
pub fn gradient(step: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37 + step as f32).sin()).collect()
}
