//! Messages that only one rank cannot read, and outside methods that differ between ranks.

use super::*;
use lgreco_testing::exchange::Through;
use lgreco_train::compress::method::{FIRST_ID, Method as Own, Methods, OwnSetting, Parameters};
use lgreco_train::exchange::Request;
use lgreco_train::gradient::Shape;

/// Receives a damaged payload of rank 0.
fn damaged(worker: &mut ThreadCollective, request: Request<'_>) -> Result<(), CollectiveError> {
    match request {
        Request::AllGather { buffer } if buffer.len() > 32 * WORLD as usize => {
            worker.all_gather(buffer)?;
            buffer[16] ^= 0xff; // after the status record
            Ok(())
        }
        request => request.perform(worker),
    }
}

const WORLD: u32 = 3;

fn taken(controller: &mut Controller, worker: &mut impl Collective) -> Result<(), Error> {
    let mut gradients = gradients(worker.rank(), controller.steps() as u32, 1.0);
    controller.step(worker, &mut views(&mut gradients), 1.0).map(drop)
}

/// Takes a step with one bucket.
fn in_a_bucket(controller: &mut Controller, worker: &mut ThreadCollective, is_damaged: bool) -> Result<(), Error> {
    agree(controller, worker, 1.0)?;
    let mut gradients = gradients(worker.rank(), controller.steps() as u32, 1.0);
    let mut bucket = controller.open(&[0, 1, 2])?;
    let values = &mut views(&mut gradients);
    let exchanged = if is_damaged {
        bucket.exchange(&mut Through::new(worker, damaged), values)
    } else {
        bucket.exchange(worker, values)
    };
    controller.close(bucket)?;
    controller.finish_step()?;
    exchanged
}

fn cannot_read(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::PeerMessage { rank: 0, .. }))
}

/// The models then differ, so every further step fails on all ranks, until all have loaded the same state.
#[test]
fn a_message_that_one_rank_cannot_read_is_known_to_all_ranks_at_the_next_step() {
    let config = config(Method::TopK, Policy::Uniform);
    for blocking in [true, false] {
        threads::run(WORLD, |mut worker| {
            let mut controller = Controller::new(config.clone(), model(), worker.rank(), WORLD).unwrap();
            (0..4).for_each(|_| in_a_bucket(&mut controller, &mut worker, false).unwrap());
            let saved = controller.save().unwrap();
            let alone = worker.rank() == 1;
            let result = match blocking {
                true if alone => taken(&mut controller, &mut Through::new(&mut worker, damaged)),
                true => taken(&mut controller, &mut worker),
                false => in_a_bucket(&mut controller, &mut worker, alone),
            };
            assert!(if alone { cannot_read(result) } else { result.is_ok() }, "{result:?}");
            if !blocking {
                let found = in_a_bucket(&mut controller, &mut worker, false);
                assert_eq!(found, Err(Error::PeerPlan { rank: 1 }));
            }
            for _ in 0..2 {
                let found = taken(&mut controller, &mut worker);
                let Err(Error::PeerOption { rank: 1, what, .. }) = found else { panic!("{found:?}") };
                assert_eq!(what, "steps whose messages could not be read");
            }
            controller.load(&[&saved], &[&saved]).unwrap();
            taken(&mut controller, &mut worker).unwrap();
            in_a_bucket(&mut controller, &mut worker, false).unwrap();
        });
    }
}

#[test]
fn after_a_message_that_no_rank_can_read_the_next_step_works() {
    let config = config(Method::TopK, Policy::Uniform);
    threads::run(WORLD, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), WORLD).unwrap();
        (0..4).for_each(|_| taken(&mut controller, &mut worker).unwrap());
        assert!(cannot_read(taken(&mut controller, &mut Through::new(&mut worker, damaged))));
        taken(&mut controller, &mut worker).unwrap();
        assert!(cannot_read(in_a_bucket(&mut controller, &mut worker, true)));
        in_a_bucket(&mut controller, &mut worker, false).unwrap();
    });
}

/// Sends a zero byte for each value, and some more.
#[derive(Debug)]
struct Padded(usize);

static PADDED: [&[&dyn Own]; 2] = [&[&Padded(0)], &[&Padded(64)]];

impl Own for Padded {
    fn id(&self) -> u8 {
        FIRST_ID
    }
    fn name(&self) -> &'static str {
        "padded"
    }
    fn is_bounded(&self, _: &Parameters) -> bool {
        true
    }
    fn body_len(&self, _: &Parameters, shape: Shape, _: Dtype) -> Result<usize, CoreError> {
        Ok(shape.elements() + self.0)
    }
    fn encode(
        &self,
        _: &Parameters,
        gradient: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        body: &mut [u8],
    ) -> Result<usize, CoreError> {
        body.fill(0);
        Ok(gradient.shape().elements() + self.0)
    }
    fn decode(&self, _: &Parameters, _: Shape, _: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
        values.fill(0.0);
        Ok(())
    }
}

/// Two versions of an outside method have the same name and parameters.
#[test]
fn an_outside_method_with_other_lengths_on_one_rank_is_found_before_its_first_payload() {
    let results = threads::run(2, |mut worker| {
        let methods = PADDED[worker.rank() as usize];
        let own = OwnSetting::new(methods[0], [0; 4]).unwrap();
        let mut config = config(Method::TopK, Policy::Fixed(vec![Setting::Own(own); 3]));
        config.search.methods = Methods::new(methods).unwrap();
        let mut controller = Controller::new(config, model(), worker.rank(), 2).unwrap();
        (0..2).for_each(|_| taken(&mut controller, &mut worker).unwrap());
        [0; 2].map(|_| taken(&mut controller, &mut worker))
    });
    assert_eq!(results, [[Err(Error::PeerPlan { rank: 1 }); 2]; 2]);
}
