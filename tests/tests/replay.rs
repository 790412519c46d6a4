//! Runs the check of every fuzz target on the committed seeds of the target.

use lgreco_tests::fuzz::TARGETS;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn fuzz_folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(name)
}

#[test]
fn every_target_has_a_check_here_and_is_built_by_cargo_fuzz() {
    let manifest = fs::read_to_string(fuzz_folder("Cargo.toml")).unwrap();
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    let sources = fs::read_dir(fuzz_folder("fuzz_targets")).unwrap();
    let found = sources.map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned());
    assert_eq!(found.collect::<BTreeSet<_>>(), known);
    for name in known {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is not in fuzz/Cargo.toml");
    }
}

#[test]
fn every_seed_passes_its_check() {
    for (name, check) in TARGETS {
        let mut seeds: Vec<PathBuf> = match fs::read_dir(fuzz_folder("seeds").join(name)) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(error) => panic!("{name} has no seeds: {error}"),
        };
        seeds.sort();
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            println!("{name}: {}", seed.display());
            check(&fs::read(&seed).unwrap());
        }
    }
}

/// The inputs are the empty input, repetitions of one byte, the bytes 0 to 255, and the seeds of all targets.
#[test]
fn plain_bytes_and_strangers_pass_every_check() {
    let mut inputs: Vec<Vec<u8>> = vec![vec![], (0..=255).collect()];
    inputs.extend([0, 1, 0x7f, 0x80, 0xff].map(|byte| vec![byte; 200]));
    for (name, _) in TARGETS {
        let entries = fs::read_dir(fuzz_folder("seeds").join(name)).unwrap();
        inputs.extend(entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()));
    }
    for (_, check) in TARGETS {
        inputs.iter().for_each(|input| check(input));
    }
}
