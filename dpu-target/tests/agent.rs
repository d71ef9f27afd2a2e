//! A target that takes its pool from a host agent: what outlives the target, and what ends it.

#[cfg(test)]
mod tests {
    use kbtp_agent::{AgentConfig, Server, Shutdown};
    use kbtp_initiator::{
        Client, ClientError, FreeOptions, Handle, InitiatorId, LoadOptions, Options, Spin, Status,
        StoreOptions,
    };
    use kbtp_target::{SpinPolicy, StartError, Target, TargetConfig};
    use std::io::{BufRead, BufReader, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    const BLOCK: u32 = 4096;
    const BLOCKS: u32 = 64;

    fn config(socket: &Path) -> TargetConfig {
        let mut config = TargetConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: None,
            workers: Some(2),
            agent: Some(socket.to_owned()),
            default_quota: Some(32),
            credits: 8,
            max_inline: 256,
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        };
        config.limits.drain_linger = Duration::from_millis(50);
        config
    }

    fn client(address: &impl ToString) -> Client {
        let options = Options::new(address.to_string())
            .initiator_id(InitiatorId([1; 16]))
            .spin(Spin::Off);
        Client::connect(options).expect("a session")
    }

    fn client_of(target: &Target) -> Client {
        client(&target.address().unwrap())
    }

    /// What block `n` holds after round `round`: no two are alike.
    fn pattern(n: u64, round: u64) -> Vec<u8> {
        let seed = (n * 97 + round * 31).to_le_bytes()[0];
        (0..2000_u16)
            .map(|i| i.to_le_bytes()[0].wrapping_mul(7).wrapping_add(seed))
            .collect()
    }

    fn put(client: &mut Client, n: u64, data: &[u8]) -> Result<(), ClientError> {
        let mut buffer = client.register(BLOCK)?;
        buffer.fill(data)?;
        let handle = Handle(client.handles().0.0 + n);
        client.alloc_store(handle, &mut buffer, &StoreOptions::default())?;
        Ok(())
    }

    fn get(client: &mut Client, n: u64) -> Result<Vec<u8>, ClientError> {
        let mut buffer = client.register(BLOCK)?;
        let handle = Handle(client.handles().0.0 + n);
        let done = client.load(handle, &mut buffer, &LoadOptions::default())?;
        let mut octets = buffer.to_vec()?;
        octets.truncate(usize::try_from(done.len.0).unwrap_or(usize::MAX));
        Ok(octets)
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let clock = kbtp_iwarp_tcp::Clock::new();
        let deadline = clock.now().after_ms(20_000);
        while !holds() {
            assert!(clock.now() < deadline, "{what}: not in time");
            std::thread::yield_now();
        }
    }

