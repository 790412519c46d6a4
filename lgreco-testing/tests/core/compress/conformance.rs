//! lgreco's own methods pass the check that authors of outside methods call.

use lgreco::compress::method::Methods;
use lgreco_testing::settings::SETTINGS;

#[test]
fn every_method_gives_what_exchanges_rely_on() {
    for setting in SETTINGS {
        lgreco::conformance::check(&setting, &Methods::NONE);
    }
}
