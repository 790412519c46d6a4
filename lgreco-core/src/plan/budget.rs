//! Error budgets: absolute, or a multiple of what the default options cost.
