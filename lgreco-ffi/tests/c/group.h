// A group of workers, which are threads of one process, and the group's collectives. If one worker's callback fails,
// the callbacks of the other workers fail too.
#ifndef GROUP_H
#define GROUP_H

#include "check.h"

#include <pthread.h>

enum { WORKERS_MAX = 4, BROKEN = 78 };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t workers, arrived;
    uint64_t round;
    int broken;
    const void *from[WORKERS_MAX];
    const uint64_t *lens[WORKERS_MAX];
    float *sums;
} Group;

typedef struct Member {
    Group *group;
    uint32_t rank;
    struct Member *within[3];  // by lgreco_group: the same worker in its node, and among its peers
    int calls;       // made so far
    int fail_at;     // the call that fails with fail_code, from 1; 0 for none
    int fail_code;
    uint32_t missing;  // a bit for each kind of request that is unsupported
} Member;

// Waits for all workers. Returns a nonzero code if a worker has failed.
static inline int meet(Group *group) {
    pthread_mutex_lock(&group->lock);
    const uint64_t round = group->round;
    if (++group->arrived == group->workers) {
        group->arrived = 0;
        group->round++;
        pthread_cond_broadcast(&group->changed);
    }
    while (group->round == round && !group->broken) pthread_cond_wait(&group->changed, &group->lock);
    const int broken = group->round == round;
    pthread_mutex_unlock(&group->lock);
    return broken ? BROKEN : 0;
}

static inline int enter(Member *member) {
    if (++member->calls != member->fail_at) return 0;
    pthread_mutex_lock(&member->group->lock);
    member->group->broken = 1;
    pthread_cond_broadcast(&member->group->changed);
    pthread_mutex_unlock(&member->group->lock);
    return member->fail_code;
}

static inline int32_t all_reduce_sum(Member *member, float *values, size_t count) {
    Group *const group = member->group;
    int code = enter(member);
    if (code) return code;
    group->from[member->rank] = values;
    if (member->rank == 0) {
        free(group->sums);
        group->sums = calloc(count + 1, sizeof *values);
    }
    if ((code = meet(group))) return code;
    if (member->rank == 0)
        for (uint32_t rank = 0; rank < group->workers; rank++)
            for (size_t i = 0; i < count; i++) group->sums[i] += ((const float *)group->from[rank])[i];
    if ((code = meet(group))) return code;
    if (count > 0) memcpy(values, group->sums, count * sizeof *values);
    return meet(group);
}

// Copies each other worker's part from that worker's buffer.
static inline int32_t all_gather_each(Member *member, const uint64_t *lens, uint8_t *buffer) {
    Group *const group = member->group;
    int code = enter(member);
    if (code) return code;
    group->from[member->rank] = buffer;
    if ((code = meet(group))) return code;
    size_t at = 0;
    for (uint32_t rank = 0; rank < group->workers; at += lens[rank++])
        if (rank != member->rank && lens[rank] > 0)
            memcpy(buffer + at, (const uint8_t *)group->from[rank] + at, lens[rank]);
    return meet(group);
}

static inline int32_t all_gather(Member *member, uint8_t *buffer, size_t length) {
    uint64_t lens[WORKERS_MAX];
    for (int rank = 0; rank < WORKERS_MAX; rank++) lens[rank] = length;
    return all_gather_each(member, lens, buffer);
}

static inline int32_t broadcast(Member *member, uint32_t root, uint8_t *bytes, size_t length) {
    Group *const group = member->group;
    int code = enter(member);
    if (code) return code;
    if (member->rank == root) group->from[root] = bytes;
    if ((code = meet(group))) return code;
    if (member->rank != root) memcpy(bytes, group->from[root], length);
    return meet(group);
}

static inline int32_t all_to_all(Member *member, const uint8_t *send, const uint64_t *send_lens, uint8_t *received,
                                 const uint64_t *received_lens) {
    Group *const group = member->group;
    int code = enter(member);
    if (code) return code;
    group->from[member->rank] = send;
    group->lens[member->rank] = send_lens;
    if ((code = meet(group))) return code;
    for (uint32_t rank = 0; rank < group->workers; received += received_lens[rank++]) {
        const uint8_t *from = group->from[rank];
        for (uint32_t to = 0; to < member->rank; to++) from += group->lens[rank][to];
        if (received_lens[rank] > 0) memcpy(received, from, received_lens[rank]);
    }
    return meet(group);
}

