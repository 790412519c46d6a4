// A dispatch does many tasks. Each task works on a piece of a tensor, with separate parameters. A workgroup finds its
// task from its own number in the dispatch.

struct Task {
    first: u32, // number of its first workgroup in the dispatch
    across: u32, // number of its workgroups, in three dimensions
    down: u32,
    deep: u32,
    params: Params,
}

@group(0) @binding(0) var<storage, read> tasks: array<Task>;

struct Dispatch {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
}

var<private> params: Params;
// The workgroup's place among the workgroups of its task, and their number.
var<private> group: vec3<u32>;
var<private> groups: vec3<u32>;

// Selects a workgroup's task; returns false for workgroups after the last task.
fn begin(dispatch: Dispatch) -> bool {
    let at = (dispatch.group.z * dispatch.groups.y + dispatch.group.y) * dispatch.groups.x + dispatch.group.x;
    var low = 0u;
    var high = arrayLength(&tasks);
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (tasks[middle].first <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    params = tasks[low].params;
    groups = vec3<u32>(tasks[low].across, tasks[low].down, tasks[low].deep);
    let own = at - tasks[low].first;
    group = vec3<u32>(own % groups.x, own / groups.x % groups.y, own / groups.x / groups.y);
    return group.z < groups.z;
}
