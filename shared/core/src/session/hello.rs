//! HELLO and HELLO_ACK (profile, P5, P6, P8, P9; draft, section 6.6).

use super::open::Open;
use super::outbox::Outgoing;
use super::tickets::Tickets;
use super::{Admission, Exposer, Grant, SessionEnd, State, TargetSession};
use crate::directory::{Allotment, Opened, Opening, TenantIndex};
use crate::limits::HELLO_MAX;
use crate::pool::PartitionPlace;
use crate::stats::add;
use crate::{Directory, Intake, Shared};
use kbtp_fabric::{Access, Atomics, Time};
use kbtp_wire::{
    AtomicForm, Auth, ByteLen, Challenge, Grant as Terms, Handle, Header, Hello, HelloAck,
    InitiatorId, InstanceId, KnownTlvs, MAX_REQUEST_HEAD, Opcode, RequestError, RequestId,
    SessionCapabilities, Stag, Status, TaggedOffset,
};
use std::sync::atomic::Ordering::Relaxed;

const READ: Access = Access {
    remote_read: true,
    ..Access::LOCAL_READ
};
const WRITE: Access = Access {
    remote_write: true,
    ..Access::LOCAL_READ
};
const ATOMIC: Access = Access {
    remote_atomic: true,
    ..Access::LOCAL_READ
};

/// A HELLO that waits to be admitted.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    request_id: RequestId,
    credits: u16,
    capabilities: SessionCapabilities,
    quota: u32,
    max_inline: ByteLen,
    handles: u64,
    initiator: InitiatorId,
    tenant: Option<String>,
    auth: Option<Auth>,
}

/// What the direct modes expose; all zero without them.
#[derive(Clone, Copy, Debug, Default)]
struct Exposed {
    capabilities: SessionCapabilities,
    table: Stag,
    pool: Stag,
    /// STags of partition, ring and counter.
    direct: Option<[Stag; 3]>,
}

impl TargetSession {
    /// The first message.
    //= kbtp-p5-hello-first
    pub(super) fn take_hello(
        &mut self,
        shared: &Shared,
        message: &[u8],
    ) -> Result<Intake, SessionEnd> {
        if message.len() > HELLO_MAX {
            return Err(SessionEnd::TooLong {
                len: message.len(),
                limit: HELLO_MAX,
            });
        }
        match Hello::decode(message) {
            Ok(hello) => {
                self.state = State::Admission(Box::new(Asked {
                    request_id: hello.request_id,
                    credits: hello.credits,
                    capabilities: hello.capabilities,
                    quota: hello.quota,
                    max_inline: hello.max_inline,
                    handles: hello.handles,
                    initiator: hello.initiator,
                    tenant: hello.tlvs.tenant.map(str::to_owned),
                    auth: hello.tlvs.auth,
                }));
                Ok(Intake::Admit)
            }
            Err(RequestError::Refused(refusal)) => {
                self.refuse(shared, refusal.header.request_id, refusal.status);
                Ok(Intake::Taken)
            }
            Err(RequestError::TooShort { len }) => Err(SessionEnd::TooShort(len)),
            Err(_) => Err(SessionEnd::HelloOrder),
        }
    }

    /// See [`TargetSession::admit`].
    pub(super) fn answer_hello(
        &mut self,
        now: Time,
        shared: &Shared,
        directory: &mut Directory,
        exposer: &mut dyn Exposer,
    ) -> Result<Admission, SessionEnd> {
        let State::Admission(asked) = &self.state else {
            return Err(SessionEnd::Local("no HELLO waits to be admitted"));
        };
        let asked = asked.as_ref().clone();
        //= kbtp-p7-shutting-down
        if shared.is_draining() {
            self.refuse(shared, asked.request_id, Status::ShuttingDown);
            return Ok(Admission::Answered);
        }
        let tenant = directory.authenticate(
            self.config.auth,
            &Challenge(self.config.challenge),
            &asked.initiator,
            asked.tenant.as_deref(),
            asked.auth.as_ref(),
        );
        let Some(tenant) = tenant else {
            self.refuse(shared, asked.request_id, Status::NotAuthorized);
            return Ok(Admission::Answered);
        };
        let opening = Opening {
            id: self.config.id,
            tenant,
            initiator: asked.initiator,
            quota: asked.quota,
            handles: asked.handles,
            direct_alloc: self.direct_alloc_form(&asked, directory),
        };
        match directory.open(shared, &opening) {
            Opened::Replace(other) => return Ok(Admission::Replace(other)),
            Opened::Refused(status) => self.refuse(shared, asked.request_id, status),
            Opened::Granted(allotment) => {
                self.grant_session(now, shared, directory, exposer, &asked, tenant, &allotment);
            }
        }
        Ok(Admission::Answered)
    }

