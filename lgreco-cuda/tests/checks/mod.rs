//! Checks of device code through the public interface. Unit tests run them on the CPU, the example `on_device` on GPUs.
#![allow(dead_code, reason = "each of the two has a part of it")]

pub mod graphs;
pub mod memory;
pub mod space;
pub mod window;
