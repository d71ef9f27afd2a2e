//! Wireshark as a second reading of what goes over the wire: every operation, decoded by a program that is not ours.

use crate::net::{Host, installed, possible};
use kbtp_harness::{Peer, Process, Scratch, Who, command, eventually, ok, options, pattern};
use kbtp_initiator::{
    Buffer, Client, FreeOptions, Handle, LoadOptions, Options, StoreOptions, Tcp,
};
use kbtp_wire::Stag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Not 4420: a decoder takes that for another protocol.
const PORT: &str = "7471";

// RDMAP opcodes: RFC 5040, section 4.3, and RFC 7306, section 8.
const WRITE: &str = "Write";
const READ: &str = "ReadRequest";
const RESPONSE: &str = "ReadResponse";
const SEND: &str = "Send";
const SEND_INVALIDATE: &str = "SendInvalidate";
const TERMINATE: &str = "Terminate";
const ATOMIC: &str = "AtomicRequest";
const ATOMIC_RESPONSE: &str = "AtomicResponse";

/// A capture of what an interface of a host carries, to our port.
struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    fn start(host: &Host, interface: &str, scratch: &Scratch) -> Self {
        let (file, log) = (scratch.at("capture.pcapng"), scratch.at("dumpcap.log"));
        let filter = format!("tcp port {PORT} or udp port {PORT}");
        let to = scratch.text("capture.pcapng");
        let args = [
            "-q", "-i", interface, "-s", "0", "-B", "64", "-f", &filter, "-w", &to,
        ];
        let child = host
            .command("dumpcap", &args)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut capture = Self { child, file };
        eventually("the capture begins", || {
            let said = std::fs::read_to_string(&log).unwrap();
            let ended = capture.child.try_wait().unwrap();
            assert!(ended.is_none(), "dumpcap: {said}");
            // It says so once the interface is open and the filter is set.
            said.contains("File: ").then_some(())
        });
        capture
    }

    /// Ends it once it has all that was sent before.
    fn end(mut self, host: &Host, to: &str) -> PathBuf {
        let mark = pattern(0x006d_6172_6b00, 64);
        host.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(&mark, format!("{to}:{PORT}")).unwrap();
        });
        eventually("the capture is written", || {
            let octets = std::fs::read(&self.file).unwrap();
            let found = octets.windows(mark.len()).any(|window| window == mark);
            found.then_some(())
        });
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, Signal::SIGINT).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.file.clone()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // It fails only if the process has ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

/// What the decoder says of one TCP connection, in the order of the FPDUs of each direction.
#[derive(Debug, Default)]
struct Stream {
    requests: Vec<String>,
    replies: Vec<String>,
    to_target: Vec<String>,
    to_initiator: Vec<String>,
    markers: u32,
    add_masks: Vec<String>,
}

fn opcode(number: &str) -> &'static str {
    match number {
        "0x00" | "0" => WRITE,
        "0x01" | "1" => READ,
        "0x02" | "2" => RESPONSE,
        "0x03" | "3" => SEND,
        "0x04" | "4" => SEND_INVALIDATE,
        "0x07" | "7" => TERMINATE,
        "0x0a" | "10" => ATOMIC,
        "0x0b" | "11" => ATOMIC_RESPONSE,
        other => panic!("opcode {other}"),
    }
}

/// What `tshark` says of a capture.
fn tshark(file: &Path, args: &[&str]) -> String {
    let mut all = vec![
        "-r",
        file.to_str().unwrap(),
        "-o",
        "tcp.check_checksum:FALSE",
    ];
    // Sends of KBTP are neither RPC nor SMB, whatever their first octets look like.
    for other in ["rpcordma", "smb_direct"] {
        all.extend(["--disable-protocol", other]);
    }
    all.extend(args);
    ok(command("tshark", &all))
}

/// FPDUs of a capture, how many have a good CRC, and how many a bad one.
fn crcs(file: &Path) -> [usize; 3] {
    let text = tshark(file, &["-O", "iwarp_mpa", "-Y", "iwarp_mpa"]);
    ["ULPDU length:", "(Good CRC32)", "Bad CRC32"].map(|what| text.matches(what).count())
}

