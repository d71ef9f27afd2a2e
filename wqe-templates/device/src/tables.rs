//! Look-up tables: their octets, and the keys under which chains read them. Those that no profile and no pool changes, and
//! the records of a profile.
//!
//! A row is read at an address that a request made, a multiple of 256 for most; a repeat block gives rows of a few octets
//! that much address space, the rest of it always the same pad.

use crate::error::SetUpError;
use crate::{Device, Domain, KeyAttributes, Layout, MemoryId, Place};
use kbtp_chain::key::{Key, RECORDS_LEN, Sizes, VIEW_STRIDE};
use kbtp_chain::lap::{self, LAP_ROW, PAGE_ROW};
use kbtp_chain::record::{Action, Record};
use kbtp_chain::{Template, table};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::{AccessRights, KsmEntry, Mkey, RepeatEntry};
use kbtp_wire::{ByteLen, Generation, RingOrder};

/// Log2 of the octets of a page of the header table: those of one version and opcode.
const LOG_PAGE: u8 = 16;
const PAGE: u64 = 1 << LOG_PAGE;
/// Octets of a row in memory: the smallest piece that a key is made of here.
const ROW: u16 = 16;

/// A piece of a region to be filled from its start.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) region: Region,
    pub(crate) memory: MemoryId,
    /// A key to all of it, from address zero, for other keys to be made of.
    pub(crate) base: Mkey,
}

impl Area {
    pub(crate) fn create<D: Device>(
        device: &mut D,
        domain: Domain,
        rights: AccessRights,
        len: u64,
    ) -> Result<Self, SetUpError<D::Error>> {
        let region = Region::anonymous(len, &PageOptions::default())?;
        Self::over(device, domain, rights, region)
    }

    pub(crate) fn over<D: Device>(
        device: &mut D,
        domain: Domain,
        rights: AccessRights,
        region: Region,
    ) -> Result<Self, SetUpError<D::Error>> {
        let memory = device
            .register(&region)
            .map_err(SetUpError::device("memory"))?;
        let layout = Layout::Plain(Place { memory, offset: 0 });
        let whole = KeyAttributes::new(domain, rights, 0, region.len(), layout);
        let base = create(device, "a key to be made keys of", &whole)?;
        Ok(Self {
            region,
            memory,
            base,
        })
    }

    pub(crate) const fn place(&self, offset: u64) -> Place {
        Place {
            memory: self.memory,
            offset,
        }
    }
}

pub(crate) fn create<D: Device>(
    device: &mut D,
    what: &'static str,
    attributes: &KeyAttributes<'_>,
) -> Result<Mkey, SetUpError<D::Error>> {
    device
        .create_key(attributes)
        .map_err(SetUpError::device(what))
}

/// A key with `rows` of `len` octets, one every [`VIEW_STRIDE`]: row after row of the key `base` from `at`, `stride` octets
/// apart, and the pad, which is that of `pad`.
pub(crate) struct View {
    pub(crate) domain: Domain,
    pub(crate) rights: AccessRights,
    pub(crate) start: u64,
    pub(crate) rows: u64,
    pub(crate) base: Mkey,
    pub(crate) at: u64,
    pub(crate) stride: u16,
    pub(crate) len: u16,
    pub(crate) pad: (Mkey, u64),
}

impl View {
    pub(crate) fn create<D: Device>(
        &self,
        device: &mut D,
        what: &'static str,
    ) -> Result<Mkey, SetUpError<D::Error>> {
        let size = |value| SetUpError::Size { what, value };
        let len = self
            .rows
            .checked_mul(VIEW_STRIDE)
            .ok_or_else(|| size(self.rows))?;
        let repetitions = u32::try_from(self.rows).map_err(|_| size(self.rows))?;
        let stride = u16::try_from(VIEW_STRIDE).map_err(|_| size(VIEW_STRIDE))?;
        let pad_len = stride.saturating_sub(self.len);
        let entries = [
            RepeatEntry {
                stride: self.stride,
                len: self.len,
                mkey: self.base,
                address: self.at,
            },
            RepeatEntry {
                stride: 0,
                len: pad_len,
                mkey: self.pad.0,
                address: self.pad.1,
            },
        ];
        // A row as long as the stride has no pad.
        let (row, _) = entries
            .split_at_checked(if pad_len == 0 { 1 } else { 2 })
            .unwrap_or((&entries, &[]));
        let layout = Layout::Repeat {
            repetitions,
            entries: row,
        };
        let attributes = KeyAttributes::new(self.domain, self.rights, self.start, len, layout);
        create(device, what, &attributes)
    }
}

