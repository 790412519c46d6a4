//! The position of a rank among nodes of equal size.

use crate::exchange::Collective;
use crate::{CoreError, Error};

/// The group that performs a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The ranks of this rank's node.
    Node,
    /// This rank and its peers: one rank per node, with the same local rank on each node.
    Peers,
}

/// A rank's position: local rank `local` of `per_node` on node `node` of `nodes`.
///
/// ```
/// use lgreco_train::controller::two_level::Topology;
/// let place = Topology { nodes: 4, node: 2, per_node: 8, local: 3 };
/// assert_eq!((place.rank(), place.world_size()), (19, 32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Number of nodes, at least 1.
    pub nodes: u32,
    /// The number of this rank's node, below `nodes`. The number of the node is also this rank's number among its
    /// peers.
    pub node: u32,
    /// Ranks per node, at least 1, the same on all nodes.
    pub per_node: u32,
    /// This rank's number in its node, below `per_node`.
    pub local: u32,
}

impl Topology {
    /// The position of a rank, from its node's group and its peers' group.
    pub fn of<N: Collective + ?Sized, P: Collective + ?Sized>(node: &N, peers: &P) -> Topology {
        Topology { nodes: peers.world_size(), node: peers.rank(), per_node: node.world_size(), local: node.rank() }
    }

    /// This rank's number among all ranks, counted node by node. Errors use these numbers.
    pub const fn rank(&self) -> u32 {
        self.mate(self.local)
    }

    /// Number of ranks.
    pub const fn world_size(&self) -> u32 {
        self.nodes * self.per_node
    }

    /// The number, among all ranks, of the rank with local rank `local` on this node.
    pub(super) const fn mate(&self, local: u32) -> u32 {
        self.node.saturating_mul(self.per_node).saturating_add(local)
    }

    /// The number, among all ranks, of this rank's peer on node `node`.
    pub(super) const fn peer(&self, node: u32) -> u32 {
        node.saturating_mul(self.per_node).saturating_add(self.local)
    }

    /// Replaces local ranks in an error by their numbers among all ranks.
    pub(super) fn of_node(&self, error: Error) -> Error {
        renumbered(error, |rank| self.mate(rank))
    }

    /// Replaces the numbers of peers in an error by their numbers among all ranks.
    pub(super) fn of_peers(&self, error: Error) -> Error {
        renumbered(error, |rank| self.peer(rank))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Topology { nodes, node, per_node, local } = *self;
        let require = CoreError::require;
        require(nodes > 0, "the number of nodes", 0.0, "at least 1")?;
        require(per_node > 0, "the number of ranks per node", 0.0, "at least 1")?;
        let world = f64::from(nodes) * f64::from(per_node);
        require(world <= f64::from(u32::MAX), "the number of ranks", world, "below 2^32")?;
        require(node < nodes, "the node", node.into(), "below the number of nodes")?;
        Ok(require(local < per_node, "the local rank", local.into(), "below the number of ranks per node")?)
    }
}

fn renumbered(error: Error, number: impl Fn(u32) -> u32) -> Error {
    match error {
        Error::Peer { rank, code } => Error::Peer { rank: number(rank), code },
        Error::PeerPlan { rank } => Error::PeerPlan { rank: number(rank) },
        Error::NoMessage { rank } => Error::NoMessage { rank: number(rank) },
        Error::PeerMessage { rank, code } => Error::PeerMessage { rank: number(rank), code },
        Error::PeerOption { rank, what, found, expected } => {
            Error::PeerOption { rank: number(rank), what, found, expected }
        }
        error => error,
    }
}
