// Finds the plan with the fewest bits within an error budget, for an error table that the caller supplies.
#include <inttypes.h>
#include <lgreco.h>
#include <stdio.h>

int main(void) {
    // Three layers with three options each. An option is the number of bits sent, and the error.
    const lgreco_choice choices[] = {
        {800, 0.1}, {400, 0.3}, {200, 1.2},  // embedding
        {600, 0.2}, {300, 0.4}, {150, 1.1},  // attention
        {900, 0.1}, {450, 0.2}, {225, 0.4},  // head
    };
    const size_t ends[] = {3, 6, 9};
    const uint32_t defaults[] = {1, 1, 1};  // the uniform setting, whose error the budget is based on
    const char *const names[] = {"embedding", "attention", "head"};

    lgreco_table_view table = LGRECO_TABLE_VIEW_INIT;
    table.layers = 3;
    table.ends = ends;
    table.choices = choices;
    table.defaults = defaults;
    table.names = names;

    // The budget is 1.25 times the error of the uniform setting.
    const char *const options[] = {"budget", "error", "alpha", "1.25", NULL};
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    lgreco_status status = lgreco_plan_solve(&table, options, &plan);
    if (status == LGRECO_OK) status = lgreco_plan_get(plan, &chosen);
    if (status != LGRECO_OK) {
        fprintf(stderr, "%s: %s\n", lgreco_status_name(status), lgreco_message());
        return 1;
    }
    for (size_t layer = 0; layer < chosen.layers; layer++)
        printf("%-10s option %" PRIu32 "\n", names[layer], chosen.options[layer]);
    printf("%" PRIu64 " bits, %s\n", chosen.size, chosen.proven ? "proven optimal" : "not proven");
    lgreco_plan_destroy(&plan);
    return 0;
}
