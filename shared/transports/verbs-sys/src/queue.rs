//! Completion queues and queue pairs.

use crate::cm::{CmId, IdOwner, set_nonblocking};
use crate::error::{VerbsError, check, last};
use crate::load::{Cm, Verbs};
use crate::memory::{Domain, Registration, Sge, Window};
use crate::raw::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_CAP, IBV_QP_PATH_MTU, IBV_QP_STATE,
    IBV_QPS_ERR, IBV_QPT_RC, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED, IBV_WC_IP_CSUM_OK, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM, IBV_WC_WITH_INV, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_INV, IbvCompChannel, IbvContext,
    IbvCq, IbvMwBindInfo, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge,
    IbvWc, IbvWrAtomic, IbvWrBindMw, IbvWrRdma, IbvWrRemote, RdmaCmId,
};
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

/// A completion queue with a channel of its own, whose descriptor is readable when an armed queue got a completion.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<QueueInner>,
}

#[derive(Debug)]
struct QueueInner {
    verbs: &'static Verbs,
    raw: NonNull<IbvCq>,
    channel: NonNull<IbvCompChannel>,
    context: NonNull<IbvContext>,
    poll: crate::raw::PollCq,
    arm: crate::raw::ReqNotifyCq,
    /// Keeps the device open; dropped after the queue.
    _id: Arc<IdOwner>,
}

// SAFETY: libibverbs lets every thread use a completion queue and its channel at any time.
unsafe impl Send for QueueInner {}
// SAFETY: as above.
unsafe impl Sync for QueueInner {}

impl Drop for QueueInner {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that hold it are gone, every event was acknowledged as it was read, and it is not used
        // again.
        let result = unsafe { (self.verbs.ibv_destroy_cq)(self.raw.as_ptr()) };
        if let Err(error) = check("ending a completion queue", result) {
            tracing::warn!(%error, "a completion queue stays");
            return;
        }
        // SAFETY: its only queue is gone, and it is not used again.
        let result = unsafe { (self.verbs.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        if let Err(error) = check("ending a completion channel", result) {
            tracing::warn!(%error, "a completion channel stays");
        }
    }
}

/// A work completion. Each is given once.
#[derive(Debug)]
pub struct Completion(IbvWc);

impl Completion {
    /// The number that the work was posted with.
    #[must_use]
    pub const fn work(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended: 0 is success, the rest are `enum ibv_wc_status`.
    #[must_use]
    pub const fn status(&self) -> u32 {
        self.0.status
    }

    /// It succeeded.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.0.status == IBV_WC_SUCCESS
    }

    /// It is of a receive. Only of a completion that succeeded.
    #[must_use]
    pub const fn is_receive(&self) -> bool {
        self.0.opcode & IBV_WC_RECV != 0
    }

    /// It is of a Write with Immediate, which used up a receive. Only of a completion that succeeded.
    #[must_use]
    pub const fn is_write_with_immediate(&self) -> bool {
        self.0.opcode == IBV_WC_RECV_RDMA_WITH_IMM
    }

    /// Octets received.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.0.byte_len
    }

    /// Whether no octet was received.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Immediate Data, if there is some.
    #[must_use]
    pub const fn immediate(&self) -> Option<u32> {
        if self.0.wc_flags & IBV_WC_WITH_IMM == 0 {
            None
        } else {
            Some(u32::from_be(self.0.imm_or_rkey))
        }
    }

    /// The key that the message invalidated, if it did. `flag` is the bit that says so: libibverbs documents
    /// [`INVALIDATED`], and some drivers pass on the kernel's [`INVALIDATED_BY_KERNEL`].
    #[must_use]
    pub const fn invalidated(&self, flag: u32) -> Option<u32> {
        if self.0.wc_flags & flag == 0 || self.0.wc_flags & IBV_WC_WITH_IMM != 0 {
            None
        } else {
            Some(self.0.imm_or_rkey)
        }
    }

