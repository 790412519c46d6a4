// Tests plans: the solvers' choices, the effect of options and budgets, checks, and files.
#include "check.h"

static const lgreco_choice CHOICES[] = {{80, 0.5}, {40, 1.0}, {20, 3.0}, {60, 0.5}, {30, 2.0}};
static const size_t ENDS[] = {3, 5};
static const uint32_t DEFAULTS[] = {1, 1};
static const char *const NAMES[] = {"fc1", "fc2"};
static const char *const LABELS[] = {"8 bits", "4 bits", "2 bits", "8 bits", "4 bits"};

static lgreco_table_view table(void) {
    lgreco_table_view table = LGRECO_TABLE_VIEW_INIT;
    table.layers = 2;
    table.ends = ENDS;
    table.choices = CHOICES;
    table.defaults = DEFAULTS;
    table.names = NAMES;
    table.labels = LABELS;
    table.metric = "l2";
    return table;
}

// Returns the size of the solved plan, or 0 if solving fails.
static uint64_t size(const lgreco_table_view *table, const Options *options) {
    lgreco_plan *plan = NULL;
    lgreco_plan_view view = LGRECO_PLAN_VIEW_INIT;
    if (lgreco_plan_solve(table, listed(options), &plan) != LGRECO_OK) return 0;
    OK(lgreco_plan_get(plan, &view));
    OK(lgreco_plan_check(table, &view));
    OK(lgreco_plan_destroy(&plan));
    return view.size;
}

static void solving(void) {
    const lgreco_table_view given = table();
    lgreco_plan *plan = NULL;
    lgreco_plan_view view = LGRECO_PLAN_VIEW_INIT;
    OK(lgreco_plan_solve(&given, NULL, &plan));
    OK(lgreco_plan_get(plan, &view));
    CHECK(view.layers == 2 && view.options[0] == 1 && view.options[1] == 1);
    CHECK(view.size == 70 && view.limit == LGRECO_LIMIT_SIZE && view.size_limit == 70 && view.proven == 1);
    CHECK(view.error == 3.0 && view.error_lower_bound == 3.0 && view.budget == 0);
    TEXT("exact", view.solver);
    Options error = OPTIONS;
    set(&error, "budget", "error");
    lgreco_plan *smallest = NULL;
    lgreco_plan_view least = LGRECO_PLAN_VIEW_INIT;
    OK(lgreco_plan_solve(&given, listed(&error), &smallest));
    OK(lgreco_plan_get(smallest, &least));
    CHECK(least.size == 70 && least.lower_bound == 70 && least.proven == 1 && least.error == 3.0 && least.budget == 3.0);
    OK(lgreco_plan_destroy(&smallest));
    // A plan view points into the plan, not into the table of the plan.
    CHECK(view.options != DEFAULTS);
    OK(lgreco_plan_destroy(&plan));
    CHECK(plan == NULL);
}

static void every_option_counts(void) {
    lgreco_table_view given = table();
    Options options = OPTIONS;
    set(&options, "budget", "error");
    CHECK(size(&given, &options) == 70);
    set(&options, "alpha", "0.5");  // budget 1.5
    CHECK(size(&given, &options) == 100);
    set(&options, "alpha", "2.0");
    CHECK(size(&given, &options) == 50);
    const double budget = 1.5;
    set(&options, "alpha", "1.0");
    given.budget = &budget;
    CHECK(size(&given, &options) == 100);
    set(&options, "budget", NULL);  // the default is the table's budget
    CHECK(size(&given, &options) == 100);
    set(&options, "budget", "error");
    set(&options, "alpha", "2.0");
    CHECK(size(&given, &options) == 70);

    // With ten cells, a third of the budget is not a whole number of cells. Algorithm 1 rounds errors up and finds a
    // larger plan, unless the uniform setting is smaller.
    lgreco_choice thirds[6];
    const size_t ends[] = {2, 4, 6};
    const uint32_t smallest[] = {1, 1, 1};
    const double three = 3.0;
    for (int i = 0; i < 6; i++) thirds[i] = i % 2 ? (lgreco_choice){50, 1.0} : (lgreco_choice){100, 0.0};
    lgreco_table_view coarse = LGRECO_TABLE_VIEW_INIT;
    coarse.layers = 3;
    coarse.ends = ends;
    coarse.choices = thirds;
    coarse.budget = &three;
    Options dp = OPTIONS;
    set(&dp, "levels", "10");
    CHECK(size(&coarse, &dp) == 150);  // exact: levels do not matter
    set(&dp, "solver", "dp");
    CHECK(size(&coarse, &dp) == 200);
    set(&dp, "levels", "9");
    CHECK(size(&coarse, &dp) == 150);
    set(&dp, "levels", "10");
    coarse.defaults = smallest;
    CHECK(size(&coarse, &dp) == 150);

    // With `states` 0 the solver does not search. The plan stays unproved unless the relaxed problem proves it.
    lgreco_choice hard[60];
    size_t thirty[30];
    uint32_t seed = 1;
    for (int i = 0; i < 60; i++) {
        seed = seed * 1664525u + 1013904223u;
        hard[i].size = i % 2 ? 0 : 1000 + seed % 997;
        hard[i].error = i % 2 ? (double)hard[i - 1].size : 0.0;
        thirty[i / 2] = (size_t)(i / 2 * 2 + 2);
    }
    const double half = 20000.5;
    lgreco_table_view knapsack = LGRECO_TABLE_VIEW_INIT;
    knapsack.layers = 30;
    knapsack.ends = thirty;
    knapsack.choices = hard;
    knapsack.budget = &half;
    Options states = OPTIONS;
    const uint64_t best = size(&knapsack, &states);
    set(&states, "states", "0");
    const uint64_t rounded = size(&knapsack, &states);
    CHECK(best > 0 && rounded > best);
}

