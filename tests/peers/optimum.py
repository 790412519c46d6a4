"""Solves a multiple-choice knapsack problem with HiGHS, a general solver for integer programs."""

import highspy
import numpy as np


def optimum(sizes, errors, budget, threads, seconds=600):
    """Returns the chosen options, their size, and whether HiGHS proved it optimal. Scales errors to a budget of 1."""
    flat_sizes = np.concatenate([np.asarray(row, dtype=float) for row in sizes])
    flat_errors = np.concatenate([np.asarray(row, dtype=float) for row in errors]) / budget
    layer = np.concatenate([np.full(len(row), index) for index, row in enumerate(sizes)])
    columns, layers = len(flat_sizes), len(sizes)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, layers + 1
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = flat_sizes, np.zeros(columns), np.ones(columns)
    lp.row_lower_ = np.append(np.ones(layers), -highspy.kHighsInf)
    lp.row_upper_ = np.ones(layers + 1)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, 2 * columns + 1, 2)
    lp.a_matrix_.index_ = np.column_stack([layer, np.full(columns, layers)]).ravel()
    lp.a_matrix_.value_ = np.column_stack([np.ones(columns), flat_errors]).ravel()
    lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
    highs = highspy.Highs()
    for name, value in [
        ("output_flag", False), ("threads", threads), ("random_seed", 0), ("time_limit", float(seconds)),
        ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.5), ("mip_feasibility_tolerance", 1e-10),
        ("primal_feasibility_tolerance", 1e-10),
    ]:
        highs.setOptionValue(name, value)
    highs.passModel(lp)
    highs.run()
    values = np.asarray(highs.getSolution().col_value)
    starts = np.cumsum([0] + [len(row) for row in sizes])
    plan = [int(np.argmax(values[start:end])) for start, end in zip(starts, starts[1:])]
    proven = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return plan, sum(row[option] for row, option in zip(sizes, plan)), proven
