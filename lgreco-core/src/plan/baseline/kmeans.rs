use super::{efficient, place, sums};
use crate::error::{expect_len, expect_room};
use crate::plan::Limit;
use crate::{Error, Result, num::Sum, table::Table};

const RESTARTS: usize = 8;
const ITERATIONS: usize = 100;

type Point = [f64; 2];

/// 8-byte words of workspace that [`kmeans`] needs.
pub fn kmeans_workspace_len(table: &Table, clusters: usize) -> usize {
    let (layers, clusters) = (table.layers(), clusters.min(table.layers()));
    2 * (layers + clusters) + 3 * layers + clusters + table.choices().len().div_ceil(2)
}

/// CGX's adaptive setting: clusters layers by size and metric, and gives each cluster one compression level.
///
/// Each layer is represented by the point (log `elements`, `metric`). Each axis is divided by its standard deviation
/// over the layers. Clusters are ordered by the metric of their centres. An option is efficient if no other option of
/// its layer beats it in both size and error. A level is a position in the list of a layer's efficient options. The
/// levels of the clusters are spaced evenly, from the layer's smallest option to a finest level.
///
/// In CGX, users set the finest level by hand. This function derives the finest level from the limit. An error budget
/// gives the coarsest choice within the budget, a size limit the finest choice within the limit. If no choice keeps the
/// plan within the budget, the layer with the largest error per bit takes its next larger efficient option. This step
/// repeats until the plan is within the budget.
///
/// `metric` is the layer's sensitivity. CGX uses the norm of the gradient's 100 largest elements; the L-GreCo paper
/// uses the error of the default option. `clusters` is the number of levels. CGX has one level per bit width; the
/// L-GreCo paper has 6 levels for PowerSGD ranks 8 to 64. If there are fewer distinct points than clusters, the
/// coarsest levels are not used.
///
/// The result is deterministic. Lloyd's iteration runs from up to 8 sets of centres. Each set starts with the point of
/// a different layer; then the point farthest from all centres of the set is added repeatedly. The result is the
/// clustering of lowest inertia, or the first of several with equal inertia. A cluster that becomes empty restarts at
/// the point that is farthest from all centres.
///
/// ```
/// use lgreco_core::{plan::baseline, table::{Choice, Table}};
/// let choices = [(8, 0.5), (4, 2.0), (80, 5.0), (40, 20.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let (mut workspace, mut options) = (vec![0; baseline::kmeans_workspace_len(&table, 2)], [0; 2]);
/// baseline::kmeans(&table, 7.0, &[2, 20], &[0.5, 5.0], 2, &mut workspace, &mut options)?;
/// assert_eq!(options, [1, 0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`] when the budget is NaN, infinite or negative. [`Error::Length`] when a slice does not have one
/// entry per layer or `workspace` is too short. [`Error::Parameter`] for `clusters == 0` and a metric that is NaN,
/// infinite or negative. [`Error::Infeasible`] when the smallest errors exceed the budget, [`Error::SizeInfeasible`]
/// when the smallest sizes exceed the size limit.
///
/// # Complexity
/// O(8·100·layers·clusters + options·(log(options) + layers)) time at most; [`kmeans_workspace_len`] words; no
/// allocator.
///
/// # Source
/// CGX (Middleware 2022), the authors' development code. Deviations: this function takes the logarithm of the sizes,
/// and its starts are deterministic. This function also stays within a budget; CGX's k-means has no budget.
pub fn kmeans(
    table: &Table,
    limit: impl Into<Limit>,
    elements: &[u64],
    metric: &[f64],
    clusters: usize,
    workspace: &mut [u64],
    options: &mut [u32],
) -> Result<()> {
    let layers = table.layers();
    expect_len("choices, one per layer", layers, options.len())?;
    expect_len("elements, one per layer", layers, elements.len())?;
    expect_len("metrics, one per layer", layers, metric.len())?;
    expect_room("workspace", kmeans_workspace_len(table, clusters), workspace.len())?;
    let limit = limit.into().checked()?;
    Error::require(clusters > 0, "clusters", 0.0, "at least 1")?;
    for &value in metric {
        Error::require(value.is_finite() && value >= 0.0, "metric", value, "a finite number >= 0")?;
    }

    let centres = clusters.min(layers);
    let (points, rest) = workspace.split_at_mut(2 * layers);
    let (centre_words, rest) = rest.split_at_mut(2 * centres);
    let (assigned, rest) = rest.split_at_mut(layers);
    let (best, rest) = rest.split_at_mut(layers);
    let (rank, rest) = rest.split_at_mut(centres);
    let (places, front) = rest.split_at_mut(layers);
    let points: &mut [Point] = bytemuck::cast_slice_mut(points);
    let front: &mut [u32] = bytemuck::cast_slice_mut(front);

    for (layer, point) in points.iter_mut().enumerate() {
        *point = [log2(elements[layer].max(1)), metric[layer]];
    }
    whiten(points);
    let used = cluster(points, bytemuck::cast_slice_mut(centre_words), assigned, best, rank);
    // From here on, `assigned` holds the position of each layer's last efficient option in the layer's row of `front`.
    // The unused entries at the end of a row repeat the last efficient option.
    let (mut start, mut widest) = (0, 0);
    for (choices, last) in table.iter().zip(assigned.iter_mut()) {
        let row = &mut front[start..start + choices.len()];
        let efficient = efficient(choices, row);
        let most_exact = row[efficient - 1];
        row[efficient..].fill(most_exact);
        *last = efficient as u64 - 1;
        widest = widest.max(efficient - 1);
        start += choices.len();
    }
    let (lowest, steps) = (clusters - used, (clusters - 1).max(1) as u128);
    let place_of = |layer: usize, cap: usize| -> u64 {
        let level = if clusters == 1 { 1 } else { lowest as u128 + u128::from(rank[best[layer] as usize]) };
        let top = u128::from(assigned[layer]) * cap as u128 / widest.max(1) as u128;
        ((level * top + steps / 2) / steps) as u64
    };
    let mut take = |cap: usize| {
        let mut start = 0;
        for (layer, choices) in table.iter().enumerate() {
            options[layer] = front[start + place_of(layer, cap) as usize];
            start += choices.len();
        }
        sums(table, options)
    };
    let cap = place(limit, 0..=widest, &mut take)?;
    let (error, size) = take(cap)?;
    let Limit::Error(budget) = limit else { return limit.expect_met(error, size) };
    for (layer, place_of_layer) in places.iter_mut().enumerate() {
        *place_of_layer = place_of(layer, cap);
    }
    raise(table, budget, front, places, options)
}

