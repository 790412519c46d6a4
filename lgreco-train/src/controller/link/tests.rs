use super::*;

/// A link that has recorded `steps`, pairs of bytes and seconds. The seconds are for the whole exchange.
fn after(steps: &[(f64, f64)]) -> Link {
    let mut link = Link::default();
    steps.iter().for_each(|&(bytes, seconds)| link.note(bytes, seconds, seconds));
    link
}

fn expect(link: &Link, constant: f64, per_byte: f64) {
    let line = link.line().unwrap();
    assert!((line.constant - constant).abs() <= 1e-9, "{line:?}");
    assert!((line.per_byte - per_byte).abs() <= 1e-9 * per_byte, "{line:?}");
}

#[test]
fn one_level_is_all_bytes_and_two_are_a_line() {
    assert_eq!(Link::default().line(), None);
    expect(&after(&[(1000.0, 2.0)]), 0.0, 2e-3);
    expect(&after(&[(1000.0, 2.0), (100.0, 1.1)]), 1.0, 1e-3);
    expect(&after(&[(0.0, 0.5)]), 0.5, 0.0);
    // The traffic of the smaller step is hidden behind compression.
    expect(&after(&[(1000.0, 2.0), (100.0, 0.0)]), -2.0 / 9.0, 2.0 / 900.0);
}

#[test]
fn of_one_level_a_probe_tells_the_bytes() {
    let mut link = Link::default();
    link.note_probe(1e-3);
    assert_eq!(link.line(), None);
    link.note(1000.0, 3.0, 3.0);
    expect(&link, 2.0, 1e-3);
    // Two levels determine the seconds per byte without the probe.
    link.note(100.0, 2.55, 3.0);
    expect(&link, 2.5, 5e-4);
}

#[test]
fn probes_and_steps_tell_of_another_link() {
    let mut link = after(&[(1000.0, 2.0), (100.0, 0.2)]);
    for probe in [1e-3, 1.4e-3, 0.7e-3, 0.0, f64::NAN] {
        link.note_probe(probe);
        assert!(!link.may_have_changed());
    }
    link.note_probe(1e-2);
    assert!(link.may_have_changed());
    link.note(100.0, 2.0, 2.0);
    expect(&link, 0.0, 2e-2);
    // If sending takes almost no time, even a hundredfold change of the probe is ignored.
    let mut free = after(&[(1000.0, 2.0)]);
    for probe in [1e-5, 1e-7, 9e-5] {
        free.note_probe(probe);
        assert!(!free.may_have_changed());
    }
    // Steps of few bytes do not show how much traffic of larger steps is hidden, so a second probe must confirm the first.
    for (probe, constant, per_byte) in [(1e-5, 0.0, 2e-2), (1.1e-5, 2.0 - 2.2e-3, 2.2e-5)] {
        link.note_probe(probe);
        link.note(100.0, 2.0, 2.0);
        expect(&link, constant, per_byte);
    }
}

#[test]
fn levels_of_two_links_are_no_line() {
    for (probe, seconds, per_byte) in [(1e-2, 2.0, 1e-2), (1e-4, 1.1, 1e-3)] {
        let mut link = Link::default();
        link.note_probe(1e-3);
        link.note(1000.0, 2.0, 2.0);
        link.note_probe(probe);
        link.note(100.0, seconds, 2.0);
        expect(&link, seconds - 100.0 * per_byte, per_byte);
    }
}

/// A probe on a busy host took three times too long. Steps of a tenth of the bytes are not as fast as it promised, and the next
/// probe is faster.
#[test]
fn steps_refute_a_probe_that_was_too_slow() {
    let mut link = Link::default();
    link.note_probe(3e-3);
    link.note(1000.0, 4.0, 4.0);
    expect(&link, 1.0, 3e-3);
    for _ in 0..3 {
        link.note_probe(1e-3);
        link.note(100.0, 3.1, 4.0);
        expect(&link, 3.0, 1e-3);
    }
}

#[test]
fn seconds_per_byte_have_no_negative_zero() {
    let mut link = Link::default();
    for probe in [2e-3, 2e-3, 1e-3, 1e-3] {
        link.note_probe(probe);
        link.note(1000.0, 0.5, 1.0);
    }
    assert_eq!(link.line().unwrap().per_byte.to_bits(), 0);
}

#[test]
fn a_level_that_the_wire_cannot_have_is_not_believed() {
    // When a probe found the slower link, most of the recorded steps were still from the faster one.
    let mut link = Link::default();
    link.note_probe(1e-5);
    link.note(1000.0, 0.2, 0.2);
    link.note_probe(5e-3);
    link.note(1000.0, 0.3, 0.3);
    link.note_probe(5e-3);
    link.note(100.0, 0.7, 0.7);
    assert!(link.line().unwrap().per_byte > 1e-3, "{link:?}");
    assert_eq!(link.levels.len(), 1);
}

#[test]
fn a_disturbed_probe_changes_nothing() {
    let mut link = after(&[(1000.0, 2.0), (100.0, 1.1)]);
    for probe in [1e-3, 1e-2, 1e-3, 1e-4, 1e-3] {
        link.note_probe(probe);
        link.note(100.0, 1.1, 1.1);
        expect(&link, 1.0, 1e-3);
    }
}

