use super::controller::{ControllerState, lgreco_controller};
use super::gradient::{GradientLayer, Gradients};
use super::request::{Groups, LGRECO_REQUEST_NONE, lgreco_request};
use crate::failure::{Failure, Result};
use crate::handle::{self, Kind as _, kind};
use crate::pointers::{fill, slice};
use crate::status::{LGRECO_TRAINER, lgreco_status};
use core::ffi::c_void;
use lgreco_train::Error;
use lgreco_train::controller::two_level::LevelsBucket;
use std::sync::{Arc, Weak};

/// Layers that are exchanged together in one step, on loan from a controller with all that this rank remembers of them.
/// Different buckets may be used by different threads at the same time, and their controller by another. Only
/// lgreco_bucket_close frees one.
pub struct lgreco_bucket {
    _private: [u8; 0],
}

kind!(lgreco_bucket, "bucket", b"lgbucket", BucketState, names: names);

pub(crate) struct BucketState {
    bucket: LevelsBucket,
    groups: Groups,
    /// Gone when the controller is.
    owner: Weak<()>,
    /// How many states the controller had loaded when it lent the bucket.
    loads: u64,
    /// Of all the controller's layers.
    names: Arc<[String]>,
    gradients: Gradients,
    /// The gradients on their way: none before they are submitted, and when they are means.
    pointers: Vec<*mut c_void>,
    /// What was wrong with the pointers that were submitted, which `next` returns once all ranks know.
    wrong: Option<Failure>,
}

impl BucketState {
    fn new(bucket: LevelsBucket, from: &ControllerState) -> BucketState {
        let tensors = from.levels.tensors();
        let layers: Vec<_> =
            bucket.layers().into_iter().map(|index| GradientLayer::of(index, &tensors[index])).collect();
        BucketState {
            groups: from.groups(),
            owner: Arc::downgrade(&from.owner),
            loads: from.loads,
            names: from.names.clone(),
            pointers: Vec::with_capacity(layers.len()),
            gradients: Gradients::new(layers),
            wrong: None,
            bucket,
        }
    }

    /// # Safety
    /// The pointers that were submitted still are what was promised then.
    unsafe fn next(&mut self) -> Result<lgreco_request> {
        let BucketState { bucket, gradients, pointers, groups, .. } = self;
        let next = |values: &mut [_]| bucket.next(values).map(|next| lgreco_request::within(next, *groups));
        // SAFETY: passed on.
        let next = unsafe { gradients.with(pointers, next) }?;
        if !next.as_ref().is_ok_and(|request| request.kind != LGRECO_REQUEST_NONE) {
            pointers.clear();
        }
        match (next, self.wrong.take()) {
            (Err(Error::Trainer { .. }), Some(failure)) => Err(failure),
            (next, wrong) => {
                self.wrong = wrong;
                Ok(next?)
            }
        }
    }
}

/// Lends a bucket of these layers, by their index and in any order, for one exchange in the step that has begun. All
/// workers exchange the same layers together, in the same order; with layers that have not been exchanged together
/// before, a further all-gather of 24 bytes per worker finds out whether they do. Allocates: what the
/// settings need and up to three f32 per element where no bucket that was closed had as much room, else a few hundred bytes.
///
/// LGRECO_STEP_ORDER unless a step has begun and its control requests are done; LGRECO_LAYER_MISMATCH for a layer that
/// there is not; LGRECO_IN_FLIGHT for one that is in another bucket, or twice in this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_open(
    controller: *mut lgreco_controller,
    layers: *const usize,
    layers_len: usize,
    bucket: *mut *mut lgreco_bucket,
) -> lgreco_status {
    create_on!(controller, bucket, |state| {
        let layers = slice(layers, layers_len, "layers")?;
        let bucket = state.levels.open(layers)?;
        Ok(BucketState::new(bucket, state))
    })
}

/// Says that a layer has no gradient on this rank in this step, before lgreco_bucket_submit: whatever is submitted in
/// its place becomes zeros, of which the mean is then made, and its residual stays. Other ranks may have a gradient.
///
/// LGRECO_STEP_ORDER when there are gradients already; LGRECO_LAYER_MISMATCH when the layer is not in this bucket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_withhold(bucket: *mut lgreco_bucket, layer: usize) -> lgreco_status {
    call!(bucket, |state| Ok(state.bucket.withhold(layer)?))
}

