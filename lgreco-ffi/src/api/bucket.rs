use super::controller::{ControllerState, lgreco_controller};
use super::gradient::{GradientLayer, Gradients};
use super::request::{Groups, LGRECO_REQUEST_NONE, lgreco_request};
use crate::failure::{Failure, Result};
use crate::handle::{self, Kind as _, kind};
use crate::pointers::slice;
use crate::status::{LGRECO_TRAINER, lgreco_status};
use crate::structs::fill;
use core::ffi::c_void;
use lgreco_train::Error;
use lgreco_train::controller::two_level::LevelsBucket;
use std::sync::{Arc, Weak};

/// Layers that are exchanged together in one step. The controller lends them with this rank's residuals and factors.
/// Several threads may each use a different bucket, while another thread uses the controller. Only lgreco_bucket_close
/// frees a bucket.
pub struct lgreco_bucket {
    _private: [u8; 0],
}

kind!(lgreco_bucket, "bucket", b"lgbucket", BucketState, names: names);

pub(crate) struct BucketState {
    bucket: LevelsBucket,
    groups: Groups,
    /// Identifies the controller. Upgrading this weak reference fails once the controller is destroyed.
    owner: Weak<()>,
    /// Number of saved states that the controller had loaded when it lent the bucket.
    loads: u64,
    /// Names of all layers of the controller.
    names: Arc<[String]>,
    gradients: Gradients,
    /// Pointers to the submitted gradients. Empty before submission, and after the means have replaced the gradients.
    pointers: Vec<*mut c_void>,
    /// The failure that the submitted pointers caused, if any. `next` returns this failure after all ranks have learned
    /// of it.
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

    /// # Safety The submitted pointers still meet the requirements of lgreco_bucket_submit.
    unsafe fn next(&mut self) -> Result<lgreco_request> {
        let BucketState { bucket, gradients, pointers, groups, .. } = self;
        let next = |values: &mut [_]| bucket.next(values).map(|next| lgreco_request::within(next, *groups));
        // SAFETY: the caller meets the safety requirements of this function.
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

/// Lends a bucket of these layers for one exchange in the step that has begun. `layers` are indices, in any order. All
/// workers exchange the same layers together, in the same order. An additional all-gather of 24 bytes per worker checks
/// that all ranks agree, if these layers have not been exchanged together before, or if a payload length depends on the
/// values. Allocates the memory that the settings need, and up to three f32 per element. If the memory of a closed
/// bucket can be reused, the call allocates only a few hundred bytes.
///
/// Fails with LGRECO_STEP_ORDER unless a step has begun and its control requests are done. Fails with
/// LGRECO_LAYER_MISMATCH for an unknown layer, and with LGRECO_IN_FLIGHT for a layer that is in another bucket or twice
/// in `layers`.
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

/// Declares that a layer has no gradient on this rank in this step. Call it before lgreco_bucket_submit. The library
/// treats the submitted values of the layer as zeros and replaces them by the mean. The residual stays unchanged. Other
/// ranks may have a gradient of this layer.
///
/// Fails with LGRECO_STEP_ORDER when gradients were already submitted, and with LGRECO_LAYER_MISMATCH when the layer is
/// not in this bucket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_withhold(bucket: *mut lgreco_bucket, layer: usize) -> lgreco_status {
    call!(bucket, |state| Ok(state.bucket.withhold(layer)?))
}

/// Reports the kind and size of a collective before lgreco_bucket_next asks for it, so that memory can be reserved or
/// registered. `index` counts the bucket's collectives from 0. After the bucket's last collective, the kind is
/// LGRECO_REQUEST_NONE. All pointers are NULL. An exchange that fails asks for fewer collectives.
///
/// `count` is the number of f32 or bf16 values to sum. `length` is a number of bytes, which depends on the kind:
/// - LGRECO_REQUEST_ALL_GATHER: the bytes of one worker.
/// - LGRECO_REQUEST_ALL_GATHER_EACH: the bytes of all workers, or an upper bound if the lengths depend on the values.
/// - LGRECO_REQUEST_BROADCAST: the bytes that are broadcast.
/// - LGRECO_REQUEST_ALL_TO_ALL: the bytes sent and received together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_round(
    bucket: *mut lgreco_bucket,
    index: usize,
    request: *mut lgreco_request,
) -> lgreco_status {
    call!(bucket, |state| fill(request, || Ok(lgreco_request::announced(state.bucket.rounds()?.get(index).copied()))))
}