/// Which requests chains serve, as bits; software all others. Of whole blocks, always.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served(u8);

impl Served {
    /// LOAD.
    pub const LOAD: Self = Self(1);
    /// STORE.
    pub const STORE: Self = Self(2);
    /// `ALLOC_STORE`.
    pub const ALLOC_STORE: Self = Self(4);
    /// FREE.
    pub const FREE: Self = Self(8);
    /// All that a profile knows.
    pub const ALL: Self = Self(15);
    /// Nothing: software serves everything.
    pub const NOTHING: Self = Self(0);

    /// The same but these.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    const fn has(self, opcode: u8) -> bool {
        use kbtp_wire::Opcode as Request;
        let bit = match Request::from_wire(opcode) {
            Some(Request::Load) => Self::LOAD,
            Some(Request::Store) => Self::STORE,
            Some(Request::AllocStore) => Self::ALLOC_STORE,
            Some(Request::Free) => Self::FREE,
            _ => return false,
        };
        self.0 & bit.0 != 0
    }
}

/// Keys to tables that all profiles and pools share.
#[derive(Debug)]
pub struct Tables {
    area: Area,
    domain: Domain,
    /// Where the page of each opcode that chains know lies.
    pages: Vec<(u16, u64)>,
    pub(crate) header: Mkey,
    pub(crate) generation: Mkey,
    pub(crate) next_generation: Mkey,
    pub(crate) completed: Mkey,
}

/// Distinct pages of the header table: one of zeros, and those of the opcodes that chains serve.
fn header_pages() -> Vec<(u16, Vec<u8>)> {
    let mut pages = vec![(0, vec![0; 1 << LOG_PAGE])];
    let version = u16::from(kbtp_wire::VERSION) << 8;
    for opcode in 0..=u8::MAX {
        let row = version | u16::from(opcode);
        let from = u32::from(row) << LOG_PAGE;
        let rows = |count: u32| (from..from.saturating_add(count)).map(table::header);
        // An opcode that is not served without flags is not served with any.
        if rows(1).any(|variant| variant != 0) {
            pages.push((row, rows(1 << LOG_PAGE).collect()));
        }
    }
    pages
}

fn rights() -> AccessRights {
    AccessRights::REMOTE_READ
}

/// Ranges that no pool changes.
fn range(key: Key) -> (u64, u64) {
    let sizes = Sizes {
        table_base: 0,
        table_count: 0,
        own_base: 0,
        own_count: 0,
        ring: RingOrder::default(),
    };
    key.range(&sizes).unwrap_or_default()
}

impl Tables {
    /// Makes and fills them: some 4 MiB.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn create<D: Device>(device: &mut D, domain: Domain) -> Result<Self, SetUpError<D::Error>> {
        let pages = header_pages();
        let rows = 1 << 16;
        let row_octets = u64::from(ROW) * rows;
        let generation_at = pages.len() as u64 * PAGE;
        let next_at = generation_at + row_octets;
        let completed_at = next_at + 2 * row_octets;
        let len = completed_at + 2 * VIEW_STRIDE;
        let area = Area::create(device, domain, rights(), len)?;
        let mut places = Vec::with_capacity(pages.len());
        for ((row, page), at) in pages.iter().zip((0..).step_by(1 << LOG_PAGE)) {
            area.region.write(at, page)?;
            places.push((*row, at));
        }
        let header = header_key(device, domain, &area, &places, Served::ALL)?;
        for number in 0..=u16::MAX {
            let generation = Generation::new(number);
            let at = u64::from(number) * u64::from(ROW);
            let row = table::generation(generation);
            area.region.write(generation_at + at, &row)?;
            for (next, base) in [(false, next_at), (true, next_at + row_octets)] {
                let row = table::next_generation(next, generation);
                area.region.write(base + at, &row)?;
            }
        }
        let view = |rows, at| View {
            domain,
            rights: rights(),
            start: 0,
            rows,
            base: area.base,
            at,
            stride: ROW,
            len: ROW,
            pad: (area.base, 0),
        };
        let (start, len) = range(Key::Completed);
        let layout = Layout::Plain(area.place(completed_at));
        let completed = KeyAttributes::new(domain, rights(), start, len, layout);
        Ok(Self {
            header,
            generation: view(rows, generation_at).create(device, "Generations")?,
            next_generation: view(2 * rows, next_at).create(device, "next Generations")?,
            completed: create(device, "CQEs of success", &completed)?,
            area,
            domain,
            pages: places,
        })
    }

    /// Another key for headers, for slots that serve less.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn headers<D: Device>(
        &self,
        device: &mut D,
        served: Served,
    ) -> Result<Mkey, SetUpError<D::Error>> {
        header_key(device, self.domain, &self.area, &self.pages, served)
    }
}

