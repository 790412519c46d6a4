use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(400)))]

    #[test]
    fn any_sequence_of_calls_keeps_the_ends_in_step(bytes in prop::collection::vec(any::<u8>(), 8..400)) {
        check_program(&bytes);
    }
}