/// The fields of the table that is asked for, in this order.
const FIELDS: [&str; 10] = [
    "tcp.stream",
    "tcp.dstport",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_mpa.rev",
    "iwarp_mpa.marker_flag",
    "iwarp_mpa.crc_flag",
    "iwarp_rdma.opcode",
    "iwarp_mpa.marker_fpduptr",
    "iwarp_rdma.atomic.add_mask",
];

/// Decodes a capture. All CRCs must be good, and the decoder must have nothing to say against any FPDU.
fn decode(file: &Path) -> BTreeMap<u32, Stream> {
    let lost = "tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment";
    assert_eq!(tshark(file, &["-Y", lost]), "", "the capture has all");
    let [fpdus, good, bad] = crcs(file);
    assert!(
        fpdus > 0 && fpdus == good && bad == 0,
        "{fpdus} {good} {bad}"
    );
    // Warnings and errors; TCP's own, such as a repeated segment, are not asked for.
    let against = "iwarp_mpa && (_ws.malformed || _ws.expert.severity >= 6291456)";
    let quiet = [
        "-o",
        "tcp.analyze_sequence_numbers:FALSE",
        "-V",
        "-Y",
        against,
    ];
    assert_eq!(tshark(file, &quiet), "");

    let mut args = vec!["-Y", "iwarp_mpa", "-T", "fields", "-E", "separator=;"];
    args.extend(["-E", "occurrence=a", "-E", "aggregator=,"]);
    args.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
    let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
    for line in tshark(file, &args).lines() {
        let fields: Vec<&str> = line.split(';').collect();
        let fields: [&str; FIELDS.len()] = fields.try_into().expect("the fields asked for");
        let stream = fields[0].parse().unwrap();
        streams.entry(stream).or_default().enter(fields);
    }
    streams
}

impl Stream {
    /// Enters what the decoder says of a frame.
    fn enter(&mut self, fields: [&str; FIELDS.len()]) {
        let [
            _,
            port,
            request,
            reply,
            revision,
            markers,
            crc,
            opcodes,
            pointers,
            masks,
        ] = fields;
        let startup = format!("revision {revision}, markers {markers}, crc {crc}");
        if !request.is_empty() {
            return self.requests.push(startup);
        }
        if !reply.is_empty() {
            return self.replies.push(startup);
        }
        let side = if port == PORT {
            &mut self.to_target
        } else {
            &mut self.to_initiator
        };
        let each = |list: &'_ str| -> Vec<String> {
            let words = list.split(',').filter(|word| !word.is_empty());
            words.map(str::to_owned).collect()
        };
        side.extend(each(opcodes).iter().map(|number| opcode(number).to_owned()));
        self.markers += u32::try_from(each(pointers).len()).unwrap();
        self.add_masks.extend(each(masks));
    }
}

fn serve(host: &Host, scratch: &Scratch, address: &str) -> Process {
    let listen = format!("{address}:{PORT}");
    let args = [
        "serve",
        "--json",
        "--stop-with-stdin",
        "--block-size=64KiB",
        "--blocks=64",
        "--admin=off",
        "--allow-unauthenticated",
        "--listen",
        &listen,
    ];
    Process::start(host.kbtp(&args), &scratch.at("target.log"))
}

/// One of each operation on the client, in an order that the wire shows; sizes span several segments.
struct Operations {
    client: Client,
    base: u64,
    data: Buffer,
}

impl Operations {
    fn open(options: Options, tcp: Tcp) -> Self {
        let client = Client::connect_with(tcp, options).expect("a session");
        let data = client.register(client.block_size()).unwrap();
        Self {
            base: client.handles().0.0,
            client,
            data,
        }
    }

    fn fill(&mut self, version: u64, len: usize) {
        self.data.fill(&pattern(version, len)).unwrap();
    }

    fn at(&self, n: u64) -> Handle {
        Handle(self.base + n)
    }