static void size_limits(void) {
    lgreco_table_view given = table();
    Options options = OPTIONS;
    lgreco_plan *plan = NULL;
    lgreco_plan_view view = LGRECO_PLAN_VIEW_INIT;
    set(&options, "budget", "115");
    const double ignored = 0.001;
    given.budget = &ignored;
    for (int exact = 1; exact >= 0; exact--) {
        set(&options, "solver", exact ? "exact" : "dp");
        OK(lgreco_plan_solve(&given, listed(&options), &plan));
        OK(lgreco_plan_get(plan, &view));
        CHECK(view.size == 100 && view.error == 1.5 && view.options[0] == 1 && view.options[1] == 0);
        CHECK(view.limit == LGRECO_LIMIT_SIZE && view.size_limit == 115 && view.lower_bound == 0 && view.budget == 0);
        CHECK(view.error_lower_bound > 0 && view.error_lower_bound <= 1.5);
        CHECK(!exact || (view.proven == 1 && view.error_lower_bound == 1.5));
        OK(lgreco_plan_check(&given, &view));
        view.size_limit = 99;
        STATUS(LGRECO_OVER_SIZE, lgreco_plan_check(&given, &view));
        TEXT("the plan's size is 100 bits, its limit 99 bits", lgreco_message());
        view.size_limit = 115;
        view.error_lower_bound = 1.6;
        STATUS(LGRECO_PLAN_MISMATCH, lgreco_plan_check(&given, &view));
        OK(lgreco_plan_destroy(&plan));
    }
    set(&options, "solver", "exact");
    set(&options, "budget", "49");
    STATUS(LGRECO_SIZE_INFEASIBLE, lgreco_plan_solve(&given, listed(&options), &plan));
    TEXT("infeasible: the size limit is 49 bits, the smallest achievable size is 50 bits, with an error of 5",
         lgreco_message());

    // The defaults have 70 bits.
    set(&options, "budget", "size");
    CHECK(size(&given, &options) == 70);
    set(&options, "alpha", "2.0");
    CHECK(size(&given, &options) == 140);
    set(&options, "alpha", "1.5");
    OK(lgreco_plan_solve(&given, listed(&options), &plan));
    OK(lgreco_plan_get(plan, &view));
    CHECK(view.size_limit == 105 && view.size == 100 && view.options[0] == 1 && view.options[1] == 0);
    OK(lgreco_plan_destroy(&plan));
    set(&options, "alpha", "-1.0");
    STATUS(LGRECO_PARAMETER, lgreco_plan_solve(&given, listed(&options), &plan));
    given.defaults = NULL;
    STATUS(LGRECO_NULL_POINTER, lgreco_plan_solve(&given, listed(&options), &plan));
    set(&options, "budget", "all");
    STATUS(LGRECO_PARAMETER, lgreco_plan_solve(&given, listed(&options), &plan));
    TEXT("the option `budget` is `all`, expected size, error or a number", lgreco_message());
    CHECK(plan == NULL);
}

