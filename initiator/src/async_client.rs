//! The client for programs that run on tokio.
#![expect(
    clippy::result_large_err,
    reason = "an operation that is not begun gives its buffer back, and back-pressure must not allocate"
)]

use crate::buffer::Buffer;
use crate::client::{Client, Resumed};
use crate::dial::Dial;
use crate::error::{ClientError, Ended};
use crate::ops::{FreeOptions, LoadOptions, Op, Plan, StoreOptions};
use crate::options::Options;
use crate::tcp::Tcp;
use kbtp_core::initiator::{Done, Operation, Terms};
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::Clock;
use kbtp_wire::Handle;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A session with a target, for many tasks at once.
///
/// An operation is sent by the task that begins it; a task of the client takes what comes and wakes who waits. Every
/// operation takes its buffer and gives it back with the result. **Dropping an operation cancels it**: its buffer stays
/// with the client until nothing touches it any more, then it is dropped; whether the target carries the operation out
/// is not known.
///
/// Futures are independent of the client value and may outlive it, but end as lost once it is dropped. Needs a tokio
/// runtime with I/O and time enabled.
pub struct AsyncClient<D: Dial + Send + 'static = Tcp>
where
    D::Stream: Send,
{
    shared: Arc<Shared<D>>,
    task: JoinHandle<()>,
}

struct Shared<D: Dial> {
    state: Mutex<State<D>>,
    /// Tells the task that what it waits for has changed.
    changed: Notify,
}

struct State<D: Dial> {
    /// Away while it reconnects.
    client: Option<Client<D>>,
    /// Who waits for an operation, by its place.
    waiting: Vec<Option<Waker>>,
    /// Who waits for a free credit.
    queue: VecDeque<Waker>,
    /// Operations that were dropped while the client was away: theirs are the places that nobody will claim.
    dropped: Vec<Op>,
    /// When the task looks again by itself.
    wake_at: Option<Time>,
    /// The client value is dropped.
    closed: bool,
}

impl<D: Dial> Shared<D> {
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // A panic under the lock is a bug of this crate; the state is still what it was between two operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Dial> State<D> {
    /// Moves the connection and wakes who can go on; whether there is more to move.
    fn pump(&mut self) -> bool {
        let Some(client) = &mut self.client else {
            return false;
        };
        let more = client.pump();
        for index in client.table.claimable() {
            let place = usize::try_from(index).ok();
            let waiting = place.and_then(|at| self.waiting.get_mut(at));
            if let Some(waker) = waiting.and_then(Option::take) {
                waker.wake();
                // What ended leaves room for one that waits.
                if let Some(waker) = self.queue.pop_front() {
                    waker.wake();
                }
            }
        }
        if client.free_credits() > 0 || !client.is_connected() {
            self.queue.drain(..).for_each(Waker::wake);
        }
        more
    }

    /// Notes who waits for an operation. Allocates only until there was one at the highest place.
    fn await_op(&mut self, op: Op, waker: Option<&Waker>) {
        let Ok(place) = usize::try_from(op.index()) else {
            return;
        };
        if place >= self.waiting.len() {
            self.waiting.resize(place.saturating_add(1), None);
        }
        if let Some(waiting) = self.waiting.get_mut(place) {
            match (waiting, waker) {
                (Some(known), Some(waker)) => known.clone_from(waker),
                (waiting, waker) => *waiting = waker.cloned(),
            }
        }
    }

    /// Leaves an operation to itself.
    fn disown(&mut self, op: Op) {
        self.await_op(op, None);
        match &mut self.client {
            Some(client) => client.disown(op),
            // It cannot be told now. At most as many as the client has places.
            None => self.dropped.push(op),
        }
        self.wake_next();
    }

    /// The client is back.
    fn welcome(&mut self, mut client: Client<D>) {
        self.dropped.drain(..).for_each(|op| client.disown(op));
        if self.closed {
            client.cut_off();
        }
        self.client = Some(client);
        self.pump();
        self.arm();
    }

    /// Wakes who has waited longest for room: some place may have come free.
    fn wake_next(&mut self) {
        if let Some(waker) = self.queue.pop_front() {
            waker.wake();
        }
    }

