//! A kernel that keeps what it is given, gives numbers to objects, and completes what is rung.

use kbtp_device::DeviceEvent;
use kbtp_memory::Region;
use kbtp_mlx5::{Cqe, CqeOpcode, OpOwn, UAR_SEND};
use kbtp_mlx5_devx::{Bits, Command, Handle, Kernel, Port, Registered};
use std::collections::BTreeMap;

#[derive(Debug, thiserror::Error)]
#[error("no")]
pub(crate) struct No;

/// Gives numbers to objects and completes UMRs.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) opcodes: Vec<u16>,
    pub(crate) last: Vec<u8>,
    pub(crate) all: Vec<Vec<u8>>,
    pub(crate) made: BTreeMap<u64, u16>,
    pub(crate) memories: BTreeMap<u32, Region>,
    /// Completion queue of each queue pair; ring of each completion queue.
    pub(crate) completes_in: BTreeMap<u32, u32>,
    pub(crate) cq_rings: BTreeMap<u32, (u32, u64)>,
    pub(crate) rung: Vec<(usize, [u8; 8])>,
    pub(crate) refuse: Option<u16>,
    /// UMRs fail with this syndrome, if it is not zero.
    pub(crate) syndrome: u8,
    pub(crate) silent: bool,
    pub(crate) lacks: Vec<u16>,
    /// CQEs of each completion queue.
    pub(crate) produced: BTreeMap<u32, u64>,
}

pub(crate) fn field(at: u16, len: u8, of: &[u8]) -> u32 {
    Bits::new(at, len).get32(of)
}

impl Fake {
    fn note(&mut self, request: &Command, answer: &mut [u8]) -> Option<u32> {
        let octets = request.as_octets();
        let opcode = u16::from_be_bytes([octets[0], octets[1]]);
        self.opcodes.push(opcode);
        self.last = octets.to_vec();
        self.all.push(octets.to_vec());
        if self.refuse == Some(opcode) {
            answer[0] = 5;
            return None;
        }
        let number = 0x100 + u32::try_from(self.opcodes.len()).unwrap();
        answer[8..12].copy_from_slice(&number.to_be_bytes());
        Some(number)
    }
}

impl Fake {
    /// A device that has everything, but for what is in `lacks`: fields by their bit in the general page.
    fn say_capabilities(&self, modifier: u8, answer: &mut [u8]) {
        let mut set = |at: u16, len, value: u64| {
            Bits::new(0x80 + at, len).set(answer, value);
        };
        match modifier >> 1 {
            0 => {
                for at in [0x21e, 0x22c] {
                    set(at, 1, u64::from(!self.lacks.contains(&at)));
                }
                set(0x30, 16, 0x0203);
                set(0x88, 8, 15);
                set(0x11a, 6, 16);
            }
            3 => {
                set(0x90, 16, if self.lacks.contains(&0x90) { 3 } else { 15 });
                set(0xb0, 16, 0x3c);
            }
            _ => set(
                0xe0,
                32,
                if self.lacks.contains(&0xe0) {
                    0
                } else {
                    1 << 8
                },
            ),
        }
    }
}

impl Kernel for Fake {
    type Error = No;

    fn command(&mut self, request: &Command, answer: &mut [u8]) -> Result<(), No> {
        self.note(request, answer);
        if request.opcode() == 0x100 && answer[0] == 0 {
            self.say_capabilities(request.as_octets()[7], answer);
        }
        Ok(())
    }

    fn create(&mut self, request: &Command, answer: &mut [u8]) -> Result<Option<Handle>, No> {
        let Some(number) = self.note(request, answer) else {
            return Ok(None);
        };
        let octets = request.as_octets();
        let opcode = *self.opcodes.last().unwrap();
        match opcode {
            0x400 => {
                let at = (field(0x2c0, 32, octets), Bits::new(0x280, 64).get(octets));
                self.cq_rings.insert(number, at);
            }
            0x500 => {
                self.completes_in
                    .insert(number, field(0xc0 + 0x3e8, 24, octets));
            }
            _ => {}
        }
        self.made.insert(number.into(), opcode);
        Ok(Some(Handle(number.into())))
    }

    fn modify(&mut self, _: Handle, request: &Command, answer: &mut [u8]) -> Result<(), No> {
        self.note(request, answer);
        Ok(())
    }

    fn query(&mut self, _: Handle, request: &Command, answer: &mut [u8]) -> Result<(), No> {
        self.note(request, answer);
        Ok(())
    }

    fn destroy(&mut self, object: Handle) -> Result<(), No> {
        self.made.remove(&object.0).map(drop).ok_or(No)
    }

    fn register(&mut self, region: &Region) -> Result<Registered, No> {
        let umem = u32::try_from(self.memories.len()).map_err(|_| No)? + 1;
        self.memories.insert(umem, region.clone());
        Ok(Registered {
            handle: Handle(umem.into()),
            umem,
        })
    }

    fn unregister(&mut self, memory: Handle) -> Result<(), No> {
        let umem = u32::try_from(memory.0).map_err(|_| No)?;
        self.memories.remove(&umem).map(drop).ok_or(No)
    }

    fn create_domain(&mut self) -> Result<u32, No> {
        Ok(0x77)
    }

    fn uar(&self) -> u32 {
        4
    }

    fn eqn(&self) -> u8 {
        2
    }

    fn port(&self) -> Port {
        Port {
            number: 1,
            gid: [3; 16],
            gid_index: 1,
            mac: [2; 6],
            mtu: 3,
        }
    }

    fn barrier(&mut self) {}

    fn ring(&mut self, at: usize, octets: [u8; 8]) {
        self.rung.push((at, octets));
        let qpn = field(32, 24, &octets);
        let cqn = self.completes_in.get(&qpn).copied();
        let ring = cqn.and_then(|cqn| Some((cqn, self.cq_rings.get(&cqn)?)));
        let (false, UAR_SEND, Some((cqn, (umem, offset)))) = (self.silent, at, ring) else {
            return;
        };
        let opcode = match self.syndrome {
            0 => CqeOpcode::Request,
            _ => CqeOpcode::RequestError,
        };
        let produced = self.produced.entry(cqn).or_default();
        let mut cqe = [0; Cqe::LEN];
        cqe[55] = self.syndrome;
        // All queues that are rung here have 64 CQEs: the owner is another one each lap.
        cqe[63] = OpOwn::new(opcode, *produced / 64 % 2 == 1).encode();
        let at = offset + *produced % 64 * Cqe::LEN as u64;
        self.memories[umem].write(at, &cqe).unwrap();
        *produced += 1;
    }

    fn next_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn wait(&mut self) -> bool {
        false
    }
}