// Tests groups and fixed options in views and in files.
static void constraints(void) {
    lgreco_choice choices[6];
    const size_t ends[] = {2, 4, 6};
    const double budget = 5.0;
    // The third layer has the largest errors, and the second layer is the largest.
    for (int i = 0; i < 6; i++) {
        const double errors[] = {1, 2, 4};
        choices[i].size = (i / 2 == 1 ? 200 : 100) / (i % 2 ? 2 : 1);
        choices[i].error = i % 2 ? errors[i / 2] : 0;
    }
    lgreco_table_view free_view = LGRECO_TABLE_VIEW_INIT;
    free_view.layers = 3;
    free_view.ends = ends;
    free_view.choices = choices;
    free_view.budget = &budget;
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    CHECK(size(&free_view, NULL) == 250);  // compresses the first two layers: half of 100 and of 200

    const char *tied[] = {"tied", NULL, "tied"};
    lgreco_table_view view = free_view;
    view.groups = tied;
    CHECK(size(&view, NULL) == 300);  // compresses the second layer, or both tied ones with error 5
    OK(lgreco_plan_solve(&view, NULL, &plan));
    OK(lgreco_plan_get(plan, &chosen));
    CHECK(chosen.options[0] == chosen.options[2] && chosen.proven == 1);
    OK(lgreco_plan_check(&view, &chosen));
    lgreco_plan_destroy(&plan);

    const uint32_t fixed[] = {LGRECO_NO_OPTION, 0, 1};
    view.groups = NULL;
    view.fixed = fixed;
    OK(lgreco_plan_solve(&view, NULL, &plan));
    OK(lgreco_plan_get(plan, &chosen));
    CHECK(chosen.options[0] == 1 && chosen.options[1] == 0 && chosen.options[2] == 1 && chosen.size == 300);
    lgreco_plan_destroy(&plan);

    // A table keeps groups and fixed options, even in files.
    char json[2000];
    size_t length = 0;
    lgreco_table *table = NULL, *read = NULL;
    lgreco_table_view kept = LGRECO_TABLE_VIEW_INIT;
    view.groups = tied;
    OK(lgreco_table_create(&view, &table));
    OK(lgreco_table_to_json(table, json, sizeof json, &length));
    OK(lgreco_table_from_json(json, length, &read));
    OK(lgreco_table_get(read, &kept));
    CHECK(strcmp(kept.groups[0], "tied") == 0 && kept.groups[1] == NULL && strcmp(kept.groups[2], "tied") == 0);
    CHECK(kept.fixed[0] == LGRECO_NO_OPTION && kept.fixed[1] == 0 && kept.fixed[2] == 1);
    OK(lgreco_plan_solve(&kept, NULL, &plan));
    OK(lgreco_plan_get(plan, &chosen));
    CHECK(chosen.options[0] == 1 && chosen.options[1] == 0 && chosen.options[2] == 1);
    lgreco_plan_destroy(&plan);
    lgreco_table_destroy(&table);
    lgreco_table_destroy(&read);

    // Refuses fixed options and groups that no plan can keep.
    const uint32_t unknown[] = {LGRECO_NO_OPTION, 2, LGRECO_NO_OPTION}, both[] = {0, LGRECO_NO_OPTION, 1};
    view.groups = NULL;
    view.fixed = unknown;
    STATUS(LGRECO_NO_SUCH_OPTION, lgreco_plan_solve(&view, NULL, &plan));
    STATUS(LGRECO_NO_SUCH_OPTION, lgreco_table_create(&view, &table));
    view.groups = tied;
    view.fixed = both;
    STATUS(LGRECO_NO_SHARED_OPTION, lgreco_plan_solve(&view, NULL, &plan));
    STATUS(LGRECO_NO_SHARED_OPTION, lgreco_table_create(&view, &table));
    // Checks plans from another source that violate groups or fixed options.
    const uint32_t other[] = {0, 0, 1};
    lgreco_plan_view broken = LGRECO_PLAN_VIEW_INIT;
    broken.layers = 3;
    broken.options = other;
    broken.size = broken.lower_bound = 350;
    broken.error = 4;
    broken.budget = budget;
    OK(lgreco_plan_check(&free_view, &broken));
    view.fixed = NULL;
    STATUS(LGRECO_RULED_OUT, lgreco_plan_check(&view, &broken));
    TEXT("layer `2`, option 1 (`1`): the table's groups and fixed options rule this option out; they allow option 0, for one",
         lgreco_message());
    view.groups = NULL;
    view.fixed = fixed;
    OK(lgreco_plan_check(&view, &broken));
}

