//! An exchange with blocking collectives.

use super::collective::{Collective, Place};
use super::flight::Flight;
use super::host::Host;
use super::layer::Layer;
use super::layout::Layout;
use super::moment::{Agreement, Moment, Route};
use super::spec::Spec;
use crate::Error;
use crate::gradient::Dtype;

/// Words of workspace that a [`Flight`] in the memory of a [`Host`] needs for layers of these settings, shapes and element types.
///
/// ```
/// use lgreco_train::compress::Setting;
/// use lgreco_train::exchange::{Route, workspace_len};
/// use lgreco_train::gradient::{Dtype, Shape};
/// let layers = [(Setting::Dense, Shape::new(10, 10)?, Dtype::F32)];
/// assert_eq!(workspace_len(layers.into_iter(), Route::AllGather, 4)?, 4 * 8 + (100 + 2 * 4) / 2);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
///
/// # Errors
/// [`CoreError::Parameter`](crate::CoreError::Parameter) when a setting does not fit its shape.
pub fn workspace_len<'a>(
    layers: impl Iterator<Item = impl Into<Spec<'a>>> + Clone,
    route: Route,
    world_size: u32,
) -> Result<usize, Error> {
    let layout = Layout::new(layers.map(Into::into), route, world_size, Dtype::F32)?;
    Ok(layout.words().saturating_add(layout.scratch_words()))
}

/// Averages a bucket of layers over the workers with blocking collectives. This function runs a [`Flight`], and calls
/// [`Request::perform`](super::Request::perform) for each request of the flight. PowerSGD always makes one power iteration per
/// call. PowerSGD's accuracy depends on the warm start from [`Layer::factor`]. All-reduces sum f32 values.
///
/// Every call begins with an all-gather of 24 bytes per rank, which checks that all ranks have the same layers and settings.
///
/// # Errors
/// The errors of [`Flight::begin`] and [`Flight::next`]; [`CoreError::Parameter`](crate::CoreError::Parameter) when `collective`
/// has no workers, or when its rank is not below their number; [`Error::Collective`] when the caller's collective failed.
///
/// # Complexity
/// Encodes every layer once. Decodes each layer once per worker ([`Route::AllGather`]), or about twice in total
/// ([`Route::ScatterReduce`]). Workspace: [`workspace_len`].
///
/// ```
/// use lgreco_train::compress::Setting;
/// use lgreco_train::exchange::{self, Collective, Layer, Rest, Route, threads};
/// use lgreco_train::gradient::{Dtype, Shape, ValuesMut};
///
/// let (shape, setting) = (Shape::new(2, 1)?, Setting::Dense);
/// let means = threads::run(2, |mut worker| {
///     let mut values = [1.0, worker.rank() as f32];
///     let words = exchange::workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2)?;
///     let layer = Layer::new(0, setting, shape, ValuesMut::F32(&mut values), Rest::Dropped);
///     exchange::aggregate(&mut worker, &mut [layer], Route::AllGather, 7, 0, &mut vec![0; words])?;
///     Ok::<_, lgreco_train::Error>(values)
/// });
/// assert_eq!(means, [Ok([1.0, 0.5]); 2]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub fn aggregate<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    route: Route,
    seed: u64,
    step: u32,
    workspace: &mut [u64],
) -> Result<(), Error> {
    let Place { rank, world } = Place::of(collective)?;
    let moment = Moment { rank, world_size: world, route, reduce_dtype: Dtype::F32, seed, step, terms: 0 };
    let mut host = Host { layers, workspace, scratch: None };
    let mut flight = Flight::begin(&mut host, moment, Agreement::Needed, None)?;
    while let Some(request) = flight.next(&mut host)? {
        request.perform(collective)?;
    }
    Ok(())
}