    /// Notes who waits for a credit, once.
    fn await_credit(&mut self, waker: &Waker) {
        if !self.queue.iter().any(|known| known.will_wake(waker)) {
            self.queue.push_back(waker.clone());
        }
    }

    /// Has the descriptor report what the connection waits for; when to look again even so.
    fn arm(&mut self) -> Option<Time> {
        // Where that fails the connection is of no use: the operations' deadlines end them.
        let at = self.client.as_mut().and_then(|c| c.arm().unwrap_or(None));
        self.wake_at = at;
        at
    }
}

impl AsyncClient {
    /// Connects over TCP and sets the session up.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(options: Options) -> Result<Self, ClientError> {
        Self::connect_with(Tcp::default(), options).await
    }
}

impl<D: Dial + Send + 'static> AsyncClient<D>
where
    D::Stream: Send,
{
    /// Connects through `dial` and sets the session up.
    ///
    /// # Errors
    /// As [`Client::connect_with`].
    pub async fn connect_with(dial: D, options: Options) -> Result<Self, ClientError> {
        let connect = move || Client::connect_with(dial, options);
        let connected = tokio::task::spawn_blocking(connect).await;
        Self::new(connected.map_err(no_task)??)
    }

    /// Hands a client over to the runtime this is called in.
    ///
    /// # Errors
    /// [`ClientError::Os`] if descriptors are short.
    pub fn new(client: Client<D>) -> Result<Self, ClientError> {
        let os = |source| ClientError::Os {
            what: "watching the connection",
            source,
        };
        let descriptor = client.as_fd().try_clone_to_owned().map_err(os)?;
        #[expect(
            deprecated,
            reason = "an owned descriptor stays open and the same, which is what the unsafe successor asks for"
        )]
        let descriptor = AsyncFd::new(descriptor).map_err(os)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                client: Some(client),
                waiting: Vec::new(),
                queue: VecDeque::new(),
                dropped: Vec::new(),
                wake_at: None,
                closed: false,
            }),
            changed: Notify::new(),
        });
        let task = tokio::spawn(drive(Arc::clone(&shared), descriptor));
        Ok(Self { shared, task })
    }

    /// The terms of the session; `None` while it reconnects.
    #[must_use]
    pub fn terms(&self) -> Option<Terms> {
        self.shared.lock().client.as_ref().map(|c| *c.terms())
    }

    /// Whether the connection stands.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let state = self.shared.lock();
        state.client.as_ref().is_some_and(Client::is_connected)
    }

    /// A buffer of `len` octets in memory of its own.
    ///
    /// # Errors
    /// As [`Client::register`]; [`ClientError::NotConnected`] while it reconnects.
    pub fn register(&self, len: u32) -> Result<Buffer, ClientError> {
        match &self.shared.lock().client {
            Some(client) => client.register(len),
            None => Err(away()),
        }
    }

    /// `count` buffers of `len` octets each, side by side in one region.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_many(&self, count: usize, len: u32) -> Result<Vec<Buffer>, ClientError> {
        match &self.shared.lock().client {
            Some(client) => client.register_many(count, len),
            None => Err(away()),
        }
    }

    /// Loads a block into `buffer`. Waits for a free credit if need be. For the result, see [`Client::load`]; nothing is
    /// tried again.
    pub fn load(&self, handle: Handle, buffer: Buffer, options: &LoadOptions) -> Running<D> {
        self.run(Plan::load(handle, options, false), Some(buffer))
    }

    /// As [`load`](Self::load), with RDMA Reads; see [`Client::load_direct`].
    pub fn load_direct(&self, handle: Handle, buffer: Buffer, options: &LoadOptions) -> Running<D> {
        self.run(Plan::load(handle, options, true), Some(buffer))
    }

    /// Stores to a bound handle; see [`Client::store`].
    pub fn store(&self, handle: Handle, buffer: Buffer, options: &StoreOptions) -> Running<D> {
        let plan = Plan::store(Operation::Store, handle, options);
        self.run(plan, Some(buffer))
    }

    /// Stores to an unbound handle; see [`Client::alloc_store`].
    pub fn alloc_store(
        &self,
        handle: Handle,
        buffer: Buffer,
        options: &StoreOptions,
    ) -> Running<D> {
        let plan = Plan::store(Operation::AllocStore, handle, options);
        self.run(plan, Some(buffer))
    }

    /// As [`alloc_store`](Self::alloc_store), by direct allocation; see [`Client::alloc_direct`].
    pub fn alloc_direct(
        &self,
        handle: Handle,
        buffer: Buffer,
        options: &StoreOptions,
    ) -> Running<D> {
        let plan = Plan::store(Operation::AllocDirect, handle, options);
        self.run(plan, Some(buffer))
    }

    /// Frees a handle; see [`Client::free`]. There is no buffer to give back.
    pub fn free(&self, handle: Handle, options: &FreeOptions) -> Running<D> {
        self.run(Plan::free(handle, options), None)
    }

    /// Runs operations side by side, as many at once as the session allows; results come in the order of `operations`.
    pub fn all(operations: impl IntoIterator<Item = Running<D>>) -> All<D> {
        let running: Vec<_> = operations.into_iter().map(Some).collect();
        All {
            results: running.iter().map(|_| None).collect(),
            running,
        }
    }

    /// Sets the session up anew; see [`Client::reconnect`]. Operations begun meanwhile fail as not connected.
    ///
    /// # Errors
    /// As [`Client::reconnect`]; [`ClientError::NotConnected`] if it is being done already.
    pub async fn reconnect(&self) -> Result<Resumed, ClientError> {
        let mut client = self.shared.lock().client.take().ok_or_else(away)?;
        let done = tokio::task::spawn_blocking(move || {
            let resumed = client.reconnect();
            (client, resumed)
        });
        // Should this future be dropped, the client comes back all the same.
        let shared = Arc::clone(&self.shared);
        let back = tokio::spawn(async move {
            let (client, resumed) = done.await.map_err(no_task)?;
            let mut state = shared.lock();
            state.welcome(client);
            shared.changed.notify_one();
            resumed
        });
        back.await.map_err(no_task)?
    }

    fn run(&self, plan: Plan, buffer: Option<Buffer>) -> Running<D> {
        Running {
            shared: Arc::clone(&self.shared),
            plan,
            stage: Stage::Begin(buffer),
        }
    }
}

