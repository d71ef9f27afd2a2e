//! Starting WQEs: reading, checking, waiting, gathering. What a responder does comes later.

use crate::memory::{Asker, Extent};
use crate::model::Model;
use crate::outside::{Kind, OutgoingWork};
use crate::qp::{Pending, Qp, Stage, Work};
use crate::trace::{Deed, TraceEntry};
use kbtp_mlx5::limits::{BASIC_BLOCK, MAX_BASIC_BLOCKS, SEGMENT};
use kbtp_mlx5::{
    AccessRights, Atomic, Body, Comparison, Control, DataList, DataSegment, Enable, Fence,
    OnMismatch, Opcode, Payload, RemoteAddress, Signal, Syndrome, WaitCqe, WaitData, Wqe,
};

/// What came of a WQE's turn.
enum Turn {
    /// It runs; this is left of it. `None` if nothing is, not even a CQE.
    Runs(Option<Work>),
    /// Not yet.
    Blocked,
    /// It makes no sense.
    Fails(Syndrome),
}

const NONSENSE: Turn = Turn::Fails(Syndrome::LOCAL_QP_OPERATION);

/// Where a WQE was and what it said of itself.
struct Head {
    control: Control,
    len: usize,
    blocks: u64,
}

impl Model {
    /// Starts the next WQE of a queue pair. Returns whether it could.
    pub(crate) fn issue(&mut self, at: usize) -> bool {
        let Some(qp) = self.qp(at) else { return false };
        if qp.halted || qp.next >= qp.posted {
            return false;
        }
        if let Some((cq, index)) = qp.blocked {
            let cq = self.cqs.get(cq).and_then(Option::as_ref);
            if !cq.is_some_and(|cq| cq.reached(index)) {
                return false;
            }
        }
        let mut octets = std::mem::take(&mut self.wqe);
        let started = self.start(at, &mut octets);
        self.wqe = octets;
        started
    }

    fn start(&mut self, at: usize, octets: &mut [u8]) -> bool {
        let head = match self.head(at, octets) {
            Ok(head) => head,
            Err((blocks, opcode)) => {
                self.fail_start(at, blocks, opcode, Syndrome::LOCAL_QP_OPERATION);
                return true;
            }
        };
        let octets = octets.get(..head.len).unwrap_or(&[]);
        match self.turn(at, &head.control, octets) {
            Turn::Blocked => false,
            Turn::Fails(syndrome) => {
                let opcode = head.control.opcode.to_wire();
                self.fail_start(at, head.blocks, opcode, syndrome);
                true
            }
            Turn::Runs(work) => {
                self.started(at, &head, octets, work);
                true
            }
        }
    }

    /// The next WQE's octets and control segment; how many basic blocks to skip and its opcode if it makes no sense.
    fn head(&mut self, at: usize, to: &mut [u8]) -> Result<Head, (u64, u8)> {
        let hazards = self.hazards;
        let memory = &self.memory;
        let qp = self.qps.get_mut(at).and_then(Option::as_mut);
        let qp = qp.ok_or((1, 0))?;
        let next = qp.next;
        let first = to.get_mut(..BASIC_BLOCK).ok_or((1, 0))?;
        qp.fetch(memory, next, 1, hazards.fetch, first);
        let (segments, _) = first.as_chunks::<SEGMENT>();
        let segment = segments.first().ok_or((1, 0))?;
        let [_, _, _, opcode, _, _, _, length, ..] = *segment;
        let control = Control::decode(segment).map_err(|_| (1, opcode))?;
        let len = usize::from(control.segments).saturating_mul(SEGMENT);
        let blocks = len.div_ceil(BASIC_BLOCK);
        let count = blocks as u64;
        let end = next.saturating_add(count);
        let across = next % qp.blocks() + count > qp.blocks();
        // A length of nothing, of more than a ring takes in one piece, or of more than was enabled.
        if length == 0 || blocks == 0 || blocks > MAX_BASIC_BLOCKS || across || end > qp.posted {
            return Err((1, opcode));
        }
        if blocks > 1
            && let Some(rest) = to.get_mut(BASIC_BLOCK..len)
        {
            qp.fetch(
                memory,
                next.saturating_add(1),
                blocks - 1,
                hazards.fetch,
                rest,
            );
        }
        let known = control.qpn == qp.qpn && control.index == Qp::index(next);
        if !known && !hazards.lenient_identity {
            return Err((count, opcode));
        }
        Ok(Head {
            control,
            len,
            blocks: count,
        })
    }