/// Submits the gradients of this step, one pointer per layer in the order in which the bucket was opened. The call adds
/// residuals and compresses. The library keeps the pointers: the gradients must stay in place, and nothing else may use
/// them. The library releases the gradients when lgreco_bucket_next returns LGRECO_REQUEST_NONE or fails, or when the
/// bucket is closed. Allocates scratch memory.
///
/// Fails with LGRECO_STEP_ORDER when gradients were already submitted; the bucket is then unchanged. This call does not
/// fail for wrong gradients, because the other ranks wait for this rank. Wrong gradients are values that are not
/// finite, and pointers that lgreco_controller_step would refuse. lgreco_bucket_next reports them to all ranks, and
/// fails on every rank. A trainer that has no gradients calls lgreco_bucket_submit_failure.
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

/// Replaces lgreco_bucket_submit on a rank that has no gradients because its backward pass has failed. All ranks learn
/// of the failure in this step. Continue with lgreco_bucket_next, as after lgreco_bucket_submit. On this rank,
/// lgreco_bucket_next fails with LGRECO_TRAINER. On the other ranks it fails with LGRECO_PEER, and the message names
/// this rank. Residuals and factors of the layers stay unchanged. A bucket whose layers have no elements sends no
/// messages. In this case the next bucket or step fails on all ranks.
///
/// Fails with LGRECO_STEP_ORDER when gradients were already submitted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_submit_failure(bucket: *mut lgreco_bucket) -> lgreco_status {
    call!(bucket, |state| Ok(state.bucket.submit_failure(Error::Trainer { code: LGRECO_TRAINER })?))
}

/// Continues the exchange after the previous request was performed, and returns the next collective in `request`.
/// LGRECO_REQUEST_NONE means that the gradients are now means. Allocates scratch memory and, on nodes, memory for the
/// last collective. If this allocation fails, the call fails with LGRECO_OUT_OF_MEMORY on this rank only.
///
/// Any other failure on one rank is a failure on all ranks. The rank at fault gets the code of its error. The other
/// ranks get LGRECO_PEER, with the failed rank and its code in the message. After a failure, the bucket's gradients are
/// unusable, its residuals and factors are unchanged, and other buckets are not affected. The codes are
/// LGRECO_NON_FINITE_GRADIENT, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PEER_MESSAGE, and LGRECO_PEER_PLAN when
/// ranks exchange different layers or have different options.
///
/// If the option `non_finite` is `skip` or `pass_through`, gradients that are not finite are no error. With `skip`, all
/// gradients of the bucket become zeros on every rank. With `pass_through`, all gradients of the bucket become NaN on
/// every rank, which a loss scaler detects. Residuals stay unchanged. Fails with LGRECO_STEP_ORDER before
/// lgreco_bucket_submit, and after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_bucket_next(bucket: *mut lgreco_bucket, request: *mut lgreco_request) -> lgreco_status {
    call!(bucket, |state| { fill(request, || state.next()) })
}

/// Returns a bucket's layers to its controller, frees the bucket, and sets the caller's pointer to NULL. The exchange
/// may be at any stage. Does nothing for NULL, or for a pointer to NULL. No collective may still use the bucket's
/// memory. If the exchange did not finish, the residuals and factors of the bucket's layers stay unchanged. A bucket
/// that was opened before lgreco_controller_load is freed without any other effect. `controller` may be NULL once the
/// bucket's controller is destroyed.
///
/// If the bucket is closed in the middle of its exchange, other ranks may have the means. The step's outcome on this
/// rank is then LGRECO_OUTCOME_FAILED. The next step fails on all ranks, on this rank with LGRECO_STEP_ORDER. To avoid
/// both failures, exchange the layers again in this step, or abandon the step, on all ranks.
///
/// Fails with LGRECO_STEP_ORDER for a bucket of another controller; the bucket stays unchanged. LGRECO_PANIC means that
/// an earlier call on the bucket panicked. The bucket is then freed together with the state of its layers. Calls on
/// these layers fail with LGRECO_IN_FLIGHT until a saved state is loaded.
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
