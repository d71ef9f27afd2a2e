//! A listener whose process is out of descriptors. A limit of the whole process: a test binary of its own.

#[cfg(test)]
mod tests {
    use kbtp_iwarp_tcp::{Answer, Clock, ListenOptions, Listener, Poller, Request, Spin, limits};
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::net::TcpStream;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn it_pauses_and_goes_on_when_there_is_one() {
        let clock = Clock::new();
        let end = clock.now().after_ms(30_000);
        let mut accept = |_: &Request<'_>| Answer::Accept {
            private_data: Vec::new(),
        };
        let mut poller = Poller::new(Spin::Off).unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let mut listener = Listener::bind(at, ListenOptions::default()).unwrap();
        let interest = kbtp_iwarp_tcp::Interest::READ;
        poller.add(listener.as_fd(), 1, interest).unwrap();
        let spare = TcpStream::connect(listener.local_addr()).unwrap();
        let client = TcpStream::connect(listener.local_addr()).unwrap();
        // No descriptor above those that are open.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let open = u64::try_from(client.as_raw_fd()).unwrap() + 1;
        setrlimit(Resource::RLIMIT_NOFILE, open, hard).unwrap();

        poller.wait(Some(end)).unwrap();
        let now = clock.now();
        assert!(listener.progress(now, &mut accept).unwrap().is_none());
        let counters = listener.counters();
        assert_eq!((counters.exhausted, counters.connections), (1, 0));
        // Nothing is reported meanwhile, though the connections still wait: no loop runs hot.
        let resumes = now.after_ms(limits::ACCEPT_PAUSE_MS);
        assert_eq!(listener.next_timeout(), Some(resumes));
        poller.wait(Some(clock.now())).unwrap();
        assert_eq!(poller.ready().len(), 0);

        drop(spare);
        while listener.counters().connections == 0 {
            let now = clock.now();
            assert!(now < end, "it does not go on");
            assert!(listener.progress(now, &mut accept).unwrap().is_none());
            let until = listener.next_timeout().map_or(end, |at| at.min(end));
            poller.wait(Some(until)).unwrap();
        }
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        drop(client);
    }
}