/// Tells the collective number `index`, from 0, that lgreco_bucket_next will ask for, so that memory can be reserved or
/// registered beforehand: its kind, LGRECO_REQUEST_NONE where there are no more, and its size; pointers are NULL. `count` is
/// the number of f32, where they are summed; `length` the bytes of one worker that LGRECO_REQUEST_ALL_GATHER gathers, of all
/// workers that LGRECO_REQUEST_ALL_GATHER_EACH gathers (the most, where values decide), that are broadcast, or that
/// LGRECO_REQUEST_ALL_TO_ALL sends and receives together. Fewer come if the exchange fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_round(
    bucket: *mut lgreco_bucket,
    index: usize,
    request: *mut lgreco_request,
) -> lgreco_status {
    call!(bucket, |state| fill(request, || Ok(lgreco_request::announced(state.bucket.rounds()?.get(index).copied()))))
}

/// Takes the gradients of this step, one pointer per layer in the order in which the bucket was opened, adds residuals
/// and compresses. The library keeps the pointers: what they point to must stay in its place, used by nobody else,
/// until lgreco_bucket_next says LGRECO_REQUEST_NONE or fails, or the bucket is closed. Does not allocate.
///
/// LGRECO_STEP_ORDER when there are gradients already; the bucket is then as it was. What is wrong with gradients (they are not
/// finite, or lgreco_controller_step would refuse the pointers) is no failure here, because the other ranks wait for this one: all
/// are told, and lgreco_bucket_next fails on each. A trainer that has no gradients to give calls lgreco_bucket_submit_failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_submit(
    bucket: *mut lgreco_bucket,
    gradients: *const *mut c_void,
    gradients_len: usize,
) -> lgreco_status {
    call!(bucket, |state| {
        let BucketState { bucket, gradients: own, pointers: kept, wrong, .. } = state;
        let pointers = own.pointers(gradients, gradients_len);
        let submitted = pointers.and_then(|pointers| {
            let submitted = own.with(pointers, |values| bucket.submit(values))?;
            Ok(submitted.map(|()| kept.extend(pointers)))
        });
        match submitted {
            Ok(submitted) => Ok(submitted?),
            Err(failure) => {
                bucket.submit_failure(Error::Trainer { code: failure.status() })?;
                *wrong = Some(failure);
                Ok(())
            }
        }
    })
}

/// Says in place of lgreco_bucket_submit that this rank has no gradients to give, because its own backward pass has failed.
/// All ranks learn of it in this step: lgreco_bucket_next, which is called as after lgreco_bucket_submit, fails here with
/// LGRECO_TRAINER and elsewhere with LGRECO_PEER, whose message tells the rank. What is remembered of the layers is as it was.
///
/// LGRECO_STEP_ORDER when there are gradients already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_submit_failure(bucket: *mut lgreco_bucket) -> lgreco_status {
    call!(bucket, |state| Ok(state.bucket.submit_failure(Error::Trainer { code: LGRECO_TRAINER })?))
}

/// Goes on, once the collective asked for before is done, and tells the next one; LGRECO_REQUEST_NONE when the
/// gradients are means. Does not allocate.
///
/// What fails on one rank fails on all: with its own code there, elsewhere with LGRECO_PEER, whose message tells rank
/// and code. Gradients of the bucket are then of no use, what is remembered of its layers is as it was, and other
/// buckets are not concerned: LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks exchange different layers or
/// under different options, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PEER_MESSAGE. Where the controller's
/// options do not make gradients that are not finite an error, all of the bucket's become zeros (skip) or
/// NaN (pass_through), for a loss scaler to find, on every rank instead, and residuals stay. LGRECO_STEP_ORDER before lgreco_bucket_submit, and after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_next(bucket: *mut lgreco_bucket, request: *mut lgreco_request) -> lgreco_status {
    call!(bucket, |state| { fill(request, || state.next()) })
}

/// Gives a bucket back to its controller, wherever it is, frees it and sets the caller's pointer to NULL; NULL, or a
/// pointer to NULL, does nothing. A collective that is still under way on its memory must have ended. One that has not
/// come to its means leaves what is remembered of its layers as it was; one from before lgreco_controller_load is only
/// freed. `controller` may be NULL once that of the bucket has been destroyed.
///
/// LGRECO_STEP_ORDER for a bucket of another controller, which stays as it is. LGRECO_PANIC for one that a call has
/// panicked on: it is freed with what it had of its layers, which are LGRECO_IN_FLIGHT until a saved state is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_close(
    controller: *mut lgreco_controller,
    bucket: *mut *mut lgreco_bucket,
) -> lgreco_status {
    if controller.is_null() {
        let is_orphan = |state: &BucketState| match state.owner.strong_count() {
            0 => Ok(()),
            _ => Err(Failure::Null(lgreco_controller::WHAT)),
        };
        return plain!(|| handle::take(bucket, is_orphan).map(drop));
    }
    call!(controller, |state| {
        match handle::take(bucket, |bucket| state.check_own(&bucket.owner, "the bucket is another controller's"))? {
            Some(bucket) if bucket.loads == state.loads => Ok(state.levels.close(bucket.bucket)?),
            _ => Ok(()),
        }
    })
}
