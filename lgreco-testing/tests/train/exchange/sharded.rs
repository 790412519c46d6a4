//! Tests of exchanges in which each rank gets only the mean of its shard.

use super::*;
use lgreco_train::CoreError;

/// Settings whose contributions do not depend on the division of a layer. A row has a whole number of quantiser
/// buckets.
fn divisible() -> Vec<(Setting, Shape)> {
    vec![
        (Setting::Dense, shape(7, 3)),
        (qsgd(4, 16, Rounding::Nearest), shape(9, 32)),
        (LOW_RANK, shape(12, 10)),
        (clt(7), shape(20, 4)),
        (loco(8), shape(15, 16)),
        (Setting::Dense, shape(33, 1)),
        (LOW_RANK, shape(3, 8)),
        (Setting::Qsgd(Qsgd { bits: 3, bucket: 1, scale: Scale::MinMax, rounding: Rounding::Nearest }), shape(5, 1)),
        (clt(5), shape(5, 1)),
        (hard(0.4), shape(11, 5)),
        (adacomp(9), shape(10, 7)),
        (sidco(0.2, 2), shape(9, 9)),
        (adacomp(3), shape(0, 2)),
    ]
}

/// The shards of all ranks together are the mean of an exchange of whole layers. Contributions are also the same.
#[test]
fn shards_are_the_bits_of_the_whole() {
    for world in [1, 2, 3, 5] {
        // Layers take turns with three kinds of shards: rows, whole layers, and ranges of the flat bucket. Ranges of
        // the flat bucket need quantiser buckets of one element.
        for (seed, layers) in [(0, divisible()), (2, divisible()), (1, divisible())] {
            let aligned = |(l, (setting, _)): &(usize, (Setting, Shape))| {
                (*l as u64 + seed) % 3 != 1
                    || !matches!(setting, Setting::Qsgd(Qsgd { bucket: 2.., .. }) | Setting::LoCo(_))
            };
            // An empty layer replaces each layer whose shards are not aligned.
            let layers = (0..).zip(layers).map(|layer| match aligned(&layer) {
                true => layer.1,
                false => (Setting::Dense, shape(0, 1)),
            });
            let layers: Vec<_> = layers.collect();
            let mut whole = case(&layers, world, Route::AllGather);
            whole.seed = seed;
            let sharded = Case { route: Route::Sharded, ..whole.clone() };
            assert_eq!(whole.run(), sharded.run(), "{world} workers, seed {seed}");
        }
    }
}

#[test]
fn one_round_per_bucket_unless_there_are_factors_or_lengths_vary() {
    let rounds = |setting| {
        let moment = Moment {
            rank: 1,
            world_size: 2,
            route: Route::Sharded,
            reduce_dtype: Dtype::F32,
            seed: 1,
            step: 0,
            terms: 0,
        };
        let spec = Spec { shards: &[40, 100], ..Spec::from((setting, shape(10, 10), Dtype::F32)) };
        let program = Program::new([spec].into_iter(), moment, Agreement::Reached, 0).unwrap();
        program.rounds([spec].into_iter()).map(|(_, round)| round).collect::<Vec<_>>()
    };
    assert_eq!(rounds(Setting::Dense), [Round::ReduceScatterSum { values: 100 + 2 * 2, own: 60 + 2 }]);
    // 16 bytes of status record, 16 of header, 4 per bucket, and 4 bits per element.
    let quantised = Round::AllToAll { send: 16 + 16 + 3 * 4 + 20, received: 16 + 16 + 4 * 4 + 30 };
    assert_eq!(rounds(qsgd(4, 16, Rounding::Nearest)), [quantised]);
    assert_eq!(rounds(LOW_RANK), [Round::AllReduceSum { values: 20 + 2 }; 2]);
    let most = adacomp(9).payload_len(shape(10, 10), Dtype::F32).unwrap();
    let whole = Round::AllGatherEach { bytes: 2 * (16 + most), exact: false };
    assert_eq!(rounds(adacomp(9)), [Round::AllGather { bytes: 24 }, whole]);
}

