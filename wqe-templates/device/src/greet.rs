//! How a client's queue pair begins on a device: its first message, HELLO, is for software, and so is the answer to it. A session
//! takes slot 0 for both: a plain receive WQE and a plain SEND, with NOPs for what else the slot holds, so that every later
//! slot has the indices that it always has.
//!
//! ```text
//! Session::create (no range) ─ connect ─ await_hello ─► hello ─ grant ─ begin ─ arm_free ─ answer_hello ─► slot 1, 2, …
//! ```

use crate::error::SetUpError;
use crate::limits::LOG_RECEIVE_STRIDE;
use crate::session::entries;
use crate::{Device, Master, Session, Target};
use kbtp_chain::element::{Cq, Queue};
use kbtp_chain::key::Key;
use kbtp_chain::{BuildError, Images, Placement};
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{
    Body, ByteCount, Control, DataList, DataSegment, Opcode, Payload, Signal, WqeBuffer,
    encode_receive,
};
use kbtp_wire::Handle;

/// The slot of the greeting.
const SLOT: u64 = 0;

impl Session {
    /// The octets of slot 0 that messages of the greeting lie in.
    fn greeting<E: core::error::Error + 'static>(
        &self,
        octets: u32,
    ) -> Result<DataSegment, SetUpError<E>> {
        let too_long = SetUpError::Size {
            what: "octets of a greeting",
            value: octets.into(),
        };
        let len = ByteCount::new(octets).filter(|_| octets <= self.template().capacity);
        Ok(DataSegment {
            len: len.ok_or(too_long)?,
            lkey: self.placement().key(Key::RingsClient),
            address: self.placement().sink,
        })
    }

    /// Posts the receive WQE for a client's first message. Its queue pair is connected before or after; once.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn await_hello<D: Device>(&mut self, device: &mut D) -> Result<(), SetUpError<D::Error>> {
        let place = self.greeting(self.template().capacity)?;
        let mut stride = [0; 1 << LOG_RECEIVE_STRIDE];
        encode_receive(&mut stride, &[place])
            .map_err(|error| SetUpError::Build(BuildError::TooLong("receive", error)))?;
        self.region.write(self.layout.receives, &stride)?;
        self.armed = 1;
        self.post_receives(device, self.armed)
    }

    /// Puts a client's first message into `to`. Returns whether it has come.
    ///
    /// # Errors
    /// [`SetUpError`] if it lies outside memory: it does not.
    pub fn hello<E: core::error::Error + 'static>(
        &mut self,
        to: &mut Vec<u8>,
    ) -> Result<bool, SetUpError<E>> {
        to.clear();
        if self.received() == 0 {
            return Ok(false);
        }
        let Some(len) = self.received_len(SLOT) else {
            return Ok(false);
        };
        to.resize(usize::try_from(len).unwrap_or(0), 0);
        let at = Self::offset(self.placement().sink);
        self.region.read(at, to)?;
        Ok(true)
    }

    /// Gives the session the handles it may store to, before any slot is armed. It was made with none.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn grant<D: Device>(
        &mut self,
        device: &mut D,
        target: &Target,
        own_base: Handle,
        own_count: u64,
    ) -> Result<(), SetUpError<D::Error>> {
        let mut placement = self.placement().clone();
        placement.sizes.own_base = own_base.0;
        placement.sizes.own_count = own_count;
        for (place, key) in placement.keys.iter_mut().zip(Key::ALL) {
            if matches!(key, Key::OwnWord | Key::OwnBinding) {
                let made = entries(device, target, &placement.sizes, self.pad(), key)?;
                self.keys.extend(made);
                *place = made.unwrap_or_default();
            }
        }
        let block_size = target.pool().block_size;
        self.images = Images::new(self.images.template(), &placement, block_size)?;
        Ok(())
    }

    /// Has the loopback queue go past slot 0. [`restarted`](Self::restarted) says when it waits for slot 1, and
    /// [`arm_free`](Self::arm_free) arms it. The client has not been answered. Whether there was room.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn begin<D: Device>(
        &mut self,
        device: &mut D,
        master: &mut Master,
    ) -> Result<bool, SetUpError<D::Error>> {
        self.restart(device, master, SLOT + 1)
    }

    /// Sends the answer to a client's first message: its requests may come from now on. Whether there was room.
    ///
    /// # Errors
    /// [`SetUpError`]; the answer is no longer than the longest request.
    pub fn answer_hello<D: Device>(
        &self,
        device: &mut D,
        master: &mut Master,
        octets: &[u8],
    ) -> Result<bool, SetUpError<D::Error>> {
        if !master.has_room() {
            return Ok(false);
        }
        let answer = self.greeting(u32::try_from(octets.len()).unwrap_or(u32::MAX))?;
        self.region
            .write(Self::offset(self.placement().sink), octets)?;
        let (placement, template) = (self.placement(), self.template());
        let end = placement.block(template, Queue::Client, SLOT + 1);
        let cqes = template.cqes(Cq::Client) as u64;
        let list = [answer];
        for block in 0..end {
            let index = Placement::index(block);
            let (opcode, body) = match block {
                0 => {
                    let payload = Payload::List(DataList::new(&list));
                    (Opcode::Send, Body::Send(payload))
                }
                _ => (Opcode::Nop, Body::Ignored(&[])),
            };
            let mut control = Control::new(opcode, self.client, index);
            // As many CQEs as a slot's sends have.
            if block < cqes {
                control.signal = Signal::Always;
            }
            let wqe = WqeBuffer::encode(&control, &body)
                .map_err(|error| SetUpError::Build(BuildError::TooLong("greeting", error)))?;
            let at = Self::offset(placement.client.address) + block * BASIC_BLOCK as u64;
            self.region.write(at, wqe.as_octets())?;
        }
        device.barrier();
        master.enable(device, self.client, Placement::index(end))
    }
}
