//! What a device does, checked from outside: by unit tests on the processor, and by the example `on_device` on GPUs.
#![allow(dead_code, reason = "each of the two has a part of it")]

pub mod graphs;
pub mod memory;
pub mod space;
pub mod window;
