//! Tests CUDA graphs of a bucket's steps with the stand-in for the driver.

use super::driver::{is_child, run};
use crate::checks::graphs::check_graphs;
use crate::checks::memory::enter;

#[test]
fn graphs_of_buckets_replay_as_their_steps_do() {
    run("replays", "buckets", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn buckets() {
    if !is_child() {
        return;
    }
    crate::devices().unwrap();
    enter(0).unwrap();
    check_graphs();
}