    /// The flags as the driver gave them.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.0.wc_flags
    }

    /// The queue pair it is of.
    #[must_use]
    pub const fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The vendor's own word on an error.
    #[must_use]
    pub const fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

/// The flag of a completion that libibverbs documents for Send with Invalidate.
pub const INVALIDATED: u32 = IBV_WC_WITH_INV;
/// The flag that the kernel uses among its own, where libibverbs has another meaning for Ethernet queue pairs.
pub const INVALIDATED_BY_KERNEL: u32 = IBV_WC_IP_CSUM_OK;

/// What a completion's status means, in libibverbs' words.
#[must_use]
pub fn status_text(status: u32) -> String {
    let Ok(verbs) = Verbs::get() else {
        return format!("status {status}");
    };
    // SAFETY: no precondition: it has a text for every number.
    let text = unsafe { (verbs.ibv_wc_status_str)(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: it is not null, and a constant of the library.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

impl CompletionQueue {
    /// A queue of `entries` on the device of `id`, which must have one.
    ///
    /// # Errors
    /// [`VerbsError`]: it has none yet, or the device refuses.
    pub fn new(id: &CmId, entries: u32) -> Result<Self, VerbsError> {
        const WHAT: &str = "making a completion queue";
        let context = id.context()?;
        let limit = context.attributes()?.max_cqe;
        let too_many = VerbsError::Attribute {
            attribute: "max_cqe",
            wanted: u64::from(entries),
            limit: u64::from(limit),
        };
        let (true, Ok(entries)) = (entries <= limit, c_int::try_from(entries)) else {
            return Err(too_many);
        };
        let verbs = context.verbs;
        // SAFETY: the context is open.
        let poll = unsafe { (*context.raw.as_ptr()).ops.poll_cq };
        // SAFETY: as above.
        let arm = unsafe { (*context.raw.as_ptr()).ops.req_notify_cq };
        let (Some(poll), Some(arm)) = (poll, arm) else {
            return Err(VerbsError::Unsupported {
                what: "completion queues that can be polled and armed",
            });
        };
        // SAFETY: the context is open as long as the identifier, which the queue holds.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| last("making a completion channel"))?;
        // SAFETY: as above; no completion vector but the first is asked for.
        let raw = unsafe {
            (verbs.ibv_create_cq)(
                context.raw.as_ptr(),
                entries,
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = last(WHAT);
            // SAFETY: it has no queue, and is not used again.
            let result = unsafe { (verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
            check("ending a completion channel", result)?;
            return Err(error);
        };
        let queue = Self {
            inner: Arc::new(QueueInner {
                verbs,
                raw,
                channel,
                context: context.raw,
                poll,
                arm,
                _id: Arc::clone(id.owner()),
            }),
        };
        set_nonblocking(queue.fd()).map_err(|errno| VerbsError::Os {
            what: WHAT,
            source: errno.into(),
        })?;
        Ok(queue)
    }

    /// The descriptor that is readable when the queue was armed and got a completion since.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there as long as the queue.
        let fd = unsafe { (*self.inner.channel.as_ptr()).fd };
        // SAFETY: its descriptor is open as long as the channel, which is there as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Has the next completion make the descriptor readable. A completion that is there already may not: poll after it.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is there.
        let result = unsafe { (self.inner.arm)(self.inner.raw.as_ptr(), 0) };
        check("arming a completion queue", result)
    }

    /// Takes what made the descriptor readable; whether there was something. The queue is not armed then.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn take_events(&self) -> Result<bool, VerbsError> {
        let mut any = false;
        loop {
            let mut queue = ptr::null_mut();
            let mut context = ptr::null_mut::<c_void>();
            // SAFETY: the channel is there, and both may be written.
            let result = unsafe {
                (self.inner.verbs.ibv_get_cq_event)(
                    self.inner.channel.as_ptr(),
                    &raw mut queue,
                    &raw mut context,
                )
            };
            if result != 0 {
                let error = last("reading an event of a completion queue");
                let none = [nix::libc::EAGAIN, nix::libc::EINTR];
                return match error.errno() {
                    Some(errno) if none.contains(&errno) => Ok(any),
                    _ => Err(error),
                };
            }
            any = true;
            // SAFETY: the queue is there: it is this one, the channel's only one.
            unsafe { (self.inner.verbs.ibv_ack_cq_events)(queue, 1) };
        }
    }

    /// Takes at most `N` completions, the oldest first, and gives each to `each`; how many there were.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the queue is broken.
    pub fn poll<const N: usize>(
        &self,
        mut each: impl FnMut(Completion),
    ) -> Result<usize, VerbsError> {
        let mut found = [IbvWc::default(); N];
        let most = c_int::try_from(N).unwrap_or(c_int::MAX);
        // SAFETY: the queue is there, and so many completions may be written.
        let count = unsafe { (self.inner.poll)(self.inner.raw.as_ptr(), most, found.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(last("polling a completion queue"));
        };
        for wc in found.into_iter().take(count) {
            each(Completion(wc));
        }
        Ok(count)
    }
}

/// What a queue pair is made with.
#[derive(Debug)]
pub struct Queues<'a> {
    /// Its domain.
    pub domain: &'a Domain,
    /// Where what was sent completes.
    pub send: &'a CompletionQueue,
    /// Where receives complete.
    pub receive: &'a CompletionQueue,
    /// Work requests its send queue holds.
    pub send_work: u32,
    /// Receives it holds.
    pub receives: u32,
    /// Buffers of one work request.
    pub buffers: u32,
    /// Octets that can be sent from the work request itself; the device may offer more, or none.
    pub inline_octets: u32,
}

/// A reliable connected queue pair. Its connection owns it.
#[derive(Debug)]
pub struct QueuePair {
    cm: &'static Cm,
    verbs: &'static Verbs,
    id: NonNull<RdmaCmId>,
    raw: NonNull<IbvQp>,
    number: u32,
    inline_octets: u32,
    post_send: crate::raw::PostSend,
    post_receive: crate::raw::PostRecv,
    domain: Domain,
    /// Held until the pair is gone.
    _queues: [CompletionQueue; 2],
}

// SAFETY: libibverbs lets every thread use a queue pair at any time; `CmId` owns it and the identifier that ends it.
unsafe impl Send for QueuePair {}

/// Work to post.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// A number that the completion echoes.
    pub id: u64,
    /// Report that it succeeded. A failure is always reported.
    pub signaled: bool,
    /// Ask for an event at the peer.
    pub solicited: bool,
    /// Begin only when earlier Reads and Atomics are done.
    pub fence: bool,
    /// What to do.
    pub operation: Operation<'a>,
}

/// Where the octets of a Send or Write come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// From registrations, when the device comes to it.
    Registered(&'a [Sge]),
    /// Copied as the work is posted; at most [`QueuePair::inline_octets`].
    Inline(&'a [u8]),
}

/// An address and key of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address.
    pub address: u64,
    /// Key.
    pub key: u32,
}

/// An operation of a queue pair.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Send, with Invalidate of a key of the peer if there is one.
    Send {
        /// The message.
        source: Source<'a>,
        /// The key.
        invalidate: Option<u32>,
    },
    /// RDMA Write, with Immediate Data if there is some.
    Write {
        /// The data.
        source: Source<'a>,
        /// Where to.
        remote: Remote,
        /// The Immediate Data.
        immediate: Option<u32>,
    },
    /// RDMA Read.
    Read {
        /// Where to.
        sink: &'a [Sge],
        /// Where from.
        remote: Remote,
    },
    /// Adds to a counter of the peer's.
    FetchAdd {
        /// Where its value before goes, 8 octets, in this machine's order.
        sink: Sge,
        /// The counter.
        remote: Remote,
        /// What is added.
        add: u64,
    },
    /// Compares a word of the peer's and swaps it.
    CompareSwap {
        /// Where its value before goes, 8 octets, in this machine's order.
        sink: Sge,
        /// The word.
        remote: Remote,
        /// What it is compared with.
        compare: u64,
        /// What it becomes if it is equal.
        swap: u64,
    },
    /// Ends the use of a key of this party.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
}

/// Rights of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowRights {
    /// The peer writes through it.
    pub write: bool,
    /// The peer reads through it.
    pub read: bool,
}

impl QueuePair {
    pub(crate) fn create(
        cm: &'static Cm,
        id: NonNull<RdmaCmId>,
        context: NonNull<IbvContext>,
        queues: &Queues<'_>,
    ) -> Result<Self, VerbsError> {
        let of_device = queues.domain.context() == context
            && queues.send.inner.context == context
            && queues.receive.inner.context == context;
        if !of_device {
            return Err(VerbsError::Unsupported {
                what: "queue of another device",
            });
        }
        // SAFETY: the context is open as long as the identifier.
        let post_send = unsafe { (*context.as_ptr()).ops.post_send };
        // SAFETY: as above.
        let post_receive = unsafe { (*context.as_ptr()).ops.post_recv };
        let (Some(post_send), Some(post_receive)) = (post_send, post_receive) else {
            return Err(VerbsError::Unsupported {
                what: "queues that can be posted to",
            });
        };
        let mut wanted = IbvQpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queues.send.inner.raw.as_ptr(),
            recv_cq: queues.receive.inner.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: IbvQpCap {
                max_send_wr: queues.send_work,
                max_recv_wr: queues.receives,
                max_send_sge: queues.buffers,
                max_recv_sge: 1,
                max_inline_data: queues.inline_octets,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: identifier, domain and queues are there and of one device (checked), the identifier has no queue pair
        // (its owner has checked), and the structure may be written.
        let result =
            unsafe { (cm.rdma_create_qp)(id.as_ptr(), queues.domain.raw(), &raw mut wanted) };
        check("making a queue pair", result)?;
        // SAFETY: the identifier is there.
        let raw = unsafe { (*id.as_ptr()).qp };
        let raw = NonNull::new(raw).ok_or_else(|| last("making a queue pair"))?;
        // SAFETY: the library gave it.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        Ok(Self {
            cm,
            verbs: queues.send.inner.verbs,
            id,
            raw,
            number,
            inline_octets: wanted.cap.max_inline_data,
            post_send,
            post_receive,
            domain: queues.domain.clone(),
            _queues: [queues.send.clone(), queues.receive.clone()],
        })
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Octets that can be sent inline.
    #[must_use]
    pub const fn inline_octets(&self) -> u32 {
        self.inline_octets
    }

    /// Posts `work`.
    ///
    /// # Errors
    /// [`VerbsError`]: nothing was posted: the send queue is full (`ENOMEM`), the device has no such operation, or
    /// the pair is no longer connected.
    pub fn post(&self, work: &Work<'_>) -> Result<(), VerbsError> {
        let flag = |on, flag| if on { flag } else { 0 };
        let mut flags = flag(work.signaled, IBV_SEND_SIGNALED)
            | flag(work.solicited, IBV_SEND_SOLICITED)
            | flag(work.fence, IBV_SEND_FENCE);
        let mut wr = empty_work(work.id);
        let mut inline = Sge(IbvSge::default());
        let one;
        let buffers: &[Sge] = match work.operation {
            Operation::Send { source, invalidate } => {
                wr.opcode = invalidate.map_or(IBV_WR_SEND, |_| IBV_WR_SEND_WITH_INV);
                wr.imm_or_rkey = invalidate.unwrap_or(0);
                self.source(source, &mut inline, &mut flags)?
            }
            Operation::Write {
                source,
                remote,
                immediate,
            } => {
                wr.opcode = immediate.map_or(IBV_WR_RDMA_WRITE, |_| IBV_WR_RDMA_WRITE_WITH_IMM);
                wr.imm_or_rkey = immediate.unwrap_or(0).to_be();
                wr.wr = rdma(remote);
                self.source(source, &mut inline, &mut flags)?
            }
            Operation::Read { sink, remote } => {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.wr = rdma(remote);
                sink
            }
            Operation::FetchAdd { sink, remote, add } => {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr = atomic(remote, add, 0);
                one = [sink];
                &one
            }
            Operation::CompareSwap {
                sink,
                remote,
                compare,
                swap,
            } => {
                wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                wr.wr = atomic(remote, compare, swap);
                one = [sink];
                &one
            }
            Operation::LocalInvalidate { key } => {
                wr.opcode = IBV_WR_LOCAL_INV;
                wr.imm_or_rkey = key;
                &[]
            }
        };
        // Linux's siw looks for the memory of an empty buffer, does not find it, and takes the kernel with it.
        if buffers.iter().any(Sge::is_empty) {
            return Err(VerbsError::Unsupported {
                what: "work request with an empty buffer",
            });
        }
        wr.send_flags = flags;
        wr.num_sge = c_int::try_from(buffers.len()).map_err(|_| VerbsError::Unsupported {
            what: "work request of that many buffers",
        })?;
        wr.sg_list = buffers.as_ptr().cast::<IbvSge>().cast_mut();
        self.post_raw(&mut wr)
    }

    /// The buffers of a source. Octets to be sent inline are named in `inline`.
    fn source<'a>(
        &self,
        source: Source<'a>,
        inline: &'a mut Sge,
        flags: &mut u32,
    ) -> Result<&'a [Sge], VerbsError> {
        match source {
            Source::Registered(buffers) => Ok(buffers),
            Source::Inline([]) => Ok(&[]),
            Source::Inline(octets) => {
                let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
                if length > self.inline_octets {
                    return Err(VerbsError::Attribute {
                        attribute: "max_inline_data",
                        wanted: u64::from(length),
                        limit: u64::from(self.inline_octets),
                    });
                }
                // Read by this thread, within the call that posts: the caller's borrow of the octets lasts that long.
                *inline = Sge(IbvSge {
                    addr: octets.as_ptr().expose_provenance() as u64,
                    length,
                    lkey: 0,
                });
                *flags |= IBV_SEND_INLINE;
                Ok(slice::from_ref(inline))
            }
        }
    }

    fn post_raw(&self, wr: &mut IbvSendWr) -> Result<(), VerbsError> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there; the request and its list are only read, and only now. The list names octets
        // of registrations, which the device checks, or octets to copy, which are borrowed.
        let result = unsafe { (self.post_send)(self.raw.as_ptr(), wr, &raw mut bad) };
        check("posting work", result)
    }

    /// Posts a receive into `buffer`. It is for `Receives` alone, which knows who has the buffer.
    pub(crate) fn post_receive(&self, id: u64, buffer: &mut Sge) -> Result<(), VerbsError> {
        let mut wr = IbvRecvWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut buffer.0,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there; the request and its list are only read, and only now. The device writes to
        // octets of a registration, which it checks.
        let result = unsafe { (self.post_receive)(self.raw.as_ptr(), &raw mut wr, &raw mut bad) };
        check("posting a receive", result)
    }

    /// Binds `window` to the octets `range` of `registration`, which begin at the address `address` for the peer. The
    /// window has its new key at once; it works once this work is done.
    ///
    /// # Errors
    /// [`VerbsError`]: not of this pair's domain, or nothing was posted.
    pub fn bind(
        &self,
        id: u64,
        window: &mut Window,
        registration: &Registration,
        address: u64,
        len: u64,
        rights: WindowRights,
    ) -> Result<(), VerbsError> {
        if !registration.is_of(&self.domain) {
            return Err(VerbsError::Unsupported {
                what: "window on memory of another domain",
            });
        }
        let flag = |on, flag| if on { flag } else { 0 };
        let mut wr = empty_work(id);
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw = IbvWrBindMw {
            mw: window.raw(),
            rkey: window.next_key(),
            bind_info: IbvMwBindInfo {
                mr: registration.raw(),
                addr: address,
                length: len,
                mw_access_flags: flag(rights.write, IBV_ACCESS_REMOTE_WRITE)
                    | flag(rights.read, IBV_ACCESS_REMOTE_READ),
            },
        };
        self.post_raw(&mut wr)
    }

    /// Moves it to its error state: what is posted is flushed.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut attributes = IbvQpAttr {
            qp_state: IBV_QPS_ERR,
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE.cast_signed();
        // SAFETY: the queue pair is there, and the attributes are one that the mask names.
        let result =
            unsafe { (self.verbs.ibv_modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask) };
        check("moving a queue pair to its error state", result)
    }

    /// Largest packet payload of its path, in octets; `None` where there is no such thing (iWARP).
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn path_mtu(&self) -> Result<Option<u32>, VerbsError> {
        let mut attributes = IbvQpAttr::default();
        let mut made = IbvQpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap: IbvQpCap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let mask = (IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_CAP).cast_signed();
        // SAFETY: the queue pair is there, and both structures may be written.
        let result = unsafe {
            (self.verbs.ibv_query_qp)(self.raw.as_ptr(), &raw mut attributes, mask, &raw mut made)
        };
        check("asking a queue pair what it is", result)?;
        Ok(match attributes.path_mtu {
            size @ 1..=5 => Some(128 << size),
            _ => None,
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the identifier is there (its owner drops the pair first) and has this pair, which is not used again.
        unsafe { (self.cm.rdma_destroy_qp)(self.id.as_ptr()) };
    }
}

fn empty_work(id: u64) -> IbvSendWr {
    IbvSendWr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_or_rkey: 0,
        wr: atomic(Remote { address: 0, key: 0 }, 0, 0),
        xrc_remote_srqn: 0,
        bind_mw: IbvWrBindMw {
            mw: ptr::null_mut(),
            rkey: 0,
            bind_info: IbvMwBindInfo {
                mr: ptr::null_mut(),
                addr: 0,
                length: 0,
                mw_access_flags: 0,
            },
        },
    }
}

