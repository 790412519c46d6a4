use crate::testing::adapt::{Script, check, check_state};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_run_keeps_ranks_equal_and_mass_whole(bytes in prop::collection::vec(any::<u8>(), 14..74)) {
        check(&Script::from_bytes(&bytes));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_restored(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_state(&bytes);
    }
}
