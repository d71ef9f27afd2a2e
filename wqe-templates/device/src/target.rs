//! What the sessions of one pool share: domains, tables, keys to table, ring and pool, the queue of punts.

use crate::alarm::Alarm;
use crate::error::SetUpError;
use crate::limits::LOG_PUNT_CQ;
use crate::tables::{Area, Perpetual, Records, Tables, View, create};
use crate::{CqAttributes, CqReader, Device, DeviceEvent, Domain, KeyAttributes, Layout, MemoryId};
use kbtp_chain::Template;
use kbtp_chain::key::Key;
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::{AccessRights, Cqe, Cqn, Mkey};
use kbtp_wire::{BlockOffset, ByteLen, Handle, RingOrder};

/// Where a pool is.
#[derive(Clone, Debug)]
pub struct PoolPlace {
    /// The region of table, ring and counters.
    pub meta: Region,
    /// First octet of the table in it.
    pub table_at: u64,
    /// The table's first handle.
    pub table_base: Handle,
    /// Its handles.
    pub table_count: u64,
    /// First octet of the ring.
    pub ring_at: u64,
    /// Its order.
    pub ring: RingOrder,
    /// Where Head lies; Tail lies 64 octets on.
    pub counters_at: u64,
    /// The blocks.
    pub blocks: Region,
    /// Block Offset of the first octet of that region. No Block Offset may have a high half of all ones.
    pub first_block: BlockOffset,
    /// Octets of a block.
    pub block_size: ByteLen,
}

/// A target's part of a device.
#[derive(Debug)]
pub struct Target {
    pub(crate) loopback: Domain,
    pub(crate) client: Domain,
    pub(crate) pool: PoolPlace,
    pub(crate) tables: Tables,
    pub(crate) table: Mkey,
    pub(crate) sequence: Mkey,
    pub(crate) block_offset: Mkey,
    pub(crate) blocks: Mkey,
    pool_memory: MemoryId,
    /// Key to the metadata from address zero, for sessions' keys.
    pub(crate) meta: Mkey,
    pub(crate) punt_cqn: Cqn,
    punts: CqReader,
    alarm: Alarm,
}

/// A template with its records.
#[derive(Debug)]
pub struct Profile {
    pub(crate) template: Template,
    pub(crate) records: Records,
    /// What slots arm themselves from, if they do.
    pub(crate) perpetual: Option<Perpetual>,
}

impl Profile {
    /// The template.
    #[must_use]
    pub const fn template(&self) -> &Template {
        &self.template
    }
}

/// A CQ of its own memory, and how software reads it.
pub(crate) fn create_cq<D: Device>(
    device: &mut D,
    region: &Region,
    at: crate::Place,
    doorbell: crate::Place,
    log_size: u8,
) -> Result<Cqn, SetUpError<D::Error>> {
    let cqes = 1_u64.checked_shl(u32::from(log_size)).unwrap_or(0);
    for cqe in 0..cqes {
        let last = at.offset + cqe * Cqe::LEN as u64 + Cqe::OP_OWN_AT as u64;
        region.write(last, &[kbtp_mlx5::OpOwn::INITIAL])?;
    }
    let attributes = CqAttributes {
        ring: at,
        log_size,
        doorbell,
        overrun_ignored: true,
    };
    device
        .create_cq(&attributes)
        .map_err(SetUpError::device("a completion queue"))
}

