//! Regions and gather/scatter lists, from outside the crate.

#[cfg(test)]
mod tests {
    use kbtp_memory::limits::{MAX_REGION_LEN, MAX_VEC_ENTRIES};
    use kbtp_memory::{
        AccessError, Got, HUGE_PAGE_LEN, Huge, HugePages, MapError, PageOptions, ReadVec, Reason,
        Region, WriteVec, crc32c,
    };
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use proptest::prelude::*;
    use std::io::{self, Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    const LEN: u64 = 10_000;

    fn region(len: u64) -> Region {
        Region::anonymous(len, &PageOptions::default()).unwrap()
    }

    fn memfd(len: u64) -> Region {
        Region::memfd("test", len, &PageOptions::default()).unwrap()
    }

    fn contents(region: &Region) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(region.len()).unwrap()];
        region.read(0, &mut octets).unwrap();
        octets
    }

    fn socket_pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::Unix,
            SockType::Stream,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )
        .unwrap()
    }

    #[test]
    fn a_region_is_shared_between_threads() {
        const fn assert_send_sync<T: Send + Sync + Clone>() {}
        assert_send_sync::<Region>();
        let region = region(64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        region.u64_at(8).unwrap().fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(region.u64_at(8).unwrap().load(Ordering::Relaxed), 2000);
    }

    #[test]
    fn lengths_no_machine_can_map_are_errors() {
        let options = PageOptions::default();
        for len in [0, MAX_REGION_LEN + 1, u64::MAX, u64::MAX - 4095] {
            assert!(matches!(
                Region::anonymous(len, &options),
                Err(MapError::Length { len: l }) if l == len
            ));
            assert!(matches!(
                Region::memfd("x", len, &options),
                Err(MapError::Length { .. })
            ));
        }
    }

    #[test]
    fn bounds_are_checked_without_overflow() {
        let region = region(LEN);
        let other = self::region(16);
        let ends = [
            (0, LEN + 1),
            (LEN, 1),
            (LEN + 1, 0),
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
        ];
        for (offset, len) in ends {
            let outside = Err(AccessError::Bounds {
                offset,
                len,
                region_len: LEN,
            });
            assert_eq!(region.zero(offset, len), outside);
            assert_eq!(region.fill(offset, len, 1), outside);
            assert_eq!(region.crc32c(offset, len, 0).map(drop), outside);
            assert!(region.copy_from(&region, 0, offset, len).is_err());
            assert_eq!(region.copy_from(&region, offset, 0, len), outside);
            assert_eq!(ReadVec::new().push_region(&region, offset, len), outside);
            assert_eq!(WriteVec::new().push_region(&region, offset, len), outside);
            if let Some(end) = offset.checked_add(len) {
                assert_eq!(region.sub(offset..end).map(drop), outside);
            }
        }
        assert!(region.copy_from(&other, 8, 0, 9).is_err());
        assert!(region.read(LEN - 3, &mut [0; 4]).is_err());
        assert!(region.write(LEN - 3, &[0; 4]).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "such a range must be refused")]
        let reversed = region.sub(5..4);
        assert!(reversed.is_err());
        // The very end is inside, for nothing.
        assert_eq!(region.zero(LEN, 0), Ok(()));
        assert!(region.sub(LEN..LEN).unwrap().is_empty());
    }

    #[test]
    fn words_need_alignment_and_room() {
        let region = region(20);
        assert!(region.u32_at(16).is_ok());
        assert!(region.u64_at(8).is_ok());
        let misaligned = |align| move |offset| AccessError::Misaligned { offset, align };
        for offset in [1, 2, 3, 5] {
            assert_eq!(region.u32_at(offset).err(), Some(misaligned(4)(offset)));
        }
        assert_eq!(region.u64_at(4).err(), Some(misaligned(8)(4)));
        assert!(matches!(region.u32_at(20), Err(AccessError::Bounds { .. })));
        assert!(matches!(region.u64_at(16), Err(AccessError::Bounds { .. })));
        assert!(matches!(
            region.u64_at(u64::MAX),
            Err(AccessError::Bounds { .. })
        ));
        // A view that begins in the middle of a word: what counts is the address.
        let odd = region.sub(2..20).unwrap();
        assert!(odd.u32_at(0).is_err());
        odd.u32_at(2).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(region.u32_at(4).unwrap().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_view_of_a_view_lies_where_it_should_and_cannot_leave() {
        let region = region(LEN);
        let view = region.sub(100..200).unwrap();
        let inner = view.sub(10..20).unwrap();
        inner.fill(0, 10, 0xab).unwrap();
        assert!(inner.fill(0, 11, 1).is_err());
        assert!(view.sub(0..101).is_err());
        let all = contents(&region);
        for (i, octet) in all.iter().enumerate() {
            assert_eq!(*octet == 0xab, (110..120).contains(&i), "octet {i}");
        }
        drop(region);
        assert_eq!(contents(&inner), [0xab; 10]);
        assert_eq!(inner.file_offset(), 110);
    }

    #[test]
    fn a_handed_over_memfd_is_the_same_memory() {
        let made = memfd(LEN);
        let fd = made.fd().unwrap().try_clone_to_owned().unwrap();
        let taken = Region::from_fd(fd, LEN).unwrap();
        assert_ne!(made.as_ptr(), taken.as_ptr());
        made.write(5000, b"from the maker").unwrap();
        let mut got = [0; 14];
        taken.read(5000, &mut got).unwrap();
        assert_eq!(&got, b"from the maker");
        taken.u32_at(4).unwrap().store(9, Ordering::Release);
        drop(taken);
        assert_eq!(made.u32_at(4).unwrap().load(Ordering::Acquire), 9);
        // The memory outlives the region that made it, as long as a descriptor does.
        let fd = made.fd().unwrap().try_clone_to_owned().unwrap();
        drop(made);
        let again = Region::from_fd(fd, LEN).unwrap();
        again.read(5000, &mut got).unwrap();
        assert_eq!(&got, b"from the maker");
    }

    #[test]
    fn a_memfd_can_neither_shrink_nor_grow() {
        let region = memfd(LEN);
        let fd = region.fd().unwrap();
        assert!(nix::unistd::ftruncate(fd, 0).is_err());
        assert!(nix::unistd::ftruncate(fd, 1 << 20).is_err());
        assert!(fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    }

    #[test]
    fn lists_are_copied_in_their_order_and_no_further_than_they_go() {
        let region = region(4096);
        let mut slice = [0; 5];
        let mut to = ReadVec::new();
        to.push_region(&region, 10, 3).unwrap();
        to.push_slice(&mut slice).unwrap();
        to.push_region(&region, 100, 2).unwrap();
        assert_eq!(to.copy_from(&[]), 0);
        assert_eq!(to.copy_from(b"abcdefghijkl"), 10, "as much as the list has");
        assert_eq!(&contents(&region)[9..14], b"\0abc\0");
        assert_eq!(&contents(&region)[99..103], b"\0ij\0");
        assert_eq!(&slice, b"defgh");

        let mut from = WriteVec::new();
        from.push_region(&region, 100, 2).unwrap();
        from.push_slice(&slice).unwrap();
        from.push_region(&region, 10, 3).unwrap();
        let mut octets = [b'.'; 12];
        assert_eq!(from.copy_to(&mut octets), 10);
        assert_eq!(&octets, b"ijdefghabc..");
        assert_eq!(
            from.copy_to(&mut octets[..4]),
            4,
            "as much as there is room"
        );
        assert_eq!(from.copy_to(&mut []), 0);
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        let unsealed = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&unsealed, 8192).unwrap();
        let fd = unsealed.try_clone().unwrap();
        assert!(matches!(
            Region::from_fd(fd, 8192),
            Err(MapError::NotSealed)
        ));
        // Sealed against growing only.
        let grow = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW);
        fcntl(&unsealed, grow).unwrap();
        let fd = unsealed.try_clone().unwrap();
        assert!(matches!(
            Region::from_fd(fd, 8192),
            Err(MapError::NotSealed)
        ));
        let shrink = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK);
        fcntl(&unsealed, shrink).unwrap();
        Region::from_fd(unsealed, 8192).unwrap();
        // Files that know no seals.
        let (socket, _peer) = socket_pair();
        assert!(matches!(
            Region::from_fd(socket, 1),
            Err(MapError::NotSealed)
        ));
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let region = memfd(4096);
        let fd = || region.fd().unwrap().try_clone_to_owned().unwrap();
        assert!(matches!(
            Region::from_fd(fd(), 4097),
            Err(MapError::FileTooShort {
                have: 4096,
                need: 4097
            })
        ));
        assert!(matches!(
            Region::from_fd(fd(), 0),
            Err(MapError::Length { len: 0 })
        ));
        assert!(Region::from_fd(fd(), u64::MAX).is_err());
        assert_eq!(Region::from_fd(fd(), 100).unwrap().len(), 100);
    }

    #[test]
    fn the_report_says_what_was_got_and_why_not() {
        let never = PageOptions {
            huge: Huge::Never,
            ..PageOptions::default()
        };
        let report = *Region::anonymous(LEN, &never).unwrap().page_report();
        let not_asked = Reason::NotAsked;
        assert_eq!(
            report.huge,
            HugePages::Ordinary {
                reserved: not_asked,
                transparent: not_asked
            }
        );
        assert_eq!(report.locked, Got::No(not_asked));
        assert_eq!(report.no_dump, Got::Yes);

        let small = *region(LEN).page_report();
        assert!(matches!(
            small.huge,
            HugePages::Ordinary {
                reserved: Reason::TooSmall,
                ..
            }
        ));
        assert!(small.to_string().contains("smaller than a hugepage"));

        // What this machine has is not known here, but it must be said, and the memory must work either way.
        let wish = PageOptions {
            huge: Huge::Prefer,
            lock: true,
            numa_node: Some(0),
            populate: true,
        };
        for region in [
            Region::anonymous(2 * HUGE_PAGE_LEN + 5, &wish).unwrap(),
            Region::memfd("huge", 2 * HUGE_PAGE_LEN + 5, &wish).unwrap(),
        ] {
            let report = *region.page_report();
            assert_eq!(region.len(), 2 * HUGE_PAGE_LEN + 5);
            region.fill(2 * HUGE_PAGE_LEN, 5, 1).unwrap();
            assert!(region.fill(2 * HUGE_PAGE_LEN, 6, 1).is_err());
            let asked = |got| got != Got::No(Reason::NotAsked);
            assert!(asked(report.locked) && asked(report.numa_bound) && asked(report.populated));
            assert_eq!(report.numa_node, Some(0));
            if let HugePages::Ordinary {
                reserved,
                transparent,
            } = report.huge
            {
                assert!(matches!(reserved, Reason::Refused(_)), "{report}");
                assert_ne!(transparent, Reason::NotAsked, "{report}");
            }
        }
    }

    #[test]
    fn a_numa_node_that_no_machine_has_is_reported() {
        for node in [1023, 1024, u32::MAX] {
            let options = PageOptions {
                numa_node: Some(node),
                ..PageOptions::default()
            };
            let region = Region::anonymous(LEN, &options).unwrap();
            assert!(matches!(
                region.page_report().numa_bound,
                Got::No(Reason::Refused(_))
            ));
            region.zero(0, LEN).unwrap();
        }
    }

    #[test]
    fn required_hugepages_are_got_or_an_error() {
        let options = PageOptions {
            huge: Huge::Require,
            ..PageOptions::default()
        };
        // Small on purpose: "require" rounds up where "prefer" would not waste a hugepage.
        for made in [
            Region::memfd("huge", 4096, &options),
            Region::anonymous(4096, &options),
        ] {
            match made {
                Ok(region) => {
                    let huge = region.page_report().huge;
                    assert!(matches!(
                        huge,
                        HugePages::Reserved {
                            page_len: HUGE_PAGE_LEN
                        }
                    ));
                    if let Some(fd) = region.fd() {
                        let taken = Region::from_fd(fd.try_clone_to_owned().unwrap(), 4096);
                        assert_eq!(taken.unwrap().page_report().huge, huge);
                    }
                }
                Err(error) => assert!(matches!(error, MapError::NoHugePages { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn octets_cross_a_socket_between_slices_and_regions() {
        let (a, b) = socket_pair();
        let source = memfd(LEN);
        let sink = region(LEN);
        source.write(100, b"the payload").unwrap();
        let mut gather = WriteVec::new();
        gather.push_slice(b"head").unwrap();
        gather.push_region(&source, 100, 11).unwrap();
        gather.push_slice(b"").unwrap();
        gather.push_slice(b"tail").unwrap();
        assert_eq!((gather.octets(), gather.entries()), (19, 3));
        assert_eq!(gather.send_to(a.as_fd(), false).unwrap(), 19);
        assert_eq!(gather.write_to(a.as_fd()).unwrap(), 19);

        for _ in 0..2 {
            let (mut head, mut tail) = ([0; 4], [0; 4]);
            let mut scatter = ReadVec::new();
            scatter.push_slice(&mut head).unwrap();
            scatter.push_region(&sink, LEN - 11, 11).unwrap();
            scatter.push_slice(&mut tail).unwrap();
            assert_eq!(scatter.read_from(b.as_fd()).unwrap(), 19);
            assert_eq!((&head, &tail), (b"head", b"tail"));
            assert!(contents(&sink).ends_with(b"the payload"));
            sink.zero(0, LEN).unwrap();
        }

        let would_block = |r: io::Result<usize>| r.unwrap_err().kind() == io::ErrorKind::WouldBlock;
        let mut one = [0];
        let mut scatter = ReadVec::new();
        scatter.push_slice(&mut one).unwrap();
        assert!(would_block(scatter.read_from(b.as_fd())));
        let full = region(8 << 20);
        let mut gather = WriteVec::new();
        gather.push_region(&full, 0, full.len()).unwrap();
        let taken = gather.send_to(a.as_fd(), false).unwrap();
        assert!(taken < gather.octets());
        assert!(would_block(gather.send_to(a.as_fd(), false)));

        drop(b);
        // A peer that is gone is an error and not a signal.
        let gone = gather.send_to(a.as_fd(), false).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn the_end_of_a_stream_reads_as_nothing() {
        let (a, b) = socket_pair();
        UnixStream::from(a).write_all(b"x").unwrap();
        let mut octets = [0; 2];
        let mut scatter = ReadVec::new();
        scatter.push_slice(&mut octets).unwrap();
        assert_eq!(scatter.read_from(b.as_fd()).unwrap(), 1);
        assert_eq!(scatter.read_from(b.as_fd()).unwrap(), 0);
        assert_eq!(octets, [b'x', 0]);
        drop(UnixStream::from(b).read(&mut octets));
    }

    #[test]
    fn a_full_list_says_so_and_keeps_what_it_has() {
        let region = region(LEN);
        let mut gather = WriteVec::new();
        for i in 0..MAX_VEC_ENTRIES {
            assert_eq!(gather.room(), MAX_VEC_ENTRIES - i);
            gather.push_region(&region, i as u64, 1).unwrap();
        }
        let full = Err(AccessError::ListFull {
            limit: MAX_VEC_ENTRIES,
        });
        assert_eq!(gather.push_region(&region, 0, 1), full);
        assert_eq!(gather.push_slice(b"x"), full);
        assert_eq!(gather.push_slice(b""), Ok(()));
        assert_eq!((gather.octets(), gather.room()), (MAX_VEC_ENTRIES, 0));
        let (a, b) = socket_pair();
        assert_eq!(gather.send_to(a.as_fd(), true).unwrap(), MAX_VEC_ENTRIES);
        let mut octets = [[0; 1]; MAX_VEC_ENTRIES];
        let mut scatter = ReadVec::new();
        for octet in &mut octets {
            scatter.push_slice(octet).unwrap();
        }
        assert_eq!(scatter.read_from(b.as_fd()).unwrap(), MAX_VEC_ENTRIES);
    }

    /// One step of the model test: what is done to the region, and to a plain vector that it must equal.
    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Fill(u64, u64, u8),
        Copy(u64, u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = || 0..600_u64;
        prop_oneof![
            (at(), proptest::collection::vec(any::<u8>(), 0..80))
                .prop_map(|(o, d)| Step::Write(o, d)),
            (at(), at(), any::<u8>()).prop_map(|(o, l, x)| Step::Fill(o, l, x)),
            (at(), at(), at()).prop_map(|(s, d, l)| Step::Copy(s, d, l)),
        ]
    }

    proptest! {
        #[test]
        fn a_region_is_a_checked_array(steps in proptest::collection::vec(step(), 1..40), start in 0..100_u64) {
            const VIEW: usize = 512;
            let size = |n: u64| usize::try_from(n).unwrap();
            let whole = memfd(1024);
            let region = whole.sub(start..start + VIEW as u64).unwrap();
            let mut model = vec![0_u8; VIEW];
            for step in steps {
                match step {
                    Step::Write(offset, data) => {
                        let fits = size(offset) + data.len() <= VIEW;
                        prop_assert_eq!(region.write(offset, &data).is_ok(), fits);
                        if fits {
                            model[size(offset)..][..data.len()].copy_from_slice(&data);
                        }
                    }
                    Step::Fill(offset, len, octet) => {
                        let fits = size(offset + len) <= VIEW;
                        prop_assert_eq!(region.fill(offset, len, octet).is_ok(), fits);
                        if fits {
                            model[size(offset)..size(offset + len)].fill(octet);
                        }
                    }
                    Step::Copy(from, to, len) => {
                        let fits = size(from.max(to) + len) <= VIEW;
                        prop_assert_eq!(region.copy_from(&region, from, to, len).is_ok(), fits);
                        if fits {
                            model.copy_within(size(from)..size(from + len), size(to));
                        }
                    }
                }
            }
            prop_assert_eq!(contents(&region), &model[..]);
            prop_assert_eq!(region.crc32c(0, VIEW as u64, 0).unwrap(), crc32c::crc32c(&model));
            let mut state = crc32c::Crc32c::resume(7);
            state.update_region(&region, 3, 200).unwrap();
            prop_assert_eq!(state.value(), crc32c::update(7, &model[3..203]));
            // Nothing outside the view changed.
            let all = contents(&whole);
            let outside = all.iter().enumerate().filter(|(i, _)| !(size(start)..size(start) + VIEW).contains(i));
            prop_assert!(outside.map(|(_, octet)| *octet).all(|octet| octet == 0));
        }
    }
}
