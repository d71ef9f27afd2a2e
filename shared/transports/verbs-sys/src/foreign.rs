//! Connections of the connection manager whose queue pair is none of verbs': its owner brings it from state to state by the
//! device's own commands, with what is agreed here.

use crate::cm::{CmId, ConnectParameters};
use crate::error::{VerbsError, check, last};
use crate::load::{Mlx5, Verbs};
use crate::memory::Domain;
use crate::raw::{
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IbvAh, IbvAhAttr, IbvQpAttr, MLX5DV_OBJ_AH, Mlx5WqeAv,
    Mlx5dvAh, Mlx5dvObj, Mlx5dvPart,
};
use std::ffi::c_int;
use std::ptr::{self, NonNull};

/// What both parties of a connection have agreed on, and where the peer is: what a queue pair has to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerPath {
    /// The peer's queue pair.
    pub queue_pair: u32,
    /// The peer's address.
    pub gid: [u8; 16],
    /// The hardware address that leads there.
    pub mac: [u8; 6],
    /// Which of the port's own addresses.
    pub gid_index: u8,
    /// The port, from 1.
    pub port: u8,
    /// Code of the MTU.
    pub mtu: u8,
    /// Routers that packets pass at most.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Number of the first packet to the peer.
    pub send_psn: u32,
    /// Number of the peer's first packet.
    pub receive_psn: u32,
    /// Reads and atomics that may be outstanding to the peer.
    pub reads_out: u8,
    /// The same from the peer.
    pub reads_in: u8,
}

/// An address handle: how the device's driver resolves an address. Ended when dropped.
#[derive(Debug)]
struct AddressHandle {
    verbs: &'static Verbs,
    raw: NonNull<IbvAh>,
    /// Ended after it.
    _domain: Domain,
}

impl AddressHandle {
    fn new(domain: Domain, attributes: &IbvAhAttr) -> Result<Self, VerbsError> {
        let verbs = Verbs::get()?;
        let mut attributes = *attributes;
        // SAFETY: the domain is there, and the attributes are only read.
        let raw = unsafe { (verbs.ibv_create_ah)(domain.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| last("finding the way to a peer"))?;
        Ok(Self {
            verbs,
            raw,
            _domain: domain,
        })
    }

    /// What the device is told of it.
    fn vector(&self) -> Result<Mlx5WqeAv, VerbsError> {
        let init = Mlx5::get()?.mlx5dv_init_obj;
        let init = init.ok_or(VerbsError::Unsupported {
            what: "mlx5dv_init_obj: the library is too old",
        })?;
        let mut out = Mlx5dvAh {
            av: ptr::null_mut(),
            comp_mask: 0,
        };
        let mut asked = Mlx5dvObj {
            ah: Mlx5dvPart {
                r#in: self.raw.as_ptr(),
                out: &raw mut out,
            },
            ..Mlx5dvObj::NONE
        };
        // SAFETY: the handle is there, and of a device of libmlx5 (`CmId::peer_path` asks); only the part that is asked for is
        // looked at, and its answer may be written.
        let result = unsafe { init(&raw mut asked, MLX5DV_OBJ_AH) };
        check("asking a device the way to a peer", result)?;
        let vector = NonNull::new(out.av).ok_or(VerbsError::Unsupported {
            what: "way to that peer",
        })?;
        // SAFETY: the library gave it, and it is there as long as the handle.
        Ok(unsafe { vector.read() })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: it is there, and is not used again.
        let result = unsafe { (self.verbs.ibv_destroy_ah)(self.raw.as_ptr()) };
        if let Err(error) = check("forgetting the way to a peer", result) {
            tracing::warn!(%error, "an address handle stays with this process");
        }
    }
}

/// What the states of a queue pair take, from the attributes for each and the way to the peer.
fn joined(init: &IbvQpAttr, rtr: &IbvQpAttr, rts: &IbvQpAttr, vector: &Mlx5WqeAv) -> PeerPath {
    PeerPath {
        queue_pair: rtr.dest_qp_num,
        gid: vector.rgid,
        mac: vector.rmac,
        gid_index: rtr.ah_attr.grh.sgid_index,
        port: init.port_num,
        mtu: u8::try_from(rtr.path_mtu).unwrap_or(0),
        hop_limit: rtr.ah_attr.grh.hop_limit,
        traffic_class: rtr.ah_attr.grh.traffic_class,
        send_psn: rts.sq_psn,
        receive_psn: rtr.rq_psn,
        reads_out: rts.max_rd_atomic,
        reads_in: rtr.max_dest_rd_atomic,
    }
}

impl CmId {
    fn attributes(&self, state: u32) -> Result<IbvQpAttr, VerbsError> {
        let mut attributes = IbvQpAttr {
            qp_state: state,
            ..IbvQpAttr::default()
        };
        let mut mask: c_int = 0;
        // SAFETY: the identifier is there; attributes and mask may be written.
        let result = unsafe {
            (self.cm().rdma_init_qp_attr)(self.raw(), &raw mut attributes, &raw mut mask)
        };
        check("asking what a connection's queue pair takes", result)?;
        Ok(attributes)
    }

