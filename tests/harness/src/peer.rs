//! A peer that makes every octet itself: MPA frames, CRCs, DDP and RDMAP headers, right or wrong.

use crate::patience::PATIENCE_MS;
use crate::session::Who;
use kbtp_memory::crc32c::crc32c;
use kbtp_wire::ddp::{DDP_VERSION, DdpControl, Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::mpa::{
    EnhancedData, FrameKind, Marker, ReadDepth, StartupFlags, StartupFrame, crc_from_wire,
    crc_to_wire, pad_len,
};
use kbtp_wire::rdmap::{
    AtomicRequest, RdmapControl, RdmapOpcode, ReadRequest, TerminateCause, TerminateControl,
};
use kbtp_wire::{
    Challenge, Completion, Grant, HelloAck, PrivateData, Request, Stag, Status, TaggedOffset,
};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// What an MPA Request Frame says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// M: this peer wants Markers in what it receives.
    pub markers: bool,
    /// C: this peer wants CRCs.
    pub crc: bool,
    /// IRD, ORD and the model of RFC 6581; none: revision 1.
    pub enhanced: Option<EnhancedData>,
    /// Private Data.
    pub private: Vec<u8>,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            markers: false,
            crc: true,
            enhanced: Some(EnhancedData {
                ird: ReadDepth::clamped(16),
                ord: ReadDepth::clamped(16),
                peer_to_peer: None,
            }),
            private: Vec::new(),
        }
    }
}

impl Start {
    /// The octets of the frame.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        let mut private = self
            .enhanced
            .map_or_else(Vec::new, |data| data.encode().to_vec());
        private.extend_from_slice(&self.private);
        let frame = StartupFrame {
            kind: FrameKind::Request,
            flags: StartupFlags {
                markers: self.markers,
                crc: self.crc,
                rejected: false,
                enhanced: self.enhanced.is_some(),
            },
            revision: if self.enhanced.is_some() { 2 } else { 1 },
            private_len: u16::try_from(private.len()).unwrap(),
        };
        let mut octets = frame.encode().to_vec();
        octets.extend(private);
        octets
    }
}

/// What an MPA Reply Frame said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Its fixed part.
    pub frame: StartupFrame,
    /// The enhanced data, if there are any.
    pub enhanced: Option<EnhancedData>,
    /// Private Data of KBTP.
    pub private: Vec<u8>,
}

/// A DDP Segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Segment {
    /// To a buffer that an STag names.
    Tagged(TaggedHeader, Vec<u8>),
    /// To a queue.
    Untagged(UntaggedHeader, Vec<u8>),
}

impl Segment {
    /// The last segment of a tagged message.
    #[must_use]
    pub fn tagged(opcode: RdmapOpcode, stag: Stag, offset: u64, payload: &[u8]) -> Self {
        let header = TaggedHeader {
            last: true,
            version: DDP_VERSION,
            ulp: RdmapControl::encode(opcode),
            stag,
            offset: TaggedOffset(offset),
        };
        Self::Tagged(header, payload.to_vec())
    }

    /// A message in one segment, to the queue its opcode goes to.
    #[must_use]
    pub fn untagged(opcode: RdmapOpcode, msn: u32, payload: &[u8]) -> Self {
        let header = UntaggedHeader {
            last: true,
            version: DDP_VERSION,
            ulp: RdmapControl::encode(opcode),
            ulp_word: 0,
            queue: opcode.queue().expect("an opcode of untagged messages"),
            msn: Msn(msn),
            message_offset: 0,
        };
        Self::Untagged(header, payload.to_vec())
    }

    /// The ULPDU.
    #[must_use]
    pub fn ulpdu(&self) -> Vec<u8> {
        match self {
            Self::Tagged(header, payload) => [&header.encode()[..], payload].concat(),
            Self::Untagged(header, payload) => [&header.encode()[..], payload].concat(),
        }
    }

    /// The FPDU.
    #[must_use]
    pub fn fpdu(&self) -> Vec<u8> {
        frame(&self.ulpdu())
    }

    fn decode(ulpdu: &[u8]) -> Self {
        if DdpControl::decode(ulpdu[0]).tagged {
            let (header, payload) = ulpdu.split_first_chunk().expect("a tagged header");
            Self::Tagged(TaggedHeader::decode(header), payload.to_vec())
        } else {
            let (header, payload) = ulpdu.split_first_chunk().expect("an untagged header");
            Self::Untagged(UntaggedHeader::decode(header), payload.to_vec())
        }
    }
}

