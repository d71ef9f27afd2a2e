//! Software's own queue pair: how it lets managed queues run.

use crate::error::SetUpError;
use crate::limits::{LOG_BELL_STRIDE, LOG_MASTER, MAX_READS, RNR_RETRY};
use crate::target::create_cq;
use crate::{CqReader, Device, Domain, Peer, PeerAccess, Place, QpAttributes, RING_ALIGN, Roles};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{Body, Control, Cqe, Enable, Opcode, QpDoorbell, Qpn, Signal, WqeBuffer, WqeIndex};

/// Log2 of the receive WQEs, of which none is ever posted: a basic block of them, behind which the send ring begins.
const LOG_IDLE: u8 = 2;

/// A queue pair connected to itself that holds nothing but `SEND_EN`s, one for each thread of software.
#[derive(Debug)]
pub struct Master {
    qpn: Qpn,
    region: Region,
    ring_at: u64,
    doorbell_at: u64,
    completions: CqReader,
    posted: u64,
}

impl Master {
    /// Makes one.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn create<D: Device>(device: &mut D, domain: Domain) -> Result<Self, SetUpError<D::Error>> {
        let ring = (BASIC_BLOCK as u64) << LOG_MASTER;
        let cqes = (Cqe::LEN as u64) << LOG_MASTER;
        // CQEs, receive WQEs that are never posted, the send ring, doorbell records.
        let receive_at = cqes.next_multiple_of(RING_ALIGN);
        let ring_at = receive_at + (1 << (LOG_IDLE + LOG_BELL_STRIDE));
        let cq_doorbell_at = ring_at + ring;
        let doorbell_at = cq_doorbell_at + 64;
        let region = Region::anonymous(doorbell_at + 64, &PageOptions::default())?;
        let memory = device
            .register(&region)
            .map_err(SetUpError::device("memory of software's queue pair"))?;
        let at = |offset| Place { memory, offset };
        let cqn = create_cq(device, &region, at(0), at(cq_doorbell_at), LOG_MASTER)?;
        let attributes = QpAttributes {
            domain,
            send_cq: cqn,
            receive_cq: cqn,
            send_ring: at(ring_at),
            log_send: LOG_MASTER,
            receive_ring: at(receive_at),
            log_receive: LOG_IDLE,
            log_stride: LOG_BELL_STRIDE,
            doorbell: at(doorbell_at),
            roles: Roles {
                master: true,
                ..Roles::default()
            },
            access: PeerAccess::default(),
            log_message: 12,
            rnr_retry: RNR_RETRY,
            max_reads: MAX_READS,
        };
        let qpn = device
            .create_qp(&attributes)
            .map_err(SetUpError::device("software's queue pair"))?;
        device
            .connect(qpn, &Peer::Local(qpn))
            .map_err(SetUpError::device("connecting software's queue pair"))?;
        Ok(Self {
            qpn,
            completions: CqReader::new(region.clone(), 0, LOG_MASTER, Some(cq_doorbell_at)),
            region,
            ring_at,
            doorbell_at,
            posted: 0,
        })
    }

    /// Whether [`enable`](Self::enable) has room: no more commands are under way than half the queue.
    pub fn has_room(&mut self) -> bool {
        while self.completions.next().is_some() {}
        let under_way = self.posted.saturating_sub(self.completions.consumed());
        under_way < 1 << (LOG_MASTER - 1)
    }

    /// Lets a managed send queue run up to a basic block. Returns whether there was room: if not, nothing is done.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn enable<D: Device>(
        &mut self,
        device: &mut D,
        qpn: Qpn,
        up_to: WqeIndex,
    ) -> Result<bool, SetUpError<D::Error>> {
        if !self.has_room() {
            return Ok(false);
        }
        let [.., high, low] = self.posted.to_be_bytes();
        let index = WqeIndex(u16::from_be_bytes([high, low]));
        let mut control = Control::new(Opcode::SendEnable, self.qpn, index);
        control.signal = Signal::Always;
        let body = Body::Enable(Enable { qpn, up_to });
        let wqe = WqeBuffer::encode(&control, &body).map_err(|error| {
            SetUpError::Build(kbtp_chain::BuildError::TooLong("SEND_EN", error))
        })?;
        let slot = self.posted % (1 << LOG_MASTER);
        self.region
            .write(self.ring_at + slot * BASIC_BLOCK as u64, wqe.as_octets())?;
        self.posted = self.posted.wrapping_add(1);
        let [.., high, low] = self.posted.to_be_bytes();
        let record = QpDoorbell {
            receive: 0,
            send: WqeIndex(u16::from_be_bytes([high, low])),
        };
        device.barrier();
        self.region.write(self.doorbell_at, &record.encode())?;
        device.barrier();
        let first = wqe.as_octets().first_chunk().copied().unwrap_or_default();
        device
            .ring_send(self.qpn, first)
            .map_err(SetUpError::device("ringing software's queue pair"))?;
        Ok(true)
    }
}