    /// What a queue pair takes to be the end of this connection: of one that a peer asked for, or has accepted. Its device must
    /// be of the mlx5 family.
    ///
    /// # Errors
    /// [`VerbsError`]: the connection is not so far, another family's device, an address that leads nowhere.
    pub fn peer_path(&self) -> Result<PeerPath, VerbsError> {
        let context = self.context()?;
        // SAFETY: the context is open.
        let device = unsafe { (*context.raw.as_ptr()).device };
        // SAFETY: a context's device stays valid as long as the context is open.
        if !unsafe { (Mlx5::get()?.mlx5dv_is_supported)(device) } {
            return Err(VerbsError::NotMlx5 {
                name: context.name(),
            });
        }
        let (init, rtr, rts) = (
            self.attributes(IBV_QPS_INIT)?,
            self.attributes(IBV_QPS_RTR)?,
            self.attributes(IBV_QPS_RTS)?,
        );
        let handle = AddressHandle::new(Domain::new(self)?, &rtr.ah_attr)?;
        Ok(joined(&init, &rtr, &rts, &handle.vector()?))
    }

    /// Accepts what the peer asked for, with a queue pair of this number: it receives already.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn accept_with(
        &mut self,
        queue_pair: u32,
        parameters: &ConnectParameters<'_>,
    ) -> Result<(), VerbsError> {
        self.accept_raw(parameters, queue_pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::IbvGlobalRoute;

    #[test]
    fn each_number_comes_from_the_state_that_needs_it() {
        let init = IbvQpAttr {
            port_num: 1,
            ..IbvQpAttr::default()
        };
        let rtr = IbvQpAttr {
            dest_qp_num: 2,
            path_mtu: 5,
            rq_psn: 3,
            max_dest_rd_atomic: 4,
            ah_attr: IbvAhAttr {
                grh: IbvGlobalRoute {
                    sgid_index: 6,
                    hop_limit: 7,
                    traffic_class: 8,
                    ..IbvGlobalRoute::default()
                },
                ..IbvAhAttr::default()
            },
            ..IbvQpAttr::default()
        };
        let rts = IbvQpAttr {
            sq_psn: 9,
            max_rd_atomic: 10,
            ..IbvQpAttr::default()
        };
        let vector = Mlx5WqeAv {
            rmac: [11; 6],
            rgid: [12; 16],
            ..Mlx5WqeAv::default()
        };
        let expected = PeerPath {
            queue_pair: 2,
            gid: [12; 16],
            mac: [11; 6],
            gid_index: 6,
            port: 1,
            mtu: 5,
            hop_limit: 7,
            traffic_class: 8,
            send_psn: 9,
            receive_psn: 3,
            reads_out: 10,
            reads_in: 4,
        };
        assert_eq!(joined(&init, &rtr, &rts, &vector), expected);
    }

    #[test]
    fn a_connection_that_is_none_has_no_path() {
        // Without the library, or a kernel that knows RDMA, there is not even an identifier.
        if let Ok(id) = CmId::new() {
            assert!(id.peer_path().is_err());
        }
    }
}
