//! Algorithm 1 of the L-GreCo paper: dynamic programming over a discretised error budget.