impl Target {
    /// Makes the keys of a pool.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn create<D: Device>(
        device: &mut D,
        pool: PoolPlace,
    ) -> Result<Self, SetUpError<D::Error>> {
        let domain = |device: &mut D| {
            let made = device.create_domain();
            made.map_err(SetUpError::device("a protection domain"))
        };
        let (loopback, client) = (domain(device)?, domain(device)?);
        let tables = Tables::create(device, loopback)?;
        let all = AccessRights::LOCAL_READ
            .with(AccessRights::REMOTE_READ)
            .with(AccessRights::REMOTE_WRITE)
            .with(AccessRights::ATOMIC);
        let meta = Area::over(device, loopback, all, pool.meta.clone())?;
        let table = View {
            domain: loopback,
            rights: Key::Table.rights(),
            start: view_start::<D::Error>(pool.table_base.0)?,
            rows: pool.table_count,
            base: meta.base,
            at: pool.table_at,
            stride: 16,
            len: 16,
            // Nothing of a pad is ever looked at: an entry's address is a multiple of 256.
            pad: (meta.base, 0),
        };
        let table = table.create(device, "the table")?;
        let ring_len = pool.ring.ring_len();
        let ring = |device: &mut D, key: Key, skip: u64| {
            let layout = Layout::Plain(meta.place(pool.ring_at + skip));
            let attributes = KeyAttributes::new(loopback, key.rights(), 0, ring_len - skip, layout);
            create(device, "the ring", &attributes)
        };
        let sequence = ring(device, Key::Sequence, 0)?;
        let block_offset = ring(device, Key::BlockOffset, 8)?;
        let pool_memory = device
            .register(&pool.blocks)
            .map_err(SetUpError::device("the pool's memory"))?;
        let layout = Layout::Plain(crate::Place {
            memory: pool_memory,
            offset: 0,
        });
        let len = pool.blocks.len();
        let start = pool.first_block.0;
        let attributes = KeyAttributes::new(client, Key::Pool.rights(), start, len, layout);
        let blocks = create(device, "the pool", &attributes)?;
        let (punt_cqn, punts) = punt_queue(device)?;
        Ok(Self {
            loopback,
            client,
            pool,
            tables,
            table,
            sequence,
            block_offset,
            blocks,
            pool_memory,
            meta: meta.base,
            punt_cqn,
            punts,
            alarm: Alarm::new(punt_cqn),
        })
    }

    /// Has the device tell when a slot rings: what [`next_punt`](Self::next_punt) would give. Software that sleeps calls it
    /// last, and [`Session::watch`](crate::Session::watch) of each session.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn watch<D: Device>(&mut self, device: &mut D) -> Result<(), SetUpError<D::Error>> {
        let set = self.alarm.set(device, self.punts.consumed());
        set.map_err(SetUpError::device("the alarm of punts"))
    }

    /// Whether an event is of a slot that rang.
    pub fn rings(&mut self, event: DeviceEvent) -> bool {
        self.alarm.rings(event)
    }

    /// Makes the records of a profile for this pool.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn profile<D: Device>(
        &self,
        device: &mut D,
        template: Template,
    ) -> Result<Profile, SetUpError<D::Error>> {
        let records = Records::create(device, self.loopback, &template)?;
        let perpetual = if kbtp_chain::lap::is_perpetual(&template) {
            let (domain, block_size) = (self.loopback, self.pool.block_size);
            let punt = records.punt;
            Some(Perpetual::create(
                device, domain, &template, block_size, punt,
            )?)
        } else {
            None
        };
        Ok(Profile {
            template,
            records,
            perpetual,
        })
    }

    /// A key to the headers of the requests that chains shall serve, for [`Session::arm_free_as`](crate::Session::arm_free_as).
    /// Cost: memory of the device; made once for each set.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn headers<D: Device>(
        &self,
        device: &mut D,
        served: crate::Served,
    ) -> Result<Mkey, SetUpError<D::Error>> {
        self.tables.headers(device, served)
    }

    /// The protection domain of queue pairs that clients are connected to: keys that a client may be given (direct modes)
    /// belong to it.
    #[must_use]
    pub const fn client_domain(&self) -> Domain {
        self.client
    }

    /// The protection domain of loopback queue pairs and software's own.
    #[must_use]
    pub const fn loopback_domain(&self) -> Domain {
        self.loopback
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &PoolPlace {
        &self.pool
    }

    /// The memory of the blocks, as the device knows it.
    #[must_use]
    pub const fn pool_memory(&self) -> MemoryId {
        self.pool_memory
    }

    /// The queue in which punts ring: to be armed, and waited for.
    #[must_use]
    pub const fn punt_cqn(&self) -> Cqn {
        self.punt_cqn
    }

    /// The next slot that rang for software: session and low half of the slot's number. `None` if none did.
    pub fn next_punt(&mut self) -> Option<(u16, u16)> {
        loop {
            if let Cqe::Completed(cqe) = self.punts.next()? {
                let [a, b, c, d] = cqe.immediate.to_be_bytes();
                return Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])));
            }
            // A receive WQE that was flushed when its session ended.
        }
    }
}

fn view_start<E: core::error::Error + 'static>(handle: u64) -> Result<u64, SetUpError<E>> {
    handle
        .checked_mul(kbtp_chain::key::VIEW_STRIDE)
        .ok_or(SetUpError::Size {
            what: "the first handle",
            value: handle,
        })
}

fn punt_queue<D: Device>(device: &mut D) -> Result<(Cqn, CqReader), SetUpError<D::Error>> {
    let octets = (Cqe::LEN as u64) << LOG_PUNT_CQ;
    let region = Region::anonymous(octets + 64, &PageOptions::default())?;
    let memory = device
        .register(&region)
        .map_err(SetUpError::device("memory of the queue of punts"))?;
    let at = |offset| crate::Place { memory, offset };
    let cqn = create_cq(device, &region, at(0), at(octets), LOG_PUNT_CQ)?;
    Ok((cqn, CqReader::new(region, 0, LOG_PUNT_CQ, Some(octets))))
}