/// Base-2 logarithm, interpolated linearly between powers of two. The result has the same bits on every platform.
fn log2(x: u64) -> f64 {
    let whole = x.ilog2();
    f64::from(whole) + (x as f64 / (1u64 << whole) as f64 - 1.0)
}

/// Divides each axis by its largest value, so that squares cannot overflow, and then by its standard deviation.
fn whiten(points: &mut [Point]) {
    for axis in 0..2 {
        let largest = points.iter().fold(0f64, |largest, point| largest.max(point[axis]));
        if largest == 0.0 {
            continue;
        }
        points.iter_mut().for_each(|point| point[axis] /= largest);
        let count = points.len() as f64;
        let mean = points.iter().map(|point| point[axis]).sum::<f64>() / count;
        let variance = points.iter().map(|point| (point[axis] - mean) * (point[axis] - mean)).sum::<f64>() / count;
        let deviation = crate::num::sqrt(variance);
        if deviation > 1e-12 {
            points.iter_mut().for_each(|point| point[axis] /= deviation);
        }
    }
}

fn distance(a: Point, b: Point) -> f64 {
    (a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1])
}

/// Index of the nearest centre, or of the first of several nearest centres, and its squared distance.
fn nearest(point: Point, centres: &[Point]) -> (usize, f64) {
    let mut nearest = (0, f64::INFINITY);
    for (index, &centre) in centres.iter().enumerate() {
        let distance = distance(point, centre);
        if distance < nearest.1 {
            nearest = (index, distance);
        }
    }
    nearest
}