/// `Program::pieces` returns the compressed pieces of each owner: the layer's index in the bucket, the range and the
/// setting. `Program::pieces` leaves out dense layers and empty pieces.
#[test]
fn pieces_are_told() {
    let moment =
        Moment { rank: 0, world_size: 3, route: Route::Sharded, reduce_dtype: Dtype::F32, seed: 1, step: 0, terms: 0 };
    let layer = |setting, shards| Spec { shards, ..Spec::from((setting, shape(10, 4), Dtype::F32)) };
    let layers = [layer(topk(10), &[8, 8, 40]), layer(Setting::Dense, &[4, 8, 40]), layer(loco(3), &[20, 21, 40])];
    let program = Program::new(layers.into_iter(), moment, Agreement::Reached, 0).unwrap();
    let pieces = |owner| program.pieces(layers.into_iter(), owner).map(Result::unwrap).collect::<Vec<_>>();
    let told = |owner| pieces(owner).into_iter().map(|(place, piece)| (place, piece.range)).collect::<Vec<_>>();
    assert_eq!(
        [told(0), told(1), told(2)],
        [vec![(0, 0..8), (2, 0..20)], vec![(2, 20..21)], vec![(0, 8..40), (2, 21..40)]]
    );
    assert_eq!((pieces(0)[0].1.setting, pieces(2)[0].1.setting), (topk(2), topk(8)));
    for owner in 0..3 {
        let len = pieces(owner).iter().map(|(_, piece)| piece.payload_len).sum::<usize>();
        assert_eq!(program.part_len(Part::ShardPayloads, layers.into_iter(), owner), Ok(Slip::LEN + len));
    }
}

#[test]
fn ends_that_do_not_fit_are_refused() {
    let refused = |setting, shards: &[u64]| {
        let spec = Spec { shards, ..Spec::from((setting, shape(5, 4), Dtype::F32)) };
        workspace_len([spec].into_iter(), Route::Sharded, 2).map_err(|error| std::string::ToString::to_string(&error))
    };
    assert!(refused(Setting::Dense, &[0, 20]).is_ok());
    let ends = "expected ascending ends, the last at the end of the layer";
    for (setting, shards, why) in [
        (Setting::Dense, &[20][..], "ends of shards, one per rank: expected 2, found 1"),
        (Setting::Dense, &[], "ends of shards, one per rank: expected 2, found 0"),
        (Setting::Dense, &[10, 19], &format!("end of a shard is 19, {ends}")),
        (topk(3), &[21, 20], &format!("end of a shard is 20, {ends}")),
        (hard(0.5), &[21, 20], &format!("end of a shard is 20, {ends}")),
    ] {
        assert_eq!(refused(setting, shards), Err(why.into()));
    }
}

/// Only the rank of a shard detects an error in the shard's mean. The rank's next exchange reports the error to the
/// other ranks.
#[test]
fn a_shard_that_overflows_is_told_next() {
    for setting in [Setting::Dense, loco(4)] {
        let layers = [(setting, shape(6, 4))];
        let mut case = case(&layers, 2, Route::Sharded);
        // The dense mean exceeds f32 after rounding to bf16. The sum of LoCo's payloads exceeds f32.
        case.seed = 0;
        case.reduce_dtype = Dtype::Bf16;
        let large = if setting == Setting::Dense { f32::MAX } else { 3e38 };
        // Only the rows of rank 1 are large.
        case.gradients.iter_mut().for_each(|layers| layers[0][12..].fill(large));
        let results = threads::run(2, |mut worker| case.exchange(&mut worker, None).map(drop));
        let overflow = Error::OfLayer { layer: 0, error: CoreError::Overflow { what: "the sum over the workers" } };
        assert_eq!(results, [Ok(()), Err(overflow)], "{setting}");
    }
}