    fn turn(&mut self, at: usize, control: &Control, octets: &[u8]) -> Turn {
        let Some(qp) = self.qp(at) else {
            return NONSENSE;
        };
        let waits = match control.fence {
            Fence::StrongOrdering => !qp.pending.is_empty(),
            fence => fence.orders_reads() && qp.reads > 0,
        };
        if waits {
            return Turn::Blocked;
        }
        if control.opcode == Opcode::Nop && self.hazards.lenient_nop {
            return Turn::Runs(Some(Work::Done));
        }
        let Ok(wqe) = Wqe::decode(octets) else {
            return NONSENSE;
        };
        let master = qp.attributes.roles.master || self.hazards.lenient_roles;
        let asker = qp.asker();
        match wqe.body {
            Body::Ignored(_) => Turn::Runs(Some(Work::Done)),
            Body::WaitCqe(_) | Body::WaitData(_) | Body::Enable(_) if !master => NONSENSE,
            Body::WaitCqe(wait) => self.wait_cqe(at, wait),
            Body::WaitData(wait) => self.wait_data(asker, &wait),
            Body::Enable(enable) => self.enable(control.opcode, enable),
            Body::Write(..) | Body::Read(..) | Body::Send(_) | Body::Atomic(..)
                if self.peer_at(at).is_none() =>
            {
                self.outside(at, control, &wqe.body)
            }
            Body::Send(payload) => {
                let kind = kind_of(control);
                match self.gather(at, &payload) {
                    Ok(data) => Turn::Runs(Some(Work::Send { data, kind })),
                    Err(syndrome) => Turn::Fails(syndrome),
                }
            }
            Body::Write(remote, payload) => {
                let immediate = control.opcode == Opcode::RdmaWriteImmediate;
                match self.gather(at, &payload) {
                    Ok(data) => Turn::Runs(Some(Work::Write {
                        remote,
                        data,
                        immediate: immediate.then_some(control.immediate),
                    })),
                    Err(syndrome) => Turn::Fails(syndrome),
                }
            }
            Body::Read(remote, list) => self.read(at, remote, list),
            Body::Atomic(remote, atomic, to) => self.atomic(at, remote, atomic, to),
            Body::Umr(control_umr, context, list) => {
                if !self.at_mut(at).is_some_and(|qp| qp.pending.is_empty()) {
                    return Turn::Blocked;
                }
                match self.memory.update(
                    asker,
                    kbtp_mlx5::Mkey(control.immediate),
                    &control_umr,
                    &context,
                    list,
                ) {
                    Ok(()) => Turn::Runs(Some(Work::Done)),
                    Err(_) => Turn::Fails(Syndrome::WINDOW_BIND),
                }
            }
        }
    }

