//! Saved states of outer steps.

use super::*;

#[test]
fn saved_steps_continue_to_the_bit() {
    for joined in [false, true] {
        saved_steps_continue(Outer { every: 3, fragments: 2, joined, ..Outer::default() });
    }
}

fn saved_steps_continue(outer: Outer) {
    threads::run(2, |mut worker| {
        let settings = settings(8)[..if outer.joined { 2 } else { 3 }].to_vec();
        let make = |worker: &mut ThreadCollective| Rank::new(outer, config(Some(settings.clone())), worker);
        let mut rank = make(&mut worker);
        (0..7).for_each(|_| {
            rank.step(&mut worker).unwrap();
        });
        let (saved, model) = (rank.outer.save().unwrap(), rank.parameters.clone());
        let mut continued = make(&mut worker);
        continued.outer.load(&saved, &[&saved], &mut views(&mut continued.parameters)).unwrap();
        continued.parameters = model;
        assert!(continued.outer.save().unwrap() == saved && continued.outer.steps() == 7);
        for _ in 0..7 {
            rank.step(&mut worker).unwrap();
            continued.step(&mut worker).unwrap();
        }
        assert_eq!(continued.parameters, rank.parameters);
        assert_eq!(continued.residuals(), rank.residuals());
    });
}

#[test]
fn one_may_leave_and_another_join() {
    let outer = Outer { every: 1, feedback_decay: 1.0, ..Outer::default() };
    let told = config(Some(settings(8)));
    let saved = threads::run(3, |mut worker| {
        let mut rank = Rank::new(outer, told.clone(), &mut worker);
        (0..4).for_each(|_| {
            rank.step(&mut worker).unwrap();
        });
        (rank.outer.save().unwrap(), rank.residuals(), rank.parameters)
    });
    // Rank 2 leaves. Either rank 0 takes over rank 2's residuals, or no rank does.
    for handed_on in [true, false] {
        let residuals = threads::run(2, |mut worker| {
            let mut rank = Rank::new(outer, told.clone(), &mut worker);
            let own = &saved[worker.rank() as usize].0;
            let mut given = vec![&own[..]];
            given.extend((handed_on && worker.rank() == 0).then_some(&saved[2].0[..]));
            rank.outer.load(own, &given, &mut views(&mut rank.parameters)).unwrap();
            assert_eq!(rank.parameters, saved[0].2, "where the next step starts");
            let residuals = rank.residuals();
            rank.step(&mut worker).unwrap();
            residuals
        });
        for layer in 0..SHAPES.len() {
            for i in 0..residuals[0][layer].len() {
                let mean = |all: &mut dyn Iterator<Item = f32>, world: f32| all.sum::<f32>() / world;
                let now = mean(&mut residuals.iter().map(|rank| rank[layer][i]), 2.0);
                let left = if handed_on { 3 } else { 2 };
                let before = mean(&mut saved[..left].iter().map(|(_, rank, _)| rank[layer][i]), 3.0);
                assert!((now - before).abs() < 1e-6, "{now}, not {before}");
            }
        }
    }
    // A fourth rank joins without residuals.
    threads::run(4, |mut worker| {
        let mut rank = Rank::new(outer, told.clone(), &mut worker);
        let own = saved.get(worker.rank() as usize).map(|(own, ..)| &own[..]);
        let given: Vec<&[u8]> = own.into_iter().collect();
        rank.outer.load(own.unwrap_or(&saved[0].0), &given, &mut views(&mut rank.parameters)).unwrap();
        assert_eq!(rank.residuals().iter().flatten().all(|&e| e == 0.0), own.is_none());
        rank.step(&mut worker).unwrap();
    });
}

