use super::*;
use lgreco_testing::controller::{alone, step_alone};
use lgreco_train::compress::Compressor;
use lgreco_train::controller::Summary;

/// For every method, the summary line has the bytes of the step's report, unless a payload's length depends on the
/// gradients.
#[test]
fn the_line_says_what_a_step_sends() {
    for method in Method::ALL {
        let (mut controller, mut worker) = alone(method).unwrap();
        let reports = (0..4).map(|_| step_alone(&mut controller, &mut worker).unwrap());
        let report = reports.last().unwrap();
        let told = Summary::of(&controller).to_string();
        let sent = told.split_once(" bytes of gradients as ").unwrap().1.split_once(' ').unwrap().0;
        let sent: u64 = sent.parse().unwrap();
        let fixed = controller.setting(0).has_fixed_len();
        assert!(
            if fixed { sent == report.bytes_out } else { sent >= report.bytes_out },
            "{method:?}: {told}, {report:?}"
        );
        let compressed = usize::from(controller.setting(0) != Setting::Dense);
        assert!(told.starts_with(&format!("step 4: {compressed} of 2 layers compressed")), "{told}");
        assert!(told.contains(" small (bias; 256 bytes)"), "{told}");
    }
}
