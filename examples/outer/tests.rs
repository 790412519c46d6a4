use crate::optimiser::Kind;
use crate::schemes::Scheme;
use crate::task::Task;
use crate::{Args, run};
use clap::Parser;

/// Makes a run of few steps; fails unless all workers end with the same parameters.
fn short(scheme: Scheme, more: &[&str]) -> crate::Run {
    let mut task = Task::transformer(true);
    (task.steps, task.optimizer) = (20, Kind::Adamw);
    let args = Args::parse_from(["outer", "--every", "5"].iter().chain(more));
    run(&task, &args, scheme, 1).unwrap()
}

#[test]
fn every_scheme_learns_and_keeps_to_its_bits() {
    let (dense, sparse) = (short(Scheme::Dense, &[]), short(Scheme::SparseLoCo, &[]));
    assert_eq!(dense.bits, 32.0);
    // The payload has slightly more bits per parameter than for large models, because of codebooks and incomplete
    // chunks.
    assert!((0.219..0.3).contains(&sparse.bits), "{sparse:?}");
    for bits in [0.11, 0.4] {
        let plan = short(Scheme::Bits(bits), &[]);
        assert!(plan.bits <= bits && plan.bits > 0.5 * bits, "{plan:?}");
        assert!(plan.loss < 4.5 && plan.loss > dense.loss - 0.5, "{plan:?}, {dense:?}");
    }
    assert!(short(Scheme::Bits(0.4), &["--fragments", "3"]).bits <= 0.4);
    let joined = short(Scheme::Joined(0.11), &["--width", "1", "--forget-moved"]);
    assert!(
        joined.bits <= 0.11 && joined.bits > 0.1 && joined.loss < 4.5 && joined.loss > dense.loss - 0.5,
        "{joined:?}"
    );
}