    /// A request to a peer outside the model: data stays where it is, but for what a message is made of.
    fn outside(&mut self, at: usize, control: &Control, body: &Body<'_>) -> Turn {
        let Some(qp) = self.qp(at) else {
            return NONSENSE;
        };
        let reads = matches!(body, Body::Read(..) | Body::Atomic(..));
        if reads && qp.reads >= qp.attributes.max_reads {
            return Turn::Blocked;
        }
        let immediate = control.opcode == Opcode::RdmaWriteImmediate;
        let immediate = immediate.then_some(control.immediate);
        let work = match body {
            Body::Send(payload) => self.gather(at, payload).map(|message| OutgoingWork::Send {
                message,
                kind: kind_of(control),
            }),
            Body::Write(remote, Payload::List(list)) => self
                .extents_of(at, list, AccessRights::LOCAL_READ)
                .map(|local| OutgoingWork::Write {
                    local,
                    remote: *remote,
                    immediate,
                }),
            Body::Read(remote, list) => {
                self.extents_of(at, list, AccessRights::LOCAL_WRITE)
                    .map(|local| OutgoingWork::Read {
                        local,
                        remote: *remote,
                    })
            }
            Body::Atomic(remote, atomic, to) => self
                .extents_of(at, &DataList::new(&[*to]), AccessRights::LOCAL_WRITE)
                .map(|local| OutgoingWork::Atomic {
                    local,
                    remote: *remote,
                    atomic: *atomic,
                }),
            // No chain writes inline data to a client.
            _ => Err(Syndrome::LOCAL_QP_OPERATION),
        };
        match work {
            Ok(work) => Turn::Runs(Some(Work::Outside(Some(work)))),
            Err(syndrome) => Turn::Fails(syndrome),
        }
    }

