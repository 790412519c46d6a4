use lgreco::backend::*;
use lgreco_testing::backend::check_all;

#[test]
fn the_reference_conforms_to_itself() {
    check_all(&mut Portable, 0.0);
}

#[cfg(feature = "rayon")]
#[test]
fn all_cores_conform() {
    check_all(&mut Parallel, 0.0);
}

#[cfg(feature = "rayon")]
mod parallel;
