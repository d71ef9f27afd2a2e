//! Commands, octet for octet: positions counted by hand from the published layouts.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use kbtp_mlx5::{AccessRights, Cqn, Klm, KsmEntry, Mkey, Qpn};
    use kbtp_mlx5_devx::command::{check, number, object};
    use kbtp_mlx5_devx::hca::{Atomics, General, Kind, Sharing, query};
    use kbtp_mlx5_devx::key::Key;
    use kbtp_mlx5_devx::queue::{
        CompletionQueue, Connection, InUmem, QueuePair, progress, to_error, to_reset,
    };
    use kbtp_mlx5_devx::{Command, alias};

    /// The octets that are not zero, each run with where it starts.
    fn runs(command: &Command) -> Vec<(usize, Vec<u8>)> {
        let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
        for (at, octet) in command.as_octets().iter().enumerate() {
            if *octet == 0 {
                continue;
            }
            match runs.last_mut() {
                Some((from, run)) if *from + run.len() == at => run.push(*octet),
                _ => runs.push((at, vec![*octet])),
            }
        }
        runs
    }

    fn key() -> Key {
        Key {
            domain: 0x00ab_cdef,
            rights: AccessRights::LOCAL_READ
                .with(AccessRights::LOCAL_WRITE)
                .with(AccessRights::REMOTE_READ),
            start: 0x0102_0304_0506_0708,
            len: 3 << 12,
            tag: 0x42,
            qpn: None,
            remote_invalidate: false,
            relaxed_ordering: false,
        }
    }

    #[test]
    fn a_key_over_memory() {
        let command = key().over_memory(0x11, 0x2000);
        assert_eq!(command.as_octets().len(), 272);
        assert_eq!(
            runs(&command),
            [
                (0, vec![0x02]),
                // mkey_umem_valid
                (12, vec![0x40]),
                // 16 + 2: rr, lw, lr, access mode 1
                (18, vec![0b0001_1101]),
                // any queue pair, and the tag
                (20, vec![0xff, 0xff, 0xff, 0x42]),
                // the domain, and the first address
                (29, vec![0xab, 0xcd, 0xef, 1, 2, 3, 4, 5, 6, 7, 8]),
                (46, vec![0x30]),
                // two times eight octets for three pages
                (71, vec![2]),
                (75, vec![12]),
                (99, vec![2]),
                (103, vec![0x11]),
                (110, vec![0x20]),
            ]
        );
    }

    #[test]
    fn keys_over_other_keys() {
        let pieces = [Klm {
            len: 0x80,
            mkey: Mkey(0x0a0b_0c0d),
            address: 0x1000,
        }; 2];
        let command = key().over_pieces(&pieces);
        // The list is as long as a device reads it: four times 16 octets.
        assert_eq!(command.as_octets().len(), 272 + 64);
        let mut octets = runs(&command);
        let list = octets.split_off(8);
        assert_eq!(octets[1], (18, vec![0b0001_1110]), "access mode 2");
        assert_eq!(octets[5], (71, vec![2]));
        assert_eq!(octets[6], (99, vec![4]));
        assert_eq!(octets[7], (275, vec![0x80, 0x0a, 0x0b, 0x0c, 0x0d]));
        assert_eq!(list[0], (286, vec![0x10]));
        assert_eq!(list.len(), 3);

        let pieces = [KsmEntry {
            mkey: Mkey(0x0a0b_0c0d),
            address: 0x1000,
        }; 4];
        let command = key().over_equal_pieces(16, &pieces);
        let octets = runs(&command);
        assert!(octets.contains(&(18, vec![0b0001_1111])), "access mode 3");
        assert!(octets.contains(&(75, vec![16])), "{octets:02x?}");
        assert!(octets.contains(&(276, vec![0x0a, 0x0b, 0x0c, 0x0d])));

        let bound = Key {
            qpn: Qpn::new(0x1234),
            remote_invalidate: true,
            relaxed_ordering: true,
            ..key()
        };
        let octets = runs(&bound.for_umr(3));
        // free; relaxed order; may be changed by UMR
        assert!(
            octets.contains(&(16, vec![0x40, 0x04, 0b1001_1110])),
            "{octets:02x?}"
        );
        assert!(octets.contains(&(21, vec![0x12, 0x34, 0x42])));
        assert_eq!(
            bound.for_umr(3).as_octets()[28..32],
            [0x01, 0xab, 0xcd, 0xef]
        );
        assert!(octets.contains(&(71, vec![4])));
    }

    #[test]
    fn a_completion_queue() {
        let queue = CompletionQueue {
            ring: InUmem {
                umem: 7,
                offset: 0x3000,
            },
            log_size: 9,
            doorbell: InUmem {
                umem: 8,
                offset: 0x40,
            },
            uar: 0x0001_0203,
            eqn: 5,
            overrun_ignored: true,
        };
        assert_eq!(
            runs(&queue.create()),
            [
                (0, vec![0x04]),
                // doorbell record by umem; overruns ignored
                (16, vec![0x02, 0x02]),
                (23, vec![8]),
                (28, vec![9, 1, 2, 3]),
                (39, vec![5]),
                (79, vec![0x40]),
                (86, vec![0x30]),
                (91, vec![7]),
                (92, vec![0x80]),
            ]
            .into_iter()
            .fold(Vec::new(), join)
        );
    }

    /// Joins runs that meet.
    fn join(mut runs: Vec<(usize, Vec<u8>)>, next: (usize, Vec<u8>)) -> Vec<(usize, Vec<u8>)> {
        match runs.last_mut() {
            Some((from, run)) if *from + run.len() == next.0 => run.extend(next.1),
            _ => runs.push(next),
        }
        runs
    }

    #[test]
    fn a_managed_queue_pair() {
        let pair = QueuePair {
            domain: 6,
            send_cq: Cqn::truncate(0x81),
            receive_cq: Cqn::truncate(0x82),
            rings: InUmem {
                umem: 9,
                offset: 0x1000,
            },
            log_send: 11,
            log_receive: 6,
            log_stride: 8,
            doorbell: InUmem {
                umem: 10,
                offset: 0x80,
            },
            uar: 3,
            master: true,
            managed_send: true,
            managed_receive: false,
        };
        let expected = [
            (0, vec![0x05]),
            // 24: the context. Path state: migrated.
            (26, vec![0x18]),
            (31, vec![6]),
            // 24 + 8: log_rq_size 6 in bits 0x49..0x4d, log_rq_stride 4 in 0x4d..0x50, log_sq_size 11 in 0x51..0x55
            (33, vec![0b0011_0100, 0b0101_1000]),
            (39, vec![3]),
            (41, vec![0xff, 0xff, 0xff]),
            (151, vec![0x81]),
            // cd_slave_send, cd_master
            (171, vec![0x03]),
            (183, vec![0x82]),
            (191, vec![0x80]),
            // 0x683: doorbell record by umem
            (232, vec![0x10]),
            (255, vec![10]),
            (262, vec![0x10]),
            (267, vec![9]),
            (268, vec![0x80]),
        ];
        assert_eq!(
            runs(&pair.create()),
            expected.into_iter().fold(Vec::new(), join)
        );
    }

    fn connection() -> Connection {
        Connection {
            qpn: Qpn::truncate(0x0012_3456),
            peer: Qpn::truncate(0x0065_4321),
            gid: [0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
            mac: [0xa, 0xb, 0xc, 0xd, 0xe, 0xf],
            gid_index: 3,
            port: 1,
            mtu: 5,
            loopback: true,
            send_psn: 0x0001_0203,
            receive_psn: 0x0004_0506,
            log_message: 12,
            log_reads_out: 4,
            log_reads_in: 4,
            hop_limit: 64,
            traffic_class: 0x20,
            rnr_retry: 7,
            access: [true, true, true],
        }
    }

    #[test]
    fn the_steps_of_a_connection() {
        let init = runs(&connection().to_init());
        assert_eq!(init[0], (0, vec![0x05, 0x02]));
        assert_eq!(init[1], (9, vec![0x12, 0x34, 0x56]));
        // 24 + 145: atomic mode 3 in 0x48c..0x490, then read, write, atomic
        assert!(init.contains(&(169, vec![0x03, 0xe0])), "{init:02x?}");
        // 24 + 24 + 37: the port
        assert!(init.contains(&(85, vec![1])), "{init:02x?}");

        let ready = connection().to_ready_to_receive();
        let octets = ready.as_octets();
        assert_eq!(octets[..2], [0x05, 0x03]);
        // MTU 5 and log of the message 12, then the peer
        assert_eq!(octets[32], 0b1010_1100);
        assert_eq!(octets[45..48], [0x65, 0x43, 0x21]);
        // the path: loopback, GRH, index of the address, hop limit
        assert_eq!((octets[48], octets[53]), (0x80, 0x80));
        assert_eq!((octets[57], octets[59]), (3, 64));
        // Traffic class 0x20 in 0x64..0x6c of it, and a UDP port of those set apart
        assert_eq!(octets[60..62], [0x02, 0x00]);
        assert_eq!(octets[82..84], [0xe4, 0xd6]);
        assert_eq!(octets[64..80], connection().gid);
        assert_eq!(octets[86..92], connection().mac);
        assert_eq!(octets[173..176], [4, 5, 6]);

        let send = connection().to_ready_to_send();
        let octets = send.as_octets();
        assert_eq!(octets[..2], [0x05, 0x04]);
        // reads 4 in 0x388..0x38b, retries 7 in 0x38d..0x390, RNR 7 in 0x390..0x393
        assert_eq!(octets[137..139], [0b1000_0111, 0b1110_0000]);
        assert_eq!(octets[145..148], [1, 2, 3]);
        // ack timeout 14 in five bits
        assert_eq!(octets[56], 14 << 3);

        assert_eq!(to_error(Qpn::truncate(5)).as_octets()[..2], [0x05, 0x07]);
        assert_eq!(to_reset(Qpn::truncate(5)).as_octets()[..2], [0x05, 0x0a]);
        assert_eq!(to_reset(Qpn::truncate(5)).as_octets()[11], 5);
    }

    #[test]
    fn keys_of_other_functions() {
        let secret = [0x5a; 32];
        let allow = alias::allow(0x0000_1234, &secret);
        assert_eq!(allow.as_octets().len(), 64);
        assert_eq!(
            runs(&allow),
            [
                (0, vec![0x0b, 0x16]),
                (18, vec![0xff, 0x01]),
                (22, vec![0x12, 0x34]),
                (32, vec![0x5a; 32]),
            ]
        );
        let made = alias::create(0x0203, 0x0000_1234, &secret, 9);
        assert_eq!(made.as_octets().len(), 80);
        assert_eq!(
            runs(&made),
            [
                (0, vec![0x0a]),
                (6, vec![0xff, 0x01]),
                (12, vec![0x80]),
                (16, vec![0x02, 0x03]),
                (22, vec![0x12, 0x34]),
                (32, vec![0x5a; 32]),
                (67, vec![9]),
            ]
        );
        assert_eq!(alias::key(0x1234, 0), Mkey(0x0012_3400));
    }

    #[test]
    fn answers_are_read() {
        let request = to_reset(Qpn::truncate(1));
        let mut answer = [0; 16];
        answer[9..12].copy_from_slice(&[1, 2, 3]);
        assert_eq!(check(&request, &answer), Ok(()));
        assert_eq!(number(&answer), 0x0001_0203);
        assert_eq!(object(&answer), 0x0001_0203);
        answer[0] = 3;
        answer[4..8].copy_from_slice(&[0, 0xab, 0xcd, 0xef]);
        let refused = check(&request, &answer).unwrap_err();
        assert_eq!(refused.opcode, 0x50a);
        let text = refused.to_string();
        assert!(text.contains("bad parameter"), "{text}");
        assert!(text.contains("0x00abcdef"), "{text}");
        assert!(check(&request, &[]).is_err());
        let mut answer = [0; 272];
        answer[24] = 0x30;
        answer[24 + 0xb4..][..2].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(progress(&answer), (3, 0x1234));
    }

    #[test]
    fn what_a_device_can_do() {
        assert_eq!(
            query(Kind::General).as_octets()[..8],
            [1, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(query(Kind::General2).as_octets()[7], 0x41);
        let mut answer = vec![0; 4112];
        assert!(General::decode(&answer).lacks().is_some());
        let mut set = |bit: usize, value: u8| answer[16 + bit / 8] |= value;
        // cd, atomic; log_max_qp_sz 15; log_max_klm_list_size 16; vhca_id 2
        set(0x22c, 0x08);
        set(0x21e, 0x02);
        set(0x88, 15);
        set(0x118, 16);
        set(0x38, 2);
        let general = General::decode(&answer);
        assert_eq!(general.lacks(), None, "{general:?}");
        assert_eq!((general.vhca_id, general.log_max_queue), (2, 15));
        // repeated_block_disabled
        answer[16 + 0x40] |= 0x02;
        assert!(General::decode(&answer).lacks().unwrap().contains("repeat"));

        let mut answer = vec![0; 4112];
        answer[16 + 8] = 0x40;
        answer[16 + 0x13] = 0x0f;
        answer[16 + 0x17] = 0x0c;
        let atomics = Atomics::decode(&answer);
        assert!(atomics.reply_in_host_order && atomics.masked_8());
        assert!(!Atomics::decode(&[]).masked_8());
        answer[16 + 0x1f] = 1;
        answer[16 + 0x27] = 2;
        let sharing = Sharing::decode(&answer);
        assert_eq!((sharing.object_to_object, sharing.allowed), (1, 2));
    }
}
