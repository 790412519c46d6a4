//! The independent verifier of plans: shares no code with the solvers.