// The solver `paper` means Algorithm 1 within the error of the uniform setting. By default, the limit is the uniform
// setting's size.
static void paper(void) {
    Options algorithm = OPTIONS;
    set(&algorithm, "solver", "paper");
    lgreco_table_view given = table();
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    OK(lgreco_plan_solve(&given, listed(&algorithm), &plan));
    OK(lgreco_plan_get(plan, &chosen));
    CHECK(strcmp(chosen.solver, "dp") == 0 && chosen.limit == LGRECO_LIMIT_ERROR);
    lgreco_plan_destroy(&plan);
    OK(lgreco_plan_solve(&given, NULL, &plan));
    OK(lgreco_plan_get(plan, &chosen));
    CHECK(strcmp(chosen.solver, "exact") == 0 && chosen.limit == LGRECO_LIMIT_SIZE);
    lgreco_plan_destroy(&plan);
}

static void solvers(void) {
    const lgreco_table_view given = table();
    const char *const names[] = {"exact", "dp"};
    for (int solver = 0; solver < 2; solver++) {
        Options options = OPTIONS;
        set(&options, "solver", names[solver]);
        set(&options, "states", "1000");
        lgreco_plan *plan = NULL;
        lgreco_plan_view view = LGRECO_PLAN_VIEW_INIT;
        OK(lgreco_plan_solve(&given, listed(&options), &plan));
        OK(lgreco_plan_get(plan, &view));
        // The dynamic program finds a plan of 100 bits. The call returns the uniform setting instead, because it is
        // within the budget and smaller.
        CHECK(view.size == 70 && view.options[0] < 3 && view.options[1] < 2);
        CHECK(strcmp(view.solver, names[solver]) == 0);
        OK(lgreco_plan_check(&given, &view));
        OK(lgreco_plan_destroy(&plan));
    }
}

static void checking(void) {
    const lgreco_table_view given = table();
    const uint32_t options[] = {1, 1}, missing[] = {1, 2};
    lgreco_plan_view plan = LGRECO_PLAN_VIEW_INIT;
    plan.layers = 2;
    plan.options = options;
    plan.size = 70;
    plan.lower_bound = 60;
    plan.error = 3.0;
    plan.budget = 3.0;
    OK(lgreco_plan_check(&given, &plan));
    plan.size = 69;
    STATUS(LGRECO_PLAN_MISMATCH, lgreco_plan_check(&given, &plan));
    TEXT("the plan states size 69, the verifier finds 70", lgreco_message());
    plan.size = 70;
    plan.lower_bound = 71;
    STATUS(LGRECO_PLAN_MISMATCH, lgreco_plan_check(&given, &plan));
    plan.lower_bound = 70;
    plan.error = 2.9;
    STATUS(LGRECO_PLAN_MISMATCH, lgreco_plan_check(&given, &plan));
    plan.error = 3.0;
    plan.budget = 2.9;
    STATUS(LGRECO_OVER_BUDGET, lgreco_plan_check(&given, &plan));
    plan.budget = 3.0;
    plan.layers = 1;
    STATUS(LGRECO_LENGTH, lgreco_plan_check(&given, &plan));
    plan.layers = 2;
    plan.options = missing;
    STATUS(LGRECO_NO_SUCH_OPTION, lgreco_plan_check(&given, &plan));
    TEXT("layer `fc2`: there is no option 2 of 2", lgreco_message());
}