    /// A directory of this test's own.
    fn scratch(name: &str) -> PathBuf {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Runs `test` beside an agent whose socket it is given.
    fn with_agent(name: &str, test: impl FnOnce(&Path, &kbtp_agent::ShutdownHandle)) {
        let dir = scratch(name);
        let socket = dir.join("agent.sock");
        let config = AgentConfig::new(&socket, BLOCK, BLOCKS);
        let server = Server::bind(&config).unwrap();
        let (shutdown, handle) = Shutdown::new().unwrap();
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| server.run(&shutdown));
            test(&socket, &handle);
            handle.request();
            agent.join().unwrap().unwrap();
        });
        std::fs::remove_dir_all(dir).unwrap();
    }

    fn start(socket: &Path) -> Target {
        Target::start(config(socket)).expect("a target starts")
    }

    #[test]
    fn an_agent_keeps_the_blocks_over_a_restart() {
        with_agent("restart", |socket, _| {
            let target = start(socket);
            let mut a = client_of(&target);
            put(&mut a, 3, &pattern(3, 0)).unwrap();
            let before = target.status();
            target.shutdown_handle().drain();
            target.join().unwrap();
            let target = start(socket);
            let after = target.status();
            assert_eq!(after.instance, before.instance, "no block was lost");
            assert_eq!((after.pool.blocks_bound, after.leases.len()), (1, 1));
            let mut a = client_of(&target);
            assert_eq!(get(&mut a, 3).unwrap(), pattern(3, 0));
        });
    }

    #[test]
    fn an_agent_that_stops_drains_the_target() {
        with_agent("stop", |socket, agent| {
            let target = start(socket);
            let mut a = client_of(&target);
            put(&mut a, 0, b"x").unwrap();
            agent.request();
            target.join().unwrap();
            get(&mut a, 0).expect_err("the stream is closed");
        });
    }

    #[test]
    fn a_second_target_is_refused() {
        with_agent("second", |socket, _| {
            let _target = start(socket);
            let error = Target::start(config(socket)).map(|_| ()).expect_err("busy");
            let pid = std::process::id().to_string();
            assert!(error.to_string().contains(&pid), "{error}");
        });
    }

    type Change = fn(&mut TargetConfig);

    #[test]
    fn quotas_and_checks_go_by_the_agents_pool() {
        with_agent("shape", |socket, _| {
            let quiet = || TargetConfig {
                default_quota: None,
                // As the file may have it: without effect on the agent's pool.
                blocks: 0,
                ..config(socket)
            };
            let target = Target::start(quiet()).unwrap();
            let session = client_of(&target);
            assert_eq!(session.terms().grant.quota, BLOCKS / 4);
            session.close().unwrap();
            target.shutdown_handle().drain();
            target.join().unwrap();
            let wrong: [(&str, Change); 3] = [
                ("default_quota = 65", |c| c.default_quota = Some(65)),
                ("handles = 63", |c| c.handles = Some(63)),
                ("max_inline = 8KiB", |c| c.max_inline = 8192),
            ];
            for (said, change) in wrong {
                let mut config = quiet();
                change(&mut config);
                let error = Target::start(config).map(|_| ()).expect_err(said);
                assert!(matches!(error, StartError::Config(_)), "{error}");
                assert!(error.to_string().starts_with(said), "{error}");
            }
        });
    }

    #[test]
    fn no_agent_is_said_with_its_socket() {
        let socket = scratch("none").join("agent.sock");
        let error = Target::start(config(&socket))
            .map(|_| ())
            .expect_err("none");
        assert!(error.to_string().contains("agent.sock"), "{error}");
        std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }

    /// Not a test by itself: a target in a process that can be killed.
    #[test]
    #[ignore = "run by a_killed_target_leaves_its_blocks_to_the_next"]
    fn child_serves_until_killed() {
        let socket = std::env::var_os("KBTP_TEST_AGENT").expect("the socket of an agent");
        let target = start(Path::new(&socket));
        println!("\nserving {}", target.address().unwrap());
        std::io::stdout().flush().unwrap();
        target.join().unwrap();
    }

    /// Such a process, and its target's address.
    fn child(socket: &Path) -> (Child, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::child_serves_until_killed"])
            .args(["--ignored", "--nocapture"])
            .env("KBTP_TEST_AGENT", socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let address = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .find_map(|line| line.unwrap().strip_prefix("serving ").map(str::to_owned))
            .expect("the child serves");
        (child, address)
    }

    #[test]
    fn a_killed_target_leaves_its_blocks_to_the_next() {
        with_agent("kill", |socket, _| {
            for round in 0..4_u64 {
                let (mut killed, address) = child(socket);
                let a = client(&address);
                let mut stored = 0;
                let (tell, progress) = std::sync::mpsc::channel();
                std::thread::scope(|scope| {
                    let storing = scope.spawn(|| {
                        // Until the target is gone, or the quota is full.
                        let mut a = a;
                        let free = FreeOptions::default();
                        for n in 0..32 {
                            let at = Handle(a.handles().0.0 + n);
                            let freed = a.free(at, &free);
                            if freed.is_err_and(|e| e.status() != Some(Status::NotValid))
                                || put(&mut a, n, &pattern(n, round)).is_err()
                            {
                                return n;
                            }
                            // Nobody listens once the target was killed.
                            let _killed = tell.send(n);
                        }
                        32
                    });
                    // SIGKILL while it stores, each time at another point: it has no chance to tidy up.
                    let enough = 3 + 6 * round;
                    while progress.recv().is_ok_and(|n| n < enough) {}
                    killed.kill().unwrap();
                    killed.wait().unwrap();
                    stored = storing.join().unwrap();
                });
                let target = start(socket);
                let mut a = client_of(&target);
                for n in 0..stored {
                    assert_eq!(get(&mut a, n).unwrap(), pattern(n, round), "{n} of {round}");
                }
                // The rest is what it was before, or gone; never half of something.
                for n in stored..32 {
                    match get(&mut a, n) {
                        Ok(octets) => {
                            let whole = (0..=round).any(|r| octets == pattern(n, r));
                            assert!(whole, "{n} of {round}");
                        }
                        Err(e) => assert_eq!(e.status(), Some(Status::NotValid)),
                    }
                }
                a.close().unwrap();
                until("the session ends", || target.status().sessions.is_empty());
                assert_eq!(target.audit().faults, Vec::<String>::new());
                target.shutdown_handle().drain();
                target.join().unwrap();
            }
        });
    }
}
