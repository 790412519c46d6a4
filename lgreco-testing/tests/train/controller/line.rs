use lgreco_testing::controller::{alone, step_alone};
use lgreco_train::controller::metrics_line;
use lgreco_train::search::Method;

#[test]
fn metrics_of_a_run_are_what_the_controller_says() {
    let (mut controller, mut worker) = alone(Method::TopK).unwrap();
    for step in 0..4 {
        let report = step_alone(&mut controller, &mut worker).unwrap();
        let line: serde_json::Value = serde_json::from_str(&metrics_line(&controller, &report)).unwrap();
        assert_eq!((&line["step"], &line["switched"]), (&step.into(), &(step == 2).into()));
        assert_eq!(line["bytes_out"], report.bytes_out);
        let metrics = controller.metrics(0);
        let layer = &line["layers"][0];
        assert_eq!(layer["setting"], metrics.setting.to_string());
        assert_eq!(layer["bytes_out"], metrics.bytes_out);
        assert_eq!(layer["residual_norm"].as_f64(), metrics.residual_norm);
        assert_eq!(layer["bucket_seconds"].as_f64(), metrics.bucket_seconds);
        assert_eq!(line["layers"][1]["uncompressed"], if step < 2 { "warm-up" } else { "small" });
        match controller.decision() {
            None => assert!(line.get("decision").is_none() && layer["uncompressed"] == "warm-up"),
            Some(decision) => {
                let plan = decision.plan.unwrap();
                assert_eq!((&line["decision"]["size"], &line["decision"]["unit"]), (&plan.size.into(), &"bits".into()));
                assert_eq!((&line["decision"]["pays"], &line["decision"]["step"]), (&true.into(), &2.into()));
                assert!(layer.get("uncompressed").is_none());
            }
        }
    }
}