static void refusals(void) {
    lgreco_plan *plan = (lgreco_plan *)&plan;
    const double tiny = 0.5, nan = 0.0 / (tiny - 0.5);
    lgreco_table_view given = table();
    given.budget = &tiny;
    STATUS(LGRECO_INFEASIBLE, lgreco_plan_solve(&given, NULL, &plan));
    CHECK(plan == NULL);
    TEXT("infeasible: the error budget is 0.5, the smallest achievable error is 1, with a size of 140 bits",
         lgreco_message());
    given.budget = &nan;
    STATUS(LGRECO_BUDGET, lgreco_plan_solve(&given, NULL, &plan));

    lgreco_choice broken[5];
    memcpy(broken, CHOICES, sizeof broken);
    broken[4].error = nan;
    given = table();
    given.choices = broken;
    STATUS(LGRECO_OPTION_ERROR, lgreco_plan_solve(&given, NULL, &plan));
    TEXT("layer `fc2`, option 1 (`4 bits`): error is NaN", lgreco_message());
    given.names = given.labels = NULL;
    STATUS(LGRECO_OPTION_ERROR, lgreco_plan_solve(&given, NULL, &plan));
    TEXT("layer 1, option 1: error is NaN", lgreco_message());
    broken[4] = (lgreco_choice){UINT64_MAX, 0.0};
    STATUS(LGRECO_SIZE_OVERFLOW, lgreco_plan_solve(&given, NULL, &plan));

    const size_t empty[] = {5, 5}, falling[] = {5, 4};
    given = table();
    given.ends = empty;
    STATUS(LGRECO_EMPTY_LAYER, lgreco_plan_solve(&given, NULL, &plan));
    given.ends = falling;
    STATUS(LGRECO_LENGTH, lgreco_plan_solve(&given, NULL, &plan));
    given.layers = 0;
    STATUS(LGRECO_EMPTY_TABLE, lgreco_plan_solve(&given, NULL, &plan));
    given = table();
    given.defaults = NULL;
    STATUS(LGRECO_NULL_POINTER, lgreco_plan_solve(&given, NULL, &plan));
    TEXT("the array of defaults of the table is NULL", lgreco_message());
    const uint32_t beyond[] = {1, 9};
    given.defaults = beyond;
    STATUS(LGRECO_NO_SUCH_OPTION, lgreco_plan_solve(&given, NULL, &plan));

    given = table();
    Options options = OPTIONS;
    set(&options, "alpha", "-1");
    STATUS(LGRECO_PARAMETER, lgreco_plan_solve(&given, listed(&options), &plan));
    given.budget = &tiny;
    STATUS(LGRECO_PARAMETER, lgreco_plan_solve(&given, listed(&options), &plan));
    set(&options, "alpha", "1");
    set(&options, "solver", "best");
    STATUS(LGRECO_PARAMETER, lgreco_plan_solve(&given, listed(&options), &plan));
    TEXT("the option `solver` is `best`, expected exact, dp or paper", lgreco_message());
    set(&options, "solver", "dp");
    set(&options, "levels", "0");
    given.budget = NULL;
    STATUS(LGRECO_PARAMETER, lgreco_plan_solve(&given, listed(&options), &plan));
}

static char *plan_json(const lgreco_plan *plan, const lgreco_table *table) {
    size_t length = 0;
    STATUS(LGRECO_LENGTH, lgreco_plan_to_json(plan, table, NULL, 0, &length));
    char *json = malloc(length + 1);
    OK(lgreco_plan_to_json(plan, table, json, length + 1, &length));
    CHECK(strlen(json) == length);
    return json;
}

static char *table_json(const lgreco_table *table) {
    size_t length = 0;
    STATUS(LGRECO_LENGTH, lgreco_table_to_json(table, NULL, 0, &length));
    char *json = malloc(length + 1);
    STATUS(LGRECO_LENGTH, lgreco_table_to_json(table, json, length, &length));
    OK(lgreco_table_to_json(table, json, length + 1, &length));
    CHECK(strlen(json) == length);
    return json;
}