/// The results of two ranks if the mean of rank 1's shard exceeds the largest f16 value. The bucket also has a dense
/// layer.
fn with_a_shard_that_leaves_f16(setting: Setting) -> Vec<Result<(), Error>> {
    use lgreco_train::gradient::{Element, F16};
    let shape = shape(6, 4);
    threads::run(2, |mut worker| {
        let rank = worker.rank();
        let moment =
            Moment { rank, world_size: 2, route: Route::Sharded, reduce_dtype: Dtype::F32, seed: 7, step: 0, terms: 0 };
        let ends = [12, 24];
        let mut wide = [1.0f32; 24];
        wide[17] = 1e6;
        let (mut narrow, mut dense) = ([F16::from_f32(0.0); 24], [1.0f32; 24]);
        let (narrow, rest) = (ValuesMut::F16(&mut narrow), Rest::Instead(&mut wide));
        let mut layers = [
            Layer::new(0, setting, shape, narrow, rest).with_shards(&ends),
            Layer::new(1, Setting::Dense, shape, ValuesMut::F32(&mut dense), Rest::Dropped).with_shards(&ends),
        ];
        let mut host = Host { layers: &mut layers, workspace: &mut vec![0; 1000], scratch: None };
        let mut flight = Flight::begin(&mut host, moment, Agreement::Needed, None)?;
        let outcome = loop {
            match flight.next(&mut host) {
                Ok(Some(request)) => request.perform(&mut worker)?,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        assert_eq!(flight.next(&mut host).map(drop), outcome, "it has ended");
        outcome
    })
}

const TOO_LARGE: Error = Error::OfLayer { layer: 0, error: CoreError::ElementOverflow { index: 17, value: 1e6 } };

/// Under CLT-k only one rank finds the error, before or after the dense layer's collective.
#[test]
fn a_shard_that_leaves_its_type_does_not_keep_the_others_waiting() {
    let results = with_a_shard_that_leaves_f16(clt(3));
    let told = Error::Peer { rank: 1, code: TOO_LARGE.code() };
    assert!(results == [Ok(()), Err(TOO_LARGE)] || results == [Err(told), Err(TOO_LARGE)], "{results:?}");
}

/// Every rank computes the whole mean of whole payloads, so all ranks fail in the same exchange.
#[test]
fn a_shard_of_whole_payloads_that_leaves_its_type_fails_on_all() {
    assert_eq!(with_a_shard_that_leaves_f16(hard(2.0)), [Err(TOO_LARGE); 2]);
}

#[test]
fn ranks_with_other_shards_are_named() {
    let layers = [(Setting::Dense, shape(6, 4)), (topk(4), shape(6, 4))];
    let (sound, mut other) = (case(&layers, 3, Route::Sharded), case(&layers, 3, Route::Sharded));
    other.seed += 1;
    let results = threads::run(3, |mut worker| {
        let case = if worker.rank() == 2 { &other } else { &sound };
        // The shards depend on the case's seed.
        let shards = case.shards();
        let (rank, route) = (worker.rank(), Route::Sharded);
        let moment = Moment { rank, world_size: 3, route, reduce_dtype: Dtype::F32, seed: 7, step: 0, terms: 0 };
        let mut gradients = case.gradients[worker.rank() as usize].clone();
        let mut layers = Vec::new();
        for (index, (values, shards)) in (0..).zip(gradients.iter_mut().zip(&shards)) {
            let (setting, shape) = case.layers[index as usize];
            let layer = Layer::new(index, setting, shape, ValuesMut::F32(values), Rest::Dropped);
            layers.push(layer.with_shards(shards));
        }
        let mut host = Host { layers: &mut layers, workspace: &mut vec![0; 1000], scratch: None };
        let mut flight = Flight::begin(&mut host, moment, Agreement::Needed, None)?;
        while let Some(request) = flight.next(&mut host)? {
            request.perform(&mut worker)?;
        }
        Ok(())
    });
    assert_eq!(results, [Err(Error::PeerPlan { rank: 2 }); 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(100)))]
    /// All ranks learn each rank's status and whether ranks agree. Only the receiver of a message can detect other
    /// damage.
    #[test]
    fn spoilt_messages_are_refused_or_decoded(call in 0usize..3, at: usize, with in 1u8..) {
        let results = super::failures::tamper(&case(&hybrid(), 3, Route::Sharded), call, at, with);
        for (rank, result) in results.iter().enumerate() {
            let named = matches!(
                result,
                Ok(_) | Err(Error::PeerMessage { rank: 1, .. } | Error::PeerPlan { .. } | Error::Peer { .. })
            );
            prop_assert!(named, "rank {rank}: {:?}", result.as_ref().err());
        }
    }
}
