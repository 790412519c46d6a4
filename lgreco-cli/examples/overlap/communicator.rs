//! Threads that exchange buckets while the backward pass goes on.

use crate::link::Linked;
use crate::worker::{Failure, Gradients};
use lgreco_train::Error;
use lgreco_train::controller::Bucket;
use lgreco_train::gradient::ValuesMut;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A thread with a group of its own, so that it need not agree with the worker's others on an order of collectives.
pub struct Communicator {
    submitted: Sender<(Bucket, Gradients)>,
    exchanged: Receiver<Exchanged>,
}

/// A bucket that comes back, the means of its gradients, and how it went.
pub type Exchanged = (Bucket, Gradients, Result<(), Error>);

impl Communicator {
    /// Lives until it is dropped.
    pub fn new(mut collective: Linked) -> Communicator {
        let (submitted, buckets) = channel::<(Bucket, Gradients)>();
        let (means, exchanged) = channel();
        std::thread::spawn(move || {
            for (mut bucket, mut gradients) in buckets {
                let outcome = exchange(&mut bucket, &mut gradients, &mut collective);
                if means.send((bucket, gradients, outcome)).is_err() {
                    break;
                }
            }
        });
        Communicator { submitted, exchanged }
    }

    /// Hands over a bucket and its gradients; does not wait.
    pub fn submit(&self, bucket: Bucket, gradients: Gradients) -> Result<(), Failure> {
        self.submitted.send((bucket, gradients)).map_err(|_| "a communicator has ended".into())
    }

    /// Waits for the bucket.
    pub fn wait(&self) -> Result<Exchanged, Failure> {
        Ok(self.exchanged.recv()?)
    }
}

fn exchange(bucket: &mut Bucket, gradients: &mut [Vec<f32>], collective: &mut Linked) -> Result<(), Error> {
    let mut views: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
    bucket.submit(&mut views)?;
    while let Some(request) = bucket.next(&mut views)? {
        request.perform(collective)?;
    }
    Ok(())
}
