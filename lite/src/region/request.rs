//! The requests of nodes to each other about regions.

use super::layout::Piece;
use super::rights::{Grantee, Rights};
use crate::Permissions;
use crate::base::member::MemberId;
use crate::rpc::{FunctionId, INTERNAL, InternalRequest};
use alloc::string::String;
use alloc::vec::Vec;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// The number of pieces that travel with the answer to a map request; the others are asked for.
pub(crate) const FIRST_PIECES: usize = 3;
/// The number of pieces in each later answer.
pub(crate) const PAGE_PIECES: usize = 100;
/// The number of mappings in each answer about a region that is handed over.
pub(crate) const PAGE_HOLDERS: usize = 80;

/// A request of one node to another about regions and their memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Makes a region, whose master is the requester. `mapping` is the number that the requester has given to
    /// its mapping.
    Alloc { mapping: u64, plan: Plan, permissions: Permissions },
    /// Map a region.
    Map { mapping: u64, ask: MapRequest },
    /// Return the pieces of a mapping from the `from`th on, if it has that generation; otherwise its shape.
    Pieces { mapping: u64, generation: u64, from: u32 },
    /// The requester no longer uses a mapping.
    Unmap { mapping: u64 },
    /// Publish a region under a name.
    Publish { mapping: u64, name: String },
    /// Free that name of that region.
    Unpublish { region: u64, name: String },
    /// Grant rights to nodes that map the region from now on.
    Grant { mapping: u64, to: Grantee, rights: Permissions },
    /// Revoke rights. Answered when no operation that relies on them is in flight.
    Withdraw { mapping: u64, from: Grantee, rights: Permissions },
    /// Set the secret that nodes which map the region from now on must give.
    SetSecret { mapping: u64, secret: Vec<u8> },
    /// Make another node the master.
    HandOver { mapping: u64, to: NodeId },
    /// Move a region. Answered when all nodes use the new memory, or the region stays in the old one.
    Move { mapping: u64, plan: Plan },
    /// Free a region. Answered when no node can reach the memory any more.
    Free { mapping: u64 },
    /// Revoke mappings, on behalf of the requester, which owns the regions. Answered when no operation
    /// through them is in flight.
    Revoke { mappings: Vec<u64> },
    /// Hold operations back until the mappings have that generation. Answered when none is in flight.
    Pause { mappings: Vec<u64>, generation: u64 },
    /// Load the pieces of the mappings, which have that generation, and let operations go on. Answered when
    /// they are loaded.
    Resume { mappings: Vec<u64>, generation: u64 },
    /// Take rights from mappings. Answered when no operation that relies on them is in flight.
    Restrict { mappings: Vec<u64>, rights: Permissions },
    /// Take memory and hold it for the requester, under its number `holding`.
    Reserve { holding: u64, len: u64 },
    /// Return the pieces of a holding from the `from`th on.
    Reserved { holding: u64, from: u32 },
    /// The requester no longer needs a holding.
    Yield { holding: u64 },
    /// Set bytes of memory that is held for the requester.
    Fill { piece: Piece, byte: u8 },
    /// Set bytes of a region.
    Memset { mapping: u64, offset: u64, len: u64, byte: u8 },
    /// Lend a mapping of the requester to another node for some time, under a number of the requester's
    /// choice.
    Lend { mapping: u64, to: NodeId, rights: Permissions, token: u64, timeout_ns: u64 },
    /// Map a region that was lent to the requester.
    Borrow { mapping: u64, token: u64 },
    /// Copy between two regions that the requester has lent.
    Copy { from: Loan, to: Loan, len: u64, timeout_ns: u64 },
    /// The requester leaves: move the memory elsewhere that it holds under the owner's number `holding`.
    /// Answered when no byte of the region is there any more.
    Vacate { holding: u64 },
    /// Become the owner of a region of the requester. Answered when the receiver has the region's tables and
    /// memory; the answer is an error only if it has nothing of them. A second request has no effect.
    Adopt { region: u64, estate: Estate },
    /// Return the pieces of a region that is handed over from the `from`th on.
    EstatePieces { region: u64, from: u32 },
    /// Return the mappings of a region that is handed over from the `from`th on.
    EstateHolders { region: u64, from: u32 },
    /// Hold memory for the requester under its number `number`, which is held for `former` as `holding`.
    Claim { former: MemberId, holding: u64, number: u64 },
    /// The mappings of the requester have another owner from now on.
    Rehome { mappings: Vec<u64>, owner: MemberId },
    /// The last words of the former owner of a region.
    Settle { region: u64, word: LastWord },
    /// The region stays when the requester leaves, if that is its master.
    Outlive { mapping: u64 },
    /// All regions of the receiver whose master is the requester stay when the requester leaves.
    OutliveAll,
}