    /// Where the octets of a list are.
    fn extents_of(
        &self,
        at: usize,
        list: &DataList<'_>,
        need: AccessRights,
    ) -> Result<Vec<Extent>, Syndrome> {
        if list.len() > self.hazards.max_pieces {
            return Err(Syndrome::LOCAL_QP_OPERATION);
        }
        if !self.fits(at, list.octets()) {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        let asker = self.qp(at).ok_or(Syndrome::LOCAL_QP_OPERATION)?.asker();
        let mut extents = Vec::new();
        for piece in list.iter() {
            let len = u64::from(piece.len.get());
            self.memory
                .translate(asker, piece.lkey, piece.address, len, need, &mut extents)
                .map_err(|_| Syndrome::LOCAL_PROTECTION)?;
        }
        Ok(extents)
    }

    fn wait_cqe(&mut self, at: usize, wait: WaitCqe) -> Turn {
        let Some(cq_at) = Self::cq_at(wait.cqn) else {
            return NONSENSE;
        };
        let Some(cq) = self.cqs.get(cq_at).and_then(Option::as_ref) else {
            return NONSENSE;
        };
        if cq.reached(wait.index) {
            return Turn::Runs(Some(Work::Done));
        }
        if let Some(qp) = self.at_mut(at) {
            qp.blocked = Some((cq_at, wait.index));
        }
        Turn::Blocked
    }

    fn wait_data(&mut self, asker: Asker, wait: &WaitData) -> Turn {
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let need = AccessRights::LOCAL_READ;
        let found = self
            .memory
            .translate(asker, wait.lkey, wait.address, 8, need, &mut extents);
        let mut octets = [0; 8];
        let read = found.and_then(|()| self.read_extents(&extents, &mut octets));
        self.extents = extents;
        if read.is_err() {
            return Turn::Fails(Syndrome::LOCAL_PROTECTION);
        }
        match (holds(wait, octets), wait.on_mismatch) {
            (true, _) => Turn::Runs(Some(Work::Done)),
            (false, OnMismatch::Retry) => Turn::Blocked,
            (false, OnMismatch::Error) => NONSENSE,
        }
    }

    fn enable(&mut self, opcode: Opcode, enable: Enable) -> Turn {
        let (fetch, lenient) = (self.hazards.fetch, self.hazards.lenient_roles);
        let found = Self::qp_at(enable.qpn).and_then(|at| self.qps.get_mut(at)?.as_mut());
        let Some(qp) = found else { return NONSENSE };
        let roles = qp.attributes.roles;
        if opcode == Opcode::ReceiveEnable {
            if !roles.managed_receive && !lenient {
                return NONSENSE;
            }
            qp.enable_receives(enable.up_to);
            return Turn::Runs(Some(Work::Done));
        }
        if !roles.managed_send && !lenient {
            return NONSENSE;
        }
        if qp.enable(&self.memory, enable.up_to, fetch, &mut self.random) {
            Turn::Runs(Some(Work::Done))
        } else {
            NONSENSE
        }
    }

    fn read(&mut self, at: usize, remote: RemoteAddress, list: DataList<'_>) -> Turn {
        let Some(qp) = self.qp(at) else {
            return NONSENSE;
        };
        if qp.reads >= qp.attributes.max_reads {
            return Turn::Blocked;
        }
        let len = list.octets();
        if list.len() > self.hazards.max_pieces {
            return NONSENSE;
        }
        let short = u32::try_from(len).ok().filter(|_| self.fits(at, len));
        let Some(len) = short else {
            return Turn::Fails(Syndrome::LOCAL_LENGTH);
        };
        let mut to = self.spare_lists.pop().unwrap_or_default();
        to.extend(list.iter());
        Turn::Runs(Some(Work::Read {
            remote,
            len,
            to,
            data: None,
        }))
    }

    fn atomic(&self, at: usize, remote: RemoteAddress, atomic: Atomic, to: DataSegment) -> Turn {
        let Some(qp) = self.qp(at) else {
            return NONSENSE;
        };
        if qp.reads >= qp.attributes.max_reads {
            return Turn::Blocked;
        }
        Turn::Runs(Some(Work::Atomic {
            remote,
            atomic,
            to,
            reply: 0,
            later: None,
        }))
    }

    /// Whether a queue pair may have messages of so many octets.
    fn fits(&self, at: usize, len: u64) -> bool {
        self.qp(at)
            .is_some_and(|qp| len <= 1 << qp.attributes.log_message)
    }

    /// The octets that a payload names.
    fn gather(&mut self, at: usize, payload: &Payload<'_>) -> Result<Vec<u8>, Syndrome> {
        let list = match payload {
            Payload::List(list) => *list,
            Payload::Inline(octets) => {
                let mut data = self.take();
                data.extend_from_slice(octets);
                return Ok(data);
            }
        };
        if list.len() > self.hazards.max_pieces {
            return Err(Syndrome::LOCAL_QP_OPERATION);
        }
        if !self.fits(at, list.octets()) {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        let asker = self.qp(at).ok_or(Syndrome::LOCAL_QP_OPERATION)?.asker();
        let mut data = self.take();
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let mut result = Ok(());
        for piece in list.iter() {
            let len = u64::from(piece.len.get());
            let need = AccessRights::LOCAL_READ;
            let (key, address) = (piece.lkey, piece.address);
            result = result.and_then(|()| {
                self.memory
                    .translate(asker, key, address, len, need, &mut extents)
            });
        }
        let result = result.and_then(|()| self.append(&extents, &mut data));
        self.extents = extents;
        if result.is_err() {
            self.give(data);
            return Err(Syndrome::LOCAL_PROTECTION);
        }
        Ok(data)
    }

    /// Books a WQE that runs.
    fn started(&mut self, at: usize, head: &Head, octets: &[u8], work: Option<Work>) {
        let time = self.time;
        let control = &head.control;
        let opcode = control.opcode.to_wire();
        let Some(qp) = self.qps.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEntry {
                time,
                qpn: qp.qpn,
                index: Qp::index(qp.next),
                opcode,
                octets: octets.to_vec(),
            });
        }
        let index = Qp::index(qp.next).0;
        qp.next = qp.next.saturating_add(head.blocks);
        qp.blocked = None;
        self.did(at, index, Deed::Started);
        let Some(work) = work else { return };
        let Some(qp) = self.at_mut(at) else { return };
        let stage = match work {
            Work::Done => Stage::Answered,
            _ => Stage::Issued,
        };
        // What needs no answer and no CQE is over.
        if matches!(work, Work::Done) && !control.signal.on_success() {
            return;
        }
        let id = qp.next_id;
        qp.next_id = id.wrapping_add(1);
        let (byte_count, is_read) = match &work {
            Work::Read { len, .. } => (*len, true),
            Work::Outside(Some(OutgoingWork::Read { local, .. })) => (octets_of(local), true),
            Work::Atomic { atomic, .. }
            | Work::Outside(Some(OutgoingWork::Atomic { atomic, .. })) => (atomic.word_len(), true),
            _ => (0, false),
        };
        qp.push(Pending {
            index,
            opcode,
            signal: control.signal,
            solicited: control.solicited,
            byte_count,
            stage,
            is_read,
            id,
            work,
        });
    }