static inline int32_t reduce_scatter_sum(Member *member, const uint64_t *lens, float *values, size_t count) {
    Group *const group = member->group;
    int code = enter(member);
    if (code) return code;
    size_t before = 0, all = 0;
    for (uint32_t rank = 0; rank < group->workers; rank++) {
        before += rank < member->rank ? lens[rank] : 0;
        all += lens[rank];
    }
    if (all != count) return BROKEN;
    group->from[member->rank] = values;
    if ((code = meet(group))) return code;
    // No other worker reads this part of any buffer, so the part may be overwritten at once.
    for (size_t i = before; i < before + lens[member->rank]; i++) {
        float sum = 0;
        for (uint32_t rank = 0; rank < group->workers; rank++) sum += ((const float *)group->from[rank])[i];
        values[i] = sum;
    }
    return meet(group);
}

static inline float widened(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Sums in f32, and rounds each sum once, to nearest and ties to even.
static inline int32_t all_reduce_sum_bf16(Member *member, uint16_t *values, size_t count) {
    float *const sums = calloc(count + 1, sizeof *sums);
    for (size_t i = 0; i < count; i++) sums[i] = widened(values[i]);
    const int32_t code = all_reduce_sum(member, sums, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &sums[i], sizeof bits);
        values[i] = (uint16_t)((sums[i] != sums[i] ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    free(sums);
    return code;
}

// Performs the collective that a bucket or a controller asks for.
static inline int32_t perform(void *user, const lgreco_request *request) {
    Member *const all = user, *const member = request->group == LGRECO_GROUP_ALL ? all : all->within[request->group];
    if (member->missing >> request->kind & 1) return LGRECO_COLLECTIVE_UNSUPPORTED;
    switch (request->memory == LGRECO_DEVICE_CPU ? request->kind : LGRECO_REQUEST_NONE) {
    case LGRECO_REQUEST_ALL_REDUCE_SUM: return all_reduce_sum(member, request->buffer, request->count);
    case LGRECO_REQUEST_ALL_REDUCE_SUM_BF16:
    case LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16: return all_reduce_sum_bf16(member, request->buffer, request->count);
    case LGRECO_REQUEST_ALL_GATHER: return all_gather(member, request->buffer, request->length);
    case LGRECO_REQUEST_ALL_GATHER_EACH: return all_gather_each(member, request->lens, request->buffer);
    case LGRECO_REQUEST_BROADCAST: return broadcast(member, request->root, request->buffer, request->length);
    case LGRECO_REQUEST_ALL_TO_ALL:
        return all_to_all(member, request->send, request->send_lens, request->received, request->received_lens);
    case LGRECO_REQUEST_REDUCE_SCATTER_SUM:
        return reduce_scatter_sum(member, request->lens, request->buffer, request->count);
    default: return BROKEN;
    }
}

static inline lgreco_collective collective_of(Member *member) {
    lgreco_collective collective = LGRECO_COLLECTIVE_INIT;
    collective.rank = member->rank;
    collective.world_size = member->group->workers;
    collective.user = member;
    collective.perform = perform;
    return collective;
}

static inline void begin_group(Group *group, uint32_t workers) {
    *group = (Group){.workers = workers};
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
}

static inline void end_group(Group *group) {
    free(group->sums);
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
}

// Runs `work` on one thread per member. A member may state which of its calls must fail.
static inline void run_group(uint32_t workers, Member *members, void *(*work)(void *)) {
    Group group;
    pthread_t threads[WORKERS_MAX];
    begin_group(&group, workers);
    for (uint32_t rank = 0; rank < workers; rank++) {
        members[rank].group = &group;
        members[rank].rank = rank;
        members[rank].calls = 0;
        CHECK(pthread_create(&threads[rank], NULL, work, &members[rank]) == 0);
    }
    for (uint32_t rank = 0; rank < workers; rank++) CHECK(pthread_join(threads[rank], NULL) == 0);
    end_group(&group);
}

// Like run_group, on nodes of `per_node` workers each.
static inline void run_nodes(uint32_t workers, uint32_t per_node, Member *members, void *(*work)(void *)) {
    const uint32_t nodes = workers / per_node;
    Group of_nodes[WORKERS_MAX], of_peers[WORKERS_MAX];
    Member within[2][WORKERS_MAX];
    memset(within, 0, sizeof within);
    for (uint32_t node = 0; node < nodes; node++) begin_group(&of_nodes[node], per_node);
    for (uint32_t local = 0; local < per_node; local++) begin_group(&of_peers[local], nodes);
    for (uint32_t rank = 0; rank < workers; rank++) {
        within[0][rank].group = &of_nodes[rank / per_node];
        within[0][rank].rank = rank % per_node;
        within[1][rank].group = &of_peers[rank % per_node];
        within[1][rank].rank = rank / per_node;
        members[rank].within[LGRECO_GROUP_NODE] = &within[0][rank];
        members[rank].within[LGRECO_GROUP_PEERS] = &within[1][rank];
    }
    run_group(workers, members, work);
    for (uint32_t node = 0; node < nodes; node++) end_group(&of_nodes[node]);
    for (uint32_t local = 0; local < per_node; local++) end_group(&of_peers[local]);
}

#endif