    /// ALLOC_STORE of `len` octets, sealed or not.
    fn alloc(&mut self, n: u64, len: usize, seal: bool) {
        self.fill(n, len);
        let options = StoreOptions {
            seal,
            ..StoreOptions::default()
        };
        let at = self.at(n);
        self.client
            .alloc_store(at, &mut self.data, &options)
            .unwrap();
    }

    /// STORE, which seals.
    fn store(&mut self, n: u64, version: u64, len: usize) {
        self.fill(version, len);
        let (at, options) = (self.at(n), StoreOptions::default());
        self.client.store(at, &mut self.data, &options).unwrap();
    }

    fn load(&mut self, n: u64, version: u64, len: usize, direct: bool) {
        let (at, options) = (self.at(n), LoadOptions::default());
        let mut sink = self.client.register(self.client.block_size()).unwrap();
        let loaded = if direct {
            self.client.load_direct(at, &mut sink, &options)
        } else {
            self.client.load(at, &mut sink, &options)
        };
        loaded.unwrap();
        assert!(sink.to_vec().unwrap() == pattern(version, len));
    }

    fn alloc_direct(&mut self, n: u64, len: usize) {
        self.fill(n, len);
        let (at, options) = (self.at(n), StoreOptions::default());
        self.client
            .alloc_direct(at, &mut self.data, &options)
            .unwrap();
    }

    fn free(&mut self, n: u64) {
        self.client
            .free(self.at(n), &FreeOptions::default())
            .unwrap();
    }
}

fn every_operation(address: &str) {
    let direct = options(&format!("{address}:{PORT}"), 1)
        .quota(8)
        .direct_load(true)
        .direct_alloc(true);
    let mut all = Operations::open(direct, Tcp::default());
    all.alloc(0, 300, false);
    all.store(0, 9, 200);
    all.load(0, 9, 200, false);
    all.alloc(1, 40_000, false);
    all.store(1, 8, 50_000);
    all.load(1, 8, 50_000, false);
    all.load(1, 8, 50_000, true);
    all.alloc_direct(2, 30_000);
    all.load(2, 2, 30_000, false);
    all.free(2);
    all.free(1);
    all.free(0);
    all.client.close().unwrap();

    let invalidating = options(&format!("{address}:{PORT}"), 2)
        .quota(8)
        .invalidate(true);
    let mut all = Operations::open(invalidating, Tcp::default());
    all.alloc(0, 20_000, true);
    all.load(0, 0, 20_000, false);
    all.free(0);
    all.client.close().unwrap();
}

/// A peer that writes where nothing is: the target answers with a Terminate.
fn a_bad_stag(address: SocketAddr) {
    let (mut peer, _) = Peer::open(address, &Who::new(3));
    peer.write(Stag(0x0bad_0bad), 0, b"nowhere");
    let cause = peer.terminated().to_string();
    assert!(cause.contains("invalid STag"), "{cause}");
}

const STARTUP: [&str; 1] = ["revision 2, markers 0, crc 1"];

fn check_operations(stream: &Stream) {
    assert_eq!(stream.requests, STARTUP);
    assert_eq!(stream.replies, STARTUP);
    assert_eq!(stream.markers, 0);
    let expected: [&[&str]; 9] = [
        // HELLO, two inline stores, a load.
        &[SEND, SEND, SEND, SEND],
        // Two stores that the target reads.
        &[SEND, RESPONSE],
        &[SEND, RESPONSE],
        // A load, then a direct one of whatever Generation: entry, entry again, block, entry.
        &[SEND],
        &[READ, READ, READ, READ],
        // A ticket, its slot twice, the block, BIND.
        &[ATOMIC, READ, READ],
        &[WRITE, SEND],
        // A load.
        &[SEND],
        // Three frees.
        &[SEND, SEND, SEND],
    ];
    assert_eq!(stream.to_target, expected.concat());
    let expected: [&[&str]; 8] = [
        // HELLO_ACK, two completions, a block and its completion.
        &[SEND, SEND, SEND, WRITE, SEND],
        &[READ, SEND],
        &[READ, SEND],
        &[WRITE, SEND],
        &[RESPONSE, RESPONSE, RESPONSE, RESPONSE],
        &[ATOMIC_RESPONSE, RESPONSE, RESPONSE],
        // BIND is done; a block.
        &[SEND, WRITE, SEND],
        &[SEND, SEND, SEND],
    ];
    assert_eq!(stream.to_initiator, expected.concat());
    // Bit 63, bit 31, bit n+3 (draft, section 3.3): a ring of eight slots has n = 3.
    assert_eq!(stream.add_masks, ["0x8000000080000040"]);
}