static void tables_and_files(void) {
    const uint64_t elements[] = {10, 20}, sizes[] = {160, 320};
    const double budget = 3.0;
    lgreco_table_view given = table();
    given.elements = elements;
    given.uncompressed_sizes = sizes;
    given.budget = &budget;
    lgreco_table *own = NULL, *read = NULL;
    OK(lgreco_table_create(&given, &own));
    char *json = table_json(own);
    OK(lgreco_table_from_json(json, strlen(json), &read));
    char *again = table_json(read);
    CHECK(strcmp(json, again) == 0);
    CHECK(strstr(json, "\"metric\":\"l2\",\"budget\":3.0") != NULL && strstr(json, "\"uncompressed_size\":320") != NULL);

    lgreco_table_view view = LGRECO_TABLE_VIEW_INIT;
    OK(lgreco_table_get(read, &view));
    CHECK(view.layers == 2 && memcmp(view.ends, ENDS, sizeof ENDS) == 0);
    CHECK(memcmp(view.choices, CHOICES, sizeof CHOICES) == 0);
    CHECK(memcmp(view.defaults, DEFAULTS, sizeof DEFAULTS) == 0);
    CHECK(memcmp(view.elements, elements, sizeof elements) == 0);
    CHECK(memcmp(view.uncompressed_sizes, sizes, sizeof sizes) == 0);
    CHECK(*view.budget == 3.0 && strcmp(view.names[1], "fc2") == 0 && strcmp(view.labels[4], "4 bits") == 0);
    CHECK(strcmp(view.metric, "l2") == 0 && view.model_layers == NULL);

    // If a view has no names, labels and other optional arrays, the library fills them in.
    lgreco_table_view bare = LGRECO_TABLE_VIEW_INIT;
    lgreco_table *unnamed = NULL;
    bare.layers = 2;
    bare.ends = ENDS;
    bare.choices = CHOICES;
    OK(lgreco_table_create(&bare, &unnamed));
    OK(lgreco_table_get(unnamed, &bare));
    CHECK(strcmp(bare.names[1], "1") == 0 && strcmp(bare.labels[4], "1") == 0 && strcmp(bare.metric, "") == 0);
    CHECK(bare.defaults == NULL && bare.budget == NULL && bare.elements[0] == 0 && bare.uncompressed_sizes[0] == 0);

    // A plan that is written and read again stays the same. A plan file fits only the table of its plan.
    lgreco_plan *plan = NULL, *loaded = NULL;
    lgreco_plan_view one = LGRECO_PLAN_VIEW_INIT, two = LGRECO_PLAN_VIEW_INIT;
    OK(lgreco_plan_solve(&view, NULL, &plan));
    char *file = plan_json(plan, read);
    OK(lgreco_plan_from_json(own, file, strlen(file), &loaded));
    OK(lgreco_plan_get(plan, &one));
    OK(lgreco_plan_get(loaded, &two));
    CHECK(one.size == two.size && one.lower_bound == two.lower_bound && one.error == two.error);
    CHECK(one.budget == two.budget && one.proven == two.proven && strcmp(one.solver, two.solver) == 0);
    CHECK(memcmp(one.options, two.options, 2 * sizeof *one.options) == 0);
    char *file_again = plan_json(loaded, own);
    CHECK(strcmp(file, file_again) == 0);
    lgreco_plan *refused = NULL;
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_plan_from_json(unnamed, file, strlen(file), &refused));
    TEXT("layer `fc1`", lgreco_message());
    char *at = strstr(file, "70");
    *at = '8';
    STATUS(LGRECO_PLAN_MISMATCH, lgreco_plan_from_json(own, file, strlen(file), &refused));
    *at = '7';
    at = strstr(file, "4 bits");
    *at = '5';
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_plan_from_json(own, file, strlen(file), &refused));
    *at = '4';
    at = strstr(file, "fc2");
    at[2] = '1';
    STATUS(LGRECO_DUPLICATE_NAME, lgreco_plan_from_json(own, file, strlen(file), &refused));
    STATUS(LGRECO_JSON, lgreco_plan_from_json(own, "{}", 2, &refused));
    CHECK(refused == NULL);
    lgreco_table_destroy(&read);
    STATUS(LGRECO_JSON, lgreco_table_from_json(json, strlen(json) / 2, &read));
    CHECK(read == NULL);

    const char future[] = "{\"version\":2}", no_size[] = "{\"version\":1,\"metric\":\"l2\",\"layers\":[{\"name\":\"fc1\","
                                                       "\"elements\":1,\"options\":[{\"label\":\"a\",\"error\":1}]}]}";
    STATUS(LGRECO_JSON_VERSION, lgreco_table_from_json(future, strlen(future), &read));
    STATUS(LGRECO_JSON, lgreco_table_from_json(no_size, strlen(no_size), &read));
    TEXT("layer 0 (`fc1`), option 0: size is missing", lgreco_message());
    const char *const same[] = {"fc1", "fc1"}, *const wrong[] = {"fc1", "fc\xff"};
    given.names = same;
    STATUS(LGRECO_DUPLICATE_NAME, lgreco_table_create(&given, &read));
    given.names = wrong;
    STATUS(LGRECO_TEXT, lgreco_table_create(&given, &read));
    const char nul[] = "{\"version\":1,\"metric\":\"l2\",\"layers\":[{\"name\":\"f\\u0000c\",\"elements\":1,\"options\":["
                       "{\"label\":\"a\",\"size\":1,\"error\":1}]}]}";
    STATUS(LGRECO_TEXT, lgreco_table_from_json(nul, strlen(nul), &read));

    lgreco_setting setting;
    STATUS(LGRECO_NO_SETTINGS, lgreco_table_setting(own, 0, 0, &setting));
    free(file_again);
    free(file);
    free(again);
    free(json);
    lgreco_plan_destroy(&loaded);
    lgreco_plan_destroy(&plan);
    lgreco_table_destroy(&unnamed);
    lgreco_table_destroy(&own);
}

int main(void) {
    solving();
    every_option_counts();
    size_limits();
    constraints();
    paper();
    solvers();
    checking();
    refusals();
    tables_and_files();
    return report("plan");
}