const fn rdma(remote: Remote) -> IbvWrRemote {
    IbvWrRemote {
        rdma: IbvWrRdma {
            remote_addr: remote.address,
            rkey: remote.key,
        },
    }
}

const fn atomic(remote: Remote, compare_add: u64, swap: u64) -> IbvWrRemote {
    IbvWrRemote {
        atomic: IbvWrAtomic {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: remote.key,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_read_by_the_flags() {
        let completion = |flags, word| {
            Completion(IbvWc {
                wc_flags: flags,
                imm_or_rkey: word,
                opcode: IBV_WC_RECV,
                ..IbvWc::default()
            })
        };
        let plain = completion(0, 7);
        assert!(plain.is_receive() && !plain.is_write_with_immediate());
        assert_eq!(
            (plain.immediate(), plain.invalidated(INVALIDATED)),
            (None, None)
        );
        let immediate = completion(IBV_WC_WITH_IMM, 7_u32.to_be());
        assert_eq!(immediate.immediate(), Some(7));
        assert_eq!(immediate.invalidated(INVALIDATED), None);
        let invalidated = completion(INVALIDATED, 7);
        assert_eq!(invalidated.invalidated(INVALIDATED), Some(7));
        assert_eq!(invalidated.invalidated(INVALIDATED_BY_KERNEL), None);
        // As one driver has it: the kernel's bit, and that of a GRH.
        let kernel = completion(5, 7);
        assert_eq!(kernel.invalidated(INVALIDATED), None);
        assert_eq!(kernel.invalidated(INVALIDATED_BY_KERNEL), Some(7));
    }

    #[test]
    fn every_status_has_a_text() {
        for status in [0, 5, 12, u32::MAX] {
            assert!(!status_text(status).is_empty());
        }
    }
}
