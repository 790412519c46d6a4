//! Tests of payloads whose length depends on the values.

use super::*;
use lgreco_train::compress::Compressor;
use lgreco_train::feedback::{Memory, Residual};

/// A message is only as long as its payloads, even if other values would make the payloads longer. Fixed and variable
/// payloads share a message.
#[test]
fn messages_are_as_long_as_their_payloads() {
    let layers = [(hard(0.5), shape(100, 1)), (topk(3), shape(50, 1)), (adacomp(10), shape(60, 1))];
    let mut case = case(&layers, 3, Route::AllGather);
    // Rank 1 has only zeros. Rank 1 sends headers, three values with positions, and a scale.
    case.gradients[1].iter_mut().flatten().for_each(|x| *x = 0.0);
    let sent = threads::run(3, |mut worker| {
        let mut sent = vec![];
        let mut counting = Through::new(&mut worker, |worker, request| {
            match &request {
                Request::AllGather { buffer } => sent.push(buffer.len() as u64 / worker.world_size() as u64),
                Request::AllGatherEach { lens, .. } => sent.push(lens[worker.rank() as usize]),
                _ => {}
            }
            request.perform(worker)
        });
        case.exchange(&mut counting, None).unwrap();
        sent
    });
    for (rank, sent) in sent.into_iter().enumerate() {
        let expected: usize = (0..3)
            .map(|l| {
                let (setting, shape) = layers[l];
                let gradient = Gradient::new(Values::F32(&case.gradients[rank][l]), shape).unwrap();
                let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
                let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
                setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap()
            })
            .sum();
        assert_eq!(sent, [24, 16 + expected as u64]);
        assert!(rank != 1 || expected == 16 + 16 + topk(3).payload_len(shape(50, 1), Dtype::F32).unwrap() + 4);
    }
}

/// With AdaComp, an exchange that gets the fresh gradient sends the same as `Memory::step`.
#[test]
fn adacomp_with_memories() {
    let (shape, rule) = (shape(90, 1), Residual::CLASSIC);
    let setting = adacomp(15);
    let results = threads::run(2, |mut worker| {
        let new = || Memory::new(rule, shape, vec![0; rule.state_len(shape)]).unwrap();
        let (mut halves, mut whole) = (new(), new());
        for step in 0..20 {
            let values = noise(step as u64, 0, worker.rank(), 90);
            let g = Gradient::new(Values::F32(&values), shape).unwrap();
            let (mut p, mut mean) = (vec![0.0; 90], values.clone());
            halves.compensate(&g, &mut p).unwrap();
            let offered = p.clone();
            let words = workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2).unwrap();
            let layer = Layer::new(0, setting, shape, ValuesMut::F32(&mut mean), Rest::Instead(&mut p));
            aggregate(&mut worker, &mut [layer], Route::AllGather, 5, step, &mut vec![0; words]).unwrap();
            let mut message = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
            let mut decoded = vec![0.0; 90];
            whole.step(&setting, &g, Stream::default(), &mut [], &mut message, &mut decoded).unwrap();
            let rest: Vec<f32> = offered.iter().zip(&decoded).map(|(x, sent)| x - sent).collect();
            assert_eq!(p, rest, "step {step}");
            halves.update(&g, &decoded, Stream::default()).unwrap();
        }
        halves.squared_norm() == whole.squared_norm()
    });
    assert_eq!(results, [true, true]);
}

/// Ranks may have different numbers of stages, but not different densities or fits.
#[test]
fn workers_may_differ_in_stages() {
    let [mine, theirs, other] = [sidco(0.05, 1), sidco(0.05, 4), sidco(0.06, 4)];
    let run = |theirs| {
        threads::run(2, |mut worker| {
            let mut case = case(&[(mine, shape(60, 30))], 2, Route::AllGather);
            if worker.rank() == 1 {
                case.layers[0].0 = theirs;
            }
            case.exchange(&mut worker, None).map(|outcome| outcome.mean)
        })
    };
    let agreed = run(theirs);
    assert!(agreed[0].is_ok());
    assert_eq!(agreed[0], agreed[1]);
    assert_eq!(run(other), vec![Err(Error::PeerPlan { rank: 1 }); 2]);
}
