//! The model as a [`Device`].

use crate::cq::Cq;
use crate::error::ModelError;
use crate::limits::{MAX_LOG_CQ, MAX_LOG_RECEIVE, MAX_LOG_SEND};
use crate::memory::put;
use crate::model::{FIRST_CQN, FIRST_QPN, Model};
use crate::qp::{Qp, State};
use kbtp_device::{
    CqAttributes, Device, DeviceEvent, Domain, KeyAttributes, MemoryId, Peer, QpAttributes,
};
use kbtp_memory::Region;
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{CqArm, CqDoorbell, Cqe, Cqn, Mkey, QpDoorbell, Qpn, Syndrome};

const fn within(what: &'static str, value: u8, max: u8) -> Result<(), ModelError> {
    if value <= max {
        Ok(())
    } else {
        Err(ModelError::Bounds {
            what,
            value: value as u64,
        })
    }
}

impl Model {
    fn domain(&self, domain: Domain) -> Result<(), ModelError> {
        if domain.0 < self.domains {
            Ok(())
        } else {
            Err(ModelError::Domain(domain.0))
        }
    }

    fn cq_exists(&self, cqn: Cqn) -> Result<(), ModelError> {
        self.produced(cqn).map(drop)
    }
}

impl Device for Model {
    type Error = ModelError;

    fn create_domain(&mut self) -> Result<Domain, ModelError> {
        let domain = Domain(self.domains);
        self.domains = self.domains.saturating_add(1);
        Ok(domain)
    }

    fn register(&mut self, region: &Region) -> Result<MemoryId, ModelError> {
        self.memory.register(region)
    }

    fn unregister(&mut self, memory: MemoryId) -> Result<(), ModelError> {
        let names = |qp: &Qp| {
            let attributes = &qp.attributes;
            let places = [
                attributes.send_ring,
                attributes.receive_ring,
                attributes.doorbell,
            ];
            places.iter().any(|place| place.memory == memory)
        };
        let holds = |cq: &Cq| {
            let places = [cq.attributes.ring, cq.attributes.doorbell];
            places.iter().any(|place| place.memory == memory)
        };
        if self.qps.iter().flatten().any(names) || self.cqs.iter().flatten().any(holds) {
            return Err(ModelError::InUse("memory with queues"));
        }
        self.memory.unregister(memory)
    }

    fn create_key(&mut self, attributes: &KeyAttributes<'_>) -> Result<Mkey, ModelError> {
        self.domain(attributes.domain)?;
        self.memory.create_key(attributes)
    }

    fn destroy_key(&mut self, key: Mkey) -> Result<(), ModelError> {
        self.memory.destroy_key(key)
    }

    fn create_cq(&mut self, attributes: &CqAttributes) -> Result<Cqn, ModelError> {
        attributes.check()?;
        within("CQEs", attributes.log_size, MAX_LOG_CQ)?;
        let len = (Cqe::LEN as u64) << attributes.log_size;
        let memory = &self.memory;
        memory.check("a completion queue", attributes.ring, len)?;
        memory.check("a record", attributes.doorbell, CqDoorbell::LEN as u64)?;
        let number = put(&mut self.cqs, Cq::new(*attributes), "completion queues")?;
        Ok(Cqn::truncate(FIRST_CQN + number))
    }

    fn destroy_cq(&mut self, cqn: Cqn) -> Result<(), ModelError> {
        self.cq_exists(cqn)?;
        let uses = |qp: &Qp| [qp.attributes.send_cq, qp.attributes.receive_cq].contains(&cqn);
        if self.qps.iter().flatten().any(uses) {
            return Err(ModelError::InUse("a completion queue"));
        }
        let slot = Self::cq_at(cqn).and_then(|at| self.cqs.get_mut(at));
        slot.and_then(Option::take)
            .map(drop)
            .ok_or(ModelError::Cq(cqn))
    }

