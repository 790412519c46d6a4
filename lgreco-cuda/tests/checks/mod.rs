//! Checks of device code through the public interface. Unit tests run these checks on the CPU, and the example
//! `on_device` runs these checks on GPUs.
#![allow(dead_code, reason = "each of the two has a part of it")]

pub mod graphs;
pub mod memory;
pub mod space;
pub mod window;