    /// DIRECT_ALLOC needs atomics of the stream (draft, section 9.1).
    //= kbtp-9.1-atomics
    fn direct_alloc_form(&self, asked: &Asked, directory: &Directory) -> Option<AtomicForm> {
        let wanted = asked
            .capabilities
            .contains(SessionCapabilities::DIRECT_ALLOC);
        let form = match self.config.capabilities.atomics {
            Atomics::None => None,
            Atomics::Masked => Some(AtomicForm::Masked),
            Atomics::Unmasked => Some(AtomicForm::Unmasked),
        };
        let possible =
            directory.config().direct_alloc && self.config.capabilities.inbound_reads > 0;
        form.filter(|_| wanted && possible)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of answer_hello, split off for length"
    )]
    fn grant_session(
        &mut self,
        now: Time,
        shared: &Shared,
        directory: &Directory,
        exposer: &mut dyn Exposer,
        asked: &Asked,
        tenant: TenantIndex,
        allotment: &Allotment,
    ) {
        let place = allotment
            .partition
            .map(|id| shared.pool.partition_place(id));
        let parts = self.expose(shared, directory, exposer, asked, place.as_ref());
        let terms = self.terms(shared, directory, asked, allotment, place.as_ref(), &parts);
        let grant = Grant {
            tenant: directory.tenant_name(tenant).to_owned(),
            initiator: asked.initiator.0,
            quota: terms.quota,
            handle_base: terms.handle_base,
            handle_count: terms.handle_count,
            credits: terms.credits,
            max_inline: terms.max_inline.0,
            capabilities: parts.capabilities,
            resumed: allotment.resumed,
        };
        let tickets = allotment.partition.zip(place).map(|(id, place)| {
            Tickets::new(id, place.order, terms.ticket_timeout_ms, parts.direct, now)
        });
        let pool_stag = self.config.pool_stag;
        let can_read = self.config.capabilities.outbound_reads > 0;
        let open = Open::new(
            grant,
            allotment,
            tickets,
            pool_stag,
            self.sealed_stag,
            can_read,
        );
        self.outbox.reserve(open.outbox_entries());
        self.state = State::Open(Box::new(open));
        add(&shared.stats.sessions_granted, 1);
        self.acknowledge(
            shared,
            //= kbtp-p6-request-id
            &HelloAck::Granted {
                request_id: asked.request_id,
                grant: terms,
                tlvs: KnownTlvs::default(),
            },
        );
    }

    fn terms(
        &self,
        shared: &Shared,
        directory: &Directory,
        asked: &Asked,
        allotment: &Allotment,
        place: Option<&PartitionPlace>,
        exposed: &Exposed,
    ) -> Terms {
        let geometry = shared.pool.geometry();
        let config = directory.config();
        //= kbtp-p5-defaults
        let credits = match asked.credits {
            0 => config.credits_default,
            wanted => wanted.min(config.credits_max),
        };
        let head = u32::try_from(MAX_REQUEST_HEAD).unwrap_or(u32::MAX);
        let receive = self.config.capabilities.max_receive.0.saturating_sub(head);
        let mut terms = Terms {
            capabilities: exposed.capabilities,
            block_size: ByteLen(geometry.block_size),
            pool_blocks: geometry.blocks,
            quota: allotment.quota,
            handle_base: Handle(
                geometry
                    .table_base_handle
                    .0
                    .saturating_add(allotment.first_row),
            ),
            handle_count: allotment.rows,
            table_base: geometry.table_base_handle,
            table_count: geometry.handles,
            credits,
            max_inline: ByteLen(asked.max_inline.0.min(config.inline_max).min(receive)),
            ticket_timeout_ms: config.ticket_timeout_ms,
            instance: InstanceId(shared.pool.instance()),
            lease_ms: config.lease_ms,
            ..Terms::default()
        };
        //= kbtp-p6-stags-zero-without-capability
        if exposed
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD)
        {
            terms.table_stag = exposed.table;
            terms.table_offset = TaggedOffset(shared.pool.layout().table);
            terms.pool_stag = exposed.pool;
        }
        if let (Some([partition, ring, counter]), Some(place)) = (exposed.direct, place) {
            terms.ring_order = place.order;
            terms.atomic_form = match self.config.capabilities.atomics {
                Atomics::Unmasked => AtomicForm::Unmasked,
                _ => AtomicForm::Masked,
            };
            terms.partition_stag = partition;
            terms.partition_offset = TaggedOffset(geometry.offset_of(place.first).0);
            terms.partition_len = u64::from(place.blocks) * u64::from(geometry.block_size);
            terms.ring_stag = ring;
            terms.ring_offset = TaggedOffset(place.ring);
            terms.counter_stag = counter;
            terms.head_offset = TaggedOffset(place.head);
        }
        terms
    }

    /// Registers what the direct modes expose. Capabilities it does not know are not granted. A mode whose parts cannot be registered is not granted.
    //= kbtp-p12-unknown-not-granted
    //= kbtp-p12-both-sides
    fn expose(
        &self,
        shared: &Shared,
        directory: &Directory,
        exposer: &mut dyn Exposer,
        asked: &Asked,
        place: Option<&PartitionPlace>,
    ) -> Exposed {
        //= kbtp-p12-unknown-not-granted
        let mut parts = Exposed::default();
        //= kbtp-6.5-record-only-ordered
        //= kbtp-6.5-record-not-on-rdmap
        let records = SessionCapabilities::RECORD_COMPLETION;
        if asked.capabilities.contains(records) && self.config.capabilities.write_with_immediate {
            parts.capabilities = records;
        }
        //= kbtp-p9-direct-own-blocks-only
        let direct_load = asked
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD)
            && directory.config().direct_load
            && directory.one_domain()
            && self.config.capabilities.inbound_reads > 0;
        if direct_load && let Some([table, pool]) = expose_pool(shared, exposer) {
            parts.capabilities = parts.capabilities.union(SessionCapabilities::DIRECT_LOAD);
            parts.table = table;
            parts.pool = pool;
        }
        if let Some(place) = place {
            parts.direct = expose_partition(shared, exposer, place);
            if parts.direct.is_some() {
                parts.capabilities = parts.capabilities.union(SessionCapabilities::DIRECT_ALLOC);
            } else {
                shared.stats.partitions_refused.fetch_add(1, Relaxed);
            }
        }
        parts
    }

    //= kbtp-p6-refused-closes
    fn refuse(&mut self, shared: &Shared, request_id: RequestId, status: Status) {
        self.state = State::Closing;
        add(&shared.stats.sessions_refused, 1);
        self.acknowledge(shared, &HelloAck::Refused { request_id, status });
    }

    //= kbtp-p6-request-id
    fn acknowledge(&mut self, shared: &Shared, ack: &HelloAck<'_>) {
        let mut octets = vec![0; ack.encoded_len()];
        let status = match ack {
            HelloAck::Granted { .. } => Status::Ok,
            HelloAck::Refused { status, .. } => *status,
        };
        // The buffer is as long as the message says it is.
        if ack.encode_into(&mut octets).is_ok() {
            self.outbox.push(Outgoing::Ack(octets.into()));
        }
        shared
            .stats
            .count(Opcode::Hello.to_wire(), status.to_wire());
    }
}

