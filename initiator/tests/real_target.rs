//! The client against the real target in this process, over TCP on loopback.

#[cfg(test)]
mod tests {
    use kbtp_initiator::{
        BlockCache, Buffer, Client, ClientError, FreeItem, FreeOptions, GetItem, Handle,
        InitiatorId, LoadItem, LoadOptions, Options, PutItem, Reconnect, Spin, Status, StoreItem,
        StoreOptions,
    };
    use kbtp_target::{DirectConfig, SpinPolicy, Target, TargetConfig, TenantConfig, TenantKey};
    use std::net::SocketAddr;
    use std::time::Duration;

    const BLOCK: u32 = 64 << 10;
    const BLOCKS: u32 = 64;

    fn config() -> TargetConfig {
        TargetConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: None,
            workers: Some(1),
            block_size: BLOCK.into(),
            blocks: BLOCKS.into(),
            credits: 16,
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        }
    }

    fn start(config: TargetConfig) -> (Target, SocketAddr) {
        let target = Target::start(config).unwrap();
        let address = target.address().unwrap();
        (target, address)
    }

    fn options(address: SocketAddr) -> Options {
        Options::new(address.to_string()).spin(Spin::Off).quota(32)
    }

    fn pattern(seed: u64, len: u32) -> Vec<u8> {
        (0..u64::from(len))
            .map(|at| (at.wrapping_mul(0x9e37_79b9).wrapping_add(seed) >> 7).to_le_bytes()[0])
            .collect()
    }

    fn filled(client: &Client, seed: u64, len: u32) -> Buffer {
        let mut buffer = client.register(BLOCK).unwrap();
        buffer.fill(&pattern(seed, len)).unwrap();
        buffer
    }

    fn load() -> LoadOptions {
        LoadOptions::default()
    }

    fn store() -> StoreOptions {
        StoreOptions::default()
    }

    /// Lengths around what matters: nothing, inline and just not, a segment, a block.
    const LENGTHS: [u32; 8] = [0, 1, 4095, 4096, 4097, 9000, BLOCK - 1, BLOCK];

    #[test]
    fn blocks_of_every_length_go_round() {
        let (_target, address) = start(config());
        for (invalidate, crc) in [(false, true), (true, true), (false, false)] {
            let options = options(address).invalidate(invalidate).crc(crc);
            let mut client = Client::connect(options).unwrap();
            let (base, _) = client.handles();
            let mut sink = client.register(BLOCK).unwrap();
            for (len, n) in LENGTHS.into_iter().zip(0..) {
                let handle = Handle(base.0 + n);
                let mut buffer = filled(&client, n, len);
                let stored = client.alloc_store(handle, &mut buffer, &store()).unwrap();
                let expected = LoadOptions {
                    generation: Some(stored.generation),
                    ..load()
                };
                let loaded = client.load(handle, &mut sink, &expected).unwrap();
                assert_eq!(loaded.len.0, len);
                assert_eq!(sink.to_vec().unwrap(), pattern(n, len));
            }
            client.close().unwrap();
        }
    }

    #[test]
    fn direct_modes_go_round_the_ring_and_on() {
        let (_target, address) = start(config());
        let options = options(address)
            .direct_load(true)
            .direct_alloc(true)
            .quota(8);
        let mut client = Client::connect(options).unwrap();
        assert!(client.terms().direct_load && client.terms().direct_alloc);
        let (base, _) = client.handles();
        let mut sink = client.register(BLOCK).unwrap();
        for round in 0..5 {
            let mut buffers: Vec<_> = LENGTHS
                .into_iter()
                .zip(0..)
                .map(|(len, n)| filled(&client, round * 100 + n, len))
                .collect();
            let mut items: Vec<_> = buffers
                .iter_mut()
                .zip(base.0..)
                .map(|(buffer, handle)| StoreItem::new(Handle(handle), buffer))
                .collect();
            assert_eq!(
                client.alloc_direct_many(&mut items).unwrap(),
                8,
                "{items:?}"
            );
            for (len, n) in LENGTHS.into_iter().zip(0..) {
                let handle = Handle(base.0 + n);
                let done = client.load_direct(handle, &mut sink, &load()).unwrap();
                assert_eq!(done.len.0, len);
                assert_eq!(sink.to_vec().unwrap(), pattern(round * 100 + n, len));
            }
            // Half by LOAD too: both ways lead to the same block.
            client.load(Handle(base.0 + 7), &mut sink, &load()).unwrap();
            assert_eq!(sink.to_vec().unwrap(), pattern(round * 100 + 7, BLOCK));
            let mut frees: Vec<_> = (0..8).map(|n| FreeItem::new(Handle(base.0 + n))).collect();
            assert_eq!(client.free_many(&mut frees).unwrap(), 8);
            let gone = client.load_direct(base, &mut sink, &load()).unwrap_err();
            assert_eq!(gone.status(), Some(Status::NotValid));
        }
        assert_eq!(client.usage().at_most(), 0);
    }

    #[test]
    fn batches_are_longer_than_the_credits() {
        let (_target, address) = start(config());
        let mut client = Client::connect(options(address).credits(4)).unwrap();
        let (base, _) = client.handles();
        let mut buffers: Vec<_> = (0..32).map(|n| filled(&client, n, 20_000)).collect();
        let mut items: Vec<_> = buffers
            .iter_mut()
            .zip(base.0..)
            .map(|(buffer, handle)| StoreItem::new(Handle(handle), buffer))
            .collect();
        assert_eq!(client.alloc_store_many(&mut items).unwrap(), 32);
        let mut sinks = client.register_many(64, BLOCK).unwrap();
        let mut items: Vec<_> = sinks
            .iter_mut()
            .zip(0..)
            .map(|(buffer, n)| LoadItem::new(Handle(base.0 + n % 32), buffer))
            .collect();
        assert_eq!(client.load_many(&mut items).unwrap(), 64);
        for (sink, n) in sinks.iter().zip(0..) {
            assert_eq!(sink.to_vec().unwrap(), pattern(n % 32, 20_000));
        }
    }

    #[test]
    fn a_load_cancelled_at_any_time_leaves_its_buffer_alone() {
        let (_target, address) = start(config());
        let mut client = Client::connect(options(address).direct_load(true)).unwrap();
        let (base, _) = client.handles();
        let mut data = filled(&client, 1, BLOCK);
        client.alloc_store(base, &mut data, &store()).unwrap();
        let mut other = client.register(BLOCK).unwrap();
        let mut cancelled = client.register(BLOCK).unwrap();
        let mark = vec![0xaa; BLOCK as usize];
        let mut cut_off = 0;
        for round in 0..60 {
            let op = if round % 2 == 0 {
                client.submit_load(base, cancelled, &load()).unwrap()
            } else {
                client.submit_load_direct(base, cancelled, &load()).unwrap()
            };
            // Not sent at all, or sent and some looks later.
            for _ in 0..round % 7 {
                client.poll();
            }
            client.cancel(op).unwrap();
            let ended = client.wait(op).unwrap();
            cut_off += i32::from(matches!(ended.result, Err(ClientError::Cancelled { .. })));
            cancelled = ended.buffer.unwrap();
            cancelled.fill(&mark).unwrap();
            // What the target sent for it has come when the answer to a later load has.
            client.load(base, &mut other, &load()).unwrap();
            assert_eq!(other.to_vec().unwrap(), pattern(1, BLOCK));
            assert_eq!(cancelled.to_vec().unwrap(), mark);
        }
        assert!(cut_off > 0, "no load was cut off");
        assert!(client.is_connected());
        client.load(base, &mut cancelled, &load()).unwrap();
        assert_eq!(cancelled.to_vec().unwrap(), pattern(1, BLOCK));
    }

    #[test]
    fn direct_allocations_given_up_lose_no_block() {
        let (_target, address) = start(config());
        let wanted = options(address).direct_alloc(true).quota(4);
        let mut client = Client::connect(wanted).unwrap();
        let (base, _) = client.handles();
        for round in 0..40 {
            let buffer = filled(&client, round, 5000);
            let op = client.submit_alloc_direct(base, buffer, &store()).unwrap();
            for _ in 0..round % 9 {
                client.poll();
            }
            client.cancel(op).unwrap();
            let ended = client.wait(op).unwrap();
            // Whatever became of it, the handle is free afterwards.
            let freed = client.free(base, &FreeOptions::default());
            let gone = freed.as_ref().map_err(ClientError::status);
            assert!(
                gone.is_ok() || gone == Err(Some(Status::NotValid)),
                "{freed:?} after {:?}",
                ended.result
            );
            // What was given up may still be on its way to be bound and freed: the next store comes after it.
            while client.in_flight() > 0 {
                client.poll();
            }
            let _bound_late = client.free(base, &FreeOptions::default());
            let mut all: Vec<_> = (0..4).map(|n| filled(&client, n, 100)).collect();
            let mut items: Vec<_> = all
                .iter_mut()
                .zip(base.0..)
                .map(|(buffer, handle)| StoreItem::new(Handle(handle), buffer))
                .collect();
            assert_eq!(
                client.alloc_direct_many(&mut items).unwrap(),
                4,
                "{items:?}"
            );
            let mut last: Vec<_> = (0..4).map(|n| FreeItem::new(Handle(base.0 + n))).collect();
            assert_eq!(client.free_many(&mut last).unwrap(), 4);
        }
    }

    #[test]
    fn only_the_tenant_s_key_opens() {
        let (_target, address) = start(TargetConfig {
            tenants: vec![TenantConfig {
                name: "blue".into(),
                key: Some(TenantKey::new(b"a key of blue, long enough".to_vec())),
                key_file: None,
                shared: false,
            }],
            ..config()
        });
        let mut client =
            Client::connect(options(address).tenant("blue", b"a key of blue, long enough"))
                .unwrap();
        let (base, _) = client.handles();
        let mut buffer = filled(&client, 1, 100);
        client.alloc_store(base, &mut buffer, &store()).unwrap();
        for wrong in [
            options(address).tenant("blue", b"another key"),
            options(address).tenant("red", b"a key of blue, long enough"),
        ] {
            let refused = Client::connect(wrong).unwrap_err();
            assert_eq!(refused.status(), Some(Status::NotAuthorized), "{refused}");
        }
        let missing = Client::connect(options(address)).unwrap_err();
        assert!(missing.to_string().contains("no key is set"), "{missing}");
    }

    #[test]
    fn a_session_that_is_replaced_resumes_with_its_blocks() {
        let (_target, address) = start(config());
        let id = InitiatorId([5; 16]);
        let mut first = Client::connect(options(address).initiator_id(id)).unwrap();
        let (base, _) = first.handles();
        let mut buffer = filled(&first, 3, 10_000);
        first.alloc_store(base, &mut buffer, &store()).unwrap();
        let second = Client::connect(options(address).initiator_id(id)).unwrap();
        assert_eq!(second.handles(), first.handles());
        let lost = first.load(base, &mut buffer, &load()).unwrap_err();
        assert!(lost.is_disconnected(), "{lost}");
        drop(second);
        let resumed = first.reconnect().unwrap();
        assert!(resumed.bindings_kept());
        first.load(base, &mut buffer, &load()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), pattern(3, 10_000));
    }

    #[test]
    fn a_target_that_starts_anew_is_found_and_told() {
        let (target, address) = start(config());
        let automatic = options(address).reconnect(Reconnect::Automatic {
            attempts: 100,
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(20),
        });
        let mut cache = BlockCache::new(Client::connect(automatic).unwrap());
        let mut buffer = filled(cache.client(), 3, 10_000);
        cache.put(b"key", &mut buffer).unwrap();
        assert!(cache.get(b"key", &mut buffer).unwrap().is_some());
        target.shutdown_handle().kill();
        target.join().unwrap();
        let (_target, _) = start(TargetConfig {
            listen: vec![address],
            ..config()
        });
        // The first operation finds the connection gone, or a new target that has nothing.
        let lost = cache.get(b"key", &mut buffer);
        assert!(!matches!(lost, Ok(Some(_))));
        assert_eq!(cache.get(b"key", &mut buffer).unwrap(), None);
        assert_eq!(cache.stats().keys, 0);
        buffer.fill(b"new").unwrap();
        cache.put(b"key", &mut buffer).unwrap();
        assert!(cache.get(b"key", &mut buffer).unwrap().is_some());
        assert_eq!(buffer.to_vec().unwrap(), b"new");
    }

    #[test]
    fn a_cache_turns_its_blocks_over() {
        let (_target, address) = start(config());
        for direct in [false, true] {
            let options = options(address).direct_load(direct).quota(16);
            let mut cache = BlockCache::new(Client::connect(options).unwrap()).direct_loads(direct);
            assert_eq!(cache.capacity(), 16);
            let keys: Vec<_> = (0_u32..100).map(|n| format!("prefix/{n}")).collect();
            let mut buffers: Vec<_> = (0..100).map(|n| filled(cache.client(), n, 7000)).collect();
            let mut items: Vec<_> = keys
                .iter()
                .zip(&mut buffers)
                .map(|(key, buffer)| PutItem::new(key.as_bytes(), buffer))
                .collect();
            assert_eq!(cache.put_many(&mut items).unwrap(), 100);
            assert_eq!(cache.prefix_len(&keys[84..]), 16);
            let mut items: Vec<_> = keys
                .iter()
                .zip(&mut buffers)
                .map(|(key, buffer)| GetItem::new(key.as_bytes(), buffer))
                .collect();
            assert_eq!(cache.get_many(&mut items).unwrap(), 16);
            let stats = cache.stats();
            assert_eq!((stats.evictions, stats.hits, stats.misses), (84, 16, 84));
            for (buffer, n) in buffers.iter().zip(0..) {
                assert_eq!(buffer.to_vec().unwrap(), pattern(n, 7000));
            }
        }
    }

    #[test]
    fn what_is_not_granted_is_told() {
        let (_target, address) = start(TargetConfig {
            direct: DirectConfig {
                load: false,
                alloc: false,
            },
            ..config()
        });
        let wanted = options(address).direct_load(true).direct_alloc(true);
        let mut client = Client::connect(wanted).unwrap();
        assert!(!client.terms().direct_load && !client.terms().direct_alloc);
        let (base, _) = client.handles();
        let mut buffer = filled(&client, 1, 10);
        assert!(client.load_direct(base, &mut buffer, &load()).is_err());
        assert!(client.alloc_direct(base, &mut buffer, &store()).is_err());
        client.alloc_store(base, &mut buffer, &store()).unwrap();
    }

    /// Else the target of a drain waits for sessions whose initiators wait for another target.
    #[test]
    fn a_client_that_tries_to_come_back_has_let_go_of_its_session() {
        let mut config = config();
        // Longer than anybody waits here: the target does not close the session by itself.
        config.limits.drain_linger = Duration::from_mins(5);
        config.limits.drain_timeout = Duration::from_mins(5);
        let (target, address) = start(config);
        let mut client = Client::connect(options(address)).unwrap();
        assert_eq!(target.status().sessions.len(), 1);
        target.shutdown_handle().drain();
        let refused = loop {
            match client.reconnect() {
                Err(error) => break error,
                // The worker has not heard of the drain yet.
                Ok(_) => std::thread::yield_now(),
            }
        };
        assert_eq!(refused.status(), Some(Status::ShuttingDown), "{refused}");
        let clock = kbtp_iwarp_tcp::Clock::new();
        let patience = clock.now().after_ms(20_000);
        while !target.status().sessions.is_empty() {
            assert!(clock.now() < patience, "its connection is open still");
            std::thread::yield_now();
        }
        assert!(!client.is_connected());
        target.shutdown_handle().kill();
        target.join().unwrap();
    }

    #[test]
    fn nobody_there_is_told() {
        let (target, address) = start(config());
        target.shutdown_handle().kill();
        target.join().unwrap();
        let error = Client::connect(options(address)).unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
        let error = Client::connect(Options::new("no.such.host.invalid:1")).unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    }

    #[cfg(feature = "tokio")]
    #[tokio::test]
    async fn many_tasks_share_a_session() {
        use kbtp_initiator::AsyncClient;
        let (_target, address) = start(config());
        let client = AsyncClient::connect(options(address).credits(4))
            .await
            .unwrap();
        let base = client.terms().unwrap().grant.handle_base.0;
        let stores = (0..32).map(|n| {
            let mut buffer = client.register(BLOCK).unwrap();
            buffer.fill(&pattern(n, 30_000)).unwrap();
            client.alloc_store(Handle(base + n), buffer, &store())
        });
        for (result, _) in AsyncClient::all(stores).await {
            result.unwrap();
        }
        let loads = (0..32).map(|n| {
            let buffer = client.register(BLOCK).unwrap();
            tokio::spawn(client.load(Handle(base + n), buffer, &load()))
        });
        let loads: Vec<_> = loads.collect();
        for (load, n) in loads.into_iter().zip(0..) {
            let (result, buffer) = load.await.unwrap();
            result.unwrap();
            assert_eq!(buffer.unwrap().to_vec().unwrap(), pattern(n, 30_000));
        }
        // Dropped in flight, again and again: the session goes on.
        for _ in 0..50 {
            let buffer = client.register(BLOCK).unwrap();
            let running = client.load(Handle(base), buffer, &load());
            let _in_time = tokio::time::timeout(Duration::from_micros(50), running).await;
        }
        let buffer = client.register(BLOCK).unwrap();
        let (result, _) = client.load(Handle(base), buffer, &load()).await;
        result.unwrap();
    }
}
