//! Tests of lgreco-core's properties.

mod backend;
#[cfg(feature = "json")]
mod documents;
#[cfg(feature = "json")]
mod file;
mod search;

mod compress {
    mod adacomp;
    mod conformance;
    mod eden;
    mod hard_threshold;
    mod loco;
    mod powersgd;
    mod qsgd;
    mod quantised_topk;
    mod sidco;
    mod text;
    mod topk;
}

mod plan {
    mod constrained;
    mod dp;
    mod exact;
    mod frontier;
    mod solve;

    mod baseline {
        mod global;
        mod kmeans;
    }
}
