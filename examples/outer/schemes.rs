//! Ways of compressing pseudo-gradients.

use std::fmt;

/// A way of averaging workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// Averages uncompressed parameters after every step. Averaging parameters equals averaging gradients, except for
    /// the optimisers' states.
    EveryStep,
    /// Averages uncompressed parameters in every outer step.
    Dense,
    /// SparseLoCo's payload and outer step.
    SparseLoCo,
    /// A plan of TopK's densities and value widths within this many bits per parameter and round.
    Bits(f64),
    /// TopK with one density within this many bits.
    Uniform(f64),
    /// TopK of all layers joined within this many bits.
    Joined(f64),
}

impl std::str::FromStr for Scheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheme, String> {
        match text {
            "every-step" => Ok(Scheme::EveryStep),
            "dense" => Ok(Scheme::Dense),
            "sparseloco" => Ok(Scheme::SparseLoCo),
            bits => {
                let (kind, number) = bits.split_once('-').unwrap_or(("", bits));
                let number = number.parse().ok().filter(|bits| (0.02..=2.0).contains(bits));
                match (kind, number) {
                    ("", Some(bits)) => Ok(Scheme::Bits(bits)),
                    ("uniform", Some(bits)) => Ok(Scheme::Uniform(bits)),
                    ("joined", Some(bits)) => Ok(Scheme::Joined(bits)),
                    _ => Err(
                        "there are every-step, dense, sparseloco, and bits per parameter, 0.02 to 2, of a plan or, \
                              after `uniform-`, of one density or, after `joined-`, of all layers joined"
                            .into(),
                    ),
                }
            }
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::EveryStep => f.pad("every-step"),
            Scheme::Dense => f.pad("dense"),
            Scheme::SparseLoCo => f.pad("sparseloco"),
            Scheme::Bits(bits) => f.pad(&format!("lgreco {bits}")),
            Scheme::Uniform(bits) => f.pad(&format!("uniform {bits}")),
            Scheme::Joined(bits) => f.pad(&format!("joined {bits}")),
        }
    }
}