impl<D: Dial + Send + 'static> fmt::Debug for AsyncClient<D>
where
    D::Stream: Send,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncClient")
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

impl<D: Dial + Send + 'static> Drop for AsyncClient<D>
where
    D::Stream: Send,
{
    fn drop(&mut self) {
        self.task.abort();
        let mut state = self.shared.lock();
        state.closed = true;
        if let Some(client) = &mut state.client {
            client.cut_off();
        }
        state.pump();
    }
}

/// What an operation gives: how it ended, and its buffer (a free has none).
pub type Output = (Result<Done, ClientError>, Option<Buffer>);

/// An operation in flight. Gives its result and its buffer (a free has none). Dropping it cancels the operation; see
/// [`AsyncClient`].
#[must_use = "an operation does nothing until it is awaited"]
pub struct Running<D: Dial = Tcp> {
    shared: Arc<Shared<D>>,
    plan: Plan,
    stage: Stage,
}

enum Stage {
    Begin(Option<Buffer>),
    Flying(Op),
    Over,
}

impl<D: Dial> Running<D> {
    /// Submits the operation if there is room.
    fn begin(
        &self,
        state: &mut State<D>,
        buffer: Option<Buffer>,
        waker: &Waker,
    ) -> Result<Stage, (ClientError, Option<Buffer>)> {
        let closed = state.closed;
        let Some(client) = state.client.as_mut().filter(|_| !closed) else {
            return Err((away(), buffer));
        };
        match client.submit(&self.plan, buffer) {
            Ok(op) => {
                // What is submitted goes out at once, in this task.
                state.await_op(op, Some(waker));
                if state.pump() {
                    self.shared.changed.notify_one();
                }
                let before = state.wake_at;
                let at = state.arm();
                if at.is_some_and(|at| before.is_none_or(|before| at < before)) {
                    self.shared.changed.notify_one();
                }
                Ok(Stage::Flying(op))
            }
            Err(rejected) if rejected.error.is_busy() => {
                state.await_credit(waker);
                Ok(Stage::Begin(rejected.buffer))
            }
            Err(rejected) => Err((rejected.error, rejected.buffer)),
        }
    }
}

