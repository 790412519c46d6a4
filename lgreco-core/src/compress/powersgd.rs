//! PowerSGD: a gradient matrix as the product of two thin ones.
