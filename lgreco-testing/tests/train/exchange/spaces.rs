//! Tests the checks for implementations of `Space`: the host's implementation passes them, and an implementation with a
//! fault does not.

use super::*;
use lgreco_testing::exchange::{Bucket, OnHost, check_message, check_space, check_space_damage, check_space_failures};
use lgreco_testing::exchange::{damaged_members, members, on_host};

#[test]
fn the_host_does_as_the_host() {
    check_space(&members(), true, on_host);
    check_space_failures(&members(), on_host);
    check_space_damage(&damaged_members(), 0, 7, on_host);
    for (change, good) in [(&[][..], true), (&[1], false)] {
        assert_eq!(check_message(change, &mut on_host(&damaged_members(), false, 1)), good);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Mean,
    /// A wrong mean of a layer under PowerSGD.
    Product,
    Residual,
    /// Random bits from another seed.
    Message,
    /// A residual that changes although the exchange fails.
    Failure,
    /// An error with a wrong index of the element.
    Error,
    /// A damaged message is decoded to zeros, instead of being refused.
    Damage,
}

/// The host's memory with a fault. With `AS_HOST`, its messages are compared byte by byte, otherwise only their
/// contents.
struct Erring<const AS_HOST: bool> {
    host: OnHost,
    fault: Option<Fault>,
}

impl<const AS_HOST: bool> Bucket for Erring<AS_HOST> {
    const AVERAGES_LARGE_PAYLOADS: bool = true;
    const SENDS_AS_HOST: bool = AS_HOST;

    fn exchange(
        &mut self,
        gradients: &[Vec<u8>],
        mut moment: Moment,
        agreement: Agreement,
        collective: &mut impl Collective,
    ) -> Result<(), Error> {
        moment.seed ^= u64::from(self.fault == Some(Fault::Message));
        match (self.host.exchange(gradients, moment, agreement, collective), self.fault) {
            (Err(error), Some(Fault::Failure)) => {
                self.host.residuals.iter_mut().flatten().flatten().for_each(|x| *x += 1.0);
                Err(error)
            }
            (Err(Error::NonFiniteGradient { layer, value, .. }), Some(Fault::Error)) => {
                Err(Error::NonFiniteGradient { layer, index: 0, value })
            }
            (Err(Error::PeerMessage { .. }), Some(Fault::Damage)) => Ok(()),
            (result, _) => result,
        }
    }

    fn means(&mut self) -> Vec<Vec<u8>> {
        let mut means = self.host.means();
        if self.fault == Some(Fault::Mean) {
            means[0][1] ^= 1;
        }
        if self.fault == Some(Fault::Product) {
            // Changes the sign of a value.
            means[23][if cfg!(target_endian = "big") { 0 } else { 3 }] ^= 0x80;
        }
        means
    }

    fn residuals(&mut self) -> Option<Vec<Vec<f32>>> {
        let mut residuals = self.host.residuals();
        if let (Some(Fault::Residual), Some(residuals)) = (self.fault, &mut residuals) {
            residuals[0][1] = f32::from_bits(residuals[0][1].to_bits() ^ 1);
        }
        residuals
    }
}

fn run<const AS_HOST: bool>(fault: Option<Fault>, check: &str) {
    let open = |members: &[_], feedback, world| Erring::<AS_HOST> { host: on_host(members, feedback, world), fault };
    match check {
        "steps" => check_space(&members(), true, open),
        "failures" => check_space_failures(&members(), open),
        _ => check_space_damage(&damaged_members(), 0, 7, open),
    }
}

#[test]
fn spaces_that_err_are_found() {
    ["steps", "failures", "damage"].into_iter().for_each(|check| run::<false>(None, check));
    let faults = [
        (Fault::Mean, "steps"),
        (Fault::Failure, "failures"),
        (Fault::Damage, "damage"),
        (Fault::Error, "failures"),
        (Fault::Product, "steps"),
        (Fault::Residual, "steps"),
        (Fault::Message, "steps"),
    ];
    let full = std::env::var_os("LGRECO_FULL").is_some();
    for (fault, check) in faults.into_iter().take(if full { 7 } else { 3 }) {
        assert!(std::panic::catch_unwind(|| run::<true>(Some(fault), check)).is_err(), "{fault:?} was not found");
        if !full {
            continue;
        }
        let found = std::panic::catch_unwind(|| run::<false>(Some(fault), check));
        assert!(found.is_err(), "{fault:?} was not found in messages of another form");
    }
}