    /// Books a WQE that fails before anything came of it: it completes in its turn, and nothing starts after it.
    fn fail_start(&mut self, at: usize, blocks: u64, opcode: u8, syndrome: Syndrome) {
        let Some(qp) = self.at_mut(at) else { return };
        let index = Qp::index(qp.next).0;
        qp.next = qp.next.saturating_add(blocks.max(1)).min(qp.posted);
        qp.halted = true;
        qp.blocked = None;
        let id = qp.next_id;
        qp.next_id = id.wrapping_add(1);
        qp.push(Pending {
            index,
            opcode,
            signal: Signal::OnError,
            solicited: false,
            byte_count: 0,
            stage: Stage::Answered,
            is_read: false,
            id,
            work: Work::Failed(syndrome),
        });
        self.did(at, index, Deed::Failed);
    }

    /// Flushes one WQE of a queue pair in error; `false` if there is none.
    pub(crate) fn flush(&mut self, at: usize) -> bool {
        let fetch = self.hazards.fetch;
        let memory = &self.memory;
        let Some(qp) = self.qps.get_mut(at).and_then(Option::as_mut) else {
            return false;
        };
        if let Some(pending) = qp.pending.pop_front() {
            let signalled = pending.signal.on_success();
            self.flushed(at, pending.index, pending.opcode, signalled);
            self.recycle(pending.work);
            return true;
        }
        if qp.next >= qp.posted {
            return false;
        }
        let mut first = [0; BASIC_BLOCK];
        let block = qp.next;
        qp.fetch(memory, block, 1, fetch, &mut first);
        let (segments, _) = first.as_chunks::<SEGMENT>();
        let control = segments.first().map(Control::decode);
        let (opcode, blocks, signalled) = match control {
            Some(Ok(control)) => (
                control.opcode.to_wire(),
                u64::from(control.segments).div_ceil(4).max(1),
                control.signal.on_success(),
            ),
            _ => (0, 1, true),
        };
        qp.next = block.saturating_add(blocks).min(qp.posted);
        self.flushed(at, Qp::index(block).0, opcode, signalled);
        true
    }
}

fn octets_of(extents: &[Extent]) -> u32 {
    let octets: u64 = extents.iter().map(|extent| extent.len).sum();
    u32::try_from(octets).unwrap_or(u32::MAX)
}

const fn kind_of(control: &Control) -> Kind {
    match control.opcode {
        Opcode::SendInvalidate => Kind::Invalidate(control.immediate),
        Opcode::SendImmediate => Kind::Immediate(control.immediate),
        _ => Kind::Send,
    }
}

/// Whether what a WAIT for data waits for is there. The octets are numbers as the device writes them to memory:
/// big-endian.
fn holds(wait: &WaitData, octets: [u8; 8]) -> bool {
    let mask = u64::from_be_bytes(wait.mask);
    let memory = u64::from_be_bytes(octets) & mask;
    let data = u64::from_be_bytes(wait.data) & mask;
    let ahead = memory.wrapping_sub(data);
    let holds = match wait.comparison {
        Comparison::AlwaysTrue => true,
        Comparison::Equal => memory == data,
        Comparison::Bigger => memory > data,
        Comparison::Smaller => memory < data,
        Comparison::CyclicBigger => ahead != 0 && ahead < 1 << 63,
        Comparison::CyclicSmaller => ahead > 1 << 63,
    };
    holds != wait.invert
}