/// Ranks load states of other steps or runs. The next outer step fails on all ranks. The run continues when all have loaded the
/// same state.
#[test]
fn loaded_states_that_differ_are_named() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, &str); 2] = [
        (|state| state[16] += 2, "inner steps"),
        (
            // The last velocity.
            |state| {
                let place = state.len() - 12;
                state[place] ^= 1;
            },
            "parameters and velocities of the loaded state",
        ),
    ];
    for (change, expected) in cases {
        let results = threads::run(2, |mut worker| {
            let outer = Outer { every: 2, ..Outer::default() };
            let mut rank = Rank::new(outer, config(Some(settings(8))), &mut worker);
            (0..4).for_each(|_| {
                rank.step(&mut worker).unwrap();
            });
            let saved = rank.outer.save().unwrap();
            let mut other = saved.clone();
            if worker.rank() == 1 {
                change(&mut other);
                lgreco_testing::reseal(&mut other);
            }
            rank.outer.load(&other, &[&other], &mut views(&mut rank.parameters)).unwrap();
            let failed = [0, 1].map(|_| rank.step(&mut worker).map(|report| report.is_some()));
            rank.outer.load(&saved, &[&saved], &mut views(&mut rank.parameters)).unwrap();
            let continued = [0, 1].map(|_| rank.step(&mut worker).map(|report| report.is_some()));
            assert_eq!(continued, [Ok(false), Ok(true)]);
            failed
        });
        for result in results {
            assert!(
                matches!(result, [Ok(false), Err(Error::PeerOption { rank: 1, what, .. })] if what == expected),
                "{result:?}"
            );
        }
    }
}

/// A state of layers with other names, or in another order, is refused even if all layers have the same size.
#[test]
fn states_of_other_layers_are_refused_and_change_nothing() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut made = |names: [&str; 4], value: f32| {
        let tensors = names.map(|name| Tensor::new(name, &[8, 8], Dtype::F32).unwrap()).to_vec();
        let mut parameters = vec![vec![value; 64]; 4];
        let outer = Outer { every: 2, fragments: 2, ..Outer::default() };
        let step = OuterStep::new(outer, config(None), tensors, &mut views(&mut parameters), &mut worker).unwrap();
        (step, parameters)
    };
    let saved = made(["a", "b", "c", "d"], 1.0).0.save().unwrap();
    for (names, layer) in [(["x", "b", "c", "d"], 0), (["a", "b", "d", "c"], 2), (["a", "b", "c", "y"], 3)] {
        let (mut step, mut parameters) = made(names, 2.0);
        let before = step.save().unwrap();
        let error = step.load(&saved, &[], &mut views(&mut parameters)).unwrap_err();
        let refused =
            matches!(error, Error::OfLayer { layer: found, error: CoreError::SavedState { .. } } if found == layer);
        assert!(refused, "{names:?}: {error}");
        assert_eq!(step.load(&before, &[&saved], &mut views(&mut parameters)), Err(error));
        assert!(step.save().unwrap() == before && parameters == vec![vec![2.0; 64]; 4]);
    }
    let (mut step, mut parameters) = made(["a", "b", "c", "d"], 2.0);
    step.load(&saved, &[&saved], &mut views(&mut parameters)).unwrap();
    assert_eq!(parameters, vec![vec![1.0; 64]; 4]);
}

#[test]
fn damaged_states_are_refused_and_change_nothing() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let outer = Outer { every: 1, fragments: 1, ..Outer::default() };
    let mut rank = Rank::new(outer, config(Some(settings(8))), &mut worker);
    rank.step(&mut worker).unwrap();
    let saved = rank.outer.save().unwrap();
    let mut load = |bytes: &[u8]| rank.outer.load(bytes, &[bytes], &mut views(&mut rank.parameters));
    let places = (0..saved.len()).step_by(997).chain(0..64).chain(saved.len() - 64..saved.len());
    for place in places {
        for bit in [0, 7] {
            let mut damaged = saved.clone();
            damaged[place] ^= 1 << bit;
            assert!(load(&damaged).is_err(), "bit {bit} of byte {place}");
            lgreco_testing::reseal(&mut damaged);
            // With the right checksum, the damaged state is loaded or refused, without a panic.
            let _ = load(&damaged);
        }
    }
    for len in (0..saved.len()).step_by(501) {
        assert!(load(&saved[..len]).is_err());
    }
    load(&saved).unwrap();
    let two = Outer { every: 2, fragments: 2, ..Outer::default() };
    let mut other = Rank::new(two, config(Some(settings(8))), &mut worker);
    let before = other.outer.save().unwrap();
    let error = other.outer.load(&saved, &[&saved], &mut views(&mut other.parameters)).unwrap_err();
    assert_eq!(error, CoreError::SavedState { what: "number of fragments", found: 1 }.into());
    assert!(other.outer.save().unwrap() == before);
}
