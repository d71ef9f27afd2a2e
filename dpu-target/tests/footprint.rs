//! What a session costs the target in memory, held to `docs/SPECIFICATION.md`; `examples/footprint.rs` measures more.

#[cfg(test)]
mod tests {
    use kbtp_initiator::{Client, Options};
    use kbtp_target::{SpinPolicy, Target, TargetConfig};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};

    const SESSIONS: u64 = 128;

    /// A target in a process of its own, so that its memory is not that of the initiators.
    struct Served {
        child: Child,
        /// Open until it ends, as it has more to say.
        _output: BufReader<ChildStdout>,
        address: String,
    }

    impl Served {
        fn start() -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tests::child", "--ignored", "--nocapture"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let address = output
                .by_ref()
                .lines()
                .find_map(|line| line.unwrap().strip_prefix("serving ").map(str::to_owned))
                .expect("the child serves");
            Self {
                child,
                _output: output,
                address,
            }
        }

        /// Octets on a line of its `/proc` status.
        fn memory(&self, name: &str) -> u64 {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
            let status = status.unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.unwrap().trim().trim_end_matches("kB").trim();
            kib.parse::<u64>().unwrap() * 1024
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            // It ends when its input does.
            drop(self.child.stdin.take());
            self.child.wait().unwrap();
        }
    }

    #[test]
    #[ignore = "run by a_session_costs_what_is_promised"]
    fn child() {
        let target = Target::start(TargetConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: None,
            block_size: 4096,
            blocks: 1024,
            // A range takes 64 at least.
            handles: Some(1 << 16),
            default_quota: Some(1),
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        })
        .unwrap();
        println!("\nserving {}", target.address().unwrap());
        std::io::stdout().flush().unwrap();
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        target.shutdown_handle().kill();
        target.join().unwrap();
    }

    #[test]
    fn a_session_costs_what_is_promised() {
        let served = Served::start();
        let connect =
            |_| Client::connect(Options::new(served.address.as_str()).quota(1).handles(1));
        // What comes once, with the first sessions, is not counted.
        let _first: Vec<_> = (0..8).map(|n| connect(n).unwrap()).collect();
        let now = || (served.memory("VmRSS:"), served.memory("VmData:"));
        let before = now();
        let clients: Vec<_> = (0..SESSIONS).map(|n| connect(n).unwrap()).collect();
        let after = now();
        let idle = (after.0 - before.0) / SESSIONS;
        let most = (after.1 - before.1) / SESSIONS;
        println!("{idle} octets each resident, {most} at most");
        assert!((10_000..=100_000).contains(&idle), "{idle} octets resident");
        assert!((idle..=1_000_000).contains(&most), "{most} octets at most");
        drop(clients);
    }
}
