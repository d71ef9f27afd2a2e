//! A target in this process, the real initiator, TCP on loopback.

#[cfg(test)]
mod tests {
    use kbtp_initiator::{
        Buffer, Client, ClientError, FreeOptions, InitiatorId, LoadOptions, Options, Status,
        StoreOptions,
    };
    use kbtp_target::{Lease, SpinPolicy, Target, TargetConfig, TenantConfig, TenantKey};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    const BLOCK: u32 = 4096;
    /// An initiator, named by one octet.
    const fn id(n: u8) -> InitiatorId {
        InitiatorId([n; 16])
    }

    fn config() -> TargetConfig {
        let mut config = TargetConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: Some("127.0.0.1:0".parse().unwrap()),
            workers: Some(2),
            block_size: BLOCK.into(),
            blocks: 64,
            default_quota: Some(8),
            credits: 8,
            max_inline: 256,
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        };
        config.limits.drain_linger = Duration::from_millis(50);
        config
    }

    fn start(config: TargetConfig) -> Target {
        Target::start(config).expect("a target starts")
    }

    fn options(target: &Target, n: u8) -> Options {
        let address = target.address().unwrap().to_string();
        Options::new(address)
            .initiator_id(id(n))
            .spin(kbtp_initiator::Spin::Off)
    }

    fn client(target: &Target, n: u8) -> Client {
        Client::connect(options(target, n)).expect("a session")
    }

    fn filled(client: &Client, data: &[u8]) -> Buffer {
        let mut buffer = client.register(u32::try_from(data.len()).unwrap()).unwrap();
        buffer.fill(data).unwrap();
        buffer
    }

    fn pattern(seed: u8, len: usize) -> Vec<u8> {
        (0..len)
            .map(|i| {
                u8::try_from(i % 251)
                    .unwrap()
                    .wrapping_mul(7)
                    .wrapping_add(seed)
            })
            .collect()
    }

    /// The handle `n` of a client's range.
    fn handle(client: &Client, n: u64) -> kbtp_initiator::Handle {
        kbtp_initiator::Handle(client.handles().0.0 + n)
    }

    fn put(client: &mut Client, n: u64, data: &[u8]) {
        let mut buffer = filled(client, data);
        let handle = handle(client, n);
        client
            .alloc_store(handle, &mut buffer, &StoreOptions::default())
            .expect("a block is stored");
    }

    fn get(client: &mut Client, n: u64) -> Result<Vec<u8>, ClientError> {
        let mut buffer = client.register(BLOCK)?;
        let handle = handle(client, n);
        client.load(handle, &mut buffer, &LoadOptions::default())?;
        buffer.to_vec()
    }

    /// The Status that connecting was refused with.
    fn refusal(result: Result<Client, ClientError>) -> Status {
        let error = result.map(|_| ()).expect_err("refused");
        error.status().unwrap_or_else(|| panic!("{error:?}"))
    }

    fn status_of<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Option<Status> {
        result.expect_err("the target refuses").status()
    }

    /// Waits until `holds`; each look costs the target's work, so there is no need to pause.
    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let clock = kbtp_iwarp_tcp::Clock::new();
        let deadline = clock.now().after_ms(20_000);
        while !holds() {
            assert!(clock.now() < deadline, "{what}: not in time");
            std::thread::yield_now();
        }
    }

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        reply
    }

    fn metric(text: &str, series: &str) -> Option<u64> {
        text.lines()
            .find_map(|l| l.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    #[test]
    fn blocks_go_in_and_come_out() {
        let target = start(config());
        let mut a = client(&target, 1);
        // Inline, by RDMA Read, a whole block, and nothing at all.
        for (n, len) in [(0, 100), (1, 3000), (2, 4096), (3, 0)] {
            let data = pattern(u8::try_from(n).unwrap(), len);
            if len > 0 {
                put(&mut a, n, &data);
                assert_eq!(&get(&mut a, n).unwrap()[..len], data, "{len} octets");
            }
        }
        let first = handle(&a, 0);
        a.free(first, &FreeOptions::default()).unwrap();
        assert_eq!(status_of(get(&mut a, 0)), Some(Status::NotValid));
        assert_eq!(
            status_of(a.free(first, &FreeOptions::default())),
            Some(Status::NotValid)
        );
        put(&mut a, 0, b"again");
        assert_eq!(&get(&mut a, 0).unwrap()[..5], b"again");
        a.close().unwrap();
    }

    #[test]
    fn a_store_changes_an_unsealed_block() {
        let target = start(config());
        let mut a = client(&target, 1);
        let open = StoreOptions {
            seal: false,
            ..StoreOptions::default()
        };
        let first = handle(&a, 0);
        let mut buffer = filled(&a, b"one");
        a.alloc_store(first, &mut buffer, &open).unwrap();
        assert_eq!(status_of(get(&mut a, 0)), Some(Status::NotSealed));
        let mut buffer = filled(&a, b"two!");
        a.store(first, &mut buffer, &StoreOptions::default())
            .unwrap();
        assert_eq!(&get(&mut a, 0).unwrap()[..4], b"two!");
        assert_eq!(
            status_of(a.store(first, &mut buffer, &StoreOptions::default())),
            Some(Status::Sealed)
        );
    }

    #[test]
    fn the_quota_bounds_a_session() {
        let target = start(config());
        let mut a = Client::connect(options(&target, 1).quota(2).handles(8)).unwrap();
        put(&mut a, 0, b"x");
        put(&mut a, 1, b"x");
        a.set_bound(0);
        let third = handle(&a, 2);
        let mut buffer = filled(&a, b"x");
        assert_eq!(
            status_of(a.alloc_store(third, &mut buffer, &StoreOptions::default())),
            Some(Status::NoSpace)
        );
    }

    #[test]
    fn sessions_are_dealt_to_the_workers() {
        let target = start(config());
        let mut clients: Vec<_> = (1..5).map(|n| client(&target, n)).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            put(client, 0, &[u8::try_from(n).unwrap(); 10]);
        }
        let status = target.status();
        let mut workers: Vec<_> = status.sessions.iter().map(|s| s.worker).collect();
        workers.sort_unstable();
        assert_eq!(workers, [0, 0, 1, 1]);
        assert_eq!(status.workers_silent, 0);
        // Blocks stored on one worker are loaded on the other.
        let handles: Vec<_> = clients.iter().map(|c| handle(c, 0)).collect();
        for client in &mut clients {
            for (n, handle) in handles.iter().enumerate() {
                let mut buffer = client.register(BLOCK).unwrap();
                client
                    .load(*handle, &mut buffer, &LoadOptions::default())
                    .unwrap();
                assert_eq!(
                    buffer.to_vec().unwrap()[..10],
                    [u8::try_from(n).unwrap(); 10]
                );
            }
        }
    }

    #[test]
    //= test kbtp-p8-second-session-replaces
    fn a_second_session_replaces_the_first_and_keeps_its_blocks() {
        let target = start(config());
        let mut first = client(&target, 1);
        put(&mut first, 0, b"kept");
        let mut second = client(&target, 1);
        assert_eq!(first.handles(), second.handles());
        assert_eq!(&get(&mut second, 0).unwrap()[..4], b"kept");
        get(&mut first, 0).expect_err("the first is closed");
        assert!(!first.is_connected());
        assert_eq!(target.status().sessions.len(), 1);
        let text = target.metrics();
        assert_eq!(
            metric(&text, "kbtp_session_ends_total{reason=\"replaced\"}"),
            Some(1)
        );
    }

    #[test]
    fn a_range_is_resumed_within_its_lease() {
        let target = start(config());
        let mut first = client(&target, 1);
        put(&mut first, 0, b"kept");
        let handles = first.handles();
        first.close().unwrap();
        until("a lease", || target.status().leases.len() == 1);
        let lease = &target.status().leases[0];
        assert_eq!(lease.bound, 1);
        assert!(lease.left_ns.is_some_and(|ns| ns > 0));
        let mut second = client(&target, 1);
        assert_eq!(second.handles(), handles);
        assert_eq!(&get(&mut second, 0).unwrap()[..4], b"kept");
        assert!(target.status().leases.is_empty());
    }

    #[test]
    fn a_lease_runs_out_by_itself() {
        let mut config = config();
        config.lease = Lease::For(Duration::from_millis(30));
        let target = start(config);
        let mut first = client(&target, 1);
        put(&mut first, 0, b"gone");
        first.close().unwrap();
        until("the range is released", || {
            metric(&target.metrics(), "kbtp_leases_expired_total") == Some(1)
        });
        assert!(target.status().leases.is_empty());
        assert_eq!(target.status().pool.blocks_free, 64);
        let mut second = client(&target, 1);
        assert_eq!(status_of(get(&mut second, 0)), Some(Status::NotValid));
    }

    #[test]
    fn a_drain_answers_then_ends() {
        let mut config = config();
        config.limits.drain_linger = Duration::from_secs(5);
        let target = start(config);
        let admin = target.admin_address().unwrap();
        let mut a = client(&target, 1);
        put(&mut a, 0, b"x");
        assert!(ask(admin, "/readyz").starts_with("HTTP/1.1 200"));
        let shutdown = target.shutdown_handle();
        shutdown.drain();
        assert!(ask(admin, "/readyz").starts_with("HTTP/1.1 503"));
        assert!(ask(admin, "/healthz").starts_with("HTTP/1.1 200"));
        assert_eq!(status_of(get(&mut a, 0)), Some(Status::ShuttingDown));
        let late = Client::connect(options(&target, 2));
        assert_eq!(refusal(late), Status::ShuttingDown);
        let address = target.address().unwrap();
        shutdown.kill();
        target.join().unwrap();
        assert!(TcpStream::connect(address).is_err());
        get(&mut a, 0).expect_err("the stream is closed");
    }

    #[test]
    fn a_drain_ends_by_itself() {
        let target = start(config());
        let mut a = client(&target, 1);
        put(&mut a, 0, b"x");
        target.shutdown_handle().drain();
        target.join().unwrap();
        get(&mut a, 0).expect_err("the stream is closed");
    }

    #[test]
    fn the_admin_endpoint_tells_what_goes_on() {
        let target = start(config());
        let admin = target.admin_address().unwrap();
        let mut a = client(&target, 0xab);
        put(&mut a, 0, &pattern(1, 3000));
        get(&mut a, 0).unwrap();
        let text = ask(admin, "/metrics");
        for (series, expected) in [
            ("kbtp_requests_total{op=\"alloc_store\",status=\"ok\"}", 1),
            ("kbtp_requests_total{op=\"load\",status=\"ok\"}", 1),
            ("kbtp_octets_stored_total", 3000),
            ("kbtp_octets_loaded_total", 3000),
            ("kbtp_sessions", 1),
            ("kbtp_half_open", 0),
            ("kbtp_request_seconds_count", 2),
            ("kbtp_quota_granted_blocks", 8),
            ("kbtp_blocks{state=\"free\"}", 63),
        ] {
            assert_eq!(metric(&text, series), Some(expected), "{series}\n{text}");
        }
        assert!(text.contains("engine=\"software\",transport=\"iwarp-tcp\""));
        let reply = ask(admin, "/status");
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        let status: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(status["phase"], "running");
        assert_eq!(status["pool"]["blocks"], 64);
        let session = &status["sessions"][0];
        let id = "abababab-abab-abab-abab-abababababab";
        assert_eq!(session["initiator"], id);
        assert_eq!(
            (&session["quota"], &session["usage"]),
            (&8.into(), &1.into())
        );
        assert!(ask(admin, "/nothing").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn tenants_are_authenticated_and_kept_apart() {
        let tenant = |name: &str, key| TenantConfig {
            name: name.to_owned(),
            key: Some(TenantKey::new(vec![key; 32])),
            key_file: None,
            shared: false,
        };
        let mut config = config();
        config.tenants = vec![tenant("blue", 1), tenant("red", 2)];
        let target = start(config);
        let connect =
            |n, name: &str, key: u8| Client::connect(options(&target, n).tenant(name, &[key; 32]));
        for refused in [connect(9, "blue", 2), connect(9, "green", 1)] {
            assert_eq!(refusal(refused), Status::NotAuthorized);
        }
        let mut blue = connect(1, "blue", 1).unwrap();
        put(&mut blue, 0, b"blue");
        let mut red = connect(1, "red", 2).unwrap();
        let mut buffer = red.register(BLOCK).unwrap();
        assert_eq!(
            status_of(red.load(handle(&blue, 0), &mut buffer, &LoadOptions::default())),
            Some(Status::NotValid)
        );
    }

    #[test]
    fn too_many_sessions_are_turned_away() {
        let mut config = config();
        config.limits.sessions = 2;
        let target = start(config);
        let _kept = (client(&target, 1), client(&target, 2));
        Client::connect(options(&target, 3)).expect_err("there are two already");
        assert_eq!(
            metric(&target.metrics(), "kbtp_streams_turned_away_total"),
            Some(1)
        );
    }

    #[test]
    fn direct_modes_reach_table_ring_and_pool() {
        let target = start(config());
        let direct = options(&target, 1).direct_load(true).direct_alloc(true);
        let mut a = Client::connect(direct).unwrap();
        let session = &target.status().sessions[0];
        assert_eq!(session.capabilities, ["direct_load", "direct_alloc"]);
        let mut freed = 0;
        // More often than there are blocks in the partition, so that the ring goes round.
        for n in 0..20 {
            let data = pattern(u8::try_from(n).unwrap(), 3000);
            let mut buffer = filled(&a, &data);
            let first = handle(&a, n % 4);
            let stored = a
                .alloc_direct(first, &mut buffer, &StoreOptions::default())
                .unwrap();
            let mut loaded = a.register(BLOCK).unwrap();
            let only = LoadOptions {
                generation: Some(stored.generation),
                ..LoadOptions::default()
            };
            a.load_direct(first, &mut loaded, &only).unwrap();
            assert_eq!(loaded.to_vec().unwrap()[..3000], data);
            a.free(first, &FreeOptions::default()).unwrap();
            freed += 1;
        }
        let text = target.metrics();
        assert_eq!(
            metric(&text, "kbtp_requests_total{op=\"bind\",status=\"ok\"}"),
            Some(freed)
        );
        assert_eq!(metric(&text, "kbtp_blocks{state=\"bound\"}"), Some(0));
        assert_eq!(metric(&text, "kbtp_blocks{state=\"partitioned\"}"), Some(8));
        assert_eq!(metric(&text, "kbtp_tickets_outstanding"), Some(0));
    }

    /// What one initiator does in one session, by a seed: some blocks in, out and freed, some left behind.
    fn visit(target: &Target, n: u8, seed: u64) -> Result<(), ClientError> {
        let direct = seed.is_multiple_of(2);
        let options = options(target, n).direct_alloc(direct).direct_load(direct);
        let mut a = Client::connect(options)?;
        let data = pattern(n, 100 + 10 * usize::from(seed.to_le_bytes()[1]));
        for k in 0..6 {
            let mut buffer = filled(&a, &data);
            let at = handle(&a, k);
            let store = StoreOptions::default();
            if a.terms().grant.capabilities.0 & 2 != 0 {
                a.alloc_direct(at, &mut buffer, &store)?;
            } else {
                a.alloc_store(at, &mut buffer, &store)?;
            }
            assert_eq!(get(&mut a, k)?[..data.len()], data);
            if (seed >> k).is_multiple_of(2) {
                a.free(at, &FreeOptions::default())?;
            }
        }
        match seed % 3 {
            // In order, or just gone.
            0 => a.close(),
            _ => Ok(()),
        }
    }

    #[test]
    fn churn_leaves_nothing_behind() {
        let mut config = config();
        config.lease = Lease::For(Duration::ZERO);
        let target = start(config);
        let cut_off = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0_u8..4 {
                let (target, cut_off) = (&target, &cut_off);
                scope.spawn(move || {
                    for round in 0..30_u64 {
                        // Two threads share each initiator, so that they replace one another at any moment.
                        let seed = (round + 7 * u64::from(thread)).wrapping_mul(2_654_435_761);
                        if visit(target, thread / 2, seed).is_err() {
                            cut_off.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        until("all sessions end", || {
            metric(&target.metrics(), "kbtp_sessions") == Some(0)
                && metric(&target.metrics(), "kbtp_quota_granted_blocks") == Some(0)
        });
        let audit = target.audit();
        assert_eq!(audit.faults, Vec::<String>::new());
        assert_eq!((audit.in_rings, audit.bound, audit.elsewhere), (64, 0, 0));
        let text = target.metrics();
        for gauge in [
            "kbtp_half_open",
            "kbtp_requests_in_flight",
            "kbtp_blocks{state=\"bound\"}",
            "kbtp_blocks{state=\"pinned\"}",
            "kbtp_blocks{state=\"deferred\"}",
            "kbtp_tickets_outstanding",
            "kbtp_leases",
        ] {
            assert_eq!(metric(&text, gauge), Some(0), "{gauge}");
        }
        let internal = "kbtp_session_ends_total{reason=\"internal\"}";
        assert_eq!(metric(&text, internal), Some(0));
        // Both kinds of ending were met.
        let replaced = "kbtp_session_ends_total{reason=\"replaced\"}";
        assert!(metric(&text, replaced) > Some(0));
        assert!(cut_off.into_inner() < 120, "some visits went undisturbed");
    }

    #[test]
    fn an_unsealed_block_may_be_loaded_while_it_is_stored() {
        let mut config = config();
        config.block_size = 1 << 20;
        config.blocks = 16;
        let target = start(config);
        let mut writer = client(&target, 1);
        let mut reader = client(&target, 2);
        let at = handle(&writer, 0);
        let open = StoreOptions {
            seal: false,
            ..StoreOptions::default()
        };
        let mut buffers: Vec<_> = (1..3)
            .map(|octet| filled(&writer, &vec![octet; 1 << 20]))
            .collect();
        writer.alloc_store(at, &mut buffers[0], &open).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..500 {
                    writer.store(at, &mut buffers[n % 2], &open).unwrap();
                }
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            let mut buffer = reader.register(1 << 20).unwrap();
            let unsealed = LoadOptions {
                allow_unsealed: true,
                ..LoadOptions::default()
            };
            let mut loads = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                reader.load(at, &mut buffer, &unsealed).unwrap();
                let octets = buffer.to_vec().unwrap();
                // Old, new, or some of each.
                assert!(octets.iter().all(|octet| (1..3).contains(octet)));
                loads += 1;
            }
            assert!(loads > 0);
        });
    }

    #[test]
    fn strangers_do_not_disturb() {
        let target = start(config());
        let address = target.address().unwrap();
        let mut a = client(&target, 1);
        put(&mut a, 0, b"kept");
        for octets in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0; 4096],
            &[0xff; 4096],
            b"",
        ] {
            let mut socket = TcpStream::connect(address).unwrap();
            // The target may have reset the connection already.
            let _reset = socket.write_all(octets);
            let _reset = socket.shutdown(std::net::Shutdown::Write);
            let _reset = socket.read_to_end(&mut Vec::new());
        }
        assert_eq!(&get(&mut a, 0).unwrap()[..4], b"kept");
        let status = target.status();
        assert_eq!((status.sessions.len(), status.workers_silent), (1, 0));
        until("the strangers are counted", || {
            let failed = "kbtp_connections_total{result=\"failed\"}";
            metric(&target.metrics(), failed) == Some(4)
        });
    }

    #[test]
    fn a_dropped_target_lets_go_of_its_port() {
        let target = start(config());
        let address = target.address().unwrap();
        let mut a = client(&target, 1);
        drop(target);
        get(&mut a, 0).expect_err("the stream is closed");
        let mut again = config();
        again.listen = vec![address];
        start(again);
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let target = start(config());
        let mut second = config();
        second.listen = target.addresses().to_vec();
        let error = Target::start(second).map(|_| ()).expect_err("taken");
        let port = target.address().unwrap().port().to_string();
        assert!(error.to_string().contains(&port), "{error}");
    }
}
