//! Receive WQE: data segments up to the stride of the queue, which is a power of two times 16 octets. A list that does
//! not fill the stride ends with a terminator.
//! Source: rdma-core, providers/mlx5/qp.c. Octets: 0..16 first data segment, and so on; no control segment.
//! Not checked here: that the keys exist.

use crate::limits::SEGMENT;
use crate::{DataSegment, DecodeError, WqeTooLong};

/// Writes `list` to the front of `stride`, with a terminator if there is room, and zeros behind it.
///
/// # Errors
/// [`WqeTooLong`] if the list does not fit; nothing is written then.
pub fn encode_receive(stride: &mut [u8], list: &[DataSegment]) -> Result<(), WqeTooLong> {
    let octets = list.len().saturating_mul(SEGMENT);
    let (used, rest) = stride
        .split_at_mut_checked(octets)
        .ok_or(WqeTooLong { octets })?;
    for (slot, segment) in used.as_chunks_mut::<SEGMENT>().0.iter_mut().zip(list) {
        *slot = segment.encode();
    }
    rest.fill(0);
    if let Some(next) = rest.first_chunk_mut() {
        *next = DataSegment::TERMINATOR;
    }
    Ok(())
}

/// The data segments of a receive WQE, to the terminator or the end of the stride.
pub fn receive_list(
    stride: &[u8],
) -> impl Iterator<Item = Result<DataSegment, DecodeError>> + Clone + '_ {
    let (segments, _) = stride.as_chunks::<SEGMENT>();
    segments
        .iter()
        .take_while(|segment| **segment != DataSegment::TERMINATOR)
        .map(DataSegment::decode)
}
