//! The proved optimum: relaxation bound, reduced-cost fixing, and a bounded search of the core that is left.
