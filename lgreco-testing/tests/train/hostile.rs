use lgreco_testing::hostile::{Choices, ends, memories, peer, state};
use lgreco_train::rng::Stream;
use lgreco_train::{CoreError, Error};

/// Runs `check` `runs` times, each time on 40 random bytes.
fn random<T>(runs: u32, mut check: impl FnMut(Choices<'_>) -> T) -> Vec<T> {
    let bytes = |step| {
        let stream = Stream { seed: 11, step, ..Stream::default() };
        (0..40).map(|i| (stream.word(i) >> 24) as u8).collect::<Vec<_>>()
    };
    (0..runs).map(|step| check(Choices::new(&bytes(step)))).collect()
}

#[test]
fn damaged_controllers_train_on_or_say_why_not() {
    let taken = random(4000, |mut choices| state::check(&mut choices));
    let trained = taken.iter().filter(|&&steps| steps > 0).count();
    assert!((400..3900).contains(&trained), "{trained} of 4000 damaged states trained on");
}

#[test]
fn damaged_memories_go_on_or_say_why_not() {
    let taken = random(4000, |mut choices| memories::check(&mut choices));
    let went_on = taken.iter().filter(|&&steps| steps > 0).count();
    assert!((400..3900).contains(&went_on), "{went_on} of 4000 damaged memories went on");
}

#[test]
fn damaged_ends_of_a_cut_go_on_or_say_why_not() {
    let taken = random(4000, |mut choices| ends::check(&mut choices));
    let went_on = taken.iter().filter(|&&passes| passes > 0).count();
    assert!((400..3900).contains(&went_on), "{went_on} of 4000 damaged ends went on");
}

#[test]
fn peers_may_send_anything() {
    let given: Vec<_> = random(4000, peer::check).into_iter().flatten().collect();
    let count = |of: fn(&Result<(), Error>) -> bool| given.iter().filter(|given| of(given)).count();
    assert!(count(|given| given.is_ok()) > 1000);
    assert!(count(|given| matches!(given, Err(Error::Peer { .. }))) > 50);
    assert!(count(|given| matches!(given, Err(Error::PeerPlan { .. }))) > 50);
    assert!(count(|given| matches!(given, Err(Error::PeerMessage { .. }))) > 50);
    assert!(count(|given| matches!(given, Err(Error::OfLayer { error: CoreError::Overflow { .. }, .. }))) > 50);
}
