//! Our user-space stack as the initiator, against siw and the programs of librdmacm in the guest.

use super::{Outcome, RPING, SENDER, Scene, Test};
use crate::party::Party;
use crate::rping::{ping, wrong};
use crate::streams::connect;
use kbtp_fabric::{RemoteBuffer, StreamError};
use kbtp_iwarp_tcp::{Config, ConnectError, FpduSize, Handshake, StreamOptions};
use kbtp_wire::mpa::RtrKinds;
use kbtp_wire::{Stag, TaggedOffset};
use std::time::Duration;

/// Pings around pads, segments and FPDUs; the server's buffer has 65,000 octets.
const SIZES: [u32; 13] = [
    1, 2, 3, 4, 5, 100, 1000, 1431, 1460, 4096, 16_384, 32_771, 64_999,
];
/// siw loses an FPDU that comes right behind its reply.
const DELAY_MS: u64 = 300;
const SOON: Duration = Duration::from_secs(10);

const NO_RTR: RtrKinds = RtrKinds {
    send: false,
    write: false,
    read: false,
};

/// Every way of setting up a stream that both know.
fn handshakes() -> Vec<(&'static str, Handshake)> {
    let write = RtrKinds {
        write: true,
        ..NO_RTR
    };
    let read = RtrKinds {
        read: true,
        ..NO_RTR
    };
    vec![
        ("revision 2", Handshake::Enhanced),
        ("revision 2, RTR by Write", Handshake::PeerToPeer(write)),
        ("revision 2, RTR by Read", Handshake::PeerToPeer(read)),
    ]
}

pub(super) fn options(handshake: Handshake, crc: bool) -> StreamOptions {
    StreamOptions {
        rdma: Config {
            crc,
            handshake,
            first_send_delay_ms: DELAY_MS,
            ..Config::default()
        },
        ..StreamOptions::default()
    }
}

/// All tests of this file.
pub(super) fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    for (form, handshake) in handshakes() {
        for crc in [true, false] {
            for fpdu in [FpduSize::Largest, FpduSize::Segment] {
                let options = StreamOptions {
                    fpdu,
                    ..options(handshake, crc)
                };
                let name = format!("initiator to rping on siw: {form}, {}, {fpdu:?}", said(crc));
                tests.push((name, Box::new(move |scene| pings(scene, &options))));
            }
        }
    }
    for crc in [true, false] {
        for (form, handshake) in [
            ("revision 1", Handshake::Original),
            ("revision 2", Handshake::Enhanced),
        ] {
            let options = options(handshake, crc);
            let name = format!("initiator to rdma_server on siw: {form}, {}", said(crc));
            tests.push((name, Box::new(move |scene| sends(scene, &options))));
        }
    }
    tests.push((
        "initiator that wants Markers is rejected by siw".to_owned(),
        Box::new(markers),
    ));
    for (what, place) in [("STag", FOREIGN_STAG), ("Tagged Offset", FOREIGN_OFFSET)] {
        let name = format!("siw terminates a stream whose initiator has no right: {what}");
        tests.push((name, Box::new(move |scene| foreign(scene, place))));
    }
    tests.push((
        "siw is told of the STag it had no right to".to_owned(),
        Box::new(told),
    ));
    tests.push((
        "initiator to rping on siw: revision 1 comes as far as the first Read".to_owned(),
        Box::new(original),
    ));
    tests
}

const fn said(crc: bool) -> &'static str {
    if crc { "CRC" } else { "no CRC" }
}

/// A server of pings that takes any number of clients.
fn server(scene: &mut Scene) -> Outcome<()> {
    let serve = format!(
        "pidof rping >/dev/null || (setsid rping -s -a 10.0.2.15 -p {RPING} -P -S 65000 >/tmp/rping.log 2>&1 &)"
    );
    scene.guest.must(&serve, SOON)?;
    scene.listens(RPING)
}