fn header_key<D: Device>(
    device: &mut D,
    domain: Domain,
    area: &Area,
    pages: &[(u16, u64)],
    served: Served,
) -> Result<Mkey, SetUpError<D::Error>> {
    let mut entries = vec![
        KsmEntry {
            mkey: area.base,
            address: 0,
        };
        1 << 16
    ];
    for (row, at) in pages {
        let [_, opcode] = row.to_be_bytes();
        if let Some(entry) = entries.get_mut(usize::from(*row))
            && served.has(opcode)
        {
            entry.address = *at;
        }
    }
    let layout = Layout::Equal {
        log_size: LOG_PAGE,
        entries: &entries,
    };
    let (start, len) = range(Key::Header);
    let attributes = KeyAttributes::new(domain, rights(), start, len, layout);
    create(device, "headers", &attributes)
}

/// Keys to the records of a profile.
#[derive(Debug)]
pub struct Records {
    pub(crate) with_data: Mkey,
    pub(crate) without: Mkey,
    pub(crate) punt: Mkey,
    pub(crate) received: Mkey,
}

/// The rows of messages of up to 255 octets, then those of longer ones.
fn with_long<D: Device>(
    device: &mut D,
    domain: Domain,
    short: Mkey,
    long: Mkey,
    capacity: u32,
) -> Result<Mkey, SetUpError<D::Error>> {
    let piece = |mkey| KsmEntry { mkey, address: 0 };
    let more = usize::try_from(capacity >> 8).unwrap_or(0);
    let mut entries = vec![piece(short)];
    entries.extend(std::iter::repeat_n(piece(long), more));
    let layout = Layout::Equal {
        log_size: LOG_LONG,
        entries: &entries,
    };
    let len = (entries.len() as u64) << LOG_LONG;
    let attributes = KeyAttributes::new(domain, rights(), 0, len, layout);
    create(device, "messages", &attributes)
}

/// Rows of the table of received CQEs: four last octets, 256 low octets of a byte count.
const RECEIVED_ROWS: u64 = 4 * 256;
/// Octets of one: a key.
const RECEIVED_ROW: u16 = 4;
/// Log2 of the address space of the messages whose length has the same high octets.
const LOG_LONG: u8 = 24;