fn overheard(host: &Host, target_host: &Host, interface: &str, address: &str) {
    let scratch = Scratch::new();
    let capture = Capture::start(host, interface, &scratch);
    let target = serve(target_host, &scratch, address);
    host.inside(|| {
        every_operation(address);
        a_bad_stag(format!("{address}:{PORT}").parse().unwrap());
    });
    target.stop();
    let file = capture.end(host, address);
    let streams = decode(&file);
    let [operations, invalidating, bad] = &streams.values().collect::<Vec<_>>()[..] else {
        panic!("{streams:#?}");
    };
    check_operations(operations);
    assert_eq!(invalidating.to_target, [SEND, SEND, RESPONSE, SEND, SEND]);
    assert_eq!(
        invalidating.to_initiator,
        [SEND, READ, SEND_INVALIDATE, WRITE, SEND_INVALIDATE, SEND]
    );
    assert_eq!(bad.to_target, [SEND, WRITE]);
    assert_eq!(bad.to_initiator, [SEND, TERMINATE]);

    // The decoder does look: a bit of a block turned over is a bad CRC.
    let mut octets = std::fs::read(&file).unwrap();
    let block = pattern(2, 64);
    let mut windows = octets.windows(block.len());
    let place = windows.position(|window| window == block).expect("a block");
    octets[place] ^= 1;
    std::fs::write(&file, octets).unwrap();
    let [fpdus, good, bad] = crcs(&file);
    assert_eq!((bad, good), (1, fpdus - 1));
}

#[test]
fn every_operation_is_what_another_decoder_expects() {
    if !possible() || !installed("tshark") || !installed("dumpcap") {
        return;
    }
    let host = Host::new("lo");
    overheard(&host, &host, "lo", "127.0.0.1");
}

#[test]
fn every_operation_is_so_in_segments_of_ethernet_too() {
    if !possible() || !installed("tshark") || !installed("dumpcap") {
        return;
    }
    let (a, b) = Host::pair("1500");
    overheard(&b, &a, "cable", "10.77.0.1");
}

/// Wireshark 4.0 decodes Markers only as far as the first FPDU of the direction that has them: so far they must be
/// right. Whether those within long FPDUs are is for the conformance suite, whose peer takes them out again.
#[test]
fn the_first_marker_is_where_another_decoder_expects_it() {
    if !possible() || !installed("tshark") || !installed("dumpcap") {
        return;
    }
    let host = Host::new("m");
    let scratch = Scratch::new();
    let capture = Capture::start(&host, "lo", &scratch);
    let target = serve(&host, &scratch, "127.0.0.1");
    host.inside(|| {
        let mut tcp = Tcp::default();
        tcp.connect.stream.rdma.markers = true;
        let wanted = options(&format!("127.0.0.1:{PORT}"), 1).quota(8);
        let mut all = Operations::open(wanted, tcp);
        all.alloc(0, 300, true);
        all.load(0, 0, 300, false);
        all.free(0);
        all.client.close().unwrap();
    });
    target.stop();
    let streams = decode(&capture.end(&host, "127.0.0.1"));
    let stream = &streams[&0];
    assert_eq!(stream.requests, ["revision 2, markers 1, crc 1"]);
    assert_eq!(stream.replies, STARTUP);
    assert_eq!(stream.to_initiator.first().map(String::as_str), Some(SEND));
    assert!(stream.markers > 0);
}
