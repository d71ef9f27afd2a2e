//! Descriptors and mappings come back. In a process of its own: it counts those of the whole process, agent and target
//! together.

#[cfg(test)]
mod tests {
    use kbtp_agent::{AgentConfig, Server, Shutdown};
    use kbtp_control::{AgentLink, ChannelOptions, RegionName, Role, TargetChannel};

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    fn mappings_of_ours() -> usize {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .filter(|line| line.contains("memfd:kbtp-"))
            .count()
    }

    fn cycle(options: &ChannelOptions, ring: &RegionName) {
        let mut target = TargetChannel::connect(options, Role::Target).unwrap();
        let pool = target.attach_pool().unwrap();
        let side = target.attach_side(ring, 4096).unwrap();
        pool.region.write(0, &[1]).unwrap();
        side.region.write(0, &[1]).unwrap();
    }

    #[test]
    fn a_thousand_attachments_leave_nothing_behind() {
        let path = std::env::temp_dir().join(format!("kbtp-fds-{}", std::process::id()));
        let server = Server::bind(&AgentConfig::new(&path, 4096, 4)).unwrap();
        let (shutdown, stop) = Shutdown::new().unwrap();
        let thread = std::thread::Builder::new()
            .spawn(move || server.run(&shutdown))
            .unwrap();
        let options = ChannelOptions::new(&path);
        let ring = RegionName::new("ring").unwrap();
        cycle(&options, &ring);
        // An observer's answer comes after the agent has seen the target before it off.
        let settled = || {
            let mut observer = TargetChannel::connect(&options, Role::Observer).unwrap();
            while observer.status().unwrap().clients > 1 {}
            (descriptors(), mappings_of_ours())
        };
        let before = settled();
        assert_eq!(before.1, 2, "the agent's own");
        for _ in 0..1000 {
            cycle(&options, &ring);
        }
        assert_eq!(settled(), before);
        stop.request();
        thread.join().unwrap().unwrap();
        let mut lock = path.into_os_string();
        lock.push(".lock");
        std::fs::remove_file(lock).unwrap();
    }
}