/// The point farthest from its nearest centre, or the first of several such points. `None` if all points are centres.
fn farthest(points: &[Point], centres: &[Point]) -> Option<usize> {
    let mut farthest = (None, 0.0);
    for (index, &point) in points.iter().enumerate() {
        let (_, distance) = nearest(point, centres);
        if distance > farthest.1 {
            farthest = (Some(index), distance);
        }
    }
    farthest.0
}

/// Clusters the points, and returns the number of clusters, at most the length of `centres`.
///
/// Writes each point's cluster to `best`. Writes to `rank` each cluster's position when clusters are sorted by the
/// metric of their centres.
fn cluster(points: &[Point], centres: &mut [Point], assigned: &mut [u64], best: &mut [u64], rank: &mut [u64]) -> usize {
    let (mut used, mut lowest) = (0, f64::INFINITY);
    let restarts = RESTARTS.min(points.len());
    for restart in 0..restarts {
        centres[0] = points[restart * points.len() / restarts];
        let mut count = 1;
        while count < centres.len() {
            let Some(index) = farthest(points, &centres[..count]) else { break };
            centres[count] = points[index];
            count += 1;
        }
        let inertia = lloyd(points, &mut centres[..count], assigned);
        if inertia < lowest {
            (used, lowest) = (count, inertia);
            best.copy_from_slice(assigned);
            for index in 0..count {
                let metric = centres[index][1];
                let before = centres[..count]
                    .iter()
                    .enumerate()
                    .filter(|&(other, centre)| centre[1] < metric || (centre[1] == metric && other < index));
                rank[index] = before.count() as u64;
            }
        }
    }
    used
}

/// Lloyd's iteration: moves centres to the means of their points until nothing changes. Returns the sum of the points'
/// squared distances from their centres.
fn lloyd(points: &[Point], centres: &mut [Point], assigned: &mut [u64]) -> f64 {
    assigned.fill(u64::MAX);
    let mut inertia = f64::INFINITY;
    for _ in 0..ITERATIONS {
        let mut changed = false;
        inertia = 0.0;
        for (point, cluster) in points.iter().zip(assigned.iter_mut()) {
            let (index, distance) = nearest(*point, centres);
            changed |= *cluster != index as u64;
            *cluster = index as u64;
            inertia += distance;
        }
        if !changed {
            break;
        }
        for index in 0..centres.len() {
            let (mut sum, mut count) = ([0.0; 2], 0.0);
            for (point, _) in points.iter().zip(assigned.iter()).filter(|&(_, &cluster)| cluster == index as u64) {
                sum = [sum[0] + point[0], sum[1] + point[1]];
                count += 1.0;
            }
            if count > 0.0 {
                centres[index] = [sum[0] / count, sum[1] / count];
            } else if let Some(point) = farthest(points, centres) {
                centres[index] = points[point];
            }
        }
    }
    inertia
}

/// Repeatedly raises the layer with the largest error per bit to its next efficient option, until the plan is within
/// the budget.
fn raise(table: &Table, budget: f64, front: &[u32], place: &mut [u64], options: &mut [u32]) -> Result<()> {
    loop {
        let sum: Sum = table.chosen(options)?.map(|choice| choice.error).collect();
        if sum.at_most(budget) {
            return Ok(());
        }
        let (mut worst, mut most, mut start) = (None, 0.0, 0);
        for (layer, choices) in table.iter().enumerate() {
            let row = &front[start..start + choices.len()];
            start += choices.len();
            let at = place[layer] as usize;
            let chosen = choices[row[at] as usize];
            let per_bit = chosen.error / chosen.size.max(1) as f64;
            if let Some(&next) = row.get(at + 1).filter(|&&next| next != row[at])
                && (worst.is_none() || per_bit > most)
            {
                (worst, most) = (Some((layer, next)), per_bit);
            }
        }
        let Some((layer, next)) = worst else { return Err(Error::infeasible(budget, sum, sums(table, options)?.1)) };
        place[layer] += 1;
        options[layer] = next;
    }
}
