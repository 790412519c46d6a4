//! Runs [`lgreco_no_std::run`] with std, where lgreco chooses vector instructions at run time. Panics if that changes a
//! bit.

fn main() {
    let found = lgreco_no_std::run().expect("every call succeeds");
    let all = lgreco_no_std::EXPECTED.into_iter().zip(found);
    let wrong: Vec<_> = all.filter(|((_, expected), found)| expected != found).collect();
    assert!(wrong.is_empty(), "((name, expected), found): {wrong:#018x?}");
}