#[test]
fn a_link_is_not_as_slow_as_a_probe_was_too_fast() {
    let mut link = after(&[(1000.0, 2.0), (100.0, 1.1)]);
    for (probe, per_byte) in [(1e-9, 1e-3), (1e-3, 2e-3)] {
        link.note_probe(probe);
        (0..2).for_each(|_| link.note(100.0, 1.1, 1.1));
        assert!(link.line().unwrap().per_byte <= per_byte, "{link:?}");
    }
}

#[test]
fn hidden_bytes_stay_hidden_as_far_as_steps_say() {
    // On a link that is ten times slower, sending takes 9 s longer, but the step takes only 4.5 s longer. So half of the traffic is
    // hidden.
    let mut hidden = Link::default();
    hidden.note_probe(1e-3);
    hidden.note(1000.0, 2.0, 2.0);
    hidden.note_probe(1e-2);
    hidden.note(1000.0, 2.0 + 4.5, 6.5);
    expect(&hidden, 1.5, 5e-3);
    // Steps with an unchanged time may still be from the earlier link, until a second probe confirms the new link. If two probes
    // agreed on the earlier link, the unchanged time then shows that all traffic is hidden. A single probe of the earlier link may
    // have been wrong. In that case, only a step with fewer bytes shows that all traffic is hidden.
    for (confirmed, constant, per_byte) in [(true, 2.0, 0.0), (false, 0.1, 1.9e-3)] {
        let mut link = Link::default();
        (0..1 + u32::from(confirmed)).for_each(|_| link.note_probe(1e-3));
        for (constant, per_byte) in [(1.0, 1e-3), (1.0, 1e-3), (constant, per_byte)] {
            link.note(1000.0, 2.0, 2.0);
            expect(&link, constant, per_byte);
            link.note_probe(1.9e-3);
        }
        link.note(100.0, 2.0, 2.0);
        expect(&link, 2.0, 0.0);
    }
}

#[test]
fn a_disturbed_probe_changes_nothing_after_many_decisions_either() {
    let mut link = after(&[(100.0, 1.1), (1000.0, 2.0)]);
    link.note_probe(1e-3);
    (0..PATIENCE).for_each(|_| link.note(1000.0, 2.0, 2.0));
    for probe in [4e-3, 1e-3, 4e-3, 1e-3] {
        link.note_probe(probe);
        link.note(1000.0, 2.0, 2.0);
        expect(&link, 1.0, 1e-3);
    }
}

#[test]
fn a_smaller_change_is_followed_where_steps_and_probes_agree() {
    let mut link = after(&[(1000.0, 2.0), (100.0, 1.1)]);
    link.note_probe(1e-3);
    link.note_probe(1.4e-3);
    link.note(1000.0, 2.4, 2.4);
    expect(&link, 1.0, 1.4e-3);
    link.note_probe(1.5e-3);
    link.note(1000.0, 3.4, 3.4); // not explained by the probe
    expect(&link, 2.0, 1.4e-3);
}

#[test]
fn what_seemed_not_to_pay_is_compared_anew() {
    let mut link = Link::default();
    link.note_probe(1e-3);
    link.note(100.0, 2.0, 2.0); // slowed down by a disturbance
    link.note(1000.0, 2.0, 2.0);
    for _ in 0..PATIENCE - 1 {
        link.note(1000.0, 2.0, 2.0);
        expect(&link, 2.0, 0.0);
    }
    link.note(1000.0, 2.0, 2.0);
    expect(&link, 1.0, 1e-3);
}

#[test]
fn another_time_on_the_same_link_is_not_the_bytes() {
    let known = [(1000.0, 2.0), (100.0, 1.1)];
    expect(&after(&[&known[..], &[(100.0, 2.0)]].concat()), 1.9, 1e-3);
    // A step with the same bytes and about the same time belongs to the same level.
    let link = after(&[&known[..], &[(100.0, 1.0)]].concat());
    expect(&link, 1.05 - 95.0 / 900.0, 0.95 / 900.0);
    let mut link = Link::default();
    [(1000.0, 0.2), (100.0, 0.0), (100.0, 0.04)].iter().for_each(|&(bytes, seconds)| link.note(bytes, seconds, 1.0));
    assert_eq!(link.levels.len(), 2, "nothing to speak of in a step of a second");
}

#[test]
fn fewer_bytes_that_take_longer_do_not_pay() {
    for levels in [[(1000.0, 2.0), (100.0, 3.0)], [(100.0, 3.0), (1000.0, 2.0)]] {
        let line = after(&levels).line().unwrap();
        assert_eq!(line, Line { constant: levels[1].1, per_byte: 0.0 });
    }
}

#[test]
fn links_survive_as_numbers() {
    let mut link = Link::default();
    link.note(1000.0, 2.0, 2.0);
    link.note(100.0, 0.0, 1.0);
    link.note_probe(1e-3);
    let numbers: Vec<f64> = link.numbers().collect();
    assert_eq!(Link::from_numbers(&numbers).as_ref(), Some(&link));
    let empty: Vec<f64> = Link::default().numbers().collect();
    assert_eq!(Link::from_numbers(&empty), Some(Link::default()));
    let none = f64::NAN;
    let wrong = [
        &numbers[1..],
        &numbers[..11],
        &[0.0; 2],
        &[0.0; 8],
        &[none, none, none, 0.0, 2.0, 0.0, 0.0, 0.0],
        &[none, none, none, 0.0, 0.0, 0.5, 0.0, 0.0],
        &[none, 1.0, none, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[1.0, none, none, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, none],
    ];
    for wrong in wrong {
        assert_eq!(Link::from_numbers(wrong), None);
    }
}
