//! Trying out what a device does: a device announces what its driver's author thought of, and some accept what they do not
//! do.
//!
//! Each trial is a connection of the device with itself, through the address it is known by. It takes some round trips of
//! the connection manager, once for each device and process.

use crate::bare::{Bare, Pair, Shape, Side, silent};
use crate::quirks::Quirks;
use kbtp_verbs_sys::{
    CmId, INVALIDATED, INVALIDATED_BY_KERNEL, Operation, Registration, Remote, Rights, Source,
    VerbsError, WindowRights,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// What was found, by the names of devices.
static KNOWN: Mutex<BTreeMap<String, Quirks>> = Mutex::new(BTreeMap::new());

/// What a trial needs.
const SHAPE: Shape = Shape {
    memory: 8192,
    send_work: 8,
    receives: 4,
    receive_len: 64,
};
/// A Tagged Offset that is no address of any process: a page that is never mapped, and some.
const BASE: u64 = 0x1000;
/// What is written, and where it is looked for.
const PATTERN: [u8; 8] = *b"KBTPtest";

/// What the device of `id` does, which is bound to an address of it. The first call for a device tries it out.
///
/// # Errors
/// [`VerbsError`]: the device cannot be tried out.
pub fn quirks_of(id: &CmId) -> Result<Quirks, VerbsError> {
    let device = id.context()?.name();
    let known = |known: &BTreeMap<String, Quirks>| known.get(&device).copied();
    if let Some(quirks) = known(&KNOWN.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(quirks);
    }
    let address = id.local_addr().ok_or(VerbsError::Unsupported {
        what: "address to be tried out at",
    })?;
    let quirks = probe(address.ip())?;
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(device, quirks);
    Ok(quirks)
}

/// Tries out the device that has the address `address`.
///
/// # Errors
/// [`VerbsError`]: no device has it, or it cannot even connect and send.
pub fn probe(address: IpAddr) -> Result<Quirks, VerbsError> {
    let mut bench = Bare::at(address, SHAPE)?;
    let device = bench.device().to_owned();
    // What every device does must go, or there is nothing to try the rest with.
    let sends = bench.pair().and_then(|mut pair| pair.send_arrives());
    if !sends? {
        return Err(VerbsError::Unsupported {
            what: "working Send to itself",
        });
    }
    let yes = |trial: Result<bool, VerbsError>| match trial {
        Ok(yes) => yes,
        Err(error) => {
            tracing::debug!(device, %error, "a trial failed");
            false
        }
    };
    let heeds_base = yes(bench.pair().and_then(Pair::heeds_base));
    let two = yes(bench.pair().and_then(Pair::reads_into_two));
    let immediate = yes(bench.pair().and_then(Pair::immediate_arrives));
    let atomics = bench.attributes().atomics && yes(bench.pair().and_then(Pair::counts));
    let flag = if bench.attributes().windows_2 {
        bench
            .pair()
            .and_then(Pair::invalidates)
            .unwrap_or_else(|error| {
                tracing::debug!(device, %error, "windows were tried in vain");
                None
            })
    } else {
        None
    };
    let quirks = Quirks {
        heeds_base,
        read_buffers: if two { 2 } else { 1 },
        immediate,
        atomics,
        windows: flag.is_some(),
        invalidated_flag: flag.unwrap_or(INVALIDATED),
    };
    tracing::info!(device, ?quirks, "an RDMA device was tried out");
    Ok(quirks)
}

impl Pair {
    /// A Send arrives. It also tells that the Writes before it have. A receiver of the kernel's (siw) may overlook the first
    /// message on a connection and looks again when more comes: it is sent twice.
    fn send_arrives(&mut self) -> Result<bool, VerbsError> {
        for _ in 0..2 {
            let buffer = self.client.memory.buffer(0, 8)?;
            self.client.post(Operation::Send {
                source: Source::Registered(&[buffer]),
                invalidate: None,
            })?;
            if !self.client.succeeds()? {
                return Ok(false);
            }
        }
        let Some(completion) = self.server.next_ended()? else {
            return Ok(false);
        };
        Ok(self.server.is_of_eight(completion))
    }

    fn write(
        &mut self,
        from: &Registration,
        remote: Remote,
        immediate: Option<u32>,
    ) -> Result<bool, VerbsError> {
        let buffer = from.buffer(0, 8)?;
        self.client.post(Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate,
        })?;
        self.client.succeeds()
    }

    /// Both sides register memory at a Tagged Offset, and the client writes from there to there.
    fn heeds_base(mut self) -> Result<bool, VerbsError> {
        let based = |side: &Side| {
            let region = side.region().ok_or_else(silent)?;
            let rights = Rights {
                local_write: true,
                remote_write: true,
                ..Rights::default()
            };
            side.domain
                .register(region, 4096..SHAPE.memory, Some(BASE), rights)
        };
        let from = based(&self.client)?;
        let to = based(&self.server)?;
        self.client.fill(4096, &PATTERN);
        let remote = Remote {
            address: BASE,
            key: to.remote_key(),
        };
        let written = self.write(&from, remote, None)?;
        Ok(written && self.send_arrives()? && self.server.holds(4096, PATTERN))
    }

    /// A Read into two buffers fills both.
    fn reads_into_two(mut self) -> Result<bool, VerbsError> {
        self.server.fill(0, &PATTERN);
        self.server.fill(8, &PATTERN);
        let sink = [
            self.client.memory.buffer(512, 8)?,
            self.client.memory.buffer(1024, 8)?,
        ];
        let remote = self.server.remote(0);
        self.client.post(Operation::Read {
            sink: &sink,
            remote,
        })?;
        let read = self.client.succeeds()?;
        Ok(read && self.client.holds(512, PATTERN) && self.client.holds(1024, PATTERN))
    }

    /// A Write with Immediate arrives, and its data is there then.
    fn immediate_arrives(mut self) -> Result<bool, VerbsError> {
        self.client.fill(0, &PATTERN);
        let buffer = self.client.memory.buffer(0, 8)?;
        let remote = self.server.remote(2048);
        self.client.post(Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate: Some(0x0102_0304),
        })?;
        let sent = self.client.succeeds()?;
        let arrived = self.server.next_ended()?.is_some_and(|completion| {
            completion.is_ok() && completion.immediate() == Some(0x0102_0304)
        });
        Ok(sent && arrived && self.server.holds(2048, PATTERN))
    }

    /// FetchAdd and CmpSwap change the peer's word and give its value before.
    fn counts(mut self) -> Result<bool, VerbsError> {
        use std::sync::atomic::Ordering::SeqCst;
        let set = |side: &Side, value| side.word(0).map(|word| word.store(value, SeqCst));
        set(&self.server, 40).ok_or_else(silent)?;
        let sink = self.client.memory.buffer(0, 8)?;
        let remote = self.server.remote(0);
        let value = |side: &Side| side.word(0).map(|word| word.load(SeqCst));
        self.client.post(Operation::FetchAdd {
            sink,
            remote,
            add: 0x1_0000_0000,
        })?;
        let added = self.client.succeeds()?
            && value(&self.client) == Some(40)
            && value(&self.server) == Some(0x1_0000_0028);
        if !added {
            return Ok(false);
        }
        self.client.post(Operation::CompareSwap {
            sink,
            remote,
            compare: 0x1_0000_0028,
            swap: 7,
        })?;
        Ok(self.client.succeeds()?
            && value(&self.client) == Some(0x1_0000_0028)
            && value(&self.server) == Some(7)
            && self.atomics)
    }

    /// A window is bound, written through, invalidated by a Send and useless then. Gives the flag that the completion had.
    fn invalidates(mut self) -> Result<Option<u32>, VerbsError> {
        let mut window = self.server.domain.window()?;
        let pair = self.server.id.queue_pair().ok_or_else(silent)?;
        let rights = WindowRights {
            write: true,
            read: false,
        };
        let memory = &self.server.memory;
        pair.bind(1 << 63, &mut window, memory, memory.base(), 4096, rights)?;
        if !self.server.succeeds()? {
            return Ok(None);
        }
        self.client.fill(0, &PATTERN);
        let remote = Remote {
            address: self.server.memory.base(),
            key: window.remote_key(),
        };
        let buffer = self.client.memory.buffer(0, 8)?;
        let write = Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate: None,
        };
        self.client.post(write)?;
        self.client.post(Operation::Send {
            source: Source::Registered(&[buffer]),
            invalidate: Some(remote.key),
        })?;
        let sent = self.client.succeeds()? && self.client.succeeds()?;
        let Some(completion) = self.server.next_ended()? else {
            return Ok(None);
        };
        let flag = [INVALIDATED, INVALIDATED_BY_KERNEL]
            .into_iter()
            .find(|flag| completion.invalidated(*flag) == Some(remote.key));
        if !sent || !completion.is_ok() || !self.server.holds(0, PATTERN) {
            return Ok(None);
        }
        // The key is gone: what is written through it now must fail.
        self.client.post(write)?;
        let refused = !self.client.succeeds()?;
        Ok(flag.filter(|_| refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_there_is_an_error_that_says_so() {
        let error = probe(IpAddr::from([192, 0, 2, 1])).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
