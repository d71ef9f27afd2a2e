//! Range records: which tenant and initiator own which handles, kept in the metadata region so that a restart finds
//! them.
//!
//! Octets of a record: 0..4 CRC32C of the rest up to 319, 4..8 one if in use, 8..16 first row, 16..24 rows,
//! 24..40 Initiator ID, 40..42 octets of the tenant's name, 64..319 the name; and 511, one once nobody gets the range
//! back: a target that is killed while it frees a range goes on with that, and revives no part of it. A record is
//! written before the first handle of its range is bound and cleared after the last one is free, so a torn one covers no
//! binding. (If memory is damaged, it may: a recovery looks.)

use super::Pool;
use crate::limits::{RANGE_RECORD_LEN, RANGES_MAX, TENANT_NAME_MAX};
use kbtp_memory::{AccessError, crc32c};

/// Octets of a record that mean something.
const USED: usize = 64 + TENANT_NAME_MAX;

/// Octet of a record that says that its range is given up. Alone it cannot be torn; the checksum leaves it out.
const GIVEN_UP: u64 = RANGE_RECORD_LEN - 1;

/// The number of a record, below [`RANGES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RecordSlot(pub(crate) u32);

/// A handle range as it is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RangeRecord {
    pub(crate) slot: RecordSlot,
    pub(crate) tenant: String,
    pub(crate) initiator: [u8; 16],
    pub(crate) first_row: u64,
    pub(crate) rows: u64,
    /// Nobody gets it back: what it binds is to be freed.
    pub(crate) given_up: bool,
}

impl RangeRecord {
    /// Its rows.
    pub(super) fn row_numbers(&self) -> std::ops::Range<u64> {
        self.first_row..self.first_row.saturating_add(self.rows)
    }

    fn encode(&self) -> [u8; USED] {
        let mut octets = [0; USED];
        let name = self.tenant.as_bytes();
        let name = name.get(..TENANT_NAME_MAX).unwrap_or(name);
        let len = u16::try_from(name.len()).unwrap_or(0);
        put(&mut octets, 4, &1_u32.to_be_bytes());
        put(&mut octets, 8, &self.first_row.to_be_bytes());
        put(&mut octets, 16, &self.rows.to_be_bytes());
        put(&mut octets, 24, &self.initiator);
        put(&mut octets, 40, &len.to_be_bytes());
        put(&mut octets, 64, name);
        let crc = crc32c::crc32c(octets.get(4..).unwrap_or(&[]));
        put(&mut octets, 0, &crc.to_be_bytes());
        octets
    }

    /// `Ok(None)` for an empty record, `Err` for a damaged one.
    fn decode(slot: RecordSlot, octets: &[u8; USED]) -> Result<Option<Self>, &'static str> {
        if octets.iter().all(|octet| *octet == 0) {
            return Ok(None);
        }
        let crc = crc32c::crc32c(octets.get(4..).unwrap_or(&[]));
        if take(octets, 0) != Some(crc.to_be_bytes()) {
            return Err("its checksum is wrong");
        }
        let name = take(octets, 40)
            .map(u16::from_be_bytes)
            .and_then(|len| octets.get(64..64_usize.saturating_add(usize::from(len))))
            .and_then(|name| std::str::from_utf8(name).ok())
            .ok_or("its tenant has no name")?;
        Ok(Some(Self {
            slot,
            tenant: name.to_owned(),
            initiator: take(octets, 24).unwrap_or_default(),
            first_row: u64::from_be_bytes(take(octets, 8).unwrap_or_default()),
            rows: u64::from_be_bytes(take(octets, 16).unwrap_or_default()),
            given_up: false,
        }))
    }
}

impl Pool {
    /// Writes a record of a range that is somebody's.
    pub(crate) fn write_record(&self, record: &RangeRecord) -> Result<(), AccessError> {
        let at = self.record_at(record.slot);
        // First: a record that was cleared halfway may have left it.
        self.meta.zero(at.wrapping_add(GIVEN_UP), 1)?;
        self.meta.write(at, &record.encode())
    }

    /// Marks the range of a record as nobody's.
    pub(crate) fn give_up_record(&self, slot: RecordSlot) -> Result<(), AccessError> {
        self.meta
            .write(self.record_at(slot).wrapping_add(GIVEN_UP), &[1])
    }

    /// Clears a record.
    pub(crate) fn clear_record(&self, slot: RecordSlot) -> Result<(), AccessError> {
        self.meta.zero(self.record_at(slot), RANGE_RECORD_LEN)
    }

    /// Every record that is whole, and which are damaged. Cost: reads all records.
    pub(super) fn read_records(&self) -> Result<(Vec<RangeRecord>, Vec<RecordSlot>), AccessError> {
        let mut records = Vec::new();
        let mut damaged = Vec::new();
        let mut octets = [0; USED];
        for slot in (0..RANGES_MAX).map(RecordSlot) {
            let at = self.record_at(slot);
            self.meta.read(at, &mut octets)?;
            match RangeRecord::decode(slot, &octets) {
                Ok(Some(mut record)) => {
                    let mut mark = [0];
                    self.meta.read(at.wrapping_add(GIVEN_UP), &mut mark)?;
                    record.given_up = mark != [0];
                    records.push(record);
                }
                Ok(None) => {}
                Err(_) => damaged.push(slot),
            }
        }
        Ok((records, damaged))
    }

    fn record_at(&self, slot: RecordSlot) -> u64 {
        self.layout
            .records
            .wrapping_add(u64::from(slot.0) * RANGE_RECORD_LEN)
    }
}

fn put(octets: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = octets.get_mut(at..at.saturating_add(field.len())) {
        place.copy_from_slice(field);
    }
}

fn take<const N: usize>(octets: &[u8], at: usize) -> Option<[u8; N]> {
    octets.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_and_a_damaged_one_is_known() {
        let record = RangeRecord {
            slot: RecordSlot(3),
            tenant: "é".repeat(100),
            initiator: [7; 16],
            first_row: 64,
            rows: 128,
            given_up: false,
        };
        let mut octets = record.encode();
        assert_eq!(
            RangeRecord::decode(RecordSlot(3), &octets),
            Ok(Some(record))
        );
        for at in [0, 5, 9, 30, 41, 70, USED - 1] {
            octets[at] ^= 0x40;
            assert!(
                RangeRecord::decode(RecordSlot(3), &octets).is_err(),
                "octet {at}"
            );
            octets[at] ^= 0x40;
        }
        assert_eq!(RangeRecord::decode(RecordSlot(3), &[0; USED]), Ok(None));
    }
}