impl<D: Dial> Future for Running<D> {
    type Output = Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let shared = Arc::clone(&this.shared);
        let mut state = shared.lock();
        if let Stage::Begin(buffer) = &mut this.stage {
            let buffer = buffer.take();
            match this.begin(&mut state, buffer, context.waker()) {
                Ok(next) => this.stage = next,
                Err((error, buffer)) => {
                    this.stage = Stage::Over;
                    return Poll::Ready((Err(error), buffer));
                }
            }
        }
        let Stage::Flying(op) = this.stage else {
            return Poll::Pending;
        };
        let claimed = match &mut state.client {
            Some(client) => client.try_claim(op),
            None => Ok(None),
        };
        match claimed {
            Ok(Some(completed)) => {
                state.await_op(op, None);
                state.wake_next();
                this.stage = Stage::Over;
                Poll::Ready((completed.result, completed.buffer))
            }
            Ok(None) => {
                state.await_op(op, Some(context.waker()));
                Poll::Pending
            }
            Err(error) => {
                this.stage = Stage::Over;
                Poll::Ready((Err(error), None))
            }
        }
    }
}

impl<D: Dial> fmt::Debug for Running<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl<D: Dial> Drop for Running<D> {
    fn drop(&mut self) {
        match self.stage {
            Stage::Flying(op) => {
                self.shared.lock().disown(op);
            }
            // It may have been woken in the place of another.
            Stage::Begin(_) => self.shared.lock().wake_next(),
            Stage::Over => {}
        }
    }
}

/// Operations side by side: see [`AsyncClient::all`].
#[derive(Debug)]
#[must_use = "operations do nothing until they are awaited"]
pub struct All<D: Dial = Tcp> {
    running: Vec<Option<Running<D>>>,
    results: Vec<Option<Output>>,
}

