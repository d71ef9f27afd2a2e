//! One end of a record socket: whole frames in and out, a descriptor beside them, nothing waits but
//! [`SeqSocket::wait`].

use crate::limits::{MAX_FRAME_LEN, MAX_PATH_LEN};
use crate::{ControlError, FrameError};
use core::mem::MaybeUninit;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use zeroize::Zeroizing;

/// Room for one descriptor. The kernel rounds up, so a second one may come too; it is counted and closed.
const FD_SPACE: usize = rustix::cmsg_space!(ScmRights(1));

/// Who is at the other end, as the kernel knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// `None` if its process is in a namespace that cannot be seen from here.
    pub(crate) pid: Option<u32>,
}

/// What came.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) octets: Zeroizing<Vec<u8>>,
    pub(crate) fds: Vec<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct SeqSocket(OwnedFd);

/// A socket not yet bound or connected.
pub(crate) fn open() -> Result<OwnedFd, ControlError> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| ControlError::os("cannot make a Unix socket", e))
}

pub(crate) fn address(path: &Path) -> Result<SocketAddrUnix, ControlError> {
    if path.as_os_str().len() > MAX_PATH_LEN {
        return Err(ControlError::PathTooLong {
            path: path.to_owned(),
        });
    }
    SocketAddrUnix::new(path)
        .map_err(|e| ControlError::os(format!("{} is no path for a socket", path.display()), e))
}

impl SeqSocket {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn peer(&self) -> Result<Peer, ControlError> {
        let peer = getsockopt(&self.0, PeerCredentials)
            .map_err(|e| ControlError::os("cannot ask who is at the other end", e))?;
        Ok(Peer {
            uid: peer.uid(),
            pid: u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0),
        })
    }

    /// Sends one frame, or says `false` if there is no room for it now.
    pub(crate) fn send(
        &self,
        octets: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<bool, ControlError> {
        let mut space = [MaybeUninit::uninit(); FD_SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            // One descriptor fits: the space is made for it.
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            return match sendmsg(&self.0, &[IoSlice::new(octets)], &mut control, flags) {
                Ok(_) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(ControlError::Gone),
                Err(e) => Err(ControlError::os("cannot send on the control socket", e)),
            };
        }
    }

    /// Takes one frame, or `None` if there is none now.
    ///
    /// A record of no octets looks like the end and is taken for it: no frame is empty.
    pub(crate) fn recv(&self, take_fds: bool) -> Result<Option<Received>, ControlError> {
        let mut octets = Zeroizing::new(vec![0; MAX_FRAME_LEN]);
        let mut space = [MaybeUninit::uninit(); FD_SPACE];
        let mut control = if take_fds {
            RecvAncillaryBuffer::new(&mut space)
        } else {
            // Without room for them the kernel closes the descriptors that come.
            RecvAncillaryBuffer::default()
        };
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
        let mut resets = 0;
        let got = loop {
            let mut into = [IoSliceMut::new(&mut octets)];
            match recvmsg(&self.0, &mut into, &mut control, flags) {
                Ok(got) => break got,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // Said once, if the other end closed with our octets unread; what it sent before is still there.
                Err(Errno::CONNRESET) if resets == 0 => resets = 1,
                Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(ControlError::Gone),
                Err(e) => return Err(ControlError::os("cannot read the control socket", e)),
            }
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if got.bytes == 0 {
            return Err(ControlError::Gone);
        }
        if got.bytes > MAX_FRAME_LEN || got.flags.contains(ReturnFlags::TRUNC) {
            return Err(FrameError::Long { len: got.bytes }.into());
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(FrameError::Descriptors {
                message: "a frame",
                got: fds.len().saturating_add(1),
                wanted: usize::from(take_fds),
            }
            .into());
        }
        octets.truncate(got.bytes);
        Ok(Some(Received { octets, fds }))
    }

    /// Waits until the socket is ready for `what`, or closed, or the time is over; says whether it is ready.
    pub(crate) fn wait(&self, what: PollFlags, left: Duration) -> Result<bool, ControlError> {
        let timeout = Timespec::try_from(left)
            .map_err(|_| ControlError::os("time limit too long", Errno::INVAL))?;
        let mut fds = [PollFd::new(&self.0, what)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(ControlError::os("cannot wait on the control socket", e)),
        }
    }

    /// The other end is closed, whatever it sent before.
    pub(crate) fn hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).is_ok()
            && fds
                .iter()
                .any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::RDHUP))
    }
}