/// Table and pool, read only.
//= kbtp-6.6-direct-load-stags
//= kbtp-3.2-target-writes-only
fn expose_pool(shared: &Shared, exposer: &mut dyn Exposer) -> Option<[Stag; 2]> {
    let pool = &shared.pool;
    let geometry = pool.geometry();
    let table = pool.layout().table;
    let rows = table..table.saturating_add(geometry.handles.saturating_mul(16));
    let blocks = 0..geometry.pool_len();
    let table = exposer
        .expose(pool.meta_region(), rows, TaggedOffset(table), READ)
        .ok()?;
    //= kbtp-p6-block-offset-tagged
    let base = TaggedOffset(geometry.pool_base.0);
    let blocks = exposer.expose(pool.block_region(), blocks, base, READ);
    keep_all([Ok(table), blocks], exposer)
}

/// Partition to write, ring to read, Head for atomics.
//= kbtp-p6-ring-read-only
//= kbtp-3.3-counter-not-read
//= kbtp-6.6-initiator-never-writes-slots
//= rfc5042-6.3.4-exact-bounds
//= rfc7306-5-atomic-buffers-apart
fn expose_partition(
    shared: &Shared,
    exposer: &mut dyn Exposer,
    place: &PartitionPlace,
) -> Option<[Stag; 3]> {
    let pool = &shared.pool;
    let geometry = pool.geometry();
    let first = geometry.region_offset(place.first);
    let len = u64::from(place.blocks).saturating_mul(u64::from(geometry.block_size));
    let base = TaggedOffset(geometry.offset_of(place.first).0);
    let ring = place.ring..place.ring.saturating_add(place.order.ring_len());
    let head = place.head..place.head.saturating_add(8);
    let meta = pool.meta_region();
    let stags = [
        exposer.expose(
            pool.block_region(),
            first..first.saturating_add(len),
            base,
            WRITE,
        ),
        exposer.expose(meta, ring, TaggedOffset(place.ring), READ),
        exposer.expose(meta, head, TaggedOffset(place.head), ATOMIC),
    ];
    keep_all(stags, exposer)
}

/// All STags, or none: those that were made are revoked again.
fn keep_all<E, const N: usize>(
    stags: [Result<Stag, E>; N],
    exposer: &mut dyn Exposer,
) -> Option<[Stag; N]> {
    if stags.iter().all(Result::is_ok) {
        return Some(stags.map(Result::unwrap_or_default));
    }
    for stag in stags.into_iter().flatten() {
        // One that is not known any more is as good as revoked.
        drop(exposer.revoke(stag));
    }
    None
}

/// Octets of the longest message of a session: 24 + 32 + Max Inline (P7).
//= kbtp-p7-too-long-ends-session
pub(super) fn longest_message(max_inline: u32) -> usize {
    let inline = usize::try_from(max_inline).unwrap_or(usize::MAX);
    MAX_REQUEST_HEAD.saturating_add(inline).max(Header::LEN)
}