impl<D: Dial> Future for All<D> {
    type Output = Vec<Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut pending = false;
        for (running, result) in this.running.iter_mut().zip(&mut this.results) {
            let Some(operation) = running else {
                continue;
            };
            match Pin::new(operation).poll(context) {
                Poll::Ready(output) => {
                    *result = Some(output);
                    *running = None;
                }
                Poll::Pending => pending = true,
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(this.results.drain(..).flatten().collect())
    }
}

/// Takes what comes as long as the client lives.
async fn drive<D: Dial>(shared: Arc<Shared<D>>, descriptor: AsyncFd<OwnedFd>) {
    let clock = Clock::new();
    loop {
        let (more, until) = {
            let mut state = shared.lock();
            (state.pump(), state.arm())
        };
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        let pause = until.map_or(Duration::MAX, |at| {
            Duration::from_nanos(at.since_ns(clock.now()))
        });
        tokio::select! {
            ready = descriptor.readable() => match ready {
                // Cleared before the connection is moved, so that what comes meanwhile is seen again.
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            },
            () = tokio::time::sleep(pause) => {}
            () = shared.changed.notified() => {}
        }
    }
}

/// The client is away, reconnecting, or gone.
fn away() -> ClientError {
    ClientError::NotConnected {
        cause: Arc::new(Ended::Closed),
    }
}

fn no_task(error: tokio::task::JoinError) -> ClientError {
    ClientError::Os {
        what: "running on the runtime",
        source: std::io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BLOCK, FakeDial, World, options, pattern, target};
    use kbtp_wire::Status;

    type SharedWorld = Arc<Mutex<World>>;

    async fn client(blocks: u32, credits: u16) -> (SharedWorld, AsyncClient<FakeDial>) {
        let (world, dial) = target(blocks);
        let options = options().credits(credits);
        let client = AsyncClient::connect_with(dial, options).await.unwrap();
        (world, client)
    }

    fn filled(client: &AsyncClient<FakeDial>, seed: u8) -> Buffer {
        let mut buffer = client.register(BLOCK).unwrap();
        buffer.fill(&pattern(seed, 1000)).unwrap();
        buffer
    }

    fn base(client: &AsyncClient<FakeDial>) -> u64 {
        client.terms().unwrap().grant.handle_base.0
    }

    #[tokio::test]
    async fn a_block_goes_round() {
        let (_, client) = client(4, 0).await;
        let handle = Handle(base(&client));
        let store = StoreOptions::default();
        let (stored, _) = client.alloc_store(handle, filled(&client, 1), &store).await;
        let options = LoadOptions {
            generation: Some(stored.unwrap().generation),
            ..LoadOptions::default()
        };
        let sink = client.register(BLOCK).unwrap();
        let (loaded, buffer) = client.load(handle, sink, &options).await;
        assert_eq!(loaded.unwrap().len.0, 1000);
        assert_eq!(buffer.unwrap().to_vec().unwrap(), pattern(1, 1000));
        let (freed, buffer) = client.free(handle, &FreeOptions::default()).await;
        freed.unwrap();
        assert!(buffer.is_none());
        let sink = client.register(BLOCK).unwrap();
        let (gone, _) = client.load(handle, sink, &options).await;
        assert_eq!(gone.unwrap_err().status(), Some(Status::NotValid));
    }

    #[tokio::test]
    async fn many_share_few_credits() {
        let (world, client) = client(64, 2).await;
        let base = base(&client);
        let store = StoreOptions::default();
        let stores = (0..64_u8)
            .map(|n| client.alloc_store(Handle(base + u64::from(n)), filled(&client, n), &store));
        let results = AsyncClient::all(stores).await;
        assert!(results.iter().all(|(result, _)| result.is_ok()));
        assert_eq!(world.lock().unwrap().bound(), 64);
        let load = LoadOptions::default();
        let loads =
            (0..64).map(|n| client.load(Handle(base + n), client.register(BLOCK).unwrap(), &load));
        for ((result, buffer), n) in AsyncClient::all(loads).await.into_iter().zip(0..) {
            result.unwrap();
            assert_eq!(buffer.unwrap().to_vec().unwrap(), pattern(n, 1000));
        }
    }

    #[tokio::test]
    async fn a_dropped_operation_keeps_its_buffer_until_it_is_over() {
        let (world, client) = client(4, 0).await;
        let handle = Handle(base(&client));
        world.lock().unwrap().script.silent = true;
        let buffer = filled(&client, 7);
        let region = buffer.region().clone();
        let store = StoreOptions::default();
        let operation = client.alloc_store(handle, buffer, &store);
        let hurry = Duration::from_millis(20);
        tokio::time::timeout(hurry, operation).await.unwrap_err();
        assert_eq!(client.shared.lock().client.as_ref().unwrap().in_flight(), 1);
        // The target carries it out after all, with the data that was there.
        world.lock().unwrap().script.silent = false;
        client.shared.lock().pump();
        assert_eq!(world.lock().unwrap().bound(), 1);
        assert!(client.is_connected());
        region.fill(0, u64::from(BLOCK), 0).unwrap();
        let sink = client.register(BLOCK).unwrap();
        let (loaded, buffer) = client.load(handle, sink, &LoadOptions::default()).await;
        loaded.unwrap();
        assert_eq!(buffer.unwrap().to_vec().unwrap(), pattern(7, 1000));
        assert_eq!(client.shared.lock().client.as_ref().unwrap().in_flight(), 0);
    }

    #[tokio::test]
    async fn an_operation_dropped_while_the_client_is_away_leaves_its_place() {
        let (world, client) = client(4, 0).await;
        let handle = Handle(base(&client));
        world.lock().unwrap().script.silent = true;
        let places = |client: &AsyncClient<FakeDial>| {
            client
                .shared
                .lock()
                .client
                .as_ref()
                .unwrap()
                .table
                .free
                .len()
        };
        let before = places(&client);
        let store = StoreOptions::default();
        let mut operation = client.alloc_store(handle, filled(&client, 7), &store);
        let waker = Waker::noop();
        let mut context = Context::from_waker(waker);
        assert!(Pin::new(&mut operation).poll(&mut context).is_pending());
        assert_eq!(places(&client), before - 1);
        // As while it reconnects.
        let away = client.shared.lock().client.take();
        drop(operation);
        client.shared.lock().welcome(away.unwrap());
        client.reconnect().await.unwrap();
        assert_eq!(places(&client), before);
    }

    #[tokio::test]
    async fn a_client_dropped_while_it_reconnects_stays_closed() {
        let (_, client) = client(4, 0).await;
        let shared = Arc::clone(&client.shared);
        let away = shared.lock().client.take().unwrap();
        drop(client);
        shared.lock().welcome(away);
        assert!(!shared.lock().client.as_ref().unwrap().is_connected());
    }

    #[tokio::test]
    async fn who_waits_for_a_place_is_served_when_another_is_claimed() {
        let (_, client) = client(4, 1).await;
        // No timer of an operation wakes anybody before the test gives up.
        let free = FreeOptions {
            timeout: Some(Duration::from_hours(1)),
            ..FreeOptions::default()
        };
        let handle = Handle(base(&client));
        let waker = Waker::noop();
        let mut context = Context::from_waker(waker);
        let places = client
            .shared
            .lock()
            .client
            .as_ref()
            .unwrap()
            .table
            .free
            .len();
        // All places are taken by operations that ended and that nobody has claimed.
        let mut ended = Vec::new();
        for _ in 0..places {
            let mut state = client.shared.lock();
            let submitted = state.client.as_mut().unwrap().submit_free(handle, &free);
            state.pump();
            ended.push(submitted.unwrap());
        }
        let waiting = tokio::spawn(client.free(handle, &free));
        while client.shared.lock().queue.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut claimed = Running {
            shared: Arc::clone(&client.shared),
            plan: Plan::free(handle, &free),
            stage: Stage::Flying(ended[0]),
        };
        assert!(Pin::new(&mut claimed).poll(&mut context).is_ready());
        let patience = Duration::from_secs(20);
        let (result, _) = tokio::time::timeout(patience, waiting)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(result.unwrap_err().status(), Some(Status::NotValid));
    }

    #[tokio::test]
    async fn who_waits_for_a_credit_is_served_when_another_leaves() {
        let (world, client) = client(4, 1).await;
        let base = base(&client);
        world.lock().unwrap().script.silent = true;
        let store = StoreOptions::default();
        let hurried = StoreOptions {
            timeout: Some(Duration::from_millis(20)),
            ..store
        };
        let first = client.alloc_store(Handle(base), filled(&client, 1), &hurried);
        let second = client.alloc_store(Handle(base + 1), filled(&client, 2), &store);
        let third = client.alloc_store(Handle(base + 2), filled(&client, 3), &store);
        let waiting = tokio::spawn(AsyncClient::all([second, third]));
        let (result, _) = first.await;
        assert!(matches!(result, Err(ClientError::Deadline { .. })));
        // The stream ends under the target's read of a buffer given back: all are told.
        world.lock().unwrap().script.silent = false;
        client.shared.lock().pump();
        for (result, buffer) in waiting.await.unwrap() {
            assert!(result.unwrap_err().is_disconnected());
            assert!(buffer.is_some());
        }
        assert!(client.reconnect().await.unwrap().bindings_kept());
        let again = client.alloc_store(Handle(base), filled(&client, 1), &store);
        again.await.0.unwrap();
    }

    #[tokio::test]
    async fn operations_end_with_the_client() {
        let (world, client) = client(4, 0).await;
        let handle = Handle(base(&client));
        world.lock().unwrap().script.silent = true;
        let free = client.free(handle, &FreeOptions::default());
        let running = tokio::spawn(free);
        let second = client.free(handle, &FreeOptions::default());
        tokio::task::yield_now().await;
        drop(client);
        assert!(running.await.unwrap().0.unwrap_err().is_disconnected());
        assert!(second.await.0.unwrap_err().is_disconnected());
    }
}