    fn create_qp(&mut self, attributes: &QpAttributes) -> Result<Qpn, ModelError> {
        self.domain(attributes.domain)?;
        self.cq_exists(attributes.send_cq)?;
        self.cq_exists(attributes.receive_cq)?;
        attributes.check()?;
        within("basic blocks", attributes.log_send, MAX_LOG_SEND)?;
        within("receive WQEs", attributes.log_receive, MAX_LOG_RECEIVE)?;
        within("the octets of a receive WQE", attributes.log_stride, 10)?;
        within("the longest message", attributes.log_message, 31)?;
        let sends = (BASIC_BLOCK as u64) << attributes.log_send;
        let receives = 1 << (attributes.log_receive + attributes.log_stride);
        let memory = &self.memory;
        memory.check("a send queue", attributes.send_ring, sends)?;
        memory.check("a receive queue", attributes.receive_ring, receives)?;
        memory.check("a record", attributes.doorbell, QpDoorbell::LEN as u64)?;
        let qp = Qp::new(Qpn::default(), *attributes);
        let number = put(&mut self.qps, qp, "queue pairs")?;
        let qpn = Qpn::truncate(FIRST_QPN + number);
        self.qp_mut(qpn)?.qpn = qpn;
        Ok(qpn)
    }

    fn connect(&mut self, qpn: Qpn, peer: &Peer) -> Result<(), ModelError> {
        if let Peer::Local(other) = peer {
            self.qp_mut(*other)?;
        }
        let qp = self.qp_mut(qpn)?;
        if qp.state != State::Reset {
            return Err(ModelError::State(qpn));
        }
        qp.state = State::Ready;
        qp.peer = Some(*peer);
        Ok(())
    }

    fn stop(&mut self, qpn: Qpn) -> Result<(), ModelError> {
        self.qp_mut(qpn)?;
        let at = Self::qp_at(qpn).ok_or(ModelError::Qp(qpn))?;
        self.set_error(at, None, Syndrome::FLUSHED);
        Ok(())
    }

    fn reset(&mut self, qpn: Qpn) -> Result<(), ModelError> {
        self.qp_mut(qpn)?.reset();
        self.failures.retain(|(failed, _)| *failed != qpn);
        Ok(())
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ModelError> {
        let slot = Self::qp_at(qpn).and_then(|at| self.qps.get_mut(at));
        let found = slot.and_then(Option::take);
        self.failures.retain(|(failed, _)| *failed != qpn);
        found.map(drop).ok_or(ModelError::Qp(qpn))
    }

    fn barrier(&mut self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// The doorbell record says how far the queue goes, not the octets that are written; a managed queue does not go by it.
    fn ring_send(&mut self, qpn: Qpn, _control: [u8; 8]) -> Result<(), ModelError> {
        let fetch = self.hazards.fetch;
        let at = Self::qp_at(qpn).ok_or(ModelError::Qp(qpn))?;
        let qp = self.qps.get_mut(at).and_then(Option::as_mut);
        let qp = qp.ok_or(ModelError::Qp(qpn))?;
        if qp.attributes.roles.managed_send {
            return Ok(());
        }
        let mut record = [0; QpDoorbell::LEN];
        let read = self.memory.read(qp.attributes.doorbell, &mut record);
        read.map_err(|_| ModelError::Qp(qpn))?;
        let up_to = QpDoorbell::decode(&record).send;
        if !qp.enable(&self.memory, up_to, fetch, &mut self.random) {
            self.set_error(at, None, Syndrome::LOCAL_QP_OPERATION);
        }
        Ok(())
    }

    fn arm_cq(&mut self, cqn: Cqn, how: CqArm) -> Result<(), ModelError> {
        let cq = Self::cq_at(cqn).and_then(|at| self.cqs.get_mut(at)?.as_mut());
        let cq = cq.ok_or(ModelError::Cq(cqn))?;
        // CQEs that software has not seen when it arms are an event at once.
        let [.., a, b, c] = cq.produced.to_be_bytes();
        let there = u32::from_be_bytes([0, a, b, c]) != how.consumer.get();
        if there && !how.solicited_only {
            self.event(DeviceEvent::Completion(cqn));
        } else {
            cq.armed = Some(how);
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }
}