/// A last message of a region's former owner to the new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LastWord {
    /// Mappings that have ended before their nodes knew the new owner.
    Ended(Vec<(MemberId, u64)>),
    /// A name that the directory did not pass on.
    Lost(String),
    /// All nodes know the new owner: the region may change again.
    AllKnow,
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The request was carried out, and nothing is returned.
    Done,
    /// Mapped, or allocated and mapped.
    Mapped { shape: Shape, permissions: Permissions },
    /// The pieces of a mapping: as many as fit in the message.
    Shape(Shape),
    /// Pieces of a layout that follow the first ones.
    Pieces(Vec<Piece>),
    /// Mappings of a region that is handed over.
    Holders(Vec<Holder>),
    /// The receiver has become the owner of the region, under a number of its own.
    Adopted {
        /// The number.
        region: u64,
    },
    /// An earlier request to adopt the region goes on.
    Adopting,
}

impl InternalRequest for Request {
    type Response = Response;
    const FUNCTION: FunctionId = INTERNAL;
}

/// The nodes of a region's memory and the bytes on each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The length of a stripe in bytes if each share is a column; 0: the shares follow each other in one
    /// column.
    pub(crate) stripe: u64,
    /// The nodes that hold the memory, and the bytes on each.
    pub(crate) shares: Vec<(NodeId, u64)>,
}

/// The data from which a user makes the [layout](super::layout) of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// The number of moves of the region so far, successful or not, plus 1.
    pub(crate) generation: u64,
    pub(crate) len: u64,
    pub(crate) stripe: u64,
    pub(crate) columns: u32,
    /// The number of pieces.
    pub(crate) count: u32,
    /// The first pieces.
    pub(crate) first: Vec<Piece>,
}

/// A request for a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MapRequest {
    pub(crate) region: u64,
    pub(crate) key: u64,
    pub(crate) secret: Vec<u8>,
    pub(crate) wanted: Permissions,
}

/// A region that is handed over, without its pieces and mappings, which its new owner asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Estate {
    pub(crate) key: u64,
    pub(crate) secret: Vec<u8>,
    pub(crate) rights: Rights,
    pub(crate) master: MemberId,
    pub(crate) outlives: bool,
    pub(crate) names: Vec<String>,
    pub(crate) shape: Shape,
    /// The number of mappings.
    pub(crate) holders: u32,
    /// The nodes that hold the region's memory, and the former owner's numbers of the holdings.
    pub(crate) memory: Vec<(MemberId, u64)>,
}

/// A mapping of a region that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    /// The node that maps the region.
    pub(crate) member: MemberId,
    /// The node's number of the mapping.
    pub(crate) mapping: u64,
    /// The node for which it maps the region, if not for itself.
    pub(crate) lender: Option<MemberId>,
    pub(crate) permissions: Permissions,
}

/// A region that the caller of a copy lends to the node that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loan {
    /// The node that keeps the region's mappings.
    pub(crate) owner: NodeId,
    /// The token of the caller's loan.
    pub(crate) token: u64,
    /// The offset in the region.
    pub(crate) offset: u64,
}
