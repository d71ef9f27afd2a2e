//! After the session is set up and warm, operations allocate nothing in the thread that calls.

#[cfg(test)]
mod tests {
    use kbtp_initiator::{
        Client, FreeOptions, Handle, LoadItem, LoadOptions, Options, Spin, StoreItem, StoreOptions,
    };
    use kbtp_target::{SpinPolicy, Target, TargetConfig};
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    const BLOCK: u32 = 16 << 10;
    const DEPTH: u32 = 8;

    thread_local! {
        /// Allocations of this thread; the target's threads have their own.
        static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    }

    struct Counting;

    fn count() {
        // A thread that is ending has no counter any more.
        let _gone = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    }

    // SAFETY: every call goes to the system's allocator as it is; counting touches a thread-local cell and allocates
    // nothing.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count();
            // SAFETY: the caller's promises are the system allocator's.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the caller's promises are the system allocator's.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
            count();
            // SAFETY: the caller's promises are the system allocator's.
            unsafe { System.realloc(pointer, layout, new_size) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    fn allocations(what: impl FnOnce()) -> u64 {
        let before = ALLOCATIONS.get();
        what();
        ALLOCATIONS.get() - before
    }

    #[test]
    fn the_counter_counts() {
        assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
        assert_eq!(allocations(|| ()), 0);
    }

    #[test]
    fn operations_allocate_nothing_once_warm() {
        let target = Target::start(TargetConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: None,
            workers: Some(1),
            block_size: BLOCK.into(),
            blocks: 64,
            credits: 16,
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        })
        .unwrap();
        let options = Options::new(target.address().unwrap().to_string())
            .spin(Spin::Off)
            .direct_load(true)
            .direct_alloc(true);
        let mut client = Client::connect(options).unwrap();
        let (base, _) = client.handles();
        let mut sources = client.register_many(DEPTH as usize, BLOCK).unwrap();
        let mut sinks = client.register_many(DEPTH as usize, BLOCK).unwrap();
        let handles: Vec<_> = (0..u64::from(DEPTH)).map(|n| Handle(base.0 + n)).collect();
        let mut spare = Some(client.register(BLOCK).unwrap());
        // Inline and by RDMA Read.
        for len in [100, BLOCK] {
            for buffer in &mut sources {
                buffer.set_len(len).unwrap();
            }
            let mut stores: Vec<_> = handles
                .iter()
                .zip(&mut sources)
                .map(|(handle, buffer)| StoreItem::new(*handle, buffer))
                .collect();
            let mut loads: Vec<_> = handles
                .iter()
                .zip(&mut sinks)
                .map(|(handle, buffer)| LoadItem::new(*handle, buffer))
                .collect();
            let mut round = |warm: bool| {
                let count = allocations(|| {
                    assert_eq!(client.alloc_store_many(&mut stores).unwrap(), 8);
                    assert_eq!(client.load_many(&mut loads).unwrap(), 8);
                    assert_eq!(client.load_direct_many(&mut loads).unwrap(), 8);
                    for handle in &handles {
                        client.free(*handle, &FreeOptions::default()).unwrap();
                    }
                    assert_eq!(client.alloc_direct_many(&mut stores).unwrap(), 8);
                    let buffer = spare.take().unwrap();
                    let op = client
                        .submit_load(base, buffer, &LoadOptions::default())
                        .unwrap();
                    let completed = client.wait(op).unwrap();
                    completed.result.unwrap();
                    spare = completed.buffer;
                    for handle in &handles {
                        client.free(*handle, &FreeOptions::default()).unwrap();
                    }
                });
                assert!(!warm || count == 0, "{count} allocations with {len} octets");
            };
            for _ in 0..3 {
                round(false);
            }
            for _ in 0..20 {
                round(true);
            }
        }
        let mut buffer = client.register(BLOCK).unwrap();
        let late = StoreOptions::default();
        client.alloc_store(base, &mut buffer, &late).unwrap();
    }
}
