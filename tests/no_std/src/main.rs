//! Runs [`lgreco_no_std::run`] without std and without an allocator. The exit code is 0 if every digest is as expected.
//! 1 to 99 is the number of the first wrong digest. An exit code from 100 on is 100 + the code of the error that ended
//! the run. 255 is a panic.
#![no_std]
#![no_main]

mod start;

/// The exit code.
fn outcome() -> i32 {
    match lgreco_no_std::run() {
        Ok(digests) => {
            match digests.iter().zip(lgreco_no_std::EXPECTED).position(|(found, (_, expected))| *found != expected) {
                None => 0,
                Some(index) => index as i32 + 1,
            }
        }
        Err(error) => 100 + error.code() as i32,
    }
}
