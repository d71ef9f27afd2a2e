//! What the ULP asks for: work, and the end of STags.

use crate::connection::{Connection, Startup};
use crate::incoming::Sink;
use crate::send_queue::{Local, Work};
use crate::stags::{NoPlace, Place};
use crate::state::{Input, State};
use crate::terminate::Fault;
use kbtp_fabric::{LocalBuffer, LocalError, PostError, WorkId, WorkRequest};
use kbtp_wire::Stag;
use kbtp_wire::rdmap::{AtomicOperation, DdpTaggedCode, RdmapOpcode, TerminateCause};

impl Connection {
    /// Posts work; see [`kbtp_fabric::Stream::post`]. A Write with immediate sends Immediate Data (RFC 7306) behind
    /// the Write; not every peer has it. Cost: O(1), and a copy of a Send's head.
    ///
    /// # Errors
    /// [`PostError`]: nothing was posted.
    pub fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        //= rfc5041-6.2.1-no-transfer-after-close
        if !matches!(self.state, State::Established | State::Answering) {
            return Err(match self.startup {
                Startup::Pending | Startup::Request => PostError::Unsupported {
                    operation: "work before it is established",
                },
                _ => PostError::Closed,
            });
        }
        if self.state == State::Answering && asks_the_peer(work) {
            // It would not answer, and what stands behind this cannot overtake it: the end begins.
            self.apply(Input::Close);
            return Err(PostError::Closed);
        }
        if !self.queue.has_room() {
            return Err(PostError::QueueFull);
        }
        let work = self.prepare(work)?;
        self.queue.push(id, signaled, work);
        Ok(())
    }

    fn prepare(&mut self, work: &WorkRequest<'_>) -> Result<Work, PostError> {
        match *work {
            WorkRequest::Send {
                head,
                tail,
                solicited,
                invalidate,
            } => self.prepare_send(head, tail, solicited, invalidate),
            WorkRequest::Write {
                local,
                remote,
                immediate,
            } => {
                self.local(&local)?;
                Ok(Work::Write {
                    local: taken(&local),
                    remote,
                    immediate: immediate.map(u64::from),
                })
            }
            //= kbtp-6.5-record-not-on-rdmap
            WorkRequest::WriteImmediate { .. } => Err(PostError::Unsupported {
                operation: "RDMA Write with Immediate whose data is there before it",
            }),
            WorkRequest::Read { local, remote } => {
                self.needs_ord("an RDMA Read: its ORD is 0")?;
                if !self.local(&local)?.access.local_write {
                    return Err(PostError::Unsupported {
                        operation: "an RDMA Read into a registration without local_write",
                    });
                }
                Ok(Work::Read {
                    local: taken(&local),
                    remote,
                })
            }
            WorkRequest::FetchAdd { remote, add, mask } => {
                self.needs_ord("an atomic operation: its ORD is 0")?;
                Ok(Work::Atomic {
                    remote,
                    operation: AtomicOperation::FetchAdd { add, mask },
                })
            }
            WorkRequest::CmpSwap {
                remote,
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                self.needs_ord("an atomic operation: its ORD is 0")?;
                Ok(Work::Atomic {
                    remote,
                    operation: AtomicOperation::CmpSwap {
                        compare,
                        compare_mask,
                        swap,
                        swap_mask,
                    },
                })
            }
        }
    }

    fn prepare_send(
        &mut self,
        head: &[u8],
        tail: Option<LocalBuffer>,
        solicited: bool,
        invalidate: Option<Stag>,
    ) -> Result<Work, PostError> {
        let limit = self.queue.head_capacity();
        let tail_len = tail.map_or(0, |tail| tail.len.get());
        let head_len = u32::try_from(head.len())
            .ok()
            .filter(|len| head.len() <= limit && u32::try_from(u64::from(*len) + tail_len).is_ok())
            .ok_or(LocalError::Limit {
                what: "octets of the head of a Send",
                limit: limit as u64,
            })?;
        if let Some(tail) = tail {
            self.local(&tail)?;
        }
        if head.len() > self.queue.head_room() {
            return Err(PostError::QueueFull);
        }
        Ok(Work::Send {
            opcode: match (solicited, invalidate) {
                (false, None) => RdmapOpcode::Send,
                (true, None) => RdmapOpcode::SendSolicited,
                (false, Some(_)) => RdmapOpcode::SendInvalidate,
                (true, Some(_)) => RdmapOpcode::SendSolicitedInvalidate,
            },
            invalidate: invalidate.map_or(0, |stag| stag.0),
            head_at: self.queue.store_head(head),
            head_len,
            tail: tail.as_ref().map(taken),
        })
    }

    const fn needs_ord(&self, operation: &'static str) -> Result<(), PostError> {
        if self.ord == 0 {
            return Err(PostError::Unsupported { operation });
        }
        Ok(())
    }

    fn local(&self, buffer: &LocalBuffer) -> Result<Place, LocalError> {
        self.stags
            .find(buffer.stag, buffer.offset, buffer.len.get())
            .map_err(|no| match no {
                NoPlace::Invalid | NoPlace::Retired => {
                    LocalError::UnknownStag { stag: buffer.stag }
                }
                NoPlace::Wrap | NoPlace::Bounds => LocalError::Range {
                    what: "a buffer of posted work",
                    start: buffer.offset.0,
                    end: buffer.offset.0.saturating_add(buffer.len.get()),
                    len: 0,
                },
            })
    }

    /// Ends a registration for good, or leaves a sink of it (`retire`).
    pub(crate) fn end_registration(&mut self, stag: Stag, retire: bool) -> Result<(), LocalError> {
        //= rfc5040-8.1.1-establish-and-revoke
        //= rfc5041-8.3-establish-and-revoke
        //= rfc5040-8.1.1-no-write-after-revoke
        //= rfc5041-8.3.1-no-write-after-revoke
        //= rfc5042-6.2.2-no-write-after-revoke
        // A retired one has no octets in use any more.
        if let Some((entry, region)) = self.stags.live(stag) {
            self.outgoing.spill(entry, region);
            if matches!(self.incoming.sink, Sink::Region { entry: at, .. } if at == entry) {
                self.incoming.sink = Sink::Discard;
                if !retire && self.incoming.payload_left > 0 {
                    self.incoming.verdict.get_or_insert(Fault::new(
                        TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag),
                        "the STag was invalidated while octets for it came in",
                    ));
                }
            }
        }
        if retire {
            self.stags.retire(stag)?;
        } else {
            self.stags.invalidate(stag)?;
        }
        Ok(())
    }
}

/// Whether it is done only once the peer has answered.
const fn asks_the_peer(work: &WorkRequest<'_>) -> bool {
    matches!(
        work,
        WorkRequest::Read { .. } | WorkRequest::FetchAdd { .. } | WorkRequest::CmpSwap { .. }
    )
}

const fn taken(buffer: &LocalBuffer) -> Local {
    Local {
        stag: buffer.stag,
        offset: buffer.offset,
        len: buffer.len.0,
    }
}