/// The FPDU of a ULPDU: length, ULPDU, pad, CRC.
#[must_use]
pub fn frame(ulpdu: &[u8]) -> Vec<u8> {
    let len = u16::try_from(ulpdu.len()).unwrap();
    let mut octets = len.to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    octets.resize(octets.len() + pad_len(len), 0);
    let crc = crc32c(&octets);
    octets.extend_from_slice(&crc_to_wire(crc));
    octets
}

/// The peer.
#[derive(Debug)]
pub struct Peer {
    socket: TcpStream,
    /// MSN of its next Send.
    pub next_send: u32,
    /// MSN of its next Read or Atomic Request.
    pub next_read: u32,
    /// Octets of Full Operation read, Markers included; `None` if there are no Markers.
    marked: Option<u64>,
    /// The target's challenge.
    pub challenge: Challenge,
}

impl Peer {
    /// A TCP connection and no more.
    #[must_use]
    pub fn dial(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).expect("the target listens");
        socket.set_nodelay(true).unwrap();
        let patience = Duration::from_millis(PATIENCE_MS);
        socket.set_read_timeout(Some(patience)).unwrap();
        socket.set_write_timeout(Some(patience)).unwrap();
        Self {
            socket,
            next_send: 1,
            next_read: 1,
            marked: None,
            challenge: Challenge([0; 32]),
        }
    }

    /// A stream in Full Operation.
    #[must_use]
    pub fn connect(address: SocketAddr) -> Self {
        let mut peer = Self::dial(address);
        peer.start(&Start::default());
        peer
    }

    /// A stream with a session.
    #[must_use]
    pub fn open(address: SocketAddr, who: &Who) -> (Self, Grant) {
        let mut peer = Self::connect(address);
        let grant = peer.hello(who).expect("a session");
        (peer, grant)
    }

    /// Exchanges the startup frames.
    pub fn start(&mut self, start: &Start) -> Reply {
        self.octets(&start.octets());
        let reply = self.reply();
        if start.markers {
            self.marked = Some(0);
        }
        reply
    }

    /// Reads an MPA Reply Frame.
    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("an MPA Reply")
    }

    /// Reads an MPA Reply Frame; `None` if the target has ended the connection instead.
    pub fn try_reply(&mut self) -> Option<Reply> {
        let mut head = [0; StartupFrame::LEN];
        if !read_all(&mut self.socket, &mut head) {
            return None;
        }
        let frame = StartupFrame::decode(&head, FrameKind::Reply).expect("an MPA Reply");
        let mut private = vec![0; frame.private_len.into()];
        self.socket.read_exact(&mut private).expect("Private Data");
        let enhanced = frame.flags.enhanced.then(|| {
            let rest = private.split_off(EnhancedData::LEN);
            let data = EnhancedData::decode(private[..].try_into().unwrap());
            private = rest;
            data
        });
        if let Some(Ok(data)) = private.first_chunk().map(PrivateData::decode) {
            self.challenge = data.challenge;
        }
        Some(Reply {
            frame,
            enhanced,
            private,
        })
    }

    /// Sends octets as they are. A target that has ended the stream meanwhile makes no failure.
    pub fn octets(&mut self, octets: &[u8]) {
        match self.socket.write_all(octets) {
            Ok(()) => {}
            Err(error) if is_end(&error) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a segment in an FPDU.
    pub fn segment(&mut self, segment: &Segment) {
        self.octets(&segment.fpdu());
    }

    /// Sends a message.
    pub fn send(&mut self, message: &[u8]) {
        let segment = Segment::untagged(RdmapOpcode::Send, self.next_send, message);
        self.next_send += 1;
        self.segment(&segment);
    }

    /// Sends a request.
    pub fn request(&mut self, request: &Request<'_>) {
        let mut octets = vec![0; request.encoded_len()];
        request.encode_into(&mut octets).unwrap();
        self.send(&octets);
    }

    /// Sends an RDMA Write.
    pub fn write(&mut self, stag: Stag, offset: u64, payload: &[u8]) {
        self.segment(&Segment::tagged(RdmapOpcode::Write, stag, offset, payload));
    }

    /// Sends an RDMA Read Request.
    pub fn read(&mut self, request: &ReadRequest) {
        let msn = self.next_read;
        self.next_read += 1;
        self.segment(&Segment::untagged(
            RdmapOpcode::ReadRequest,
            msn,
            &request.encode(),
        ));
    }

    /// Sends an Atomic Request.
    pub fn atomic(&mut self, request: &AtomicRequest) {
        let msn = self.next_read;
        self.next_read += 1;
        self.segment(&Segment::untagged(
            RdmapOpcode::AtomicRequest,
            msn,
            &request.encode(),
        ));
    }

    /// Sends a HELLO and takes what is granted.
    ///
    /// # Errors
    /// The status of a refusal.
    pub fn hello(&mut self, who: &Who) -> Result<Grant, Status> {
        self.try_hello(who).expect("the stream goes on")
    }

    /// Sends a HELLO and takes the answer; `None` if the target ends the stream, as it does with one that it has no place for.
    pub fn try_hello(&mut self, who: &Who) -> Option<Result<Grant, Status>> {
        let hello = who.hello(&self.challenge);
        self.send(&hello);
        let message = self.try_message()?;
        Some(match HelloAck::decode(&message).expect("a HELLO_ACK") {
            HelloAck::Granted { grant, .. } => Ok(grant),
            HelloAck::Refused { status, .. } => Err(status),
        })
    }

    /// The next completion; RDMA Writes before it are dropped.
    pub fn completion(&mut self) -> Completion {
        let message = self.message();
        Completion::decode_message(&message).expect("a completion")
    }

    /// The next message in a Send; RDMA Writes before it are dropped.
    pub fn message(&mut self) -> Vec<u8> {
        self.try_message().expect("the stream goes on")
    }

    /// The next message in a Send, or `None` if the target has ended its sending.
    fn try_message(&mut self) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            match self.receive()? {
                Segment::Untagged(header, payload) if header.queue == QueueNumber::SEND => {
                    message.extend(payload);
                    if header.last {
                        return Some(message);
                    }
                }
                Segment::Untagged(header, payload) if header.queue == QueueNumber::TERMINATE => {
                    panic!("a Terminate: {}", cause(&payload).cause)
                }
                _ => {}
            }
        }
    }

    /// The next segment; `None` once the target has ended its sending.
    pub fn receive(&mut self) -> Option<Segment> {
        let mut length = [0; 2];
        let start = self.marked;
        if !self.take(&mut length) {
            return None;
        }
        let len = u16::from_be_bytes(length);
        let mut rest = vec![0; usize::from(len) + pad_len(len) + 4];
        assert!(self.take(&mut rest), "an FPDU is whole");
        if start.is_none() {
            let (body, field) = rest.split_last_chunk().unwrap();
            let crc = crc32c(&[&length[..], body].concat());
            assert_eq!(crc, crc_from_wire(*field), "the CRC is right");
        }
        Some(Segment::decode(&rest[..usize::from(len)]))
    }

    /// Reads octets without their Markers; false if there are none at all.
    fn take(&mut self, to: &mut [u8]) -> bool {
        let Some(mut position) = self.marked else {
            return read_all(&mut self.socket, to);
        };
        for (done, octet) in to.iter_mut().enumerate() {
            if position % 512 == 0 {
                let mut marker = [0; Marker::LEN];
                if !read_all(&mut self.socket, &mut marker) {
                    return false;
                }
                position += 4;
            }
            if !read_all(&mut self.socket, std::slice::from_mut(octet)) {
                assert_eq!(done, 0, "an FPDU is whole");
                return false;
            }
            position += 1;
        }
        self.marked = Some(position);
        true
    }

    /// Reads to the end: the Terminate that came before it, if one did.
    pub fn end(&mut self) -> Option<TerminateControl> {
        let mut found = None;
        while let Some(segment) = self.receive() {
            if let Segment::Untagged(header, payload) = segment
                && header.queue == QueueNumber::TERMINATE
            {
                assert!(found.is_none(), "one Terminate is enough");
                found = Some(cause(&payload));
            } else {
                assert!(found.is_none(), "nothing comes after a Terminate");
            }
        }
        found
    }

    /// Reads to the end, which a Terminate must come before: its cause.
    pub fn terminated(&mut self) -> TerminateCause {
        self.end().expect("a Terminate before the end").cause
    }

    /// Reads octets as they are; how many there were before the end, at most as many as fit.
    pub fn read_octets(&mut self, to: &mut [u8]) -> usize {
        self.socket.read(to).unwrap_or_else(|error| {
            assert!(is_end(&error), "{error}");
            0
        })
    }

    /// Its socket.
    #[must_use]
    pub const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Ends its sending.
    pub fn finish_sending(&mut self) {
        if let Err(error) = self.socket.shutdown(Shutdown::Write) {
            assert!(is_end(&error), "{error}");
        }
    }
}

fn cause(payload: &[u8]) -> TerminateControl {
    TerminateControl::decode(
        *payload
            .first_chunk()
            .expect("a Terminate has 4 octets at least"),
    )
}

/// Fills `to`; false at the end of the stream.
fn read_all(socket: &mut TcpStream, to: &mut [u8]) -> bool {
    match socket.read_exact(to) {
        Ok(()) => true,
        Err(error) if is_end(&error) => false,
        Err(error) => panic!("{error}: the target neither answers nor ends the stream"),
    }
}

/// Whether the other side has gone.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
    )
}