fn pings(scene: &mut Scene, options: &StreamOptions) -> Outcome<()> {
    server(scene)?;
    let mut party = Party::new(connect(scene.rping, options)?)?;
    for (seed, len) in (1..).zip(SIZES) {
        ping(&mut party, len, seed).map_err(|e| format!("ping of {len}: {e}"))?;
    }
    party.close()
}

/// `rdma_server` takes one message of 16 octets and answers with one, and ends.
fn sends(scene: &mut Scene, options: &StreamOptions) -> Outcome<()> {
    let serve = format!("setsid rdma_server -s 10.0.2.15 -p {SENDER} >/tmp/sender.log 2>&1 &");
    scene.guest.must(&serve, SOON)?;
    scene.listens(SENDER)?;
    let mut party = Party::new(connect(scene.sender, options)?)?;
    party.send(&[0x5a; 16])?;
    let answer = party.receive()?;
    if answer.len() != 16 {
        return Err(format!("an answer of {} octets", answer.len()).into());
    }
    party.close()?;
    let log = "for i in $(seq 100); do pidof rdma_server >/dev/null || break; usleep 100000; done; cat /tmp/sender.log";
    let log = scene.guest.must(log, SOON)?;
    if log.contains("rdma_server: end 0") {
        return Ok(());
    }
    Err(format!("rdma_server did not end well: {log}").into())
}

fn markers(scene: &mut Scene) -> Outcome<()> {
    server(scene)?;
    let mut options = options(Handshake::Enhanced, true);
    options.rdma.markers = true;
    match connect(scene.rping, &options) {
        Err(ConnectError::Rejected { .. }) => Ok(()),
        other => Err(format!("no rejection, but {other:?}").into()),
    }
}

/// What is wrong with a place of the peer's.
type Place = fn(RemoteBuffer) -> RemoteBuffer;

const FOREIGN_STAG: Place = |place| RemoteBuffer {
    stag: Stag(place.stag.0 ^ 0x5555_5500),
    ..place
};
const FOREIGN_OFFSET: Place = |place| RemoteBuffer {
    offset: TaggedOffset(place.offset.0.wrapping_sub(1 << 20)),
    ..place
};

/// The server names a buffer when it asks the client to go on: `rping` sends its own. What we do with it, it must not let us.
fn foreign(scene: &mut Scene, wrong_place: Place) -> Outcome<()> {
    server(scene)?;
    let mut party = Party::new(connect(scene.rping, &options(Handshake::Enhanced, true))?)?;
    let place = wrong::place_of_server(&mut party)?;
    party.write(0, 64, wrong_place(place))?;
    match party.ending()? {
        StreamError::PeerTerminated { .. } => Ok(()),
        other => Err(format!("no Terminate, but {other}").into()),
    }
}

/// The client names a buffer that is not its own: the server reads it, and is told.
fn told(scene: &mut Scene) -> Outcome<()> {
    server(scene)?;
    let mut party = Party::new(connect(scene.rping, &options(Handshake::Enhanced, true))?)?;
    wrong::name_foreign(&mut party)?;
    match party.ending()? {
        StreamError::Protocol { .. } => Ok(()),
        other => Err(format!("the peer did not read what it had no right to: {other}").into()),
    }
}

/// Revision 1 carries no IRD and ORD, and librdmacm takes zero for them: its first Read is refused on its own side.
fn original(scene: &mut Scene) -> Outcome<()> {
    server(scene)?;
    let options = options(Handshake::Original, true);
    let mut party = Party::new(connect(scene.rping, &options)?)?;
    match ping(&mut party, 100, 1) {
        Ok(()) => Err("a ping over revision 1".into()),
        Err(error) if error.is::<StreamError>() => {
            let said = scene.guest.must("cat /tmp/rping.log", SOON)?;
            if said.contains("post send error") {
                return Ok(());
            }
            Err(format!("{error}, but rping says {said}").into())
        }
        Err(error) => Err(error),
    }
}
