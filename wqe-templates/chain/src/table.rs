//! Rows of the look-up tables that a target's chains share: what a READ finds at an address that a request made.
//!
//! | key | address | row |
//! |---|---|---|
//! | [`Key::Header`] | version, opcode and flags | the variant |
//! | [`Key::Generation`] | Generation, shifted by 8 | comparison and mask, twice |
//! | [`Key::NextGeneration`] | 0 or 1, Generation, shifted by 8 | the Generation, or the one after it |
//! | [`Key::Received`] | last octet of the CQE, low octet of its byte count, shifted by 8 | the key of the records |
//! | [`Key::RecordsWithData`], [`Key::RecordsWithout`] | outcome and entry flags, variant, shifted by 8 | the record |

use crate::key::Key;
use crate::record::{Action, Outcome, Record, Variant};
use crate::template::Template;
use kbtp_wire::{EntryFlags, Generation};

/// Octets of a request without a Data Descriptor.
pub const WITHOUT_DATA: u8 = 24;
/// Octets of a request with one.
pub const WITH_DATA: u8 = 40;

/// The octet at `address` under [`Key::Header`]: what the first four octets of a request are, as a number.
#[must_use]
pub fn header(address: u32) -> u8 {
    let [version, opcode, high, low] = address.to_be_bytes();
    Variant::of(version, opcode, u16::from_be_bytes([high, low])).0
}

/// The row of a request's Generation, as it lies in the table: the operands of a comparison with an entry's, and its mask.
/// Operands are big-endian and the compared word is little-endian, so the Generation is reversed; zero compares with any.
#[must_use]
pub fn generation(generation: Option<Generation>) -> [u8; 8] {
    let [high, low] = Generation::to_wire(generation).to_be_bytes();
    let mask = if generation.is_some() { 0xff } else { 0 };
    [low, high, mask, mask, low, high, mask, mask]
}

/// The row of an entry's Generation: itself, or the one that a binding or a FREE gives it.
#[must_use]
pub fn next_generation(next: bool, generation: Option<Generation>) -> [u8; 2] {
    let new = if next {
        Some(generation.map_or(Generation::FIRST, Generation::next))
    } else {
        generation
    };
    Generation::to_wire(new).to_be_bytes()
}

/// The key in the row of a receive's byte count, whose low octet this is.
#[must_use]
pub const fn received(byte_count: u8) -> Key {
    match byte_count {
        WITHOUT_DATA => Key::RecordsWithout,
        WITH_DATA => Key::RecordsWithData,
        _ => Key::Punt,
    }
}

/// The record at an address (shifted right by 8) of the records for messages with a Data Descriptor or without.
#[must_use]
pub fn record(template: &Template, with_data: bool, row: u16) -> Record {
    Record::of(template, action(with_data, row))
}

/// What that record does; `None` for a punt. A table knows only the outcomes that its messages may have, so that a FREE with
/// a descriptor is for software to refuse.
#[must_use]
pub fn action(with_data: bool, row: u16) -> Option<Action> {
    let [place, variant] = row.to_be_bytes();
    let outcome = match place >> 4 {
        1 if with_data => Outcome::Data,
        2 if !with_data => Outcome::NoData,
        _ => Outcome::None,
    };
    let flags = EntryFlags(u16::from(place & 0x0f));
    Variant(variant).action(outcome, flags)
}