impl Records {
    /// Makes and fills them: some 6 MiB.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn create<D: Device>(
        device: &mut D,
        domain: Domain,
        template: &Template,
    ) -> Result<Self, SetUpError<D::Error>> {
        let punt_at = 2 * RECORDS_LEN;
        let received_at = punt_at + VIEW_STRIDE;
        let punt_key_at = received_at + RECEIVED_ROWS * u64::from(RECEIVED_ROW);
        let len = punt_key_at + VIEW_STRIDE;
        let area = Area::create(device, domain, rights(), len)?;
        // There are few different ones.
        let mut made: Vec<(Option<Action>, Vec<u8>)> = Vec::new();
        for (with_data, base) in [(true, 0), (false, RECORDS_LEN)] {
            let rows = RECORDS_LEN / VIEW_STRIDE;
            for row in 0..u16::try_from(rows).unwrap_or(u16::MAX) {
                let action = table::action(with_data, row);
                if made.iter().all(|(one, _)| *one != action) {
                    made.push((action, Record::of(template, action).encode()));
                }
                let at = u64::from(row) * VIEW_STRIDE;
                if let Some((_, octets)) = made.iter().find(|(one, _)| *one == action) {
                    area.region.write(base + at, octets)?;
                }
            }
        }
        let punt = Record::punt(template).encode();
        area.region.write(punt_at, &punt)?;
        let plain = |device: &mut D, key, at| {
            let (start, len) = range(key);
            let layout = Layout::Plain(area.place(at));
            let attributes = KeyAttributes::new(domain, rights(), start, len, layout);
            create(device, "records", &attributes)
        };
        let with_data = plain(device, Key::RecordsWithData, 0)?;
        let without = plain(device, Key::RecordsWithout, RECORDS_LEN)?;
        let view = |start, rows, at, stride, len| View {
            domain,
            rights: rights(),
            start,
            rows,
            base: area.base,
            at,
            stride,
            len,
            pad: (area.base, punt_at),
        };
        let rows = RECORDS_LEN / VIEW_STRIDE;
        let whole = u16::try_from(VIEW_STRIDE).unwrap_or(u16::MAX);
        let punt = view(0, rows, punt_at, 0, whole).create(device, "the record of a punt")?;
        for row in 0..RECEIVED_ROWS {
            let [.., count] = row.to_be_bytes();
            let key = match table::received(count) {
                Key::RecordsWithData => with_data,
                Key::RecordsWithout => without,
                _ => punt,
            };
            let at = received_at + row * u64::from(RECEIVED_ROW);
            area.region.write(at, &key.0.to_be_bytes())?;
        }
        let (start, _) = range(Key::Received);
        let (stride, len) = (RECEIVED_ROW, RECEIVED_ROW);
        let received = view(start, RECEIVED_ROWS, received_at, stride, len);
        let received = received.create(device, "received CQEs")?;
        // Wherever one looks, software: for messages whose length has more than one octet.
        area.region.write(punt_key_at, &punt.0.to_be_bytes())?;
        let rows = (1 << LOG_LONG) / VIEW_STRIDE;
        let long = view(0, rows, punt_key_at, 0, whole).create(device, "long messages")?;
        let received = with_long(device, domain, received, long, template.capacity)?;
        Ok(Self {
            with_data,
            without,
            punt,
            received,
        })
    }
}

/// Keys to the rows that slots arm themselves from.
#[derive(Debug)]
pub(crate) struct Perpetual {
    pub(crate) laps: Mkey,
    pub(crate) pages: Mkey,
    pub(crate) reset: Mkey,
}

impl Perpetual {
    /// Makes and fills them: some 11 MiB.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn create<D: Device>(
        device: &mut D,
        domain: Domain,
        template: &Template,
        block_size: ByteLen,
        punt: Mkey,
    ) -> Result<Self, SetUpError<D::Error>> {
        let rows = 1 << 16;
        let (lap, page) = (LAP_ROW as u64, PAGE_ROW as u64);
        let pages_at = rows * lap;
        let reset_at = pages_at + rows * page;
        let area = Area::create(device, domain, rights(), reset_at + VIEW_STRIDE)?;
        for number in 0..=u16::MAX {
            let at = u64::from(number);
            area.region.write(at * lap, &lap::lap(number))?;
            let [of, page_of] = number.to_be_bytes();
            let octets = lap::page(of, page_of);
            area.region.write(pages_at + at * page, &octets)?;
        }
        let reset = lap::reset(template, block_size, punt)?;
        area.region.write(reset_at, &reset)?;
        let view = |at, len: usize| {
            let len = u16::try_from(len).unwrap_or(u16::MAX);
            View {
                domain,
                rights: rights(),
                start: 0,
                rows,
                base: area.base,
                at,
                stride: len,
                len,
                pad: (area.base, reset_at),
            }
        };
        let laps = view(0, LAP_ROW).create(device, "laps")?;
        let pages = view(pages_at, PAGE_ROW).create(device, "pages")?;
        let layout = Layout::Plain(area.place(reset_at));
        let (start, len) = range(Key::Reset);
        let attributes = KeyAttributes::new(domain, rights(), start, len, layout);
        let reset = create(device, "what slots are reset to", &attributes)?;
        Ok(Self { laps, pages, reset })
    }
}
